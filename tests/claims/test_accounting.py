"""Claimed guarantees against closed forms, the papers' tables and an independent numerical integration."""

from __future__ import annotations

import json
import logging
import math
import tracemalloc
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import binom, norm

from coalmine.claims import (
    Claim,
    EveryRound,
    Poisson,
    Sampling,
    compose_rounds,
    noise_for,
    parse_sampling,
    round_epsilon,
)
from coalmine.claims.claim import noise_from_round_epsilon
from coalmine.claims.sampling import AtMost, Epochs, FixedSize
from coalmine.errors import InputError

ONE_SHOT = {"sampling": Poisson(167 / 341000), "rounds": 2048, "delta": 341000**-1.1}
SECRET_SHARER = Poisson(5000 / 392000)
CIFAR10 = {"sampling": Poisson(64 / 50000), "rounds": 39062, "delta": 1e-5}
CELEBA = {"sampling": Poisson(100 / 8408), "rounds": 2550, "delta": 1e-5}
SENT140 = {"sampling": Poisson(100 / 59214), "rounds": 8895, "delta": 1e-5}
SHAKESPEARE = {"sampling": Poisson(60 / 1016), "rounds": 510, "delta": 1e-5}


def as_printed(figure: str) -> Any:
    """Equal to a printed figure in all its digits."""
    return pytest.approx(float(figure), abs=0.501 * 10.0 ** -len(figure.partition(".")[2]), rel=0)


def epsilon(noise_multiplier: float, sampling: Sampling, rounds: int, delta: float, accountant: str = "pld") -> float:
    terms = Claim(
        noise_multiplier=noise_multiplier, sampling=sampling, rounds=rounds, delta=delta, accountant=accountant
    )
    return terms.epsilon


def renyi_divergence(q: float, noise: float, order: float) -> float:
    """Of the Poisson-sampled Gaussian from the Gaussian, by the trapezoidal rule, exact for such tails."""
    z = np.linspace(-40 * noise, order + 40 * noise, 200_001)
    log_ratio = np.logaddexp(math.log1p(-q), math.log(q) + (2 * z - 1) / (2 * noise**2))
    log_moment = logsumexp(order * log_ratio + norm.logpdf(z, scale=noise)) + math.log(z[1] - z[0])
    return float(log_moment / (order - 1))


def integrated_rdp_epsilon(noise: float, sampling: Poisson, rounds: int, delta: float) -> float:
    """ε by RDP with the divergences at Opacus's fractional orders integrated, and the improved conversion."""
    orders = [1 + x / 10 for x in range(1, 30)]
    return min(
        rounds * renyi_divergence(sampling.q, noise, a) + math.log1p(-1 / a) - math.log(delta * a) / (a - 1)
        for a in orders
    )


# The papers' figures


@pytest.mark.parametrize(
    ("noise", "figure"), [(0.0644, "100186"), (0.1023, "1003.96"), (0.1836, "100.089"), (0.2344, "50.118")]
)
def test_rdp_gives_the_one_shot_papers_epsilon(noise: float, figure: str) -> None:
    assert Claim(noise_multiplier=noise, **ONE_SHOT, accountant="rdp").epsilon == as_printed(figure)


@pytest.mark.parametrize(
    ("noise", "figure"), [(0.0644, "1003.9"), (0.1023, "369.2"), (0.1836, "86.97"), (0.2344, "42.62")]
)
def test_pld_shrinks_the_one_shot_papers_epsilon(noise: float, figure: str) -> None:
    assert Claim(noise_multiplier=noise, **ONE_SHOT).epsilon == as_printed(figure)


@pytest.mark.parametrize(
    ("accountant", "rounds", "figure"),
    [("rdp", 8000, "9.3978"), ("rdp", 800, "3.1696"), ("pld", 8000, "8.8265"), ("pld", 800, "2.8113")],
)
def test_poisson_sampling_gives_the_secret_sharers_epsilon(accountant: str, rounds: int, figure: str) -> None:
    assert epsilon(1, SECRET_SHARER, rounds, 1e-7, accountant) == as_printed(figure)


