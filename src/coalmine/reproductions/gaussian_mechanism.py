"""Table 1 of the one-shot paper: audits of a single application of the Gaussian mechanism."""

from __future__ import annotations

import numpy as np

from coalmine.methods.mechanism.audit import canary_cosines
from coalmine.reproductions.table import Context, ReproducedTable
from coalmine.stats import CosineNull, Scores, gaussian_fit, gaussian_shift, sigma_gaussian


def table_1(context: Context) -> ReproducedTable:
    """Audit the Gaussian mechanism as in Andrew et al. (2023), Table 1 (d = 10⁶, k = 10³, δ = 10⁻⁶)."""
    dim, canaries, delta, simulations = 10**6, 10**3, 1e-6, 50
    paper = {1.0: "0.972 ± 0.148", 3.0: "3.04 ± 0.137", 10.0: "9.98 ± 0.190"}
    rows = []
    for stream, (epsilon, printed) in zip(
        np.random.SeedSequence(context.seed).spawn(len(paper)), paper.items(), strict=True
    ):
        sigma = sigma_gaussian(epsilon, delta)
        shift, fit = [], []
        for child in context.track(stream.spawn(simulations)):
            cosines = canary_cosines(dim=dim, canaries=canaries, sigma=sigma, rng=np.random.default_rng(child))
            scores = Scores(cosines, null=CosineNull(dim))
            shift.append(gaussian_shift(scores, delta=delta).epsilon)
            fit.append(gaussian_fit(scores, delta=delta).epsilon)
        rows.append([f"{sigma:.3g}", f"{epsilon:.1f}", printed, _mean_std(shift), _mean_std(fit)])
    columns = ["σ", "analytical ε", "paper's ε_est", "ours (Section 3: σ fixed)", "ours (Section 4: σ fitted)"]
    title = f"One-shot, Table 1: mean ± std of {simulations} simulations, seed {context.seed}"
    return ReproducedTable(title, columns, rows)


def _mean_std(values: list[float]) -> str:
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"
