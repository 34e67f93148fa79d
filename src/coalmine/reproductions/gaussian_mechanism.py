"""Table 1 of the one-shot paper: audits of a single application of the Gaussian mechanism."""

from __future__ import annotations

import numpy as np

from coalmine.arrays import Floats
from coalmine.errors import InputError, check_count
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
            cosines = canary_cosines(
                dim=dim, canaries=canaries, noise_multiplier=sigma, rng=np.random.default_rng(child)
            )
            scores = Scores(cosines, null=CosineNull(dim))
            shift.append(gaussian_shift(scores, delta=delta).epsilon)
            fit.append(gaussian_fit(scores, delta=delta).epsilon)
        rows.append([f"{sigma:.3g}", f"{epsilon:.1f}", printed, _mean_std(shift), _mean_std(fit)])
    columns = ["σ", "analytical ε", "paper's ε_est", "ours (Section 3: σ fixed)", "ours (Section 4: σ fitted)"]
    title = f"One-shot, Table 1: mean ± std of {simulations} simulations, seed {context.seed}"
    return ReproducedTable(title, columns, rows)


def canary_cosines(*, dim: int, canaries: int, noise_multiplier: float, rng: np.random.Generator) -> Floats:
    """Simulate one audit of the Gaussian mechanism without making any vector of length ``dim``.

    The Gram matrix of k Gaussian vectors is Wishart, so its triangular factor can be drawn directly (Bartlett 1933).
    The noise has k independent coordinates in the span of the canaries, and a χ²-distributed squared length outside.

    Args:
        dim: Number of coordinates.
        canaries: Number of canaries k, at most ``dim``.
        noise_multiplier: Standard deviation of the noise on each coordinate.
        rng: Source of k (k + 1) / 2 + O(k) random numbers.

    Returns:
        The canaries' cosines with the output, (canaries,), drawn from their exact joint distribution.

    Example:
        >>> canary_cosines(dim=100, canaries=2, noise_multiplier=0.0, rng=np.random.default_rng(0)).round(2)
        array([0.73, 0.73])
    """
    d, k = check_count("dim", dim), check_count("canaries", canaries)
    if k > d:
        raise InputError(f"canaries must be at most dim = {d}, got {k}")
    if not noise_multiplier >= 0:
        raise InputError(f"noise_multiplier must be at least 0, got {noise_multiplier}")
    # Rows are the canaries in an orthonormal basis of their span.
    coordinates = np.tril(rng.standard_normal((k, k)), -1)
    coordinates[np.diag_indices(k)] = np.sqrt(rng.chisquare(d - np.arange(k)))
    coordinates /= np.linalg.norm(coordinates, axis=1, keepdims=True)
    inside = coordinates.sum(axis=0) + noise_multiplier * rng.standard_normal(k)
    outside = noise_multiplier**2 * rng.chisquare(d - k) if d > k else 0.0
    cosines: Floats = coordinates @ inside / np.sqrt(inside @ inside + outside)
    return cosines


def _mean_std(values: list[float]) -> str:
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"