@pytest.mark.parametrize(
    ("accountant", "rounds", "figure"),
    [
        ("rdp", 8000, "18.0366"),
        ("rdp", 800, "5.1238"),
        ("rdp-mironov", 8000, "18.9914"),
        ("rdp-mironov", 800, "5.6645"),
        ("rdp-mironov", 7840, "18.773"),
        ("rdp-mironov", 784, "5.616"),
    ],
)
def test_fixed_size_rdp_gives_the_secret_sharer_papers_epsilon(accountant: str, rounds: int, figure: str) -> None:
    assert epsilon(1, FixedSize(5000, 392000), rounds, 1e-7, accountant) == as_printed(figure)


@pytest.mark.parametrize(
    ("noise", "delta", "rdp", "exact"), [(0.423, 1e-5, "13.1800", "12.3084"), (1, 0.01, "2.7531", "2.3178")]
)
def test_round_epsilon_gives_canifes_figures(noise: float, delta: float, rdp: str, exact: str) -> None:
    assert round_epsilon(noise_multiplier=noise, delta=delta, accountant="rdp") == as_printed(rdp)
    assert round_epsilon(noise_multiplier=noise, delta=delta) == as_printed(exact)
    assert round_epsilon(noise_multiplier=noise, delta=delta, accountant="pld") == as_printed(exact)


@pytest.mark.parametrize(
    ("noise", "training", "figure"),
    [(0.423, CIFAR10, 24.94), (0.4166, CELEBA, 50), (0.3206, SENT140, 50), (0.5067, SHAKESPEARE, 50)],
)
def test_rdp_lies_little_above_opacus(noise: float, training: dict[str, Any], figure: float) -> None:
    # The figures are Opacus's. At fractional orders dp-accounting adds up the absolute values of an alternating
    # series, and drops orders where that does not converge: a bound as well, but up to 7% larger. PLD is smaller.
    opacus = integrated_rdp_epsilon(noise, **training)
    assert opacus == pytest.approx(figure, rel=1e-3)
    assert opacus <= Claim(noise_multiplier=noise, **training, accountant="rdp").epsilon <= 1.07 * opacus
    assert Claim(noise_multiplier=noise, **training).epsilon < opacus


@pytest.mark.parametrize(
    ("training", "opacus"), [(CELEBA, 0.4166), (SENT140, 0.3206), (SHAKESPEARE, 0.5067)], ids=["celeba", "sent", "sh"]
)
def test_noise_for_asks_for_little_more_noise_than_opacus(training: dict[str, Any], opacus: float) -> None:
    assert opacus <= noise_for(epsilon=50, **training, accountant="rdp") <= 1.02 * opacus


def test_composing_canifes_rounds_the_papers_way_comes_out_low() -> None:
    celeba: dict[str, Any] = {"sampling": CELEBA["sampling"], "delta": 1e-5, "round_delta": 0.01}
    assert noise_from_round_epsilon(1, 0.01, "rdp") == as_printed("2.1989")
    assert noise_from_round_epsilon(1, 0.01) == as_printed("1.8779")
    assert compose_rounds([(1, 2550)], **celeba, inversion="rdp", accountant="rdp") == as_printed("1.206")
    assert compose_rounds([(1, 2550)], **celeba, accountant="rdp") == as_printed("1.473")
    # On a grid ten times coarser it is 1.348.
    assert compose_rounds([(1, 2550)], **celeba) == as_printed("1.3457")


