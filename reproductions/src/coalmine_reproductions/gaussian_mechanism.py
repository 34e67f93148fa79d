"""Table 1 and Sections 3 and 4 of the one-shot paper: a single application of the Gaussian mechanism, and the null.

`table_1` and `convergence` audit the mechanism; `null_normality` tests whether cosines of unseen canaries are normal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coalmine.arrays import Floats
from coalmine.errors import InputError, check_count
from coalmine.stats import CosineNull, Scores, gaussian_shift, sigma_gaussian
from coalmine.stats.gaussian import anderson_darling, gaussian_fit
from coalmine_reproductions.cells import Number
from coalmine_reproductions.claims import PaperClaim, falls, near
from coalmine_reproductions.table import Context, ReproducedTable

DIM, CANARIES, DELTA, SIMULATIONS = 10**6, 10**3, 1e-6, 50
PAPER = {1.0: (0.972, 0.148), 3.0: (3.04, 0.137), 10.0: (9.98, 0.190)}
"""Mean and standard deviation of the paper's 50 estimates, by the analytical ε."""
SQUARE_SIZES = ((10**2, 10), (10**3, 32), (10**4, 100), (10**5, 316), (10**6, 1000))
"""Dimensions d and numbers of canaries k = √d, along which Section 3 takes its limit."""
NULL_DIM, NULL_COSINES, NULL_SAMPLES = 1000, 10**6, {"quick": 40, "full": 200}
FIFTEEN_PER_CENT = 0.574
"""Critical value of the Anderson–Darling statistic at the 15% level, as in the paper's Table 4."""


def _table_1_claims() -> list[PaperClaim]:
    """Return one claim per row: the paper's mean, up to three standard errors of the difference of two such means."""
    return [
        PaperClaim(
            f"the mechanism with ε = {epsilon:g} is estimated at {mean:g}",
            f"{mean:g} ± {std:.3f}",
            [f"shift {epsilon:g}"],
            near(mean, within=3 * std * (2 / SIMULATIONS) ** 0.5),
            near(epsilon, within=std),
        )
        for epsilon, (mean, std) in PAPER.items()
    ]


@dataclass(frozen=True)
class Simulations:
    """All simulations of one row: its analytical ε, its position in the table, the seed, and the size."""

    epsilon: float
    position: int
    seed: int
    dim: int = DIM
    canaries: int = CANARIES


def simulate(cell: Simulations) -> dict[str, list[float]]:
    """Return the estimates of one row, with the standard deviation fixed (``"shift"``) and fitted (``"fit"``)."""
    sigma = sigma_gaussian(cell.epsilon, DELTA)
    stream = np.random.SeedSequence(cell.seed).spawn(cell.position + 1)[-1]
    estimates: dict[str, list[float]] = {"shift": [], "fit": []}
    for child in stream.spawn(SIMULATIONS):
        rng = np.random.default_rng(child)
        cosines = canary_cosines(dim=cell.dim, canaries=cell.canaries, noise_multiplier=sigma, rng=rng)
        scores = Scores(cosines, null=CosineNull(cell.dim))
        estimates["shift"].append(gaussian_shift(scores, delta=DELTA).epsilon)
        estimates["fit"].append(gaussian_fit(scores, delta=DELTA).epsilon)
    return estimates


def table_1(context: Context) -> ReproducedTable:
    """Audit the Gaussian mechanism as in Andrew et al. (2023), Table 1 (d = 10⁶, k = 10³, δ = 10⁻⁶)."""
    cells = {f"one-shot-table-1-{epsilon:g}": Simulations(epsilon, i, context.seed) for i, epsilon in enumerate(PAPER)}
    parts = context.parts(simulate, cells)
    rows, numbers = [], {}
    for (name, cell), (mean, std) in zip(cells.items(), PAPER.values(), strict=True):
        sigma = sigma_gaussian(cell.epsilon, DELTA)
        labels = [f"{sigma:.3g}", f"{cell.epsilon:.1f}", f"{mean:g} ± {std:.3f}"]
        rows.append([*labels, _mean_std(parts[name]["shift"]), _mean_std(parts[name]["fit"])])
        numbers[f"shift {cell.epsilon:g}"] = [float(np.mean(parts[name]["shift"]))]
    columns = ["σ", "analytical ε", "paper's ε_est", "ours (Section 3: σ fixed)", "ours (Section 4: σ fitted)"]
    title = f"One-shot, Table 1: mean ± std of {SIMULATIONS} simulations"
    return ReproducedTable(title, columns, rows, numbers=numbers, claims=_table_1_claims())


