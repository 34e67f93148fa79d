"""The tables of the secret-sharer paper (Thakkar et al. 2020), scaled down to one machine.

The paper trains a CIFG-LSTM with 1.3 M parameters and 10,000 words on 392,000 balanced Stack Overflow users, with 10
canaries for each of nine configurations, shared by 4 to 103 users. We train a smaller LSTM of the same kind on Stack
Exchange, split into users with equal numbers of examples. Each canary has a larger share of the users, so that central
training memorizes about as many canaries as in the paper; the ratios between configurations are the paper's. Canaries
have six words instead of five, because 1,000 words make 50 bits of the last five, and 10,000 make 53 bits of the last
four.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from coalmine.claims.sampling import FixedSize
from coalmine.methods.secret_sharer.audit import measure_memorization
from coalmine.methods.secret_sharer.phrases import Configuration, Insertion, Language, draw_phrases, grid, insert
from coalmine.simulation import (
    SGD,
    Adam,
    CentralTraining,
    LocalTraining,
    Mechanism,
    Training,
    models,
)
from coalmine.simulation.client import Optimizer
from coalmine.simulation.data import Splits, load
from coalmine_reproductions import secret_sharer_claims
from coalmine_reproductions.cells import Number
from coalmine_reproductions.claims import PaperClaim
from coalmine_reproductions.secret_sharer_figures import regimes
from coalmine_reproductions.secret_sharer_rows import TABLE_1, TABLE_2, TABLE_3, TABLE_4, Setting
from coalmine_reproductions.table import Context, ReproducedTable

P_E = (0.01, 0.1, 1.0)
_LIMIT = 1  # references before a canary up to which its search goes on; the tables count canaries with none


@dataclass(frozen=True, kw_only=True)
class Size:
    """Size of the trainings.

    Args:
        users: Number of users.
        sharers: Expected numbers of users who share a canary.
        steps: Steps of central training, the same for every batch size, as in the paper.
        rounds: Rounds of federated training, the same for every cohort.
        cohorts: Our cohort size for each of the paper's, in trainings of equally many rounds.
        epoch_cohorts: The same in trainings of equally many epochs, where the ratio of cohorts is that of rounds too,
            and therefore the paper's.
        references: References that canaries are ranked among.
        clip_norm: Clip norm.
        noise_multiplier: Noise multiplier. It costs about a tenth of perplexity, in the paper 5%; with such small
            cohorts its ε would be far from the paper's.
        length: Words of a canary.
        examples: Examples per user.
        positions: Words per example.
        vocabulary_size: Words of the vocabulary.
        embedding: Dimension of the embedding.
        units: Units of the LSTM.
        client_batch: Examples per local step. A user makes 25 steps (in the paper on 250 records, in batches that it
            does not name). Their number decides how much less natural users memorize than shuffled ones: all copies of
            a sharer come in one round, in which each teaches less than the one before.
        central_rate: Learning rate of central SGD.
        momentum_rate: Learning rate with momentum 0.9. The paper names none; with that of SGD ours would be at the edge
            of stability.
        client_rate: Learning rate of clients. With a rate of 1 both natural users and large cohorts of shuffled ones
            diverge.
        server_rate: Learning rate of the server.
        adam_rate: Learning rate of central Adam: the paper's.
        server_adam_rate: Learning rate of Adam on the server, whose product with the rounds is the paper's.
        test_clients: Users of the test set.
        source: Data set.
    """

    users: int
    sharers: tuple[float, ...]
    steps: int
    rounds: int
    cohorts: Mapping[int, int]
    epoch_cohorts: Mapping[int, int]
    references: int
    clip_norm: float
    noise_multiplier: float
    length: int = 6
    examples: int = 100
    positions: int = 8
    vocabulary_size: int = 1000
    embedding: int = 64
    units: int = 64
    client_batch: int = 4
    central_rate: float = 0.125
    momentum_rate: float = 0.025
    client_rate: float = 0.5
    server_rate: float = 1.0
    adam_rate: float = 1e-4
    server_adam_rate: float = 0.0067
    test_clients: int = 60
    source: str = "stackexchange"

    def cohorts_of(self, setting: Setting) -> Mapping[int, int]:
        """Return our cohort size for each of the paper's."""
        return self.epoch_cohorts if setting.length == "ten epochs" else self.cohorts


_FULL = Size(
    users=1600,
    sharers=(3, 9, 30),
    steps=6000,
    rounds=120,
    cohorts={500: 8, 1000: 9, 2000: 10, 5000: 12},
    epoch_cohorts={500: 8, 1000: 16, 2000: 32, 5000: 80},
    references=2_000_000,
    clip_norm=2.0,
    noise_multiplier=0.08,
)
SIZES = {"quick": replace(_FULL, references=200_000), "full": _FULL}
_QUICK_1 = ("iid-sgd-32", "iid-fedavg-500", "non-iid-sgd-32", "non-iid-fedavg-500")
_QUICK_2 = ("non-iid-fedavg-5000", "non-iid-fedavg-clip-5000", "non-iid-dp-fedavg-5000")
_QUICK_3 = ("non-iid-sgd-32", "non-iid-momentum-32", "non-iid-adam-32", "non-iid-fedavg-500", "non-iid-fedavg-adam-500")
_QUICK_4 = tuple(f"non-iid-{batch}-ten-epochs" for batch in ("sgd-32", "sgd-256", "fedavg-500", "fedavg-5000"))


