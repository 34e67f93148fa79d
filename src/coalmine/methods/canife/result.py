"""What CANIFE found: ε of single rounds with all that limits it, and the rounds composed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from coalmine import accounting
from coalmine.accounting import Theory
from coalmine.accounting.sampling import AtMost, EveryRound, FixedSize, Sampling
from coalmine.errors import InputError
from coalmine.methods.canife.rounds import Period, RoundEstimate, round_estimate
from coalmine.methods.estimates import first_judged
from coalmine.results.result import AuditResult

# What is composed over rounds, and how: the paper's way and the Gaussian mechanism's own curve.
_COMPOSED = ("best-threshold", "gaussian-shift", "gdp")
_WAYS = {"exact": ("exact", None), "paper": ("rdp", "rdp")}


@dataclass(frozen=True, kw_only=True)
class Composed:
    """ε̂ of all rounds, from the ``method``'s ε̂ᵣ of each: an estimate, as good as these are, and never a bound.

    ``inversion`` says how an ε̂ᵣ becomes noise and how that is accounted: ``exact`` (the Gaussian mechanism's curve,
    the tightest accountant) or ``paper`` (RDP both ways, which mostly comes out low). ``method`` is ``ceiling`` for
    what would come out if every round's rates were at their ceiling.
    """

    method: str
    inversion: str
    epsilon: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "method": self.method,
            "inversion": self.inversion,
            "epsilon": "inf" if self.epsilon == math.inf else self.epsilon,
        }


@dataclass(frozen=True, kw_only=True)
class CanifeResult(AuditResult):
    """``estimates`` are of ε of one round, from the scores of all; ``theory`` is what is promised of one round.

    ``periods`` are the estimates along the training. ``composed`` are ε̂ of all rounds, to be compared with
    ``training``, the promise for the whole training. ``canaries`` are the last ones, as far as they can be described;
    ``arrays`` are those of all trials, as `Canife.arrays` has them.
    """

    periods: Sequence[RoundEstimate] = ()
    composed: Sequence[Composed] = ()
    training: Theory | None = None
    designs: Mapping[int, Mapping[str, list[float]]] = field(default_factory=dict)
    canaries: Sequence[Mapping[str, Any]] = ()
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)

    def epsilon_hat(self, method: str = "best-threshold", inversion: str = "exact") -> float:
        """A composed ε̂ by its names."""
        found = next((c.epsilon for c in self.composed if (c.method, c.inversion) == (method, inversion)), None)
        if found is None:
            there = ", ".join(f"{c.method}/{c.inversion}" for c in self.composed) or "none"
            raise InputError(f"there is no composed figure {method}/{inversion}; there are {there}")
        return found

    @property
    def meaning(self) -> str:
        """What it says, in words."""
        text = f"Of a single round, for a client known to take part in it: {super().meaning}"
        if self.ceiling is not None and self.bound is not None and self.bound.method == "one-run":
            text += f" With so many scores the one-run bound could not exceed {self.ceiling:.3g}."
        if not self.composed:
            return text
        shown = {c.method: c.epsilon for c in self.composed if c.inversion == "exact"}
        parts = [f"{number(shown[name])} by {name}" for name in _COMPOSED if name in shown]
        text += f" Composed over the training, ε̂ is {', '.join(parts)}: estimates, none of them a bound."
        if "ceiling" in shown:
            text += f" With so many trials, rates cannot compose to more than {number(shown['ceiling'])}."
        if self.training is not None:
            text += f" The promise for the training is ε = {number(self.training.epsilon)}."
        return text

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, without the scores."""
        return {
            **super().to_dict(),
            "training_theory": None if self.training is None else self.training.to_dict(),
            "rounds": [period.to_dict() for period in self.periods],
            "composed": [one.to_dict() for one in self.composed],
            "designs": [
                {"round": round}
                | {name: [v if math.isfinite(v) else None for v in values] for name, values in design.items()}
                for round, design in self.designs.items()
            ],
            "canaries": [dict(canary) for canary in self.canaries],
        }


def canife_result(
    periods: Sequence[Period],
    *,
    independent: bool,
    view: str,
    seed: int,
    delta: float,
    confidence: float,
    noise_multiplier: float | None,
    sampling: Sampling | None,
    training: Theory | None,
    facts: Mapping[int, Mapping[str, list[float]]],
    canaries: Sequence[Mapping[str, Any]],
    arrays: Mapping[str, npt.NDArray[Any]],
    metrics: Mapping[str, float],
    timing: Mapping[str, float],
    config: Mapping[str, Any],
) -> CanifeResult:
    """From the scores of each period to all figures; ``independent`` says that a period's scores are."""
    found = [round_estimate(period, independent=independent, delta=delta, confidence=confidence) for period in periods]
    whole = found[0]
    if len(found) > 1:
        pooled = Period(
            0,
            sum(p.rounds for p in periods),
            np.concatenate([p.scores for p in periods]),
            np.concatenate([p.present for p in periods]),
            np.concatenate([p.sigma for p in periods]),
        )
        whole = round_estimate(pooled, independent=False, delta=delta, confidence=confidence)
    if whole.scores is None:
        raise InputError("coin flips planted a canary in all rounds or in none: take more trials, or another seed")
    composed, warnings = ([], []) if sampling is None else compose(found, sampling=sampling, delta=delta)
    theory = round_theory(noise_multiplier, delta) if noise_multiplier else None
    measured = {"planted": float(whole.scores.members.size), "held_out": float(whole.scores.observed.size)}
    measured |= {"attack_accuracy": whole.scores.max_accuracy}
    measured |= {"std_with": whole.with_canary[2], "std_without": whole.without_canary[2]}
    if noise_multiplier:
        measured["round_epsilon_rdp"] = accounting.round_epsilon(
            noise_multiplier=noise_multiplier, delta=delta, accountant="rdp"
        )
    return CanifeResult(
        audit="canife",
        view=view,
        seed=seed,
        estimates=first_judged(list(whole.estimates), whole.scores.members, whole.scores.observed, design="coin-flips"),
        scores=whole.scores,
        theory=theory,
        ceiling=whole.ceiling,
        warnings=[
            *_about_ceiling(whole),
            *_about_periods(found),
            *_about_fading(periods),
            *warnings,
            *_about_designs(facts),
        ],
        metrics={name: value for name, value in measured.items() if math.isfinite(value)} | dict(metrics),
        timing=timing,
        config=config,
        periods=found,
        composed=composed,
        training=training,
        designs=facts,
        canaries=canaries,
        arrays=arrays,
    )


