"""The terms of a claim: how they are read, changed and written, and the grid of privacy losses."""

import math

import pytest

from coalmine.claims import Claim, Poisson
from coalmine.claims.accountants import extent_of, pld_step
from coalmine.claims.claim import parse_claim
from coalmine.claims.sampling import AtMost, Epochs, Last, Scheduled
from coalmine.errors import InputError
from coalmine.seeds import generator
from coalmine.stats.tradeoff import ApproximateDP


@pytest.mark.parametrize(
    ("text", "claim"),
    [
        ("8", Claim(epsilon=8.0, delta=1e-5)),
        ("epsilon=8", Claim(epsilon=8.0, delta=1e-5)),
        ("noise=2", Claim(noise_multiplier=2.0, rounds=1, delta=1e-5)),
        ("noise=2,epsilon=1.5", Claim(noise_multiplier=2.0, epsilon=1.5, rounds=1, delta=1e-5)),
        (
            "noise=2, sampling=poisson:0.1, rounds=7, accountant=rdp",
            Claim(noise_multiplier=2.0, sampling=Poisson(0.1), rounds=7, accountant="rdp", delta=1e-5),
        ),
    ],
)
def test_claims_are_read_from_text(text, claim):
    assert parse_claim(text, delta=1e-5) == claim


@pytest.mark.parametrize(
    "text", ["noise=1,noise=2", "rounds=3", "epsilon=2,rounds=3", "noise=x", "noise=1,epsilon=x", "noise=inf", ""]
)
def test_other_texts_are_refused(text):
    with pytest.raises(InputError, match="must look like"):
        parse_claim(text, delta=1e-5)


def test_a_claim_without_terms_is_none_and_each_kind_has_its_accountant():
    with pytest.raises(InputError, match="noise_multiplier or an epsilon"):
        Claim(delta=1e-5)
    assert Claim(epsilon=3.0, delta=1e-5).accountant == "claimed"
    assert Claim(local_epsilon=1.0, rounds=2, delta=1e-5).accountant == "pld"
    assert Claim(local_epsilon=1.0, rounds=2, delta=0.0).accountant == "pure"
    assert Claim(noise_multiplier=1.0, sampling=None, rounds=2, delta=1e-5).accountant == "none"
    assert Claim(noise_multiplier=1.0, rounds=2, delta=1e-5).accountant == "pld"


@pytest.mark.parametrize(
    "change", [{"noise_multiplier": 3.0}, {"noise_schedule": ((1.0, 2), (2.0, 3))}, {"sampling": Poisson(0.5)}]
)
def test_a_stated_epsilon_does_not_survive_other_terms(change):
    claim = Claim(epsilon=3.0, noise_multiplier=1.0, rounds=5, delta=1e-5, adjacency="replace-one")
    changed = claim.replace(**change)
    assert (changed.stated, changed.accountant, changed.adjacency) == (None, "pld", "add-or-remove-one")
    same = claim.replace(rounds=6)
    assert (same.stated, same.accountant, same.adjacency) == (3.0, "claimed", "replace-one")


@pytest.mark.parametrize(
    "claim",
    [
        Claim(epsilon=math.inf, sampling=None, delta=1e-5),
        Claim(noise_multiplier=1.0, sampling=None, rounds=2, delta=1e-5),
        Claim(epsilon=2.0, noise_multiplier=1.0, sampling=Poisson(0.1), rounds=2, delta=1e-5),
        Claim(noise_schedule=((4.0, 2), (5.0, 1)), delta=1e-5),
    ],
)
def test_written_claims_are_read_again(claim):
    content = claim.to_dict()
    assert content["sampling"] == ("unknown" if claim.sampling is None else str(claim.sampling))
    assert content["stated"] == (claim.stated is not None)
    assert Claim.from_dict(content).epsilon == claim.epsilon
    assert Claim.from_dict(content).to_dict() | {"stated": 0} == content | {"stated": 0}


@pytest.mark.parametrize("rounds", [10, 1_000, 100_000])
def test_the_grid_is_fine_enough_for_its_rounds(rounds):
    # Rounding adds at most step²/4 per round, a thousandth of ε in all; powers of two lose at most a factor of two.
    event, neighbors = Poisson(0.01).event([(4.0, rounds)])
    extent = extent_of(event, neighbors, quickly=True)
    limits = [max(1e-4, extent / 1e5), extent / 2e4, math.sqrt(2e-3 * extent / rounds)]
    step = pld_step(event, extent, 1)
    assert step <= max(min(limits), extent / 1e6) < 2 * step


def test_the_last_rounds_and_frozen_rounds_draw_from_their_own_streams():
    assert [Last(2).draw(3, rounds=4, seed=0, round=t).size for t in range(4)] == [0, 0, 3, 3]
    assert [Last(2).expected(3, rounds=4, round=t) for t in range(4)] == [0.0, 0.0, 3.0, 3.0]
    for trial in (1, 2):
        order = generator(5, "cohort", 1, 2 * trial, 3).permutation(10)
        slot = generator(5, "cohort", 1, 2 * trial + 1, 3).permutation(2)[1]
        drawn = Epochs(2).draw(10, rounds=4, seed=5, round=3, trial=trial)
        assert drawn.tolist() == sorted(order[5 * slot : 5 * slot + 5])


