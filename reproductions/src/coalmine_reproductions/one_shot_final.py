"""What the final model shows in the one-shot paper's own setting, by its formula instead of by a training.

A canary that takes part once moves the model by η C / m, with server rate η, clip norm C and m clients per round. The
noise of T rounds moves it by η z C √d √T / m, and this is nearly all of the final model's length if there is much of
it. The cosine of the canary with the model is then 1 / (z √(T d)) on average, 1 / (z √T) standard deviations of the
null, whatever the task, the architecture, η, C and m: the noise multiplier z and the number of rounds T decide Table 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from coalmine.stats import CosineNull, Scores
from coalmine.stats.gaussian import gaussian_fit
from coalmine_reproductions.cells import Number
from coalmine_reproductions.claims import PaperClaim, near
from coalmine_reproductions.estimators import published_lower_bound
from coalmine_reproductions.one_shot import PAPER_NOISE, ROUNDS, TABLE_3, USERS
from coalmine_reproductions.table import Context, ReproducedTable

DIM, CANARIES = 4_100_000, 1000
"""Section 5 of the paper."""
SIMULATIONS = {"quick": 50, "full": 500}


def final_shift(noise_multiplier: float, rounds: int) -> float:
    """Return the mean cosine of canaries inserted once, in standard deviations of the null, if noise dominates.

    Args:
        noise_multiplier: Noise multiplier z, above 0.
        rounds: Number of rounds T.

    Example:
        >>> round(final_shift(0.2344, 2048), 3)
        0.094
    """
    return 1 / (noise_multiplier * math.sqrt(rounds))


@dataclass(frozen=True)
class FinalCosines:
    """Simulations of the final cosines: the noise multiplier, the number of simulations, and the seed."""

    noise_multiplier: float
    simulations: int
    seed: int


def estimate(cell: FinalCosines) -> dict[str, list[float]]:
    """Return ε_est and ε_lo of each simulation."""
    rng = np.random.default_rng([cell.seed, round(10_000 * cell.noise_multiplier)])
    shift, delta = final_shift(cell.noise_multiplier, ROUNDS), USERS**-1.1
    kept: dict[str, list[float]] = {"estimate": [], "published": []}
    for _ in range(cell.simulations):
        cosines = rng.normal(shift, 1.0, CANARIES) / DIM**0.5
        scores = Scores(cosines, null=CosineNull(DIM))
        kept["estimate"].append(gaussian_fit(scores, delta=delta).epsilon)
        kept["published"].append(published_lower_bound(scores, delta=delta).epsilon)
    return kept


def final_model(context: Context) -> ReproducedTable:
    """Predict ε of the final model in the paper's setting, from the noise and the number of rounds alone."""
    noises = [noise for noise in PAPER_NOISE if noise]
    cells = {
        f"one-shot-final-model-{noise:g}": FinalCosines(noise, SIMULATIONS[context.scale], context.seed)
        for noise in noises
    }
    parts = context.parts(estimate, cells)
    printed = [(float(row[3]), float(row[2])) for row in TABLE_3[1:]]
    rows: list[list[str]] = []
    claims: list[PaperClaim] = []
    numbers: dict[str, list[float]] = {}
    for (name, cell), values in zip(cells.items(), printed, strict=True):
        noise = cell.noise_multiplier
        row = [f"{noise:g}", f"{final_shift(noise, ROUNDS):.3f}"]
        for label, key, value in zip(("ε_est", "ε_lo"), ("estimate", "published"), values, strict=True):
            simulated = np.array(parts[name][key])
            mean, spread = float(simulated.mean()), float(simulated.std(ddof=1))
            row += [f"{value:g}", Number(mean, ".2f"), Number(spread, ".2f")]
            numbers[f"{key} {noise:g}"] = [mean]
            # The paper has one training, so one draw from the simulated distribution.
            agrees = near(value, within=2 * spread)
            text = f"{label}-final at noise {noise:g} follows from noise and rounds, to within two standard deviations"
            claims.append(PaperClaim(text, f"{value:g}", [f"{key} {noise:g}"], agrees))
        rows.append(row)
    columns = ["noise", "mean cosine × √d", "paper: ε_est-final", "predicted", "std of one training"]
    columns += ["paper: ε_lo-final", "predicted", "std of one training"]
    title = (
        f"One-shot, Table 3, final model: predicted from {ROUNDS:,} rounds of noise, "
        f"{SIMULATIONS[context.scale]} simulations of {CANARIES:,} cosines"
    )
    return ReproducedTable(title, columns, rows, numbers=numbers, claims=claims)
