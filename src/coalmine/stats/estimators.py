"""All estimators by name: which of them apply to given scores, and what their results are worth.

docs/estimators.md compares them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

from numpy.typing import ArrayLike

from coalmine.arrays import finite_list
from coalmine.errors import InputError, NotApplicableError, check_count, did_you_mean
from coalmine.stats.gaussian import gaussian_fit, gaussian_shift
from coalmine.stats.nulls import Null
from coalmine.stats.one_run import Guesses, one_run, one_run_fdp
from coalmine.stats.rank_tests import Design
from coalmine.stats.scores import Counts, Estimate, Scores, best_threshold, epsilon_from_counts, plug_in
from coalmine.stats.simultaneous_bound import gdp, simultaneous

CAVEATS: Mapping[str, str] = MappingProxyType(
    {
        "simultaneous": "Many tests, fixed before the scores were seen, at one joint error rate. A lower bound if the "
        "canaries' scores do not influence one another.",
        "exact-null": "Many tests at one joint error rate against the known score distribution of a held-out canary. A "
        "lower bound if that distribution is exact and the inserted canaries' scores do not influence one another.",
        "one-run": "Counts correct membership guesses in a single training run; canaries may influence one another. A "
        "lower bound if each canary was inserted by its own fair coin flip.",
        "clopper-pearson": "Exact confidence intervals for TPR and FPR at one threshold. A lower bound if the "
        "threshold was fixed before the scores were seen.",
        "plug-in": "Log ratio of the observed TPR and FPR, without error bars. An estimate that exceeds 0 by chance "
        "alone.",
        "gdp": "The tests of simultaneous, assuming a Gaussian mechanism. A lower bound for Gaussian mechanisms; an "
        "estimate for any other.",
        "one-run-fdp": "The one-run test, assuming a Gaussian mechanism. A lower bound for Gaussian mechanisms; an "
        "estimate for any other.",
        "gaussian-shift": "Assumes that inserted and held-out scores are bell-shaped with the same spread. A good "
        "estimate for Gaussian scores, meaningless for others.",
        "gaussian-fit": "Fits separate normal distributions to the inserted and held-out scores. An estimate, biased "
        "upward: a small error in a fitted spread changes ε a lot.",
        "best-threshold": "The largest log ratio of TPR and FPR over all thresholds, evaluated on the scores that "
        "chose the threshold, as papers publish it. An estimate, biased upward.",
        "median-exposure": "ε from the median rank of the inserted canaries among references that were held out. A "
        "point estimate without error bars.",
        "anytime": "Bets against the claim on one trial after another. A lower bound at every moment, even if trials "
        "stop because of what they showed; needs a fair coin for each trial.",
        "low-fpr": "Log ratio of TPR and FPR at a low false positive rate. A point estimate without error bars.",
    }
)
"""What each estimator's result is worth, in one or two sentences for readers of a report."""

Estimator = Callable[[], Estimate]

# What each estimator needs of the scores; the recommended one first, and valid bounds before estimates.
_NEEDS: Mapping[str, tuple[str, ...]] = {
    "simultaneous": ("observed non-members",),
    "exact-null": ("a known null distribution",),
    "one-run": ("observed non-members", "canaries inserted by coin flips (design coin-flips)"),
    "clopper-pearson": ("a threshold fixed in advance",),
    "plug-in": ("a threshold fixed in advance",),
    "gdp": ("one copy",),  # the others would bound the ε of all copies together
    "one-run-fdp": ("observed non-members", "canaries inserted by coin flips (design coin-flips)", "one copy"),
    "gaussian-shift": ("one copy",),
    "gaussian-fit": ("one copy",),
    "best-threshold": ("observed non-members", "one copy"),
}
METHODS = tuple(_NEEDS)
"""Names of all estimators that `estimate` can run, the recommended one first and valid bounds before estimates."""

# Published estimators, kept for comparisons. They are never the ones to quote, so they run only if asked for by name.
_ONLY_BY_NAME = ("plug-in", "gaussian-fit")