def round_theory(noise_multiplier: float, delta: float) -> Theory:
    """What one round promises a client that is known to take part (q = 1, one step): the Gaussian mechanism's ε."""
    return Theory(
        epsilon=accounting.round_epsilon(noise_multiplier=noise_multiplier, delta=delta),
        delta=delta,
        accountant="exact",
        noise_multiplier=float(noise_multiplier),
        sampling=str(EveryRound()),
        q=1.0,
        rounds=1,
        adjacency=EveryRound.adjacency,
    )


def compose(periods: Sequence[RoundEstimate], *, sampling: Sampling, delta: float) -> tuple[list[Composed], list[str]]:
    """ε̂ of all rounds by Algorithm 2 of the paper, each ε̂ᵣ standing for the rounds of its period, and what to mind.

    Perfectly separated scores have rates of infinite ε: these count as their ceiling. A period without figures takes
    part with those of the one before it (of the one after, at the beginning).
    """
    told = [p for p in periods if p.scores is not None]
    if not told:
        return [], []
    found, warnings = [], []
    for method in (*_COMPOSED, "ceiling"):
        series = _series(periods, method)
        if series is None:
            continue
        if isinstance(sampling, AtMost):
            series += _beyond(series, sampling.times)
        for name, (inversion, accountant) in _WAYS.items():
            try:
                epsilon = accounting.compose_rounds(
                    series,
                    sampling=sampling,
                    delta=delta,
                    inversion=inversion,
                    accountant=accountant,
                    sensitivity=2.0 if isinstance(sampling, FixedSize) else 1.0,
                )
            except InputError as reason:
                warnings.append(f"{method} is not composed ({name}): {reason}")
                continue
            found.append(Composed(method=method, inversion=name, epsilon=epsilon))
    return found, warnings


def _series(periods: Sequence[RoundEstimate], method: str) -> list[tuple[float, int]] | None:
    """(ε̂ᵣ, rounds) in the order of the training."""
    values: list[float | None] = []
    for period in periods:
        value = period.rate_ceiling if method == "ceiling" else period.epsilon(method)
        values.append(period.rate_ceiling if value == math.inf and method == "best-threshold" else value)
    known = [value for value in values if value is not None]
    if not known or any(v is None and p.scores is not None for v, p in zip(values, periods, strict=True)):
        return None
    last, found = known[0], []
    for value, period in zip(values, periods, strict=True):
        last = last if value is None else value
        found.append((last, period.rounds))
    return found


def _beyond(series: Sequence[tuple[float, int]], times: int) -> list[tuple[float, int]]:
    """What a client that comes m times in a round, which counts as m² rounds, is exposed to beyond all rounds."""
    missing = times - sum(rounds for _, rounds in series)
    return [(max(epsilon for epsilon, _ in series), missing)] if missing > 0 else []


def _about_ceiling(whole: RoundEstimate) -> list[str]:
    if whole.ceiling != 0:
        return []
    return [
        f"with so few scores, {whole.with_canary[0]} with a canary and {whole.without_canary[0]} without, no bound "
        "could exceed 0, whatever leaks: take more trials, or more canaries"
    ]


def _about_periods(periods: Sequence[RoundEstimate]) -> list[str]:
    empty = [p.round for p in periods if p.scores is None]
    apart = [p.round for p in periods if p.epsilon("best-threshold") == math.inf]
    found = []
    if empty:
        found.append(f"coin flips left nothing to compare from {_rounds(empty)} on: take more trials")
    if apart:
        found.append(
            f"scores separate perfectly from {_rounds(apart)} on: their rates only say that ε is large, and are "
            "composed at their ceiling"
        )
    return found


def _about_fading(periods: Sequence[Period]) -> list[str]:
    faded = [period.round for period in periods if period.faded]
    if not faded:
        return []
    return [
        f"most scores from {_rounds(faded)} on show less than a quarter of what the best do: canaries fade as a model "
        "learns, or are much alike; design them more often (every), or take fewer"
    ]


def _about_designs(facts: Mapping[int, Mapping[str, list[float]]]) -> list[str]:
    found = []
    for round, design in facts.items():
        stopped = max(design["not_finite"])
        if stopped > 0:
            found.append(
                f"the design for round {round} met a loss that is not finite in iteration {stopped:.0f} and "
                "stopped: the canaries are the best until then"
            )
    short = [round for round, design in facts.items() if min(design["norm"]) < 1]
    if short:
        found.append(
            f"a canary of {_rounds(short)} sends less than the clip norm, and shows less than a client could: look at "
            "the clip norm and the clients' learning rate"
        )
    return found


def _rounds(rounds: Sequence[int]) -> str:
    shown = ", ".join(str(round) for round in rounds[:5])
    return f"round{'s' if len(rounds) > 1 else ''} {shown}{', …' if len(rounds) > 5 else ''}"


def number(value: float) -> str:
    """Four digits, ∞ for infinity."""
    return "∞" if value == math.inf else f"{value:.4g}"