@pytest.mark.parametrize(
    ("of", "delta", "figure"),
    [
        (0.5, 1e-5, 7.03182667558),
        (0.5, 1e-7, 8.9956815309),
        (1, 1e-5, 3.73063163482),
        (1, 1e-6, 4.22467888933),
        (3, 1e-6, 1.54386141778),
        (10, 1e-5, 0.499888619709),
        (10, 1e-7, 0.579576961418),
    ],
)
def test_exact_inversion_gives_the_analytic_gaussian_mechanisms_noise(of: float, delta: float, figure: float) -> None:
    assert noise_from_round_epsilon(of, delta) == pytest.approx(figure, rel=1e-10)
    assert round_epsilon(noise_multiplier=figure, delta=delta) == pytest.approx(of, rel=1e-10)


# Closed forms


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (40.0, 1000), (500.0, 10), (0.2, 20)])
def test_participating_every_round_is_one_gaussian_with_less_noise(noise: float, rounds: int) -> None:
    exact = round_epsilon(noise_multiplier=noise / math.sqrt(rounds), delta=1e-5)
    rdp, mironov = (epsilon(noise, EveryRound(), rounds, 1e-5, name) for name in ("rdp", "rdp-mironov"))
    assert epsilon(noise, EveryRound(), rounds, 1e-5) == pytest.approx(exact, rel=1e-4)
    assert exact <= rdp < mironov


def test_poisson_sampling_of_everybody_is_every_round() -> None:
    assert epsilon(30, Poisson(1), 25, 1e-5) == epsilon(30, EveryRound(), 25, 1e-5)


@pytest.mark.parametrize(("q", "noise"), [(0.01, 1.0), (0.3, 2.0), (0.5, 4.0)])
def test_one_poisson_round_matches_the_hockey_stick_in_closed_form(q: float, noise: float) -> None:
    delta = 1e-4
    value = epsilon(noise, Poisson(q), 1, delta)
    # The loss of the mixture against the Gaussian grows with x: the best event is {x > t}, where it equals ε.
    t = noise**2 * math.log((math.exp(value) - 1 + q) / q) + 0.5
    without = norm.sf(t / noise)
    assert q * norm.sf((t - 1) / noise) + (1 - q) * without - math.exp(value) * without == pytest.approx(
        delta, rel=1e-4
    )


@pytest.mark.parametrize("noise", [0.0297, 0.0295, 0.0293, 0.028])
def test_pld_has_no_false_infinity_where_the_exponential_overflows(noise: float) -> None:
    exact = round_epsilon(noise_multiplier=noise, delta=1e-5)
    assert 700 < exact < 800
    assert exact <= epsilon(noise, EveryRound(), 1, 1e-5) < exact + 1


@pytest.mark.parametrize(
    ("each", "rounds", "delta"), [(1.0, 10, 1e-5), (0.1, 1000, 1e-6), (0.5, 40, 0.01), (2.0, 1, 0.1)]
)
def test_local_theory_is_the_optimal_composition_of_randomized_response(each: float, rounds: int, delta: float) -> None:
    claim = Claim(local_epsilon=each, rounds=rounds, delta=delta)
    assert claim.accountant == "pld"
    assert claim.epsilon < rounds * each
    # k truthful answers of n lose (2k - n)ε; the hockey stick is a sum over them.
    k = np.arange(rounds + 1)
    loss = (2 * k - rounds) * each
    gain = np.maximum(-np.expm1(claim.epsilon - loss), 0)
    assert gain @ binom.pmf(k, rounds, 1 / (1 + math.exp(-each))) == pytest.approx(delta, rel=1e-6)


def test_local_epsilons_add_up_at_delta_0() -> None:
    claim = Claim(local_epsilon=0.5, rounds=7, delta=0.0)
    assert (claim.epsilon, claim.accountant, claim.adjacency, claim.noise_multiplier) == (
        3.5,
        "pure",
        "replace-one",
        None,
    )
    assert Claim(local_epsilon=800, rounds=3, delta=1e-5).epsilon == 2400
    assert Claim(local_epsilon=5, rounds=3, delta=1e-18).epsilon == 15
    assert Claim(local_epsilon=math.inf, rounds=0, delta=0.0).epsilon == 0
    assert Claim(local_epsilon=math.inf, rounds=1, delta=1e-5).epsilon == math.inf


