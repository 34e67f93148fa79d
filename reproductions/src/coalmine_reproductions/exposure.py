"""The claims of "A Note On Interpreting Canary Exposure" (Jagielski 2023), each beside a measurement.

The note has formulas, but neither tables nor figures. `baselines` simulates random guessing (Section 2.1). `epsilon`
turns exposures into ε (Section 2.2) for the Laplace mechanism: its ε is known, and no attack that looks for low losses
does better than the note's, so that ln(TPR/FPR) is exactly ε. Calibration is in `exposure_calibration`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coalmine.arrays import Floats
from coalmine.stats import Scores, simultaneous
from coalmine.stats.exposure import (
    LN2,
    RandomGuessing,
    epsilon_from_exposure,
    exposure,
    low_fpr_epsilon,
    ranks,
)
from coalmine_reproductions.cells import Number
from coalmine_reproductions.claims import PaperClaim, near
from coalmine_reproductions.figures import SERIES
from coalmine_reproductions.table import Context, ReproducedTable

CANARIES = 1000
REFERENCES = (10, 100, 1000, 10_000)
OUTLIERS = 50
EXPERIMENTS = {"quick": 200, "full": 2000}
EPSILONS = (0.0, 0.5, 1.0, 2.0, 4.0)
COPIES = 4
AUDITS = {"quick": 100, "full": 1000}
_DECADES = [10**power for power in range(1, 6)]  # labelling every tick would make the labels overlap
FPR = 0.01


@dataclass(frozen=True)
class Guessing:
    """Experiments without memorization: numbers of references and of experiments, and the seed."""

    references: int
    experiments: int
    seed: int


def guess(cell: Guessing) -> dict[str, float]:
    """Return means over experiments of the mean, the median and the 75th percentile of the canaries' exposures.

    The same again with 50 of 1,000 canaries at rank 1, to see which of them outliers move.
    """
    rng = np.random.default_rng([cell.seed, cell.references])
    sums = np.zeros(5)
    for _ in range(cell.experiments):
        drawn = ranks(rng.random(CANARIES), rng.random(cell.references))
        exposures = exposure(drawn, cell.references)
        drawn[:OUTLIERS] = 1
        outlying = exposure(drawn, cell.references)
        sums += [exposures.mean(), *np.quantile(exposures, (0.5, 0.75)), outlying.mean(), np.median(outlying)]
    names = ("mean", "median", "p75", "mean with outliers", "median with outliers")
    return {name: float(total) / cell.experiments for name, total in zip(names, sums, strict=True)}


def _baseline_claims() -> list[PaperClaim]:
    """Return the claims of Section 2.1, for the largest number of references.

    The mean of 1,000 exposures among 10,000 shared references has a standard deviation of 1.44 (1/1,000 + 1/10,000)^½ =
    0.05, its median one of 0.05 and its 75th percentile one of 0.08: four standard errors of 200 experiments.
    """
    n = max(REFERENCES)
    return [
        PaperClaim("expected exposure of a random canary", "1.44", [f"mean {n}"], near(1 / LN2, within=0.014)),
        PaperClaim("the expected rank, 1 + n/2, has an exposure of 1", "1", [f"mean rank {n}"], near(1, within=0.001)),
        PaperClaim("median exposure of many random canaries", "1", [f"median {n}"], near(1, within=0.014)),
        PaperClaim("75th percentile of random canaries", "2", [f"p75 {n}"], near(2, within=0.023)),
        PaperClaim(
            "the median is less sensitive to outliers than the mean (shift by 5% of canaries at rank 1)",
            "no number",
            [f"shift of mean {n}", f"shift of median {n}"],
            lambda means: bool(abs(means[1]) < abs(means[0])),
        ),
    ]


def baselines(context: Context) -> ReproducedTable:
    """Simulate exposures of canaries that were not memorized, by the number of references."""
    experiments = EXPERIMENTS[context.scale]
    cells = {f"exposure-baselines-{n}": Guessing(n, experiments, context.seed) for n in REFERENCES}
    parts = context.parts(guess, cells)
    rows: list[list[str]] = []
    numbers: dict[str, list[float]] = {}
    for name, cell in cells.items():
        n, found = cell.references, parts[name]
        chance = RandomGuessing(n)
        exact = {"mean": chance.mean(), "median": chance.median(), "p75": chance.quantile(0.75)}
        row = [f"{n:,}", Number(math.log2(n), ".2f"), Number(math.log2(n / (1 + n / 2)), ".3f")]
        for statistic, value in exact.items():
            row += [f"{value:.3f}", Number(found[statistic], ".3f")]
            numbers[f"{statistic} {n}"] = [found[statistic]]
        rows.append([*row, *(Number(found[f"{which} with outliers"], ".3f") for which in ("mean", "median"))])
        numbers[f"mean rank {n}"] = [math.log2(n / (1 + n / 2))]
        for which in ("mean", "median"):
            numbers[f"shift of {which} {n}"] = [found[f"{which} with outliers"] - found[which]]
    rows.append(["paper, n → ∞", "log2 n", "1", "1.44", "-", "1", "-", "2", "-", "-", "-"])
    columns = ["references", "at rank 1", "at rank 1 + n/2", "mean, exact", "simulated", "median, exact", "simulated"]
    columns += ["p75, exact", "simulated", "mean, 5% outliers", "median, 5% outliers"]
    title = f"Exposure, random guessing: {experiments:,} experiments with {CANARIES:,} canaries"
    note = (
        "Exact columns are for one canary, simulated ones are means over experiments of the statistic of all canaries."
    )
    return ReproducedTable(title, columns, rows, note, _draw_baselines, numbers, _baseline_claims())


def _draw_baselines() -> dict[str, object]:
    """Draw baselines by the number of references, where curves are exact."""
    rows = [
        {"references": n, "exposure": value, "statistic": statistic}
        for n in np.unique(np.geomspace(10, 100_000, 60).astype(int)).tolist()
        for statistic, value in (
            ("mean", RandomGuessing(n).mean()),
            ("median", RandomGuessing(n).median()),
            ("75th percentile", RandomGuessing(n).quantile(0.75)),
        )
    ]
    return {"exposure-baselines": _baseline_curves(rows)}


@dataclass(frozen=True)
class LaplaceAudits:
    """Audits of the Laplace mechanism: the ε of one copy, copies per canary, references, audits, and the seed."""

    epsilon: float
    copies: int
    audits: int
    seed: int
    references: int = 10_000


def audit_laplace(cell: LaplaceAudits) -> dict[str, list[float]]:
    """Return what each audit finds about the ε of one copy.

    The loss of a canary is Laplace noise of scale 1/ε, minus 1 for each of its copies in the training.
    """
    rng = np.random.default_rng([cell.seed, round(1000 * cell.epsilon), cell.copies])
    scale = 1 / cell.epsilon if cell.epsilon else 1.0
    shift = float(cell.copies) if cell.epsilon else 0.0  # without any loss of privacy members look like non-members
    names = ("median exposure", "from median", "from p75", "at low FPR", "bound")
    kept: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(cell.audits):
        canaries = rng.laplace(-shift, scale, CANARIES)
        references = rng.laplace(0, scale, cell.references)
        for name, value in zip(names, _audit(canaries, references, cell.copies), strict=True):
            kept[name].append(round(value, 6))
    return kept


def _audit(canaries: Floats, references: Floats, copies: int) -> tuple[float, float, float, float, float]:
    """Return the median exposure, three estimates of ε of one copy, and its lower bound."""
    drawn = ranks(canaries, references)
    median, upper = np.quantile(exposure(drawn, references.size), (0.5, 0.75))
    estimates = (
        epsilon_from_exposure(float(median)),
        epsilon_from_exposure(float(upper), quantile=0.75),
        low_fpr_epsilon(drawn, references.size, FPR).epsilon,
    )
    bound = simultaneous(Scores(-canaries, -references), copies=copies).epsilon
    first, second, third = (value / copies for value in estimates)
    return float(median), first, second, third, bound


def _epsilon_claims() -> list[PaperClaim]:
    """Return the claims of Section 2.2.

    At ε = 4 half of the canaries rank before 0.9% of 10,000 references, so one audit has a standard deviation of about
    (1/92 + 1/1,000)^½ = 0.11, and at the 75th percentile of 0.16: four standard errors of 100 audits.
    """
    private = [epsilon for epsilon in EPSILONS if epsilon]
    return [
        PaperClaim(
            "median exposure is log2(1/FPR): 1 + ε/ln 2 for the Laplace mechanism",
            "by its formula " + ", ".join(f"{1 + epsilon / LN2:.2f}" for epsilon in private),
            [f"median exposure {epsilon:g}" for epsilon in private],
            near(*(1 + epsilon / LN2 for epsilon in private), within=0.07),
        ),
        PaperClaim(
            "ε ≥ ln 2 (median exposure − 1), with equality for this mechanism",
            "by its formula " + ", ".join(f"{epsilon:g}" for epsilon in private),
            [f"from median {epsilon:g}" for epsilon in private],
            near(*private, within=0.05),
        ),
        PaperClaim(
            f"other thresholds give similar bounds: the 75th percentile and FPR = {FPR:.0%}, ε = 4",
            "no number",
            ["from p75 4", "at low FPR 4"],
            near(4, 4, within=0.07),
        ),
        PaperClaim(
            "without correction for sampling error this is no valid bound: it exceeds ε in more than 5% of audits",
            "no number",
            [f"estimate above {epsilon:g}" for epsilon in private],
            lambda means: bool(np.all(means > 0.05)),
        ),
        PaperClaim(
            "corrected bounds are valid: above ε in at most 5% of audits",
            "no number",
            [f"bound above {epsilon:g}" for epsilon in EPSILONS],
            # Three binomial standard errors of 100 audits.
            lambda means: bool(np.all(means <= 0.05 + 3 * (0.05 * 0.95 / 100) ** 0.5)),
        ),
        PaperClaim(
            f"with {COPIES} copies per canary, ε divided by {COPIES} is that of one copy, 1",
            "by its rule 1",
            [f"from median 1, {COPIES} copies"],
            near(1, within=0.05),
        ),
    ]


def epsilon(context: Context) -> ReproducedTable:
    """Turn exposures into ε for the Laplace mechanism, whose ε is known."""
    audits = AUDITS[context.scale]
    cells = {f"exposure-epsilon-{value:g}": LaplaceAudits(value, 1, audits, context.seed) for value in EPSILONS}
    cells[f"exposure-epsilon-1-copies-{COPIES}"] = LaplaceAudits(1.0, COPIES, audits, context.seed)
    parts = context.parts(audit_laplace, cells)
    rows: list[list[str]] = []
    numbers: dict[str, list[float]] = {}
    for name, cell in cells.items():
        kept = {key: np.array(values) for key, values in parts[name].items()}
        label = f"{cell.epsilon:g}" + (f", {cell.copies} copies" if cell.copies > 1 else "")
        above = {key: float(np.mean(kept[key] > cell.epsilon)) for key in ("from median", "bound")}
        row = [f"{cell.epsilon:g}", str(cell.copies), f"{1 + cell.copies * cell.epsilon / LN2:.3f}"]
        row += [_mean_std(kept[key]) for key in ("median exposure", "from median", "from p75", "at low FPR")]
        row += [Number(above["from median"], ".0%"), _mean_std(kept["bound"]), Number(above["bound"], ".0%")]
        rows.append(row)
        for key in ("median exposure", "from median", "from p75", "at low FPR"):
            numbers[f"{key} {label}"] = [float(kept[key].mean())]
        numbers[f"estimate above {label}"] = [above["from median"]]
        numbers[f"bound above {label}"] = [above["bound"]]
    columns = ["ε", "copies", "median exposure, closed form", "median exposure", "ε from the median"]
    columns += ["from the 75th percentile", f"at FPR {FPR:.0%}", "from the median: above ε", "mean of 95% lower bounds"]
    columns += ["bounds: above ε"]
    title = f"Exposure → ε of one copy, Laplace mechanism: mean ± std of {audits:,} audits"
    note = f"Each audit has {CANARIES:,} canaries and {cell.references:,} references. Only the bounds are bounds."
    return ReproducedTable(title, columns, rows, note, _draw_epsilon, numbers, _epsilon_claims())


def _draw_epsilon() -> dict[str, object]:
    """Draw the ε that exposures at three quantiles stand for."""
    rows = [
        {"exposure": bits, "epsilon": epsilon_from_exposure(bits, quantile), "quantile": f"{quantile:.0%}"}
        for quantile in (0.5, 0.75, 0.95)
        for bits in np.linspace(0, 12, 121).tolist()
    ]
    return {"exposure-epsilon": _epsilon_curves(rows)}


def _mean_std(values: Floats) -> Number:
    return Number(float(values.mean()), ".3f", spread=float(values.std(ddof=1)))


def _baseline_curves(rows: Sequence[dict[str, Any]]) -> Any:
    """Draw the exposure that random guessing has.

    Args:
        rows: With ``references``, ``exposure`` and ``statistic``.
    """
    import altair as alt

    return (
        alt.Chart(alt.InlineData(values=list(rows)))
        .mark_line()
        .encode(
            x=alt.X("references:Q", scale=alt.Scale(type="log"), title="references", axis=alt.Axis(values=_DECADES)),
            y=alt.Y("exposure:Q", title="exposure of a canary that was not memorized"),
            color=alt.Color("statistic:N", title=None, scale=alt.Scale(range=SERIES)),
        )
        .properties(width=420, height=240, title="Random guessing: 1/ln 2, 1 and 2 bits for many references")
    )


def _epsilon_curves(rows: Sequence[dict[str, Any]]) -> Any:
    """Draw ε by exposure.

    Args:
        rows: With ``exposure``, ``epsilon`` and ``quantile`` of the canaries that the exposure belongs to.
    """
    import altair as alt

    return (
        alt.Chart(alt.InlineData(values=list(rows)))
        .mark_line()
        .encode(
            x=alt.X("exposure:Q", title="exposure at the quantile (bits)"),
            y=alt.Y("epsilon:Q", title="ε (estimate)"),
            color=alt.Color("quantile:N", title="quantile of canaries", scale=alt.Scale(range=SERIES)),
        )
        .properties(width=420, height=240, title="The ε that an exposure stands for")
    )