def test_many_rounds_need_a_finer_grid():
    event, _ = Poisson(0.01).event([(4.0, 7_900_000)])
    assert pld_step(event, 10.0, 1) == 0.5e-4  # √(2e-3 · 10 / 7.9e6) = 0.503e-4, down to a power of two of 1e-4


@pytest.mark.parametrize(
    ("terms", "has_noise"),
    [
        ({"noise_multiplier": 1.0, "rounds": 1}, True),
        ({"noise_multiplier": 1.0, "rounds": 3, "sampling": Poisson(0.5)}, True),
        ({"noise_schedule": ((1.0, 2), (2.0, 1)), "accountant": "rdp"}, True),
        ({"noise_multiplier": 1.0, "epsilon": 3.0, "rounds": 2, "accountant": "opacus-prv"}, True),
        ({"noise_multiplier": 1.0, "epsilon": 3.0, "rounds": 2, "accountant": "somebody"}, True),
        ({"noise_multiplier": 1.0}, False),
        ({"noise_multiplier": 0.0, "rounds": 1}, False),
        ({"noise_multiplier": 1.0, "rounds": 2, "sampling": None}, False),
        ({"noise_multiplier": 1.0, "rounds": 2, "sampling": Poisson(0.0)}, False),
        ({"epsilon": 3.0}, False),
        ({"local_epsilon": 0.5, "rounds": 3}, False),
    ],
)
def test_a_claim_has_noise_if_its_curve_follows_from_it(terms, has_noise):
    assert Claim(delta=1e-5, **terms).has_noise is has_noise


def test_without_sampling_any_noise_has_its_closed_form():
    # Nine rounds of a third of the noise are one Gaussian mechanism. At so little noise ε is about μ²/2.
    epsilon = Claim(noise_multiplier=3e-4, rounds=9, delta=1e-5).epsilon
    assert epsilon == pytest.approx(0.5e8 + 4.2649e4, rel=1e-5)


def test_a_schedule_draws_whom_it_lists_and_frozen_rounds_draw_as_many_anew():
    scheduled = Scheduled([[4, 1], [], [0, 2, 3]])
    assert [scheduled.draw(5, 3, seed=1, round=t).tolist() for t in range(3)] == [[1, 4], [], [0, 2, 3]]
    for trial in (1, 2):
        expected = generator(1, "cohort", 2, trial).choice(5, 3, replace=False)
        assert scheduled.draw(5, 3, seed=1, round=2, trial=trial).tolist() == sorted(expected)
    assert scheduled.draw(2, 3, seed=1, round=2, trial=1).tolist() == [0, 1]
    assert scheduled.draw(5, 3, seed=1, round=1, trial=1).tolist() == []


def test_a_schedule_fits_its_own_rounds_and_participants_and_no_others():
    scheduled = Scheduled([[4, 1], [], [0, 2, 3]])
    scheduled.check(5, 3)
    scheduled.check(9, 2)
    Scheduled([[], []]).check(1, 2)
    with pytest.raises(InputError, match=r"3 rounds.* 4"):
        scheduled.check(5, 4)
    with pytest.raises(InputError, match=r"participant 4.* 0 to 3"):
        scheduled.check(4, 3)
    with pytest.raises(InputError, match=r"round 1 .*twice"):
        Scheduled([[0, 1], [2, 2]])
    # Who takes part most often, in the rounds that count.
    assert Scheduled([[0, 1], [1], [0], [0]]).accounted(2, rounds=3) == AtMost(2)
    assert Scheduled([[], []]).accounted(2, rounds=2) == AtMost(1)


@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0])
def test_a_bare_claim_with_a_share_of_the_noise_is_divided_by_it(noise):
    assert Claim(epsilon=3.0, delta=1e-5).curve(noise) == ApproximateDP(3.0 / noise, 1e-5)


def test_noise_too_small_to_account_for_has_no_curve_of_its_own():
    """Twice as much would have one: the claim's own noise decides."""
    claim = Claim(noise_multiplier=0.02, sampling=Poisson(0.001), rounds=1000, delta=1e-5)
    assert not claim.has_noise
    assert claim.replace(noise_multiplier=0.04).has_noise


def test_a_schedule_can_be_remembered_by():
    """Curves are cached by sampling, so lists become tuples."""
    schedule = Scheduled([[0, 1], [1]])
    assert schedule == Scheduled(((0, 1), (1,)))
    assert hash(schedule) == hash(Scheduled(((0, 1), (1,))))


@pytest.mark.parametrize(("noise", "refutes"), [(1.0, True), (0.9, False), (1.1, False)])
def test_refuting_a_claim_about_the_same_noise_refutes_the_other(noise, refutes):
    one = Claim(noise_multiplier=noise, rounds=1, delta=1e-5)
    claim = Claim(noise_multiplier=1.0, rounds=3, delta=1e-5)
    assert one.tests(claim) is refutes
    # A canary is added, which moves the sum half as far as replacing a client does, but never the other way round.
    replacing = {"adjacency": "replace-one"}
    assert one.tests(claim.replace(**replacing)) is refutes
    assert not one.replace(**replacing).tests(claim)
