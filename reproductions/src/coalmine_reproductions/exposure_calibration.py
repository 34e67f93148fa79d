"""Does calibration raise exposure, as Jagielski (2023) suggests? Phrases in a word model, with reference models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import nn

from coalmine.arrays import Bools, Floats
from coalmine.methods.secret_sharer.evaluation import PhraseScorer
from coalmine.methods.secret_sharer.phrases import Configuration, Language, draw_phrases, insert
from coalmine.simulation import SGD, CentralTraining, models
from coalmine.simulation.data import FederatedData, load
from coalmine.simulation.models.text import WordLSTM, steps_of
from coalmine.stats.exposure import calibrate, epsilon_from_exposure, exposure, ranks
from coalmine_reproductions.cells import Number
from coalmine_reproductions.claims import PaperClaim, rises
from coalmine_reproductions.figures import SERIES, THEORY
from coalmine_reproductions.keras_weights import initialize_like_keras
from coalmine_reproductions.table import Context, ReproducedTable


@dataclass(frozen=True)
class CalibrationSize:
    """Size of the trainings.

    Args:
        source: Data set.
        users: Users of each training; those of reference models are others.
        steps: Steps of SGD with 32 examples.
        canaries: Inserted phrases.
        twins: Held-out phrases per inserted one, which are the references.
        copies: Expected copies of each canary, about one per user who shares it.
        models: Reference models.
        examples: Examples per user.
        vocabulary_size: Words of the vocabulary.
        units: Units of the LSTM, and the dimension of its embedding.
    """

    source: str
    users: int
    steps: int
    canaries: int
    twins: int
    copies: int
    models: int
    examples: int = 100
    vocabulary_size: int = 1000
    units: int = 64


_QUICK = CalibrationSize("stackexchange", users=400, steps=1000, canaries=100, twins=20, copies=10, models=2)
SIZES = {"quick": _QUICK, "full": replace(_QUICK, users=800, steps=4000, models=4)}

CLAIMS = (
    PaperClaim(
        "calibration can raise exposure significantly (here: the median by half a bit or more)",
        "no number",
        ["raw median", "calibrated median"],
        lambda means: bool(means[1] - means[0] >= 0.5),
        rises,
    ),
)


@dataclass(frozen=True)
class Calibration:
    """One experiment: its size and seed."""

    size: CalibrationSize
    seed: int


def losses(cell: Calibration) -> dict[str, Any]:
    """Train a model with canaries and reference models without, and return all phrases' losses under each of them."""
    size = cell.size
    splits = load(
        size.source,
        partition=f"balanced:{size.examples}",
        vocabulary_size=size.vocabulary_size,
        positions=8,
        seed=cell.seed,
    )
    order = np.random.default_rng(cell.seed).permutation(len(splits.train))
    data, others = (splits.train.subset(np.sort(order[start : start + size.users])) for start in (0, size.users))
    canaries = draw_phrases(
        Language.of(data),
        configurations=[Configuration(size.copies / len(data), 1 / size.examples)],
        each=size.canaries,
        twins=size.twins,
        seed=cell.seed,
    )
    audited = _trained(insert(data, canaries).data, size, cell.seed)
    references = [_trained(others, size, cell.seed + 1000 * i) for i in range(1, size.models + 1)]

    def phrase_losses(module: nn.Module) -> list[float]:
        scorer = PhraseScorer(steps_of(module, canaries.language.size), canaries.language)
        return [round(float(loss), 5) for loss in scorer.log_perplexities(canaries.phrases)]

    return {
        "inserted": canaries.inserted.tolist(),
        "audited": phrase_losses(audited),
        "references": [phrase_losses(module) for module in references],
    }


