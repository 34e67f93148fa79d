"""Checks of a training's noise that need no canary: is it there, everywhere, and drawn anew each time?

Each is a test of one lemma (`coalmine.stats.noise_tests`): in a subspace fixed before the noise of a round is drawn,
the update has at least the energy of the claimed noise, whatever the clients sent. docs/checks.md has the proofs.
"""

from __future__ import annotations

from coalmine.methods.one_shot.claimed_noise import ClaimedNoise
from coalmine.methods.one_shot.noise_patterns import shape_findings
from coalmine.methods.one_shot.noise_repeats import copy_findings, repeat_findings
from coalmine.methods.one_shot.noise_sizes import size_findings, too_large
from coalmine.results.finding import Check, Finding

NOISE_CHECKS = (Check.PLACES, Check.FRESH, Check.INDEPENDENT, Check.SHAPE)


def noise_findings(claim: ClaimedNoise) -> list[Finding]:
    """Return what all checks found. The p-values take all tests of one check into account."""
    if not claim.record.counts.any():
        return []
    if claim.is_mostly_missing:  # what repeats is then the signal
        return [*size_findings(claim, fresh=True), *too_large(claim)]
    repeats = repeat_findings(claim)
    findings = [*size_findings(claim, fresh=not repeats), *repeats, *copy_findings(claim, fresh=not repeats)]
    _, rows, rounding = claim.rows
    # Missing and repeated noise has another shape, too.
    findings = findings or shape_findings(rows, float(rounding.max()), claim.level)
    return [*findings, *too_large(claim)]
