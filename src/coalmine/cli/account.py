"""``coalmine account``: what accountants guarantee."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from coalmine.cli import console
from coalmine.cli.options import AsJson, Delta
from coalmine.errors import InputError

if TYPE_CHECKING:
    from coalmine.claims import Claim


def account(
    noise_multiplier: Annotated[
        float | None,
        typer.Option(
            help="Noise multiplier: standard deviation of a round's noise over the clip norm.", show_default=False
        ),
    ] = None,
    sampling: Annotated[
        str | None,
        typer.Option(
            help="poisson:Q (or poisson:A/B), fixed:SIZE/POPULATION, epoch:ROUNDS, at-most:TIMES or every-round, the"
            " default.",
            show_default=False,
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = 1,
    delta: Delta = 1e-5,
    epsilon: Annotated[
        float | None, typer.Option(help="Instead of --noise-multiplier: a target ε; prints the noise required.")
    ] = None,
    local_epsilon: Annotated[
        float | None, typer.Option(help="Instead of --noise-multiplier: ε of one locally randomized report (LDP).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute the guaranteed ε of DP-FedAvg by each accountant, or the noise needed for a target ε."""
    from coalmine import claims
    from coalmine.results.io import envelope
    from coalmine.results.tables import Table, fixed

    if sum(value is not None for value in (noise_multiplier, epsilon, local_epsilon)) != 1:
        raise InputError("give one of --noise-multiplier, --epsilon (for the noise required) or --local-epsilon")
    if local_epsilon is not None:
        if sampling is not None:
            raise InputError("--sampling does not apply to --local-epsilon: every report is randomized on its device")
        claims_stated = [claims.Claim(local_epsilon=local_epsilon, rounds=rounds, delta=delta)]
    else:
        with console.busy("composing the rounds"):
            claims_stated = _by_each_accountant(noise_multiplier, epsilon, sampling or "every-round", rounds, delta)
    if as_json:
        summary = _summary(claims_stated, epsilon)
        console.print_json(envelope([], claims=[claim.to_dict() for claim in claims_stated], summary=summary))
        return
    rows = [
        [
            claim.accountant,
            fixed(claim.epsilon, 4),
            "-" if claim.noise_multiplier is None else f"{claim.noise_multiplier:.6g}",
            str(claim.sampling),
            f"{claim.rounds:,}",
            claim.adjacency,
        ]
        for claim in claims_stated
    ]
    columns = ["accountant", "ε", "noise multiplier", "sampling", "rounds", "neighbors"]
    console.print_table(Table(f"guarantees at δ = {delta:g}", columns, rows))
    console.print_sentence(_summary(claims_stated, epsilon))


def _by_each_accountant(
    noise_multiplier: float | None, epsilon: float | None, sampling: str, rounds: int, delta: float
) -> list[Claim]:
    """Return the claim by every accountant that supports the sampling, for this noise or the noise that ε needs."""
    from coalmine.claims import ACCOUNTANTS, Claim, noise_for, parse_sampling

    scheme, stated, errors = parse_sampling(sampling), [], []
    for name in ACCOUNTANTS:
        try:
            noise = noise_multiplier
            if epsilon is not None:
                noise = noise_for(epsilon=epsilon, sampling=scheme, rounds=rounds, delta=delta, accountant=name)
            claim = Claim(noise_multiplier=noise, sampling=scheme, rounds=rounds, delta=delta, accountant=name)
            _ = claim.epsilon  # raises if the accountant cannot compute it
            stated.append(claim)
        except InputError as error:
            errors.append(error)
    if not stated:
        raise errors[0]
    return stated


def _summary(claims_stated: Sequence[Claim], target: float | None) -> str:
    """Describe the best guarantee; ``target`` is the ε that a noise was computed for."""
    best = min(claims_stated, key=lambda claim: claim.epsilon if target is None else claim.noise_multiplier or 0.0)
    if best.epsilon == math.inf:
        return "There is no guarantee: ε is infinite."
    terms = f"δ = {best.delta:g} ({best.accountant}, neighbors: {best.adjacency})"
    if target is not None:
        text = f"A noise multiplier of {best.noise_multiplier:.6g} gives ε = {target:g} at {terms}."
    else:
        text = (
            f"ε is at most {best.epsilon:.4g} at {terms}, even for an adversary who sees every round. Every row is a "
            "valid upper bound; quote the smallest."
        )
    if best.adjacency == "replace-one" and best.noise_multiplier is not None:
        text += (
            " Replacing a client moves a sum of clipped updates by up to twice the clip norm, so here the noise "
            "multiplier is the noise over twice the clip norm."
        )
    return text