# How often a client takes part


@pytest.mark.parametrize(("rounds", "epochs"), [(1, 1), (85, 1), (170, 2), (2550, 30)])
def test_an_epoch_counts_as_one_round(rounds: int, epochs: int) -> None:
    assert epsilon(2, Epochs(epochs), rounds, 1e-5, "rdp") == epsilon(2, EveryRound(), epochs, 1e-5, "rdp")


def test_at_most_is_capped_by_the_rounds() -> None:
    assert epsilon(2, AtMost(3), 100, 1e-5, "rdp") == epsilon(2, EveryRound(), 3, 1e-5, "rdp")
    assert epsilon(2, AtMost(3), 2, 1e-5, "rdp") == epsilon(2, EveryRound(), 2, 1e-5, "rdp")


@pytest.mark.parametrize(
    ("sampling", "exposures"),
    [
        (EveryRound(), {0.5: 15, 2: 12, 1: 8}),
        (Epochs(4), {0.5: 1, 2: 3}),  # the largest of rounds 0 to 8, 9 to 17, 18 to 26 and 27 to 36
        (AtMost(14), {2: 12, 1: 2}),
        (AtMost(100), {0.5: 15, 2: 12, 1: 8}),
    ],
    ids=str,
)
def test_composing_takes_the_rounds_of_the_most_exposed_client(sampling: Sampling, exposures: dict[float, int]) -> None:
    value = compose_rounds([(0.5, 15), (0, 2), (2, 4), (2, 8), (1, 8)], sampling=sampling, delta=1e-5)
    squares = sum(count * noise_from_round_epsilon(of, 1e-5) ** -2 for of, count in exposures.items())
    exact = round_epsilon(noise_multiplier=squares**-0.5, delta=1e-5)
    assert value == pytest.approx(exact, rel=1e-3)


def test_a_round_without_evidence_adds_nothing() -> None:
    whole = compose_rounds([(1, 500)], sampling=Poisson(0.01), delta=1e-5, accountant="rdp")
    mixed = [(0, 100), (1, 300), (0, 7), (1, 200), (2, 0)]
    assert compose_rounds(mixed, sampling=Poisson(0.01), delta=1e-5, accountant="rdp") == whole
    assert compose_rounds([(0, 100)], sampling=Poisson(0.01), delta=1e-5) == 0


def test_a_round_without_noise_ends_all_privacy() -> None:
    assert compose_rounds([(1, 5), (math.inf, 1)], sampling=Poisson(0.01), delta=1e-5) == math.inf
    assert compose_rounds([(1, 5), (math.inf, 1)], sampling=Poisson(0), delta=1e-5) == 0


def test_pld_composes_many_different_rounds_like_the_gaussian_does() -> None:
    estimates = [(0.5 + i / 40, 3) for i in range(40)]
    squares = sum(count * noise_from_round_epsilon(of, 1e-5) ** -2 for of, count in estimates)
    exact = round_epsilon(noise_multiplier=squares**-0.5, delta=1e-5)
    assert compose_rounds(estimates, sampling=EveryRound(), delta=1e-5) == pytest.approx(exact, rel=1e-3)


# Limits


@pytest.mark.parametrize("accountant", ["pld", "rdp", "rdp-mironov"])
@pytest.mark.parametrize(
    ("noise", "sampling", "rounds", "delta", "expected"),
    [
        (0, Poisson(0.1), 10, 1e-5, math.inf),
        (0, Poisson(0), 10, 1e-5, 0),
        (0, EveryRound(), 0, 1e-5, 0),
        (1, Poisson(0), 10, 0, 0),
        (1, Poisson(0.1), 10, 0, math.inf),
        (1, AtMost(3), 10, 0, math.inf),
        (math.inf, EveryRound(), 10, 1e-5, 0),
        (math.inf, EveryRound(), 10, 0, 0),
        (1e-9, EveryRound(), 1, 1e-5, math.inf),
    ],
)
def test_epsilon_in_the_limits(
    accountant: str, noise: float, sampling: Sampling, rounds: int, delta: float, expected: float
) -> None:
    assert epsilon(noise, sampling, rounds, delta, accountant) == expected


