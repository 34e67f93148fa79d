"""DP-FedAvg of the secret-sharer paper (Table 2) with a noise multiplier that has a finite ε, and a test of that claim.

The tables' trainings have few users per round, for whom noise with a meaningful ε would drown the model. Here the model
is smaller and a round has more users, so that it survives. The ε is that of one user. Phrases, which many users share,
say little about it, so an attacker who is one user tests it: one-shot canaries (Andrew et al. 2023) take part in the
same training. A training with half the claimed noise shows that the test would notice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from coalmine import OneShot
from coalmine.claims import Claim, Poisson
from coalmine.methods.secret_sharer.audit import measure_memorization
from coalmine.simulation import SGD, LocalTraining, Mechanism, Training, models
from coalmine_reproductions.cells import Number
from coalmine_reproductions.claims import PaperClaim, near
from coalmine_reproductions.secret_sharer import SIZES as SECRET_SHARER_SIZES
from coalmine_reproductions.secret_sharer import Size, data_with_canaries
from coalmine_reproductions.table import Context, ReproducedTable

_CLAIMED, _DELTA = 1.0, 1e-5  # the paper's noise multiplier


@dataclass(frozen=True, kw_only=True)
class PrivateSize:
    """Size of the trainings.

    Args:
        text: Data, canaries and model.
        rounds: Number of rounds.
        share: Probability with which a user takes part in a round.
        canaries: Expected numbers of inserted and of held-out one-shot canaries.
        clip_norm: Clip norm.
    """

    text: Size
    rounds: int
    share: float = 0.05
    canaries: int = 300
    clip_norm: float = 1.0


_TEXT = replace(SECRET_SHARER_SIZES["quick"], embedding=16, units=32, client_batch=10, server_rate=2.0)
SIZES = {"quick": PrivateSize(text=_TEXT, rounds=20), "full": PrivateSize(text=_TEXT, rounds=60)}


@dataclass(frozen=True)
class PrivateTraining:
    """One training: its noise multiplier, whatever it claims, at a size, with a seed."""

    noise_multiplier: float
    size: PrivateSize
    seed: int


def train(cell: PrivateTraining) -> dict[str, Any]:
    """Run one training with phrases and one-shot canaries, and return what the table needs."""
    size, text = cell.size, cell.size.text
    splits, insertion = data_with_canaries(text, cell.seed)
    model = models.build("word-lstm", splits.train.task, seed=cell.seed, embedding=text.embedding, units=text.units)
    audit = OneShot(model, rounds=size.rounds, canaries=size.canaries, view="updates", score="sum", seed=cell.seed)
    training = Training(
        model=model,
        data=splits.train,
        test=splits.test,
        rounds=size.rounds,
        sampling=Poisson(size.share),
        client=LocalTraining(optimizer=SGD(learning_rate=text.client_rate), batch_size=text.client_batch),
        mechanism=Mechanism(clip_norm=size.clip_norm, noise_multiplier=cell.noise_multiplier),
        server=SGD(learning_rate=text.server_rate),
        audits=[audit],
        seed=cell.seed,
    )
    last = training.run()[-1]
    memorization = measure_memorization(training.module(), insertion.phrases, references=text.references, limit=1)
    kept: dict[str, Any] = {
        "dim": training.dim,
        "sampled": int(memorization.memorized.sum()),
        "extracted": int(memorization.extracted.sum()),
        "recall": last["recall@1"],
        "perplexity": last["perplexity"],
    }
    if cell.noise_multiplier:
        claim = Claim(noise_multiplier=_CLAIMED, delta=_DELTA)
        result = audit.result(claim=claim, delta=_DELTA)
        assert result.claim_test is not None
        kept |= {
            "verdict": str(result.verdict),
            "p_value": result.claim_test.p_value,
            "detectable": result.claim_test.detectable_noise,
            "bound": None if result.bound is None else result.bound.epsilon,
            "findings": len(result.bugs),
            "summary": result.summary,
            "claimed_once": Claim(noise_multiplier=_CLAIMED, rounds=1, delta=_DELTA).epsilon,
        }
    return kept


def private_row(context: Context) -> ReproducedTable:
    """Compare clipping alone, DP-FedAvg that keeps its claim, and one with half the claimed noise."""
    size = SIZES[context.scale]
    noises = {"clipped": 0.0, "private": _CLAIMED, "half": _CLAIMED / 2}
    cells = {f"secret-sharer-dp-{name}": PrivateTraining(noise, size, context.seed) for name, noise in noises.items()}
    parts = context.parts(train, cells)
    claim = Claim(noise_multiplier=_CLAIMED, sampling=Poisson(size.share), rounds=size.rounds, delta=_DELTA)
    titles = {
        "clipped": "FedAvg+Clip",
        "private": f"DP-FedAvg, noise multiplier {_CLAIMED:g}",
        "half": f"claims {_CLAIMED:g}, adds {_CLAIMED / 2:g}",
    }
    rows: list[list[str]] = []
    numbers: dict[str, list[float]] = {}
    for name, title in titles.items():
        cell = parts[f"secret-sharer-dp-{name}"]
        rows.append(_row(title, cell, claim.epsilon if name != "clipped" else None))
        numbers |= {f"{name} RS": [float(cell["sampled"])], f"{name} BS": [float(cell["extracted"])]}
        numbers[f"{name} perplexity"] = [cell["perplexity"]]
        if name != "clipped":
            numbers[f"{name} refuted"] = [float(cell["verdict"] == "refuted")]
    private = parts["secret-sharer-dp-private"]
    note = (
        f"{size.text.users:,} natural users, {private['dim']:,} parameters, {size.rounds} rounds in which a user takes"
        f" part with probability {size.share:g}; δ = {_DELTA:g}. ε is that of adding or removing one user, by the"
        f" accountant. The claim test sees about {size.canaries} one-shot canaries that take part in one round each,"
        f" whose ε is {private['claimed_once']:.1f} with the same noise."
    )
    columns = [
        "training",
        "claimed ε of a user",
        "RS",
        "BS",
        "acc. %",
        "perp.",
        "verdict",
        "p of the scores",
        "they detect noise below",
        "checks of the noise",
    ]
    return ReproducedTable(
        f"Secret sharer, a DP-FedAvg with a finite ε: {context.scale}",
        columns,
        rows,
        note,
        numbers=numbers,
        claims=_CLAIMS,
    )


def _row(title: str, cell: Mapping[str, Any], epsilon: float | None) -> list[str]:
    """Return one row of the table."""
    tested = ["-"] * 4
    if epsilon is not None:
        detectable = cell["detectable"]
        tested = [
            cell["verdict"],
            "-" if cell["p_value"] is None else Number(cell["p_value"], ".2g"),
            "nothing" if detectable is None else Number(detectable, ".2f"),
            "refute" if cell["findings"] else "find nothing",
        ]
    return [
        title,
        "∞" if epsilon is None else f"{epsilon:.1f}",
        Number(cell["sampled"], ".3g"),
        Number(cell["extracted"], ".3g"),
        Number(100 * cell["recall"], ".1f"),
        Number(cell["perplexity"], ".1f"),
        *tested,
    ]


_CLAIMS = (
    PaperClaim(
        "noise costs little utility on natural users",
        "perplexity 61.5 to 68.5",
        ["clipped perplexity", "private perplexity"],
        lambda means: bool(means[1] <= means[0] * 68.5 / 61.5),
    ),
    PaperClaim(
        "the claimed ε withstands its test (share of seeds that refute it)",
        "no test",
        ["private refuted"],
        near(0, within=0),
    ),
    PaperClaim(
        "half the noise does not (share of seeds that refute it)", "no test", ["half refuted"], near(1, within=0)
    ),
)