def convergence(context: Context) -> ReproducedTable:
    """Audit the mechanism in growing dimensions d with √d canaries, where the estimate converges (Section 3)."""
    cells = {
        f"one-shot-section-3-{dim}-{epsilon:g}": Simulations(epsilon, i, context.seed, dim, canaries)
        for dim, canaries in SQUARE_SIZES
        for i, epsilon in enumerate(PAPER)
    }
    parts = context.parts(simulate, cells)
    numbers = {
        f"error {cell.epsilon:g} {cell.dim}": [_root_mean_square(parts[name]["shift"], cell.epsilon)]
        for name, cell in cells.items()
    }
    rows = []
    for dim, canaries in SQUARE_SIZES:
        row = [f"{dim:,}", f"{canaries:,}"]
        for epsilon in PAPER:
            row.append(_mean_std(parts[f"one-shot-section-3-{dim}-{epsilon:g}"]["shift"]))
            row.append(Number(numbers[f"error {epsilon:g} {dim}"][0], ".3f"))
        rows.append(row)
    columns = ["d", "k", *(text for epsilon in PAPER for text in (f"ε = {epsilon:g}", "error"))]
    claims = [
        PaperClaim(
            f"the estimate converges to ε = {epsilon:g} as d and k = √d grow: its error falls at every step",
            "no number",
            [f"error {epsilon:g} {dim}" for dim, _ in SQUARE_SIZES],
            falls,
        )
        for epsilon in PAPER
    ]
    title = f"One-shot, Section 3: mean ± std of {SIMULATIONS} estimates, and their root mean squared error"
    return ReproducedTable(title, columns, rows, numbers=numbers, claims=claims)


def null_statistics(cell: tuple[int, int]) -> dict[str, list[float]]:
    """Return Anderson–Darling statistics of samples of a million cosines; ``cell`` has the seed and their number."""
    seed, samples = cell
    rng = np.random.default_rng([seed, NULL_DIM])
    statistics = []
    for _ in range(samples):
        along = rng.standard_normal(NULL_COSINES)
        # A cosine with a fixed direction: one coordinate of a Gaussian vector over the vector's length.
        cosines = along / np.sqrt(along**2 + rng.chisquare(NULL_DIM - 1, NULL_COSINES))
        statistics.append(anderson_darling(cosines).statistic)
    return {"statistics": statistics}


def null_normality(context: Context) -> ReproducedTable:
    """Test whether cosines of unseen canaries in 1,000 dimensions are normal, as Section 4 says."""
    samples = NULL_SAMPLES[context.scale]
    (part,) = context.parts(null_statistics, {"one-shot-section-4-statistics": (context.seed, samples)}).values()
    statistics = np.array(part["statistics"])
    passed = float(np.mean(statistics <= FIFTEEN_PER_CENT))
    row = ["not rejected", Number(passed, ".0%"), Number(float(np.median(statistics)), ".3f")]
    claims = [
        PaperClaim(
            "the Anderson test does not reject normality at the 15% level (here: in most samples)",
            "not rejected in one sample",
            ["not rejected"],
            lambda means: bool(means[0] > 0.5),
        )
    ]
    return ReproducedTable(
        f"One-shot, Section 4: {samples} samples of {NULL_COSINES:,} cosines in {NULL_DIM:,} dimensions",
        ["paper", "ours: not rejected at 15%", "median statistic"],
        [row],
        "Of samples that are exactly normal, 85% are not rejected.",
        numbers={"not rejected": [passed]},
        claims=claims,
    )


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


def _mean_std(values: list[float]) -> Number:
    return Number(float(np.mean(values)), ".3f", spread=float(np.std(values, ddof=1)))


def _root_mean_square(values: list[float], truth: float) -> float:
    """Return the root mean squared error of estimates."""
    return float(np.sqrt(np.mean((np.array(values) - truth) ** 2)))
