import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coalmine.accounting.sampling import AtMost, EveryRound, FixedSize, Poisson
from coalmine.errors import InputError
from coalmine.methods.one_shot.participation import (
    EpochParticipation,
    FixedShareParticipation,
    LastRoundsParticipation,
    Participation,
    PoissonParticipation,
    ScheduledParticipation,
    parse_participation,
)


def times(participation: Participation, count: int, rounds: int, seed: int = 0) -> np.ndarray:
    """Return how often each canary takes part in each round, (rounds, count)."""
    presence = np.zeros((rounds, count), dtype=int)
    for round in range(rounds):
        present = participation.present(count, rounds, seed, round)
        assert np.array_equal(present, np.unique(present))
        presence[round, present] += 1
    return presence


@given(st.integers(1, 60), st.integers(1, 30), st.integers(1, 12), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_every_canary_takes_part_once_per_epoch(count, rounds, epochs, seed):
    epochs = min(epochs, rounds)
    rule = EpochParticipation(epochs)
    presence = times(rule, count, rounds, seed)
    numbers = [rule.epoch(rounds, t)[0] for t in range(rounds)]
    for epoch in range(epochs):
        assert (presence[np.equal(numbers, epoch)].sum(axis=0) == 1).all()
    ends = [t for t in range(rounds) if rule.ends_epoch(rounds, t)]
    assert ends == [t for t in range(rounds) if t + 1 == rounds or numbers[t] != numbers[t + 1]]


def test_epochs_spread_canaries_evenly_over_rounds_that_are_equally_likely():
    presence = np.stack([times(EpochParticipation(2), 7, 8, seed) for seed in range(600)])
    assert set(np.unique(presence.sum(axis=2))) <= {1, 2}
    share = presence.mean(axis=0)
    # 600 draws of probability 1/4: six standard errors are 0.106.
    assert np.abs(share - 0.25).max() < 0.106


def test_poisson_and_fixed_shares_have_their_rates():
    poisson = times(PoissonParticipation(0.2), 500, 40)
    assert abs(poisson.mean() - 0.2) < 5 * np.sqrt(0.16 / 20_000)
    fixed = times(FixedShareParticipation(0.25), 50, 200)
    assert set(np.unique(fixed.sum(axis=1))) == {12, 13}
    assert abs(fixed.sum(axis=1).mean() - 12.5) < 5 * 0.5 / np.sqrt(200)


def test_all_canaries_take_part_in_the_last_rounds():
    presence = times(LastRoundsParticipation(3), 4, 10)
    assert presence[:7].sum() == 0
    assert (presence[7:] == 1).all()
    assert (times(LastRoundsParticipation(), 4, 10) == 1).all()


def test_the_rate_is_the_mean_share():
    schedule = ScheduledParticipation([[0, 1], [], [2]])
    rules = [PoissonParticipation(0.3), FixedShareParticipation(0.3), EpochParticipation(3), LastRoundsParticipation(2)]
    for rule, rounds in [(rule, 7) for rule in rules] + [(schedule, 3)]:
        shares = np.mean([times(rule, 6, rounds, seed).mean(axis=1) for seed in range(400)], axis=0)
        expected = [rule.rate(6, rounds, t) for t in range(rounds)]
        # 2,400 coin flips per round: five standard errors are at most 0.051.
        assert np.abs(shares - expected).max() < 0.051


def test_each_rule_has_its_sampling():
    assert PoissonParticipation(0.3).sampling(10, 5) == Poisson(0.3)
    assert FixedShareParticipation(0.25).sampling(10, 5) == FixedSize(3, 10)
    assert FixedShareParticipation(0.07).sampling(100, 5) == FixedSize(7, 100)
    assert EpochParticipation(4).sampling(10, 5) == AtMost(4)
    assert LastRoundsParticipation(2).sampling(10, 5) == AtMost(2)
    assert LastRoundsParticipation().sampling(10, 5) == EveryRound()
    assert ScheduledParticipation([[0, 1], [1]]).sampling(2, 2) == AtMost(2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("poisson:0.1", PoissonParticipation(0.1)),
        ("fixed:0.25", FixedShareParticipation(0.25)),
        ("epochs:3", EpochParticipation(3)),
        ("last:2", LastRoundsParticipation(2)),
        ("every-round", LastRoundsParticipation()),
    ],
)
def test_participations_are_parsed(text, expected):
    assert parse_participation(text) == expected


@pytest.mark.parametrize("text", ["", "sometimes", "poisson:", "poisson:x", "epochs:1.5", "every-round:2", "last"])
def test_unknown_participations_are_errors(text):
    with pytest.raises(InputError, match="Available: poisson:Q"):
        parse_participation(text)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (EpochParticipation(6), "epochs = 6 .* 5 rounds"),
        (LastRoundsParticipation(6), "last = 6 .* 5 rounds"),
        (ScheduledParticipation([[0]]), "schedule has 1 rounds, .* 5"),
        (ScheduledParticipation([[0]] * 4 + [[3]]), "round 4 .* outside 0 to 2"),
        (ScheduledParticipation([[0]] * 4 + [[1, 1]]), "round 4 .* twice"),
    ],
)
def test_rules_that_do_not_fit_the_training_are_errors(rule, message):
    with pytest.raises(InputError, match=message):
        rule.check(3, 5)


def test_probabilities_outside_their_range_are_errors():
    for wrong in (-0.1, 0.0, 1.5):
        with pytest.raises(InputError):
            PoissonParticipation(wrong)
        with pytest.raises(InputError):
            FixedShareParticipation(wrong)