@pytest.mark.parametrize("sampling", [FixedSize(10, 1000), FixedSize(10, 10), Poisson(0.01)], ids=str)
def test_extreme_noise_stays_a_number(sampling: Sampling) -> None:
    assert epsilon(1e12, sampling, 100, 1e-5, "rdp") == 0
    assert 1e6 < epsilon(1e-3, sampling, 100, 1e-5, "rdp") < math.inf
    assert epsilon(0, sampling, 100, 1e-5, "rdp") == math.inf


def test_fixed_size_of_everybody_is_every_round() -> None:
    assert epsilon(2, FixedSize(7, 7), 5, 1e-5, "rdp") == epsilon(2, EveryRound(), 5, 1e-5, "rdp")


def test_tiny_noise_needs_little_memory() -> None:
    tracemalloc.start()
    _ = Claim(noise_multiplier=0.0644, **ONE_SHOT).epsilon
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6  # 1.5 GB with dp-accounting's default step


def test_orders_that_do_not_converge_are_skipped_silently(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("absl")
    with caplog.at_level(logging.WARNING, logger="absl"):
        _ = Claim(noise_multiplier=0.5067, **SHAKESPEARE, accountant="rdp").epsilon
        assert not caplog.records
        logger.warning("heard again")
        assert caplog.records


# Noise for a given ε


@pytest.mark.parametrize(
    ("target", "sampling", "rounds", "delta", "accountant"),
    [
        (0.1, Poisson(0.01), 500, 1e-6, "pld"),
        (30.0, Epochs(4), 35, 1e-5, "pld"),
        (4.0, FixedSize(10, 10), 200, 1e-5, "rdp"),
        (1.0, Poisson(0.05), 100, 1e-5, "rdp-mironov"),
        (0.0, EveryRound(), 1, 1e-3, "pld"),
        (1e4, AtMost(2), 9, 1e-5, "rdp"),
    ],
)
def test_noise_for_is_the_least_noise_that_reaches_epsilon(
    target: float, sampling: Sampling, rounds: int, delta: float, accountant: str
) -> None:
    noise = noise_for(epsilon=target, sampling=sampling, rounds=rounds, delta=delta, accountant=accountant)
    assert epsilon(noise, sampling, rounds, delta, accountant) <= target
    assert epsilon(noise * (1 - 2e-3), sampling, rounds, delta, accountant) > target


def test_noise_for_one_round_by_pld_is_the_analytic_gaussian_mechanisms() -> None:
    calibrated = noise_for(epsilon=1, sampling=EveryRound(), rounds=1, delta=1e-5)
    assert calibrated == pytest.approx(3.73063163482, rel=1e-5)


def test_no_noise_is_needed_where_nothing_is_asked() -> None:
    assert noise_for(epsilon=math.inf, sampling=EveryRound(), rounds=10, delta=0) == 0
    assert noise_for(epsilon=1, sampling=Poisson(0), rounds=10, delta=1e-5) == 0
    assert noise_for(epsilon=1, sampling=EveryRound(), rounds=0, delta=1e-5) == 0
    # At δ above the chance of ever taking part, next to nothing is needed.
    assert noise_for(epsilon=1, sampling=Poisson(1e-7), rounds=2, delta=1e-5) < 0.05


def test_inversion_in_the_limits() -> None:
    for inversion in ("exact", "rdp"):
        assert noise_from_round_epsilon(0, 1e-5, inversion) == math.inf
        assert noise_from_round_epsilon(math.inf, 1e-5, inversion) == 0


# Invariants

noises = st.floats(0.3, 30)
rounds_ = st.integers(1, 3000)
rates = st.floats(1e-4, 1)
deltas = st.floats(-7, -2).map(lambda exponent: 10**exponent)
counts = st.integers(1, 10**9)
samplings = st.one_of(
    st.floats(1e-12, 1).map(Poisson),
    st.tuples(counts, counts).map(lambda pair: FixedSize(min(pair), max(pair))),
    counts.map(Epochs),
    counts.map(AtMost),
    st.just(EveryRound()),
)
fast = settings(max_examples=12, deadline=None, derandomize=True)
slow = settings(max_examples=5, deadline=None, derandomize=True)


@given(sampling=samplings)
@settings(deadline=None, derandomize=True)
def test_parsing_inverts_str(sampling: Sampling) -> None:
    assert parse_sampling(str(sampling)) == sampling


@given(noise=st.floats(1, 30), more=st.floats(1.01, 3), q=rates, rounds=st.integers(1, 200), delta=deltas)
@slow
def test_epsilon_falls_with_noise_by_pld(noise: float, more: float, q: float, rounds: int, delta: float) -> None:
    assert epsilon(noise * more, Poisson(q), rounds, delta) <= epsilon(noise, Poisson(q), rounds, delta)


@given(noise=noises, more=st.floats(1.01, 3), q=rates, rounds=rounds_, delta=deltas)
@fast
def test_epsilon_falls_with_noise_by_rdp(noise: float, more: float, q: float, rounds: int, delta: float) -> None:
    assert epsilon(noise * more, Poisson(q), rounds, delta, "rdp") <= epsilon(noise, Poisson(q), rounds, delta, "rdp")


@given(noise=noises, q=rates, rounds=rounds_, extra=rounds_, delta=deltas)
@fast
def test_epsilon_grows_with_rounds(noise: float, q: float, rounds: int, extra: int, delta: float) -> None:
    for sampling in (Poisson(q), AtMost(5)):
        fewer = epsilon(noise, sampling, rounds, delta, "rdp")
        assert fewer <= epsilon(noise, sampling, rounds + extra, delta, "rdp")


@given(noise=st.floats(1, 30), q=rates, rounds=st.integers(1, 200), delta=deltas)
@slow
def test_the_accountants_are_ordered_by_tightness(noise: float, q: float, rounds: int, delta: float) -> None:
    pld, rdp, mironov = (epsilon(noise, Poisson(q), rounds, delta, name) for name in ("pld", "rdp", "rdp-mironov"))
    assert pld <= rdp <= mironov


@given(target=st.floats(0.05, 100), rounds=rounds_, delta=deltas, times=st.integers(1, 20))
@fast
def test_noise_for_and_theory_are_inverse(target: float, rounds: int, delta: float, times: int) -> None:
    for sampling in (EveryRound(), AtMost(times)):
        noise = noise_for(epsilon=target, sampling=sampling, rounds=rounds, delta=delta, accountant="rdp")
        value = epsilon(noise, sampling, rounds, delta, "rdp")
        assert value <= target
        # RDP's ε drops to 0 at once where δ² exceeds the divergence: then there is nothing in between.
        assert (
            value == pytest.approx(target, rel=1e-4) or epsilon(noise * 0.9999, sampling, rounds, delta, "rdp") > target
        )


@given(of=st.floats(0.01, 50), delta=deltas)
@slow
def test_a_single_round_composes_to_itself(of: float, delta: float) -> None:
    assert round_epsilon(noise_multiplier=noise_from_round_epsilon(of, delta), delta=delta) == pytest.approx(
        of, rel=1e-6
    )
    assert compose_rounds([(of, 1)], sampling=EveryRound(), delta=delta) == pytest.approx(of, rel=1e-3)


# What is written and what is read


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("poisson:1.5", "q .* got 1.5"),
        ("poisson:nan", "q .* got nan"),
        ("poisson:-1/5", "q .* got -0.2"),
        ("fixed:11/10", "size .* 10, got 11"),
        ("fixed:0/10", "size .* got 0"),
        ("epochs:0", "epochs .* got 0"),
        ("at-most:-2", "times .* got -2"),
    ],
)
def test_impossible_samplings_raise_and_the_error_has_the_number(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_sampling(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_multiplier": -1}, "noise_multiplier .* got -1"),
        ({"noise_multiplier": math.nan}, "noise_multiplier .* got nan"),
        ({"rounds": -1}, "rounds .* got -1"),
        ({"rounds": 1.5}, "rounds .* got 1.5"),
        ({"delta": 1}, "delta .* got 1"),
        ({"adjacency": "remove-one"}, "adjacency .* add-or-remove-one or replace-one, got 'remove-one'"),
        ({"accountant": "moments"}, "every-round .* pld, rdp, rdp-mironov, got 'moments'"),
        ({"sampling": 0.1}, "Poisson"),
        ({"sampling": FixedSize(5, 50), "accountant": "pld"}, "fixed:5/50 .* rdp, rdp-mironov, got 'pld'"),
        ({"sampling": Poisson(0.5), "noise_multiplier": 1e-4}, r"pld .* 1e\+06.* rdp"),
    ],
)
def test_what_theory_cannot_account_for_raises(change: dict[str, Any], message: str) -> None:
    terms = {"noise_multiplier": 1.0, "sampling": EveryRound(), "rounds": 10, "delta": 1e-5} | change
    with pytest.raises(InputError, match=message):
        _ = Claim(**terms).epsilon


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": -1}, "epsilon .* got -1"),
        ({"delta": 0}, "delta .* got 0"),
        ({"epsilon": 0, "delta": 1e-12}, "epsilon 0 at delta 1e-12 .* rdp"),
        ({"accountant": "exact"}, "accountant .* got 'exact'"),
    ],
)
def test_an_epsilon_that_noise_for_cannot_reach_raises(change: dict[str, Any], message: str) -> None:
    terms = {"epsilon": 1, "sampling": EveryRound(), "rounds": 10, "delta": 1e-5, "accountant": "rdp"} | change
    with pytest.raises(InputError, match=message):
        noise_for(**terms)


