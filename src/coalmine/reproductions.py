"""Tables of the papers, computed again and printed beside the papers' numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from coalmine import reproduce_ldp
from coalmine.audits.gaussian_mechanism import canary_cosines
from coalmine.stats import CosineNull, Scores, gaussian_fit, gaussian_shift, sigma_gaussian

Table = tuple[str, list[str], list[list[str]]]
"""Title, column names, rows."""


Track = Callable[[Iterable[Any]], Iterable[Any]]
"""Passes on what it is given, and may show how far it is."""


def one_shot_table_1(seed: int, track: Track = iter, simulations: int = 50) -> Table:
    """One-shot audits of the Gaussian mechanism: Andrew et al. (2023), Table 1 (d = 10⁶, k = 10³, δ = 10⁻⁶)."""
    dim, canaries, delta = 10**6, 10**3, 1e-6
    paper = {1.0: "0.972 ± 0.148", 3.0: "3.04 ± 0.137", 10.0: "9.98 ± 0.190"}
    rows = []
    for stream, (epsilon, printed) in zip(np.random.SeedSequence(seed).spawn(len(paper)), paper.items(), strict=True):
        sigma = sigma_gaussian(epsilon, delta)
        shift, fit = [], []
        for child in track(stream.spawn(simulations)):
            cosines = canary_cosines(dim=dim, canaries=canaries, sigma=sigma, rng=np.random.default_rng(child))
            scores = Scores(cosines, null=CosineNull(dim))
            shift.append(gaussian_shift(scores, delta=delta).epsilon)
            fit.append(gaussian_fit(scores, delta=delta).epsilon)
        rows.append([f"{sigma:.3g}", f"{epsilon:.1f}", printed, _mean_std(shift), _mean_std(fit)])
    columns = ["σ", "analytical ε", "paper's ε_est", "ours (Section 3: σ fixed)", "ours (Section 4: σ fitted)"]
    return f"One-shot, Table 1: mean ± std of {simulations} simulations, seed {seed}", columns, rows


def _mean_std(values: list[float]) -> str:
    return f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}"


def _one_shot_table_1(seed: int, track: Track = iter, scale: str = "quick") -> Table:
    """`one_shot_table_1`, which takes seconds at any scale."""
    return one_shot_table_1(seed, track)


REPRODUCTIONS: dict[str, Callable[..., Table]] = {
    "one-shot-table-1": _one_shot_table_1,
    "ldp-figure-1b": reproduce_ldp.figure_1b,
    "ldp-figure-2": reproduce_ldp.figure_2,
    "ldp-figure-3": reproduce_ldp.figure_3,
    "ldp-table-3": reproduce_ldp.table_3,
}
"""What ``coalmine reproduce NAME`` can print: functions of seed, track and scale, some of a data set too."""
