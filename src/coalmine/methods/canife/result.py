"""`CanifeResult`: ε of single rounds, what limits it, and the rounds composed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coalmine import claims
from coalmine.checks.accounting import accounting_findings
from coalmine.claims import Claim
from coalmine.claims.sampling import Sampling
from coalmine.errors import InputError
from coalmine.methods.canife.epsilon import (
    Composed,
    Period,
    RoundEstimate,
    anytime_bound,
    compose,
    round_estimate,
)
from coalmine.methods.estimates import claim_test, with_stricter_bound
from coalmine.results.claim_test import ClaimTest, check_claim
from coalmine.results.result import Result, in_json
from coalmine.results.verdict import ROUND, USER
from coalmine.stats import Estimate, Scores
from coalmine.stats.claim_tests import ClaimTests

_ODDS = "an attacker can be {times} likelier to say that the canary took part if it did than if it did not"


@dataclass(frozen=True, kw_only=True, repr=False)
class CanifeResult(Result):
    """ε of a single round, for a client known to take part in it.

    ``estimates`` are from the scores of all rounds together and ``claim`` is the claim for one round. ``details``
    holds the following fields ready for JSON, under the keys ``rounds``, ``composed`` and ``training_claim``, so that
    a result read from disk is drawn in the same way. Its ``designs`` are the facts about each canary (health, norm, …)
    by the round of a design, its ``canaries`` the last ones, as far as they can be described.

    Args:
        periods: Estimates along the training.
        composed: ε of the whole training, composed from single rounds: estimates, never bounds.
        training_claim: The claim for the whole training, which ``composed`` compares with.

    Example:
        `Canife.result` returns one; this one has made-up numbers.

        >>> composed = [Composed(method="gdp", inversion="exact", epsilon=1.5)]
        >>> result = CanifeResult(
        ...     method="canife", view="frozen", unit=ROUND, adversary="knows a crafted sample", score_name="share",
        ...     seed=0, estimates=[Estimate("gdp", 1.0, delta=1e-5)], composed=composed,
        ... )
        >>> result.composed[0].epsilon
        1.5
    """

    periods: Sequence[RoundEstimate] = ()
    composed: Sequence[Composed] = ()
    training_claim: Claim | None = None

    def composed_result(self) -> Result | None:
        """Return the rounds composed to ε of one user and the whole training, or None if they were not composed.

        Its only estimate, ``"composed"``, comes from the estimator that is the best guess for a single round. It is
        never a bound.
        """
        exact = [c for c in self.composed if c.inversion == "exact"]
        if not exact:
            return None
        # The same estimator for one round and for all, so that the two results tell one story.
        guess = "gaussian-shift" if self.best_guess is None else self.best_guess.method
        chosen = next((c for c in exact if c.method == guess), exact[0])
        return Result(
            method=self.method,
            view=f"{self.view}, composed",
            unit=USER,
            adversary="knows crafted samples and sees all rounds",
            score_name=self.score_name,
            side_names=self.side_names,
            seed=self.seed,
            estimates=[
                Estimate(
                    "composed",
                    chosen.epsilon,
                    chosen.lower,
                    chosen.upper,
                    None if chosen.lower is None else self[chosen.method].confidence,
                    delta=self.estimates[0].delta,
                    assumes=f"the estimates of single rounds by {chosen.method} hold and the mechanism is Gaussian",
                    few_scores=any(e.few_scores for e in self.estimates if e.method == chosen.method),
                )
            ],
            claim=self.training_claim,
            findings=list(accounting_findings(self.training_claim)),
            variant=self.variant,
            training=self.training,
            config=self.config,
            provenance=self.provenance,
        )


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
    training_claim: Claim | None,
    designs: Mapping[int, Mapping[str, list[float]]],
    canaries: Sequence[Mapping[str, Any]],
) -> CanifeResult:
    """Return the result of all periods; ``independent`` says whether the scores within a period are independent."""
    rounds = [round_estimate(period, independent=independent, delta=delta, confidence=confidence) for period in periods]
    # Scores of different periods are never independent: the model moved between them.
    whole, together = rounds[0], periods[0]
    if len(rounds) > 1:
        trials = [(period.scores, period.present, period.sigma) for period in periods]
        total = sum(period.rounds for period in periods)
        together = Period(0, total, *map(np.concatenate, zip(*trials, strict=True)))
        whole = round_estimate(together, independent=False, delta=delta, confidence=confidence)
    if whole.scores is None:
        raise InputError(
            "the coin flips inserted the canary in every round or in none, so there is nothing to compare: use more "
            "trials or another seed"
        )
    members, nonmembers = whole.scores.members, whole.scores.observed
    estimates = with_stricter_bound(list(whole.estimates), members, nonmembers, design="coin-flips")
    # After the bounds for a fixed number of trials, which are larger, and before the estimates.
    estimates.insert(sum(e.valid for e in estimates), anytime_bound(periods, delta).estimate(confidence))
    metrics: dict[str, float | None] = {
        "inserted": float(members.size),
        "held_out": float(nonmembers.size),
        "attack_accuracy": whole.scores.max_accuracy,
        "std_with": whole.moments(present=True)[2],
        "std_without": whole.moments(present=False)[2],
    }
    claim = test = None
    if noise_multiplier:  # without noise there is no claim that scores could refute
        # A client known to take part in one round (q = 1, one step): the Gaussian mechanism.
        claim = Claim(noise_multiplier=noise_multiplier, rounds=1, delta=delta)
        metrics["round_epsilon_rdp"] = claims.round_epsilon(
            noise_multiplier=noise_multiplier, delta=delta, accountant="rdp"
        )
        if independent and len(rounds) > 1:
            test = _test_of_one_period(claim, periods, confidence)
        else:
            test = claim_test(
                claim,
                whole.estimates,
                members,
                nonmembers,
                design="coin-flips",
                independent=independent,
                expected=together.separation,
            )
    described: list[dict[str, Any]] = []
    for round, design in designs.items():
        # Facts that are unknown (NaN) are null in JSON.
        known = {name: [v if math.isfinite(v) else None for v in values] for name, values in design.items()}
        described.append({"round": round, **known})
    composed: list[Composed] = []
    warnings = _warnings(periods, rounds, whole, designs)
    if sampling is not None:
        composed, composition_warnings = compose(rounds, sampling=sampling, delta=delta)
        warnings[:0] = composition_warnings
    return CanifeResult(
        odds=_ODDS,
        method="canife",
        view=view,
        unit=ROUND,
        adversary="knows a crafted sample and sees a round's noisy sum",
        score_name="score in units of the canary's signal",
        side_names=("canary present", "canary absent"),
        seed=seed,
        estimates=estimates,
        scores=whole.scores,
        claim=claim,
        claim_test=test,
        ceiling=whole.ceiling,
        warnings=warnings,
        metrics={name: value for name, value in metrics.items() if value is not None},
        details={
            "rounds": [estimate.to_dict() for estimate in rounds],
            "composed": [{name: in_json(value) for name, value in vars(c).items()} for c in composed],
            "designs": described,
            "canaries": [dict(canary) for canary in canaries],
            "training_claim": None if training_claim is None else training_claim.to_dict(),
        },
        # What `coalmine check` computes all of the above again from, with the stored scores.
        recipe={
            "periods": [[period.round, period.rounds, len(period.scores)] for period in periods],
            "independent": independent,
            "delta": delta,
            "confidence": confidence,
            "noise_multiplier": noise_multiplier,
            "sampling": None if sampling is None else str(sampling),
        },
        periods=rounds,
        composed=composed,
        training_claim=training_claim,
    )


def _test_of_one_period(claim: Claim, periods: Sequence[Period], confidence: float) -> ClaimTest:
    """Return the test of a round's claim in the period that contradicts it most, corrected for their number.

    Scores within a period are independent, those of different periods are not. All of them together would leave only
    the guesses about one run, which cannot tell half of the noise from the claim; the union bound costs far less.
    """
    scored = [(period.pair, period.separation) for period in periods if period.pair is not None]
    p_value, strongest = strongest_period([scores for scores, _ in scored], claim)
    scores, expected = scored[strongest]
    strict = 1 - (1 - confidence) / len(scored)  # Bonferroni over the periods
    terms: dict[str, Any] = {"confidence": strict, "design": "coin-flips", "expected": expected}
    test = check_claim(scores.members, scores.observed, claim, **terms)
    return replace(test, p_value=p_value, confidence=confidence)


def strongest_period(scored: Sequence[Scores], claim: Claim) -> tuple[float, int]:
    """Return the p-value of the claim from all periods, by the union bound, and which of them contradicts it most."""
    curve = claim.curve()
    p_values = [ClaimTests(scores, design="coin-flips").p_value(curve) for scores in scored]
    return min(1.0, len(scored) * min(p_values)), p_values.index(min(p_values))


def _warnings(
    periods: Sequence[Period],
    rounds: Sequence[RoundEstimate],
    whole: RoundEstimate,
    designs: Mapping[int, Mapping[str, list[float]]],
) -> list[str]:
    """Warn about scores that are too few, faded or perfectly separated, and about designs that did not work."""
    warnings = []
    if whole.ceiling == 0:
        warnings.append(
            f"{whole.moments(present=True)[0]} scores with a canary and {whole.moments(present=False)[0]} without are "
            "too few: no bound could exceed 0, whatever leaks. Use more trials or more canaries"
        )
    short = []
    for round, design in designs.items():
        stopped = max(design["not_finite"])
        if stopped > 0:
            warnings.append(
                f"the design for round {round} stopped at a loss that is not finite in iteration {stopped:.0f}; its "
                "canaries are the best before that"
            )
        if min(design["norm"]) < 1:
            short.append(round)
    remarks = {
        "from {} on, coin flips left nothing to compare. Use more trials": [
            period.round for period in rounds if period.scores is None
        ],
        "from {} on, scores separate perfectly: their rates only show that ε is large, and are composed at their "
        "ceiling": [period.round for period in rounds if period.epsilon("best-threshold") == math.inf],
        "from {} on, most scores carry less than a quarter of the information of the best ones: canaries fade as the "
        "model learns them, or resemble one another. Design them more often (every), or use fewer": [
            period.round for period in periods if period.faded
        ],
        "a canary of {} sends less than the clip norm, so it shows less than a client could: check the clip norm and "
        "the clients' learning rate": short,
    }
    for remark, where in remarks.items():
        if where:
            # The first five rounds say enough.
            shown = ", ".join(map(str, where[:5])) + ", …" * (len(where) > 5)
            warnings.append(remark.format(f"round{'s' * (len(where) > 1)} {shown}"))
    return warnings