@dataclass(frozen=True)
class Cell:
    """One training: a row of a table, at a size, with a seed."""

    setting: Setting
    size: Size
    seed: int


def data_with_canaries(size: Size, seed: int) -> tuple[Splits, Insertion]:
    """Return all data, and the training users with canaries in theirs."""
    splits = _splits(size.source, size.examples, size.vocabulary_size, size.positions, seed)
    chosen = np.random.default_rng(seed).permutation(len(splits.train))[: size.users]
    data = splits.train.subset(np.sort(chosen))
    canaries = draw_phrases(
        Language.of(data),
        configurations=grid([sharers / len(data) for sharers in size.sharers], P_E),
        twins=0,
        length=size.length,
        seed=seed,
    )
    test = splits.test.subset(range(min(size.test_clients, len(splits.test))))
    insertion = insert(data, canaries)
    return replace(splits, train=insertion.data, test=test), insertion


def train(cell: Cell) -> dict[str, Any]:
    """Run one training, measure what the model memorized, and return what the tables need."""
    size, setting = cell.size, cell.setting
    splits, insertion = data_with_canaries(size, cell.seed)
    canaries = insertion.phrases
    books = insertion.users[canaries.inserted], insertion.copies[canaries.inserted]
    if setting.data == "IID":
        splits = replace(splits, train=insertion.shuffled(cell.seed).data)
    training = _training(cell, splits)
    last = training.run()[-1]
    memorization = measure_memorization(training.module(), canaries, references=size.references, limit=_LIMIT)
    kept = memorization.to_dict()
    return {
        "sampled": kept["random_sampling"],
        "sampled_lowest": kept["random_sampling_lowest"],
        "extracted": kept["beam_search"],
        "extracted_lowest": kept["beam_search_lowest"],
        "configurations": kept["configurations"],
        "exposures": np.round(memorization.sampled.exposures, 3).tolist(),
        "recall": last["recall@1"],
        "perplexity": last["perplexity"],
        "median_norm": last.get("median_norm"),
        "users": [int(books[0].min()), int(books[0].max())],
        "copies": [int(books[1].min()), int(books[1].max())],
        "clients": len(insertion.data),
    }


@lru_cache(maxsize=1)
def _splits(source: str, examples: int, vocabulary_size: int, positions: int, seed: int) -> Splits:
    """Return the data; kept, because all cells of a seed have the same."""
    return load(
        source, partition=f"balanced:{examples}", vocabulary_size=vocabulary_size, positions=positions, seed=seed
    )


