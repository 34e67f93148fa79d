"""What to be careful with in a one-shot result."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from coalmine.claims import Claim, FixedSize, Poisson
from coalmine.methods.one_shot.scaled import largest_clip_norm
from coalmine.methods.one_shot.updates import FAMILIES
from coalmine.stats.gaussian import epsilon_gdp

if TYPE_CHECKING:
    from coalmine.methods.one_shot.audit import OneShot


def cautions(audit: OneShot, claim: Claim | None) -> list[str]:
    """Return warnings about an audit and the claim that it is compared with."""
    return [
        *_about_silence(audit),
        *_about_precision(audit),
        *_about_secret_rounds(audit, claim),
        *_about_crowding(audit, claim),
        *_about_noise_per_layer(audit, claim),
    ]


def _about_silence(audit: OneShot) -> list[str]:
    """Warn if there is no evidence at all."""
    return ["no canary took part in a round that the view shows, so there is no evidence"] if audit.is_silent else []


def _about_precision(audit: OneShot) -> list[str]:
    """Say that there is no noise where the bound is what the precision of the scores can show."""
    if not audit.is_noiseless:
        return []
    return [
        "no noise detected: beside canaries, a release contains only rounding errors, and the lower bound is the "
        "largest that scores of this precision can show"
    ]


def _about_secret_rounds(audit: OneShot, claim: Claim | None) -> list[str]:
    """Warn if the score knows what the claim assumes to be secret."""
    if claim is None or not audit.knows_rounds or not isinstance(claim.sampling, Poisson | FixedSize):
        return []
    return [
        f"the score {audit.score} knows the rounds of each canary, but the claim for {claim.sampling} assumes that "
        f"they are secret: compare with a claim for {audit.sampling}"
    ]


def _about_crowding(audit: OneShot, claim: Claim | None) -> list[str]:
    """Warn if there are so many canaries that they hide each other."""
    crowd = f"{audit.canaries:,} canaries in {audit.dim:,} dimensions disturb each other"
    if 4 * audit.canaries > audit.dim:
        return [f"{crowd}: fewer would show more"]
    if FAMILIES[audit.family].orthonormal or not audit.shares_rounds or claim is None:
        return []
    # Cosines of Gaussian canaries that share a round are not independent: each is noise to the others, of variance k/d.
    # Even without any other noise they look like a Gaussian mechanism with μ = √(d/k).
    limit = float(epsilon_gdp(math.sqrt(audit.dim / audit.canaries), claim.delta))
    if limit > 2 * claim.epsilon:
        return []
    return [f"{crowd}: even without noise they would show only about ε = {limit:.3g}; fewer would show more"]


def _about_noise_per_layer(audit: OneShot, claim: Claim | None) -> list[str]:
    """Say what must hold for the noise per tensor, which the audit cannot see, to keep the claim."""
    limit = None if claim is None or audit.noise_per_layer is None else largest_clip_norm(audit.noise_per_layer)
    if limit is None:
        return []
    return [
        "the noise of each tensor was stated (noise_per_layer), and the claim covers it only if clip norms are as "
        f"small: that of {limit[0]} at most {limit[1]:.2g} of all of them together"
    ]
