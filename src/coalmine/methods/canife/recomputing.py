"""CANIFE's results again, from the trials that are stored with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from coalmine.claims.sampling import parse_sampling
from coalmine.errors import InputError
from coalmine.methods.canife.result import CanifeResult, canife_result
from coalmine.methods.canife.round_estimates import Period
from coalmine.results.result import Result, claim_from_dict

_COMPOSED = ", composed"


def recomputed(result: Result, siblings: Sequence[Result]) -> Result:
    """Return a result with its estimates, those of single rounds and the claim test computed again.

    Raises:
        InputError: If it is composed of rounds that are not among the ``siblings``.
    """
    if not result.view.endswith(_COMPOSED):
        again = _rounds(result)
        return replace(
            result,
            estimates=again.estimates,
            claim_test=again.claim_test,
            ceiling=again.ceiling,
            details={**result.details, **{name: again.details[name] for name in ("rounds", "composed")}},
        )
    rounds = next((other for other in siblings if other.label + _COMPOSED == result.label), None)
    composed = None if rounds is None else _rounds(rounds).composed_result()
    if composed is None:
        raise InputError(f"the rounds that {result.label} is composed of are missing")
    return replace(result, estimates=composed.estimates, claim_test=None)


def _rounds(result: Result) -> CanifeResult:
    """Return the result of the stored trials."""
    terms, arrays = dict(result.recipe), result.arrays
    periods, start = [], 0
    for first, rounds, trials in terms.pop("periods"):
        part = slice(start, start + trials)
        periods.append(Period(first, rounds, *(arrays[name][part] for name in ("scores", "present", "sigma"))))
        start += trials
    sampling = terms.pop("sampling")
    return canife_result(
        periods,
        view=result.view,
        seed=result.seed,
        sampling=None if sampling is None else parse_sampling(sampling),
        training_claim=claim_from_dict(result.details["training_claim"]),
        designs={},
        canaries=(),
        **terms,
    )
