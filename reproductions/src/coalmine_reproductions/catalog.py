"""All reproductions by name. Importing this module imports torch; the package itself imports nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from coalmine_reproductions import (
    canife_ablations,
    canife_histograms,
    canife_monitoring,
    canife_resnet,
    exposure,
    exposure_calibration,
    gaussian_mechanism,
    ldp,
    one_shot,
    one_shot_final,
    secret_sharer,
    secret_sharer_private,
)
from coalmine_reproductions.table import Context, ReproducedTable

REPRODUCTIONS: Mapping[str, Callable[[Context], ReproducedTable]] = {
    "one-shot-table-1": gaussian_mechanism.table_1,
    "one-shot-section-3": gaussian_mechanism.convergence,
    "one-shot-section-4": gaussian_mechanism.null_normality,
    "one-shot-table-2": one_shot.table_2,
    "one-shot-table-3": one_shot.table_3,
    "one-shot-final-model": one_shot_final.final_model,
    "one-shot-table-4": one_shot.table_4,
    "one-shot-figure-1": one_shot.figure_1,
    "one-shot-figure-2": one_shot.figure_2,
    "canife-figure-3": canife_histograms.figure_3,
    "canife-figure-4": canife_monitoring.figure_4,
    "canife-figure-5": canife_ablations.figure_5,
    "canife-figure-8": canife_monitoring.figure_8,
    "canife-figure-9": canife_ablations.figure_9,
    "canife-resnet18": canife_resnet.resnet18,
    "canife-table-1": canife_monitoring.table_1,
    "ldp-figure-1b": ldp.figure_1b,
    "ldp-figure-2": ldp.figure_2,
    "ldp-figure-3": ldp.figure_3,
    "ldp-table-3": ldp.table_3,
    "ldp-section-4-3": ldp.section_4_3,
    "secret-sharer-table-1": secret_sharer.table_1,
    "secret-sharer-table-2": secret_sharer.table_2,
    "secret-sharer-table-3": secret_sharer.table_3,
    "secret-sharer-table-4": secret_sharer.table_4,
    "secret-sharer-dp": secret_sharer_private.private_row,
    "exposure-baselines": exposure.baselines,
    "exposure-epsilon": exposure.epsilon,
    "exposure-calibration": exposure_calibration.calibration,
}
"""All reproductions by the name that ``coalmine reproduce NAME`` takes."""


def find(name: str) -> str | None:
    """Return the full name of a reproduction, or None if there is no such.

    Args:
        name: The name, also without hyphens and with "fig" for "figure".

    Example:
        >>> find("one-shot-fig1")
        'one-shot-figure-1'
    """
    return next((full for full in REPRODUCTIONS if _normalized(full) == _normalized(name)), None)


def _normalized(name: str) -> str:
    return name.lower().replace("-", "").replace("figure", "fig")
