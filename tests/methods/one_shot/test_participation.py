import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coalmine.claims.sampling import AtMost, EveryRound, FixedSize, Poisson
from coalmine.errors import InputError
from coalmine.methods.one_shot.participation import (
    EpochParticipation,
    FixedShareParticipation,
    LastRoundsParticipation,
    ObservedParticipation,
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


@pytest.mark.parametrize(("rounds", "epochs"), [(7, 3), (10, 4), (5, 5), (6, 1)])
def test_epochs_are_consecutive_and_differ_by_at_most_one_round(rounds, epochs):
    rule = EpochParticipation(epochs)
    parts = [rule.epoch(rounds, round) for round in range(rounds)]
    starts = sorted({start for _, start, _ in parts})
    lengths = np.diff([*starts, rounds])
    assert starts[0] == 0
    assert len(starts) == epochs
    assert lengths.max() - lengths.min() <= 1
    for round, (number, start, stop) in enumerate(parts):
        assert start == starts[number] <= round < stop == [*starts, rounds][number + 1]
        assert rule.ends_epoch(rounds, round) == (round + 1 == stop)
        assert rule.rate(100, rounds, round) == 1 / (stop - start)
        # As many canaries in each round of an epoch, up to rounding.
        size = len(rule.present(100, rounds, 0, round))
        assert size in (100 // (stop - start), -(-100 // (stop - start)))


def test_only_epochs_end_and_only_a_single_epoch_is_a_secret_round():
    assert not PoissonParticipation(0.5).ends_epoch(4, 3)
    assert not PoissonParticipation(0.5).is_one_secret_round
    assert EpochParticipation(1).is_one_secret_round
    assert not EpochParticipation(2).is_one_secret_round
    assert not PoissonParticipation(0.5).drawn_by_training


def test_rules_at_their_limits_fit():
    PoissonParticipation(1.0)
    FixedShareParticipation(1.0)
    LastRoundsParticipation(5).check(10, 5)
    EpochParticipation(5).check(10, 5)
    ObservedParticipation(2, 10).check(10, 5)
    with pytest.raises(InputError):
        LastRoundsParticipation(6).check(10, 5)
    with pytest.raises(InputError):
        ObservedParticipation(2, 10).check(11, 5)


@pytest.mark.parametrize(("share", "count"), [(0.3, 10), (0.7, 10), (0.1, 30), (1.0, 7)])
def test_a_share_that_is_a_whole_number_of_canaries_is_that_number_in_every_round(share, count):
    rule = FixedShareParticipation(share)
    assert {len(rule.present(count, 50, 0, round)) for round in range(50)} == {round(share * count)}
    assert rule.sampling(count, 50) == FixedSize(round(share * count), count)


def test_the_last_rounds_have_all_canaries_and_the_others_none():
    rule = LastRoundsParticipation(2)
    assert [rule.rate(6, 5, round) for round in range(5)] == [0, 0, 0, 1, 1]
    assert [len(rule.present(6, 5, 0, round)) for round in range(5)] == [0, 0, 0, 6, 6]


def test_a_schedule_allows_as_many_rounds_as_its_most_frequent_canary_has():
    assert ScheduledParticipation([[0, 1], [2]]).sampling(4, 2) == AtMost(1)
    assert ScheduledParticipation([[], []]).sampling(4, 2) == AtMost(1)
    assert ScheduledParticipation([[0, 1], [1], [1, 3]]).sampling(4, 3) == AtMost(3)
    assert ScheduledParticipation([[3, 0], [2]]).rate(4, 2, 0) == 0.5
    assert ScheduledParticipation([[3, 0], [2]]).present(4, 2, 0, 0).tolist() == [0, 3]


def test_observed_draws_are_recorded_and_the_largest_share_is_accounted_for():
    rule = ObservedParticipation(4, 20)
    assert str(rule) == "observed:4/20"
    assert rule.rate(6, 3, 0) == 0.2
    assert rule.sampling(6, 3) == FixedSize(4, 20)
    rule.record(0, [5, 2])
    rule.record_aborted(0)
    rule.record_aborted(1)
    assert rule.present(6, 3, 0, 0).tolist() == [2, 5]
    assert rule.present(6, 3, 0, 1).tolist() == []
    with pytest.raises(InputError, match="round 2"):
        rule.present(6, 3, 0, 2)
    # As large a share, or a smaller one, needs no warning.
    assert rule.record_draw(0, 4, 20) is None
    assert rule.record_draw(0, 2, 10) is None
    assert rule.record_draw(1, 3, 16) is None
    assert rule.sampling(6, 3) == FixedSize(4, 20)
    assert "round 2: 5 of 21" in rule.record_draw(2, 5, 21)
    assert "round 3: 3 of 10" in rule.record_draw(3, 3, 10)
    assert "round 4: 5 of 18" in rule.record_draw(4, 5, 18)
    assert rule.sampling(6, 3) == FixedSize(3, 10)


def test_other_rules_ignore_what_the_training_draws():
    rule = PoissonParticipation(0.5)
    before = rule.present(8, 2, 0, 0).tolist()
    rule.record(0, [1])
    rule.record_aborted(0)
    assert rule.record_draw(0, 5, 6) is None
    assert rule.present(8, 2, 0, 0).tolist() == before
