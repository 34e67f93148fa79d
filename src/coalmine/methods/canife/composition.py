"""Composition: from ε of single rounds to ε of the whole training (Algorithm 2 of the paper, appendix C.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from coalmine import claims
from coalmine.claims import Claim
from coalmine.claims.sampling import AtMost, FixedSize, Sampling
from coalmine.errors import InputError
from coalmine.methods.canife.round_estimates import RoundEstimate
from coalmine.results.result import in_json

# Estimators whose per-round ε is composed. "ceiling" is what rates at their ceiling would compose to.
_ESTIMATORS = ("best-threshold", "gaussian-shift", "gdp", "ceiling")
_CALIBRATED = "gaussian-shift"  # the one whose intervals cover as often as they say

End = Literal["epsilon", "lower", "upper"]

# How ε̂ᵣ becomes a noise multiplier, and the accountant that composes it (None: the tightest for the sampling).
_INVERSIONS = {"exact": ("exact", None), "paper": ("rdp", "rdp")}


@dataclass(frozen=True, kw_only=True)
class Composed:
    """ε of all rounds, composed from the ε̂ᵣ of each: an estimate as good as these are, never a bound.

    Args:
        method: Estimator of the ε̂ᵣ; ``"ceiling"`` for the largest value that rates could compose to.
        inversion: ``"exact"`` uses the trade-off curve of the Gaussian mechanism and the tightest accountant,
            ``"paper"`` RDP for both, which mostly gives less.
        epsilon: The composed ε.
        lower: The lower ends of the intervals of all ε̂ᵣ composed, if these have intervals that cover as often as they
            say (``gaussian-shift``, exact inversion). With ``upper``, an interval of an estimate, not a bound; wide,
            since all rounds err in the same direction at its ends.
        upper: The upper ends composed.
    """

    method: str
    inversion: str
    epsilon: float
    lower: float | None = None
    upper: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, ready for JSON."""
        return {**vars(self), **{name: in_json(getattr(self, name)) for name in ("epsilon", "lower", "upper")}}


def compose(periods: Sequence[RoundEstimate], *, sampling: Sampling, delta: float) -> tuple[list[Composed], list[str]]:
    """Compose single rounds to ε of the whole training; return it by every way, and warnings.

    Each ε̂ᵣ stands for the rounds of its period. The infinite ε of perfectly separated scores counts as its ceiling. A
    period without estimates takes those of the period before (at the beginning, of the one after).

    Args:
        periods: Estimates along the training, in order.
        sampling: How clients take part, which amplifies their privacy.
        delta: The δ of both the rounds and the training.
    """
    composed: list[Composed] = []
    warnings: list[str] = []
    if all(period.scores is None for period in periods):
        return composed, warnings
    for method in _ESTIMATORS:
        series = _epsilon_series(periods, method)
        if series is None:
            continue
        for name in _INVERSIONS:
            try:
                epsilon = _composed_epsilon(series, sampling=sampling, delta=delta, name=name)
                lower, upper = (
                    _composed_epsilon(end, sampling=sampling, delta=delta, name=name)
                    if end and name == "exact"
                    else None
                    for end in _ends(periods, method)
                )
            except InputError as reason:
                warnings.append(f"{method} is not composed ({name}): {reason}")
                continue
            composed.append(Composed(method=method, inversion=name, epsilon=epsilon, lower=lower, upper=upper))
    return composed, warnings


def _composed_epsilon(series: list[tuple[float, int]], *, sampling: Sampling, delta: float, name: str) -> float:
    """Return ε of all rounds of a series of (ε̂ᵣ, rounds), by one of the inversions."""
    inversion, accountant = _INVERSIONS[name]
    extra = _extra_rounds(series, sampling.times) if isinstance(sampling, AtMost) else []
    return claims.compose_rounds(
        [*series, *extra],
        sampling=sampling,
        delta=delta,
        inversion=inversion,
        accountant=accountant,
        # Neighbors under FixedSize replace a client, which moves the sum twice as far as adding one.
        sensitivity=2.0 if isinstance(sampling, FixedSize) else 1.0,
    )


def _ends(periods: Sequence[RoundEstimate], method: str) -> list[list[tuple[float, int]] | None]:
    """Return the series of lower and of upper ends, where intervals cover as often as they say."""
    ends: tuple[End, End] = ("lower", "upper")
    return [_epsilon_series(periods, method, end) if method == _CALIBRATED else None for end in ends]


def round_claim(noise_multiplier: float, delta: float) -> Claim:
    """Return the claim for one round and a client known to take part (q = 1, one step): the Gaussian mechanism's ε."""
    return Claim(noise_multiplier=noise_multiplier, rounds=1, delta=delta)


def _epsilon_series(
    periods: Sequence[RoundEstimate], method: str, end: End = "epsilon"
) -> list[tuple[float, int]] | None:
    """Return (ε̂ᵣ, rounds) along the training; None if a period with scores has no estimate by this method.

    ``end`` takes an end of each interval instead of ε̂ᵣ.
    """
    values: list[float | None] = []
    for period in periods:
        value = period.rate_ceiling if method == "ceiling" else period.epsilon(method, end)
        values.append(period.rate_ceiling if value == math.inf and method == "best-threshold" else value)
    existing = [value for value in values if value is not None]
    if not existing or any(v is None and p.scores is not None for v, p in zip(values, periods, strict=True)):
        return None
    last, series = existing[0], []
    for value, period in zip(values, periods, strict=True):
        last = last if value is None else value
        series.append((last, period.rounds))
    return series


def _extra_rounds(series: Sequence[tuple[float, int]], times: int) -> list[tuple[float, int]]:
    """Return the rounds by which ``times`` exceeds the training, at the largest ε̂ᵣ.

    A client listed m times in a round moves the sum m times as far, which counts as m² rounds.
    """
    missing = times - sum(rounds for _, rounds in series)
    return [(max(epsilon for epsilon, _ in series), missing)] if missing > 0 else []
