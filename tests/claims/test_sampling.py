"""Who takes part: draws have the stated rates, and are accounted for as they are drawn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coalmine.claims import EveryRound, Poisson, parse_sampling
from coalmine.claims.sampling import AtMost, Epochs, FixedSize, Last, Observed, Scheduled
from coalmine.errors import InputError


def presence(sampling, count, rounds, seed=0):
    """Return who takes part in each round, (rounds, count)."""
    rows = np.zeros((rounds, count), dtype=int)
    for round in range(rounds):
        present = sampling.draw(count, rounds, seed=seed, round=round)
        assert np.array_equal(present, np.unique(present))
        rows[round, present] += 1
    return rows


@given(st.integers(1, 60), st.integers(1, 30), st.integers(1, 12), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_everybody_takes_part_once_per_epoch(count, rounds, epochs, seed):
    sampling = Epochs(min(epochs, rounds))
    rows = presence(sampling, count, rounds, seed)
    numbers = [sampling.epoch(rounds, t)[0] for t in range(rounds)]
    for epoch in range(sampling.epochs):
        assert (rows[np.equal(numbers, epoch)].sum(axis=0) == 1).all()


@pytest.mark.parametrize(("rounds", "epochs"), [(7, 3), (10, 4), (5, 5), (6, 1)])
def test_epochs_are_consecutive_and_differ_by_at_most_one_round(rounds, epochs):
    sampling = Epochs(epochs)
    parts = [sampling.epoch(rounds, round) for round in range(rounds)]
    starts = sorted({start for _, start, _ in parts})
    lengths = np.diff([*starts, rounds])
    assert (starts[0], len(starts)) == (0, epochs)
    assert lengths.max() - lengths.min() <= 1
    for round, (number, start, stop) in enumerate(parts):
        assert start == starts[number] <= round < stop == [*starts, rounds][number + 1]
        assert sampling.expected(100, rounds, round) == 100 / (stop - start)


def test_epochs_spread_participants_evenly_over_rounds_that_are_equally_likely():
    rows = np.stack([presence(Epochs(2), 7, 8, seed) for seed in range(600)])
    assert set(np.unique(rows.sum(axis=2))) <= {1, 2}
    # 600 draws of probability 1/4: six standard errors are 0.106.
    assert np.abs(rows.mean(axis=0) - 0.25).max() < 0.106


def test_the_expected_number_is_the_mean_number():
    samplings = [Poisson(0.3), FixedSize(3, 10), FixedSize(2), Epochs(3), Last(2), EveryRound()]
    for sampling, rounds in [(sampling, 7) for sampling in samplings] + [(Scheduled([[0, 1], [], [2]]), 3)]:
        numbers = np.mean([presence(sampling, 6, rounds, seed).sum(axis=1) for seed in range(400)], axis=0)
        expected = [sampling.expected(6, rounds, t) for t in range(rounds)]
        # Each number has a variance of at most 6/4: five standard errors are 0.31.
        assert np.abs(numbers - expected).max() < 0.31


def test_a_fixed_size_is_kept_and_a_share_of_it_is_rounded_at_random():
    assert set(presence(FixedSize(3), 10, 50).sum(axis=1)) == {3}
    assert set(presence(FixedSize(30, 100), 10, 50).sum(axis=1)) == {3}
    sizes = presence(FixedSize(1, 4), 50, 200).sum(axis=1)
    assert set(sizes) == {12, 13}
    assert abs(sizes.mean() - 12.5) < 5 * 0.5 / np.sqrt(200)


def test_frozen_rounds_draw_anew_and_other_purposes_draw_differently():
    for sampling in (Poisson(0.5), FixedSize(20), Epochs(2), Scheduled([list(range(20))] * 4)):
        sampling.check(50, 4)
        draws = [sampling.draw(50, 4, seed=1, round=2, trial=trial).tolist() for trial in (0, 1, 2)]
        assert draws[1] != draws[2] != draws[0]
        assert sampling.draw(50, 4, seed=1, round=2).tolist() == draws[0]
    cohort, canaries = (
        Poisson(0.5).draw(50, 4, seed=1, round=2, purpose=p).tolist() for p in ("cohort", "participation")
    )
    assert cohort != canaries


def test_draws_do_not_change_between_versions():
    assert Poisson(0.3).draw(10, 5, seed=0, round=0).tolist() == [1, 4, 5]
    drawn = [Epochs(2).draw(6, 4, seed=0, round=t, purpose="participation").tolist() for t in range(4)]
    assert drawn == [[2, 3, 4], [0, 1, 5], [1, 2, 5], [0, 3, 4]]


@pytest.mark.parametrize(
    ("sampling", "accounted"),
    [
        (Poisson(0.3), Poisson(0.3)),
        (EveryRound(), EveryRound()),
        (FixedSize(1, 4), FixedSize(3, 10)),
        (FixedSize(3), FixedSize(3, 10)),
        (Observed(3, 20), FixedSize(3, 20)),
        (Epochs(4), Epochs(4)),
        (Last(2), AtMost(2)),
        (AtMost(2), AtMost(2)),
        (Scheduled([[0, 1], [1], [1], [], []]), AtMost(3)),
    ],
)
def test_each_sampling_is_accounted_for_as_it_draws(sampling, accounted):
    assert sampling.accounted(10, 5) == accounted


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("poisson:0.1", Poisson(0.1)),
        ("poisson:5000/392000", Poisson(5000 / 392000)),
        ("fixed:3/12", FixedSize(3, 12)),
        ("fixed:3", FixedSize(3)),
        ("observed:3/12", Observed(3, 12)),
        ("epochs:3", Epochs(3)),
        ("last:2", Last(2)),
        ("at-most:2", AtMost(2)),
        ("every-round", EveryRound()),
    ],
)
def test_samplings_are_written_and_read(text, expected):
    assert parse_sampling(text) == expected
    assert parse_sampling(str(expected)) == expected


@pytest.mark.parametrize("text", ["", "sometimes", "poisson:", "poisson:x", "epochs:1.5", "every-round:2"])
def test_unknown_samplings_are_errors(text):
    with pytest.raises(InputError, match="poisson:Q"):
        parse_sampling(text)


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (Epochs(6), "epochs = 6 .* 5 rounds"),
        (Last(6), "last:6 .* 5 rounds"),
        (FixedSize(4), "population of 3, got 4"),
        (Observed(1, 2), "too small for 3"),
        (Scheduled([[0]]), "schedule has 1 rounds, .* 5"),
        (Scheduled([[0]] * 4 + [[3]]), "participant 3.* 0 to 2"),
    ],
)
def test_samplings_that_do_not_fit_are_errors(sampling, message):
    with pytest.raises(InputError, match=message):
        sampling.check(3, 5)


def test_samplings_at_their_limits_fit():
    for sampling in (Epochs(5), Last(5), FixedSize(10), Observed(2, 10), Scheduled([[9]] * 5)):
        sampling.check(10, 5)


@pytest.mark.parametrize("wrong", [-0.1, 1.5, 1e-13, "0.5", float("nan")])
def test_rates_outside_their_range_are_errors(wrong):
    with pytest.raises(InputError):
        Poisson(wrong)


def test_numbers_that_are_not_whole_and_positive_are_errors():
    for make in (
        lambda: FixedSize(0),
        lambda: FixedSize(3, 2),
        lambda: Epochs(0),
        lambda: AtMost(1.5),
        lambda: Last(0),
    ):
        with pytest.raises(InputError):
            make()


def test_only_samplings_that_say_who_takes_part_can_be_drawn():
    for sampling in (AtMost(2), Observed(2, 10)):
        with pytest.raises(InputError):
            sampling.draw(4, 5, seed=0, round=0)