def test_other_bad_input_raises() -> None:
    with pytest.raises(InputError, match=r"rounds_epsilon .* got none"):
        compose_rounds([], sampling=EveryRound(), delta=1e-5)
    with pytest.raises(InputError, match=r"epsilon .* got nan"):
        compose_rounds([(math.nan, 1)], sampling=EveryRound(), delta=1e-5)
    with pytest.raises(InputError, match=r"rounds .* got -1"):
        compose_rounds([(1, -1)], sampling=EveryRound(), delta=1e-5)
    with pytest.raises(InputError, match=r"delta .* got 0"):
        compose_rounds([(1, 1)], sampling=EveryRound(), delta=1e-5, round_delta=0)
    with pytest.raises(InputError, match=r"inversion .* got 'pld'"):
        noise_from_round_epsilon(1, 1e-5, "pld")
    with pytest.raises(InputError, match=r"noise_multiplier .* got -1"):
        round_epsilon(noise_multiplier=-1, delta=1e-5)
    with pytest.raises(InputError, match=r"epsilon .* got -1"):
        Claim(local_epsilon=-1, delta=0.0)


def test_a_claim_carries_its_terms_into_json_and_back() -> None:
    claim = Claim(noise_multiplier=0, sampling=FixedSize(5, 50), rounds=10, delta=1e-5, accountant="rdp")
    content = json.loads(json.dumps(claim.to_dict(), allow_nan=False))
    assert content == {
        "epsilon": "inf",
        "stated": False,
        "delta": 1e-5,
        "accountant": "rdp",
        "noise_multiplier": 0.0,
        "sampling": "fixed:5/50",
        "rounds": 10,
        "adjacency": "replace-one",
        "noise_schedule": [],
        "local_epsilon": None,
    }
    others = [
        Claim(noise_multiplier=math.inf, sampling=AtMost(np.int64(2)), rounds=np.int64(3), delta=1e-5),
        Claim(epsilon=math.inf, delta=1e-5),
        Claim(epsilon=3.0, delta=1e-5, noise_schedule=[(1.0, 2), (2.0, 3)], sampling=None, accountant="opacus-rdp"),
        Claim(local_epsilon=1.0, rounds=4, delta=0.0),
    ]
    for each in [claim, *others]:
        assert Claim.from_dict(json.loads(json.dumps(each.to_dict(), allow_nan=False))) == each


