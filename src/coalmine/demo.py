"""The demonstration: Gaussian mechanisms under audit, one of them with a bug."""

from __future__ import annotations

import numpy as np

from coalmine.audits.gaussian_mechanism import canary_cosines
from coalmine.stats import CosineNull, estimate, sigma_gaussian

DELTA, DIM, CANARIES = 1e-6, 1_000_000, 1_000

COLUMNS = ["mechanism", "claimed ε", "ε_est", "valid 95% bound", "verdict"]


def demo_rows(seed: int) -> list[list[str]]:
    """A row for each mechanism: what it claims, what its canaries estimate, what they prove."""
    cases = [(f"noise for ε = {epsilon}", epsilon, 1.0) for epsilon in (1.0, 3.0, 10.0)]
    cases.append(("noise for ε = 1, divided by 8: a bug", 1.0, 1 / 8))
    rows = []
    for stream, (name, claimed, factor) in zip(np.random.SeedSequence(seed).spawn(len(cases)), cases, strict=True):
        sigma = sigma_gaussian(claimed, DELTA) * factor
        cosines = canary_cosines(dim=DIM, canaries=CANARIES, sigma=sigma, rng=np.random.default_rng(stream))
        bound, shift = estimate(cosines, null=CosineNull(DIM), delta=DELTA, methods=["exact-null", "gaussian-shift"])
        verdict = "CLAIM REFUTED" if bound.epsilon > claimed else "consistent"
        rows.append([name, f"{claimed:.2f}", f"{shift.epsilon:.2f}", f"{bound.epsilon:.2f}", verdict])
    return rows