def estimate(
    members: ArrayLike,
    nonmembers: ArrayLike | None = None,
    *,
    null: Null | None = None,
    delta: float = 1e-5,
    confidence: float = 0.95,
    threshold: float | None = None,
    design: Design = "fixed",
    copies: int = 1,
    methods: Sequence[str] | None = None,
    lower_is_member: bool = False,
) -> list[Estimate]:
    """Estimate ε from the scores of inserted and held-out canaries, by every estimator that applies.

    The first result is the one to quote: a lower bound that exceeds the true ε with probability at most
    ``1 - confidence``, provided that the scores are independent of one another and members were picked at random among
    exchangeable canaries. Each result states its own assumptions, and `CAVEATS` says what it is worth.

    Args:
        members: Scores of inserted canaries, shape (m,); higher means more likely a member.
        nonmembers: Scores of held-out canaries, shape (n,). Omit them if ``null`` is given.
        null: Known distribution of a held-out canary's score, instead of ``nonmembers``.
        delta: The δ at which ε is stated, in [0, 1).
        confidence: Confidence of bounds and intervals, in [0.5, 1).
        threshold: A threshold that was fixed before the scores were seen. It adds the estimators that need one.
        design: How members were chosen: in ``"fixed"`` numbers, or by ``"coin-flips"``, one for each canary. The
            latter adds the one-run estimators.
        copies: How often each member was inserted; only the estimators that account for copies are then run.
        methods: Names of the estimators to run, in this order; see `METHODS`. By default all that apply, except for
            ``plug-in`` and ``gaussian-fit``, which are never the ones to quote.
        lower_is_member: Whether *lower* scores mean more likely a member, as for losses.

    Returns:
        One result per estimator, the recommended one first.

    Raises:
        InputError: If scores are not finite, an option is out of range, or a requested estimator does not apply.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> results = estimate(rng.normal(1, 1, 500), rng.normal(0, 1, 500))
        >>> results[0].method, results[0].valid
        ('simultaneous', True)
        >>> [result.method for result in results if not result.valid]
        ['gdp', 'gaussian-shift', 'best-threshold']
    """
    if lower_is_member:
        if null is not None:
            raise InputError("lower_is_member does not work with a null: negate the losses and pass the negated null")
        members = -finite_list("members", members)
        nonmembers = None if nonmembers is None else -finite_list("nonmembers", nonmembers)
        threshold = None if threshold is None else -threshold
    scores = Scores(members, nonmembers, null)  # type: ignore[arg-type]
    if threshold is not None and (scores.null is not None or copies > 1 or not math.isfinite(threshold)):
        raise InputError(
            f"a fixed threshold must be finite, and needs observed non-members of one copy, got {threshold} with "
            f"{copies} copies and null {null}"
        )
    given = {
        "observed non-members": scores.null is None,
        "a known null distribution": scores.null is not None,
        "canaries inserted by coin flips (design coin-flips)": design == "coin-flips",
        "a threshold fixed in advance": threshold is not None,
        "one copy": check_count("copies", copies) == 1,
    }
    terms: dict[str, Any] = {"delta": delta, "confidence": confidence}
    tests = partial(simultaneous, scores, **terms, design=design, copies=copies)
    estimators: dict[str, Estimator] = {
        "simultaneous": tests,
        "exact-null": tests,
        "one-run": partial(one_run, scores, **terms, copies=copies),
        "gdp": partial(gdp, scores, **terms, design=design),
        "one-run-fdp": partial(one_run_fdp, scores, **terms),
        "gaussian-shift": partial(gaussian_shift, scores, **terms),
        "gaussian-fit": partial(gaussian_fit, scores, **terms),
        "best-threshold": partial(best_threshold, scores, **terms),
    }
    if threshold is not None:
        estimators |= _at_threshold(scores.counts(threshold), delta, confidence, threshold)
    applicable = [name for name in METHODS if all(given[need] for need in _NEEDS[name])]
    estimates = _run({name: estimators[name] for name in applicable}, methods)
    if lower_is_member:
        return [e if e.threshold is None else replace(e, threshold=-e.threshold) for e in estimates]
    return estimates


def estimates_from_counts(
    counts: Counts, *, delta: float = 1e-5, confidence: float = 0.95, methods: Sequence[str] | None = None
) -> list[Estimate]:
    """Estimate ε from the confusion matrix of an attack at one threshold.

    The first result, ``"clopper-pearson"``, is a lower bound if the scores are independent and the threshold was
    fixed before they were seen; see `epsilon_from_counts`.

    Args:
        counts: Confusion matrix at the threshold.
        delta: The δ at which ε is stated, in [0, 1).
        confidence: Confidence of bounds and intervals, in [0.5, 1).
        methods: Names of the estimators to run, in this order. By default ``clopper-pearson`` alone.

    Returns:
        One result per estimator.

    Raises:
        InputError: If an option is out of range, or a requested estimator does not apply.

    Example:
        >>> results = estimates_from_counts(Counts(tp=300, fn=700, fp=50, tn=950))
        >>> [result.method for result in results]
        ['clopper-pearson']
    """
    return _run(_at_threshold(counts, delta, confidence, None), methods)


def estimates_from_guesses(
    guesses: Guesses, *, delta: float = 1e-5, confidence: float = 0.95, methods: Sequence[str] | None = None
) -> list[Estimate]:
    """Estimate ε from the number of right guesses about one run's coin flips.

    The first result, ``"one-run"``, is a lower bound if each canary was inserted by its own fair coin flip and
    the number of guesses was fixed in advance.

    Args:
        guesses: The guesses.
        delta: The δ at which ε is stated, in [0, 1).
        confidence: Confidence of the bounds, in [0.5, 1).
        methods: Names of the estimators to run, in this order. By default both.

    Returns:
        One result per estimator.

    Raises:
        InputError: If an option is out of range, or a requested estimator does not apply.

    Example:
        >>> [result.valid for result in estimates_from_guesses(Guesses(canaries=1000, guesses=100, correct=90))]
        [True, False]
    """
    terms: dict[str, Any] = {"delta": delta, "confidence": confidence}
    return _run(
        {"one-run": partial(one_run, guesses, **terms), "one-run-fdp": partial(one_run_fdp, guesses, **terms)}, methods
    )


def _run(applicable: Mapping[str, Estimator], methods: Sequence[str] | None) -> list[Estimate]:
    """Return the results of the named estimators, or of all that turn out to apply."""
    if isinstance(methods, str):
        methods = [methods]
    for name in methods or ():
        if name not in METHODS:
            raise InputError(f"unknown method {name!r}. {did_you_mean(name, METHODS)}")
        if name not in applicable:
            needs = " and ".join(_NEEDS[name])
            raise InputError(
                f"method {name} does not apply here: it needs {needs}; applicable: {', '.join(applicable)}"
            )
    if methods is not None:
        return [applicable[name]() for name in methods]
    estimates = []
    for name, method in applicable.items():
        if name in _ONLY_BY_NAME:
            continue
        try:
            estimates.append(method())
        except NotApplicableError:
            continue
    return estimates


def _at_threshold(counts: Counts, delta: float, confidence: float, threshold: float | None) -> dict[str, Estimator]:
    """Return the estimators that need one fixed threshold, by name."""
    exact = partial(epsilon_from_counts, counts, delta=delta, confidence=confidence, threshold=threshold)
    return {"clopper-pearson": exact, "plug-in": partial(plug_in, counts, delta=delta, threshold=threshold)}
