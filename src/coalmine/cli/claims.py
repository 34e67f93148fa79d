"""``coalmine account`` and ``coalmine plan``: what accountants guarantee, and what it takes to test it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from coalmine.cli import console
from coalmine.cli.console import AsJson, Confidence, Delta
from coalmine.errors import InputError

if TYPE_CHECKING:
    from coalmine.claims import Claim


def account(
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise multiplier: standard deviation of a round's noise over the clip norm.")
    ] = None,
    sampling: Annotated[
        str, typer.Option(help="poisson:Q (or poisson:A/B), fixed:SIZE/POPULATION, epoch:ROUNDS, at-most:TIMES, …")
    ] = "every-round",
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = 1,
    delta: Delta = 1e-5,
    epsilon: Annotated[
        float | None, typer.Option(help="Instead of --noise-multiplier: a target ε; prints the noise required.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compute the guaranteed ε of DP-FedAvg by each accountant, or the noise needed for a target ε."""
    from coalmine.claims import Claim, noise_for, parse_sampling
    from coalmine.claims.sampling import ACCOUNTANTS
    from coalmine.results.io import envelope
    from coalmine.results.tables import Table, fixed

    if (noise_multiplier is None) == (epsilon is None):
        raise InputError("give one of --noise-multiplier and --epsilon (for the noise required)")
    scheme = parse_sampling(sampling)
    claims: list[Claim] = []
    errors: list[InputError] = []
    with console.busy("composing the rounds"):
        for name in ACCOUNTANTS:
            try:
                noise = noise_multiplier
                if epsilon is not None:
                    noise = noise_for(epsilon=epsilon, sampling=scheme, rounds=rounds, delta=delta, accountant=name)
                claim = Claim(noise_multiplier=noise, sampling=scheme, rounds=rounds, delta=delta, accountant=name)
                _ = claim.epsilon  # raises if the accountant cannot compute it
                claims.append(claim)
            except InputError as error:
                # No accountant supports every sampling, so one that does not is left out of the table.
                errors.append(error)
    if not claims:  # they all fail for the same reason, such as a number out of range
        raise errors[0]
    summary = _summary(claims, epsilon)
    if as_json:
        console.print_json(envelope([], claims=[claim.to_dict() for claim in claims], summary=summary))
        return
    rows = []
    for claim in claims:
        noise_text = "-" if claim.noise_multiplier is None else f"{claim.noise_multiplier:.6g}"
        terms = [str(claim.sampling), f"{claim.rounds:,}", claim.adjacency]
        rows.append([claim.accountant, fixed(claim.epsilon, 4), noise_text, *terms])
    columns = ["accountant", "ε", "noise multiplier", "sampling", "rounds", "neighbors"]
    console.print_table(Table(f"guarantees at δ = {delta:g}", columns, rows))
    console.print_sentence(summary)


def _summary(claims: Sequence[Claim], target: float | None) -> str:
    """Describe the best guarantee; ``target`` is the ε that a noise was computed for."""
    # Every accountant gives a valid bound, so the smallest ε, or the least noise for a target, may be quoted.
    best = min(claims, key=lambda claim: claim.epsilon if target is None else claim.noise_multiplier or 0.0)
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
    # Easily missed, and it halves the noise multiplier that the same σ stands for.
    if best.adjacency == "replace-one":
        text += (
            " Replacing a client moves a sum of clipped updates by up to twice the clip norm, so here the noise "
            "multiplier is the noise over twice the clip norm."
        )
    return text


def plan(
    noise_multiplier: Annotated[
        float, typer.Option(help="Claimed noise multiplier: standard deviation of a round's noise over the clip norm.")
    ],
    sampling: Annotated[
        str, typer.Option(help="How clients and canaries take part: poisson:Q, fixed:SIZE/POPULATION, epochs:N, …")
    ] = "every-round",
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = 1,
    clients: Annotated[float | None, typer.Option(help="Expected clients per round, for what canaries cost.")] = None,
    dim: Annotated[int | None, typer.Option(help="Number of parameters, for the noise that canaries add.")] = None,
    view: Annotated[str, typer.Option(help="What the adversary sees, such as updates or final-change.")] = "updates",
    delta: Delta = 1e-5,
    confidence: Confidence = 0.95,
    as_json: AsJson = False,
) -> None:
    """Plan an audit: how many canaries detect missing noise, and what they cost the training.

    docs/one-shot.md explains the numbers.
    """
    import coalmine
    from coalmine.results.io import envelope
    from coalmine.results.tables import Table

    with console.busy("computing the power of the audit"):
        planned = coalmine.plan(
            noise_multiplier=noise_multiplier,
            sampling=sampling,
            rounds=rounds,
            clients=clients,
            dim=dim,
            view=view,
            delta=delta,
            confidence=confidence,
        )
    if as_json:
        claim = planned.claim.to_dict()
        console.print_json(envelope([], claims=[claim], plan=planned.to_dict(), summary=planned.summary))
        return
    title = f"canaries that detect less than the claimed noise ({planned.test} test, view {planned.view})"
    console.print_table(Table(title, *planned.cells()))
    console.print_sentence(planned.summary)
