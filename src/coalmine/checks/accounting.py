"""Is a claim the one that the audited training can make? Its ε, its rounds and its δ, without any statistics."""

from __future__ import annotations

from collections.abc import Iterator

from coalmine.claims import Claim
from coalmine.claims.sampling import AtMost, Epochs
from coalmine.results.summary import number, plural
from coalmine.results.verdict import Check, Finding


def accounting_findings(claim: Claim | None, rounds: range | None = None, users: int = 0) -> Iterator[Finding]:
    """Yield what is wrong with a claim whatever the training did.

    Args:
        claim: The claim, as whoever claims it states it, or None.
        rounds: The numbers of rounds that the training may have had; more than one if rounds were aborted.
        users: Number of people, or examples, in the data; 0 if unknown.

    Example:
        >>> claim = Claim(noise_multiplier=1.0, sampling="poisson:0.1", rounds=200, delta=1e-5, epsilon=0.95)
        >>> for finding in accounting_findings(claim, range(100, 101), users=500):
        ...     print(finding.refutes, finding.sentence[:53])
        True The claimed ε = 0.95 is below what this mechanism giv
        False The claim is for 200 rounds, but the training had 100
    """
    if claim is None:
        return
    # Our own rounding is below a thousandth of ε (`pld_step`). Others that approximate privacy losses, such as PRV,
    # give ε within 0.01, and people round to two or three digits.
    stated, computed = claim.stated, None
    if None not in (claim.sampling, claim.least_noise, claim.rounds):
        computed = claim.replace(epsilon=None, accountant=None)
    if stated is not None and computed is not None and stated < min(0.99 * computed.epsilon, computed.epsilon - 0.01):
        noise = "" if computed.noise_multiplier is None else f"a noise multiplier of {computed.noise_multiplier:g}, "
        yield Finding(
            check=Check.ACCOUNTING,
            sentence=f"The claimed ε = {number(claim.epsilon)} is below what this mechanism gives: "
            f"{number(computed.epsilon)} at δ = {claim.delta:g} for {noise}{computed.sampling} and "
            f"{plural(computed.rounds or 0, 'round')}. Look at the sampling rate and the rounds",
            # RDP alone is far from tight, so that a smaller ε than its may well be right.
            refutes=computed.accountant == "pld",
        )
    if rounds is not None and claim.rounds is not None and claim.least_noise is not None and claim.rounds not in rounds:
        # Where nobody takes part more often than stated, ε does not depend on the number of rounds.
        limited = isinstance(claim.sampling, AtMost | Epochs)
        had = f"The claim is for {plural(claim.rounds, 'round')}, but the training had {rounds[-1]:,}"
        yield Finding(check=Check.ACCOUNTING, sentence=had, refutes=claim.rounds < rounds[0] and not limited)
    if delta_is_large(claim, users):
        yield Finding(check=Check.ACCOUNTING, sentence=delta_is_large(claim, users), refutes=False)


def delta_is_large(claim: Claim, users: int) -> str:
    """Say that δ is too large for so many people, or examples; empty if it is not, or if their number is 0."""
    if users == 0 or claim.delta <= 1 / users:
        return ""
    return (
        f"The claimed δ = {claim.delta:g} is larger than 1/{users:,}: publishing all about one of {users:,} at random "
        "would keep it. State ε at a smaller δ"
    )