def _trained(data: FederatedData, size: CalibrationSize, seed: int) -> nn.Module:
    """Return a word model trained on the users' examples in random order."""
    model = models.build("word-lstm", data.task, seed=seed, embedding=size.units, units=size.units)
    assert isinstance(model, WordLSTM)
    # With torch's standard normal embeddings, a phrase's loss depends on them more than on what was learned, and models
    # with different seeds do not agree on which phrases are hard: then there is nothing to calibrate.
    initialize_like_keras(model, seed)
    training = CentralTraining(
        model=model,
        data=data,
        rounds=1,
        steps=size.steps,
        batch_size=32,
        optimizer=SGD(learning_rate=1.0),
        order="shuffled",
        seed=seed,
    )
    training.run()
    return training.module()


def calibration(context: Context) -> ReproducedTable:
    """Compare exposures by raw and by calibrated losses."""
    size = SIZES[context.scale]
    (part,) = context.parts(losses, {"exposure-calibration-losses": Calibration(size, context.seed)}).values()
    inserted, audited = np.array(part["inserted"]), np.array(part["audited"])
    by_scores = {"raw": audited, "calibrated": calibrate(audited, part["references"])}
    exposures = {name: _exposures(values, inserted) for name, values in by_scores.items()}
    means = np.mean(part["references"], axis=0)[~inserted]
    rows: list[list[str]] = []
    numbers: dict[str, list[float]] = {}
    for name, values in exposures.items():
        median, upper = (float(value) for value in np.quantile(values, (0.5, 0.75)))
        row = [Number(float(values.mean()), ".2f"), Number(median, ".2f"), Number(upper, ".2f")]
        spread = float(by_scores[name][~inserted].std(ddof=1))
        row += [Number(epsilon_from_exposure(median), ".2f"), Number(spread, ".2f")]
        rows.append([name, *row, Number(float(np.corrcoef(by_scores[name][~inserted], means)[0, 1]), ".2f")])
        numbers |= {f"{name} mean": [float(values.mean())], f"{name} median": [median]}
    rows.append(["random guessing", "1.44", "1", "2", "0", "-", "-"])
    columns = ["losses", "mean exposure", "median", "75th percentile", "ε from the median (estimate)"]
    columns += ["std of references' losses", "correlation with reference models"]
    title = (
        f"Exposure with and without calibration: {size.canaries} phrases with about {size.copies} copies in "
        f"{size.users * size.examples:,} sentences, {size.canaries * size.twins:,} references, {size.models} reference "
        f"models, {context.scale}"
    )
    return ReproducedTable(
        title, columns, rows, draw=lambda: {"exposure-calibration": _draw(exposures)}, numbers=numbers, claims=CLAIMS
    )


def _exposures(values: Floats, inserted: Bools) -> Floats:
    """Return the exposures of inserted phrases among held-out ones."""
    return exposure(ranks(values[inserted], values[~inserted]), int((~inserted).sum()))


def _draw(exposures: dict[str, Floats]) -> Any:
    """Draw the share of canaries at least as exposed."""
    rows = [
        {"exposure": float(value), "share": (i + 1) / values.size, "scores": name}
        for name, values in exposures.items()
        for i, value in enumerate(np.sort(values)[::-1])
    ]
    rows += [
        {"exposure": bits, "share": 2**-bits, "scores": "random guessing"} for bits in np.linspace(0, 11, 56).tolist()
    ]
    return _exposed_shares(rows)


def _exposed_shares(rows: Sequence[dict[str, Any]]) -> Any:
    """Draw the share of canaries above each exposure, beside random guessing.

    Args:
        rows: With ``exposure``, ``share`` and ``scores`` (raw or calibrated, or random guessing, which is dashed).
    """
    import altair as alt

    chart = alt.Chart(alt.InlineData(values=list(rows))).encode(
        x=alt.X("exposure:Q", title="exposure (bits)"), y=alt.Y("share:Q", title="canaries at least as exposed")
    )
    guessing = alt.datum.scores == "random guessing"
    measured = chart.transform_filter(~guessing).mark_line(interpolate="step-after")
    return alt.layer(
        chart.transform_filter(guessing).mark_line(strokeDash=[4, 3], color=THEORY),
        measured.encode(color=alt.Color("scores:N", title="losses", scale=alt.Scale(range=SERIES))),
    ).properties(width=420, height=240, title="Exposure with raw and with calibrated losses; random guessing is dashed")
