"""All estimators by name, and which of them apply to given scores."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from numpy.typing import ArrayLike

from coalmine.arrays import finite_list
from coalmine.errors import InputError, NotApplicableError, check_count, check_number
from coalmine.stats.epsilon import Estimate
from coalmine.stats.fit import gaussian_fit, gaussian_shift
from coalmine.stats.nulls import Null
from coalmine.stats.rank_tests import Design
from coalmine.stats.rates import Counts, Interval, epsilon_from_counts, plug_in
from coalmine.stats.same_data import best_threshold, published_lower_bound
from coalmine.stats.scores import Scores
from coalmine.stats.simultaneous_bound import gdp, simultaneous, split
from coalmine.stats.single_run import (
    Guesses,
    one_run,
    one_run_fdp,
    one_run_fdp_from_guesses,
    one_run_from_guesses,
)

Method = Callable[[], Estimate]

METHODS = (
    "simultaneous",
    "exact-null",
    "split",
    "one-run",
    "clopper-pearson",
    "jeffreys",
    "katz-log",
    "joint-beta",
    "plug-in",
    "gdp",
    "one-run-fdp",
    "gaussian-shift",
    "gaussian-fit",
    "best-threshold",
    "published-lower-bound",
)
"""Every method name; the recommended first, valid bounds before estimates."""


_INTERVALS: tuple[Interval, ...] = ("clopper-pearson", "jeffreys", "katz-log", "joint-beta")
_NEEDS = {
    **dict.fromkeys((*_INTERVALS, "plug-in"), ": it needs a threshold fixed in advance"),
    **dict.fromkeys(("one-run", "one-run-fdp"), ": it needs canaries planted by coin flips (design coin-flips)"),
    "exact-null": ": it needs a known null distribution",
}


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
    """ε from anybody's scores (higher = more likely a member) by every applicable estimator, the recommended first.

    ``null`` replaces the non-members where their distribution is known. ``threshold`` is one that was fixed before the
    scores were seen; only with it do the intervals of counts apply. ``design`` says how members were chosen (see
    `simultaneous`), ``copies`` how often each was planted. ``methods`` picks some by name. ``lower_is_member`` is for
    losses.
    """
    if lower_is_member:
        if null is not None:
            raise InputError("with a known null, negate the losses and give the null of the negated ones")
        found = estimate(
            -finite_list("members", members),
            None if nonmembers is None else -finite_list("nonmembers", nonmembers),
            delta=delta,
            confidence=confidence,
            threshold=None if threshold is None else -threshold,
            design=design,
            copies=copies,
            methods=methods,
        )
        return [e if e.threshold is None else replace(e, threshold=-e.threshold) for e in found]
    scores = Scores(members, nonmembers, null)  # type: ignore[arg-type]
    if threshold is not None:
        if not math.isfinite(check_number("threshold", threshold)):
            raise InputError(f"threshold must be finite, got {threshold}")
        if scores.null is not None:
            raise InputError("a fixed threshold needs observed non-members; with a known null leave it out")
        if copies > 1:
            raise InputError("the intervals of a fixed threshold do not divide out copies: leave out one of the two")
    applicable = _applicable(scores, delta, confidence, threshold, design, check_count("copies", copies))
    return _run(applicable, methods)


def estimates_from_counts(
    counts: Counts, *, delta: float = 1e-5, confidence: float = 0.95, methods: Sequence[str] | None = None
) -> list[Estimate]:
    """ε from what an attack got right and wrong at one threshold fixed in advance, by each kind of interval."""
    return _run(_intervals(counts, delta, confidence, None), methods)


def estimates_from_guesses(
    guesses: Guesses, *, delta: float = 1e-5, confidence: float = 0.95, methods: Sequence[str] | None = None
) -> list[Estimate]:
    """ε from how many guesses about one run's coin flips were right."""
    return _run(
        {
            "one-run": lambda: one_run_from_guesses(guesses, delta=delta, confidence=confidence),
            "one-run-fdp": lambda: one_run_fdp_from_guesses(guesses, delta=delta, confidence=confidence),
        },
        methods,
    )


def _run(applicable: dict[str, Method], methods: Sequence[str] | None) -> list[Estimate]:
    if isinstance(methods, str):
        methods = [methods]
    if methods is not None:
        return [_named(name, applicable)() for name in methods]
    found = []
    for method in applicable.values():
        try:
            found.append(method())
        except NotApplicableError:
            continue
    return found


def _intervals(counts: Counts, delta: float, confidence: float, threshold: float | None) -> dict[str, Method]:
    found: dict[str, Method] = {
        interval: partial(
            epsilon_from_counts,
            counts,
            delta=delta,
            confidence=confidence,
            interval=interval,
            threshold=threshold,
        )
        for interval in _INTERVALS
    }
    return {**found, "plug-in": partial(plug_in, counts, delta=delta, threshold=threshold)}


def _applicable(
    scores: Scores, delta: float, confidence: float, threshold: float | None, design: Design, copies: int
) -> dict[str, Method]:
    def bound() -> Estimate:
        return simultaneous(scores, delta=delta, confidence=confidence, design=design, copies=copies)

    main = "simultaneous" if scores.null is None else "exact-null"
    if copies > 1:
        # Group privacy is divided out by the simultaneous bounds alone; the others would speak of the whole group.
        return {main: bound}
    methods = [gdp, gaussian_shift, gaussian_fit, published_lower_bound]
    names = ["gdp", "gaussian-shift", "gaussian-fit", "published-lower-bound"]
    found: dict[str, Method] = {main: bound}
    if scores.null is None:
        methods += [split, best_threshold]
        names += ["split", "best-threshold"]
        if design == "coin-flips":
            methods += [one_run, one_run_fdp]
            names += ["one-run", "one-run-fdp"]
    for name, method in zip(names, methods, strict=True):
        found[name] = partial(method, scores, delta=delta, confidence=confidence)
    if threshold is not None:
        found |= _intervals(scores.counts(threshold), delta, confidence, threshold)
    return {name: found[name] for name in METHODS if name in found}


def _named(name: str, applicable: dict[str, Method]) -> Method:
    if name in applicable:
        return applicable[name]
    if name in METHODS:
        why = _NEEDS.get(name, "")
        raise InputError(f"method {name} does not apply here{why}; what applies: {', '.join(applicable)}")
    near = difflib.get_close_matches(name, METHODS, n=1)
    hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(METHODS)}"
    raise InputError(f"there is no method {name!r}{hint}")
