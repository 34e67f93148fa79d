"""From the scores of planted and held-out canaries to all figures that apply, in the order they are to be read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coalmine.accounting import Theory
from coalmine.arrays import Floats
from coalmine.errors import NotApplicableError
from coalmine.stats import (
    METHODS,
    CosineNull,
    Estimate,
    NormalNull,
    Null,
    Scores,
    anderson_darling,
    ceiling,
    epsilon_gdp,
    estimate,
)
from coalmine.stats.rank_tests import Design

# The order of reading: a closed-form null shows most; the bound for one run rests on least.
_ORDER = ("exact-null", "one-run", *(name for name in METHODS if name not in ("exact-null", "one-run")))
_FROM_NULL = ("exact-null", "gaussian-shift", "gaussian-fit", "published-lower-bound")
_EXACT, _BOUNDED = "their null distribution is exact", "their null distribution is bounded from above"
_SIGNS = "; random signs are as good as directions uniform on the sphere (see docs/one-shot.md)"

_OF_NORMAL_SCORES = ("gaussian-shift", "gaussian-fit")
_SUSPECT = 0.01


def canary_estimates(
    members: Floats,
    nonmembers: Floats,
    *,
    null: Null | None,
    signs: bool,
    design: Design,
    delta: float,
    confidence: float,
) -> tuple[list[Estimate], Scores, float | None]:
    """Every figure that applies, the scores they came from, and how large a bound from held-out canaries can get.

    Where the law of a held-out score is known (``null``), the bound from it comes first, and the paper's estimates are
    taken from it; the held-out canaries serve the others. ``signs`` says that the canaries are made of random signs.
    Fits of normal curves to scores that are not normal are marked as doubtful.
    """
    found = {e.method: e for e in estimate(members, nonmembers, delta=delta, confidence=confidence, design=design)}
    if null is not None:
        exact = isinstance(null, CosineNull | NormalNull)
        known = estimate(members, null=null, delta=delta, confidence=confidence)
        for e in known:
            if e.method == "exact-null" or (exact and e.method in _FROM_NULL):
                assumes = e.assumes if exact else e.assumes.replace(_EXACT, _BOUNDED)
                found[e.method] = replace(e, assumes=assumes + _SIGNS * signs)
    if normality(members, "planted")[1]:
        found |= {name: replace(found[name], doubtful=True) for name in _OF_NORMAL_SCORES if name in found}
    top = ceiling(members.size, nonmembers.size, delta=delta, confidence=confidence, design=design)
    ordered = [found[name] for name in _ORDER if name in found]
    return first_judged(ordered, members, nonmembers, null=null, design=design), Scores(members, nonmembers), top


def first_judged(
    found: list[Estimate],
    members: Floats,
    nonmembers: Floats,
    *,
    null: Null | None = None,
    design: Design = "fixed",
    copies: int = 1,
) -> list[Estimate]:
    """The same figures; the bound to quote, the first valid one, with what it is at higher confidences."""
    quoted = next((e for e in found if e.valid), None)
    if quoted is None:
        return found
    known = quoted.method == "exact-null"

    def again(confidence: float) -> float | None:
        return estimate(
            members,
            None if known else nonmembers,
            null=null if known else None,
            delta=quoted.delta,
            confidence=confidence,
            design="fixed" if known else design,
            copies=copies,
            methods=[quoted.method],
        )[0].lower

    return [e.judged(again) if e is quoted else e for e in found]


def rough_epsilon(members: Floats, nonmembers: Floats, delta: float = 1e-5) -> float | None:
    """ε of two normal distributions of the same width, shifted as the scores so far are: for a progress bar."""
    if min(len(members), len(nonmembers)) < 2:
        return None
    width = float(np.sqrt((members.var(ddof=1) + nonmembers.var(ddof=1)) / 2))
    shift = float(members.mean() - nonmembers.mean())
    return float(epsilon_gdp(max(0.0, shift) / width, delta)) if width > 0 else None


def neighbors_apart(clients: int, theory: Theory | None) -> int:
    """How many steps from neighbor to neighbor it takes to give ``clients`` of them other data, for group privacy.

    One each where ``theory`` is for replacing a client, or where there is none; two each where it is for adding or
    removing one.
    """
    return clients if theory is None or theory.adjacency == "replace-one" else 2 * clients


def normality(scores: Floats, whose: str) -> tuple[dict[str, float], list[str]]:
    """The Anderson–Darling statistic of ``scores``, and a warning where a Gaussian fit is a poor one."""
    try:
        test = anderson_darling(scores)
    except NotApplicableError:
        return {}, []
    measured = {"anderson_darling": test.statistic, "anderson_darling_p": test.p_value}
    if test.p_value >= _SUSPECT:
        return measured, []
    return measured, [
        f"the scores of the {whose} canaries are not normal (Anderson–Darling {test.statistic:.3g}, p = "
        f"{test.p_value:.2g}): do not rely on {' and '.join(_OF_NORMAL_SCORES)}"
    ]