def test_a_claim_without_rounds_has_no_epsilon_yet() -> None:
    claim = Claim(noise_multiplier=4.0, delta=1e-5)
    with pytest.raises(InputError, match="rounds"):
        _ = claim.epsilon
    assert claim.replace(rounds=10).epsilon == pytest.approx(epsilon(4, EveryRound(), 10, 1e-5))
    with pytest.raises(InputError, match="noise_multiplier or an epsilon"):
        Claim(delta=1e-5)


def test_other_terms_void_an_epsilon_that_was_stated_for_the_old_ones() -> None:
    claim = Claim(epsilon=2.0, noise_multiplier=4.0, rounds=10, delta=1e-5, accountant="opacus-rdp")
    assert claim.epsilon == 2.0
    assert claim.replace(delta=1e-6).epsilon == 2.0
    assert claim.replace(sampling=AtMost(1)).epsilon == pytest.approx(epsilon(4, EveryRound(), 1, 1e-5))
    assert claim.replace(sampling=FixedSize(1, 10)).adjacency == "replace-one"


def test_the_default_is_the_tightest_accountant_that_supports_the_sampling() -> None:
    terms = {"noise_multiplier": 1.0, "rounds": 10, "delta": 1e-5}
    assert Claim(sampling=Poisson(0.1), **terms).accountant == "pld"
    assert Claim(sampling=FixedSize(5, 50), **terms).accountant == "rdp"