def _training(cell: Cell, splits: Splits) -> Training | CentralTraining:
    """Return the training of a cell."""
    size, setting = cell.size, cell.setting
    model = models.build("word-lstm", splits.train.task, seed=cell.seed, embedding=size.embedding, units=size.units)
    if setting.central:
        steps = _length(setting, size.steps, 32, setting.batch)
        return CentralTraining(
            model=model,
            data=splits.train,
            test=splits.test,
            rounds=10,
            steps=max(1, steps // 10),
            batch_size=setting.batch,
            optimizer=_records_optimizer(setting, size),
            order="shuffled" if setting.data == "IID" else "by-user",
            seed=cell.seed,
        )
    clips = setting.optimizer in ("FedAvg+Clip", "DP-FedAvg")
    cohorts = size.cohorts_of(setting)
    cohort = cohorts[setting.batch]
    return Training(
        model=model,
        data=splits.train,
        test=splits.test,
        rounds=_length(setting, size.rounds, cohorts[500], cohort),
        sampling=FixedSize(cohort),
        client=LocalTraining(optimizer=SGD(learning_rate=size.client_rate), batch_size=size.client_batch),
        mechanism=Mechanism(
            clip_norm=size.clip_norm if clips else math.inf,
            noise_multiplier=size.noise_multiplier if setting.optimizer == "DP-FedAvg" else 0.0,
        ),
        server=_server(setting, size),
        seed=cell.seed,
    )


def _length(setting: Setting, whole: int, smallest: int, batch: int) -> int:
    """Return the steps or rounds: the same for every batch size, or fewer of larger batches for equal epochs."""
    match setting.length:
        case "whole":
            return whole
        case "tenth":
            return whole // 10
        case "ten epochs":
            return max(1, whole * smallest // batch)


def _records_optimizer(setting: Setting, size: Size) -> Optimizer:
    """Return the optimizer of central training."""
    if setting.optimizer == "Adam":
        return Adam(learning_rate=size.adam_rate)
    if setting.optimizer == "Momentum":
        return SGD(learning_rate=size.momentum_rate, momentum=0.9)
    larger = math.sqrt(setting.batch / 32) if setting.length == "ten epochs" else 1.0
    return SGD(learning_rate=size.central_rate * larger)


def _server(setting: Setting, size: Size) -> Optimizer:
    """Return the server's optimizer. The paper gives only the rate of "FedAvg+Adam"; we use Adam on the server."""
    if setting.optimizer == "FedAvg+Adam":
        return Adam(learning_rate=size.server_adam_rate)
    return SGD(learning_rate=size.server_rate)


def table_1(context: Context) -> ReproducedTable:
    """Compare central and federated training, IID and non-IID, by batch size."""
    return _table(context, "Table 1", TABLE_1, _QUICK_1, secret_sharer_claims.TABLE_1)


def table_2(context: Context) -> ReproducedTable:
    """Compare training without clipping, with clipping, and with differential privacy."""
    return _table(context, "Table 2", TABLE_2, _QUICK_2, secret_sharer_claims.TABLE_2)


def table_3(context: Context) -> ReproducedTable:
    """Compare optimizers."""
    return _table(context, "Table 3", TABLE_3, _QUICK_3, secret_sharer_claims.TABLE_3)


def table_4(context: Context) -> ReproducedTable:
    """Compare batch sizes at equal numbers of epochs."""
    return _table(context, "Table 4", TABLE_4, _QUICK_4, secret_sharer_claims.TABLE_4)


def _table(
    context: Context, title: str, settings: Sequence[Setting], quick: Sequence[str], claims: Sequence[PaperClaim]
) -> ReproducedTable:
    """Return a table with all settings, or at quick scale with a few of them."""
    size = SIZES[context.scale]
    shown = [s for s in settings if context.scale == "full" or s.name in quick]
    cells = {f"secret-sharer-{s.training_name}": Cell(s, size, context.seed) for s in shown}
    parts = context.parts(train, cells)
    rows = [_row(setting, parts[f"secret-sharer-{setting.training_name}"]) for setting in shown]
    first = parts[next(iter(cells))]
    cohorts = ", ".join(f"{ours} for {theirs:,}" for theirs, ours in size.cohorts_of(shown[0]).items())
    note = (
        f"{first['clients']:,} users with {size.examples} sentences of {size.source}, {size.vocabulary_size:,} words."
        f" The 90 canaries have {_span(first['users'])} users and {_span(first['copies'])} copies, and are ranked among"
        f" {size.references:,} references. Lowest configurations are (expected users, p_e); users per round: {cohorts}."
        f" {_order(rows)}"
    )
    columns = ["setting", "paper: RS", "lowest", "BS", "lowest", "acc. %", "perp."]
    columns += ["ours: RS", "lowest", "BS", "lowest", "acc. %", "perp."]
    numbers = {}
    for setting in shown:
        trained = parts[f"secret-sharer-{setting.training_name}"]
        numbers[f"{setting.name} RS"] = [float(trained["sampled"])]
        numbers[f"{setting.name} BS"] = [float(trained["extracted"])]
        numbers[f"{setting.name} accuracy"] = [100 * trained["recall"]]
        numbers[f"{setting.name} perplexity"] = [trained["perplexity"]]
    heading = f"Secret sharer, {title}: {context.scale}"
    chart = {"title": heading, "columns": columns, "rows": rows}
    name = f"secret-sharer-{title.lower().replace(' ', '-')}"
    return ReproducedTable(
        heading, columns, rows, note, draw=lambda: {name: regimes(chart)}, numbers=numbers, claims=claims
    )


def _row(setting: Setting, trained: dict[str, Any]) -> list[str]:
    """Return a row: the paper's numbers, then ours."""
    paper = [f"{value:g}" if isinstance(value, int | float) else value for value in setting.paper]
    return [
        setting.title,
        *paper,
        Number(trained["sampled"], ".3g"),
        _lowest(trained["sampled_lowest"], trained["clients"]),
        Number(trained["extracted"], ".3g"),
        _lowest(trained["extracted_lowest"], trained["clients"]),
        Number(100 * trained["recall"], ".1f"),
        Number(trained["perplexity"], ".1f"),
    ]


def _lowest(pair: list[float] | None, clients: int) -> str:
    if pair is None:
        return "-"
    configuration = Configuration(*pair)
    return f"{configuration.p_u * clients:.3g}, {100 * configuration.p_e:g}%"


def _span(pair: list[int]) -> str:
    return f"{pair[0]:,} to {pair[1]:,}"


def _order(rows: list[list[str]]) -> str:
    """Say whether beam search ever found more than random sampling, which it should not."""
    exceptions = [row[0] for row in rows if int(row[9]) > int(row[7])]
    if exceptions:
        return f"Beam search found more than random sampling in: {'; '.join(exceptions)}."
    return "Beam search never found more than random sampling."