def test_rounds_without_sampling_compose_to_the_closed_form() -> None:
    # Gaussian rounds of shifts μ compose to one of (Σ μ²)^½ (Dong, Roth and Su 2022), which has a closed form.
    series = [(0.5 + 0.05 * i, 1 + i % 3) for i in range(20)]
    shifts = [rounds / noise_from_round_epsilon(epsilon, 1e-5) ** 2 for epsilon, rounds in series]
    exact = round_epsilon(noise_multiplier=1 / math.sqrt(sum(shifts)), delta=1e-5)
    assert compose_rounds(series, sampling=EveryRound(), delta=1e-5) == pytest.approx(exact, rel=2e-3)
    assert compose_rounds(series, sampling=Poisson(1), delta=1e-5) == pytest.approx(exact, rel=2e-3)


def test_many_estimates_are_composed_as_dp_accounting_composes_them_one_by_one() -> None:
    series = [(2 + 0.1 * (i % 20), 40) for i in range(40)]
    accountant = dp.pld.PLDAccountant(value_discretization_interval=1e-3)
    for epsilon, rounds in series[:20]:
        noise = dp.get_sigma_gaussian(epsilon, 1e-5)
        accountant.compose(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(noise)), 2 * rounds)
    # Twenty noise levels are composed in groups of two.
    assert compose_rounds(series, sampling=Poisson(0.01), delta=1e-5) == pytest.approx(
        accountant.get_epsilon(1e-5), rel=2e-3
    )


@pytest.mark.parametrize("rate", ["1e-300", "5e-324", "1e-13"])
def test_a_sampling_probability_below_all_populations_raises(rate):
    with pytest.raises(InputError, match=f"1e-12.*got {rate}"):
        parse_sampling(f"poisson:{rate}")
