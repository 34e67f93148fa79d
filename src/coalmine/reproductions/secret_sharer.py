"""Tables 1 and 2 of the secret-sharer paper (Thakkar et al. 2020), at the scale of one machine.

The paper trains a 1.3 M-parameter CIFG-LSTM over 10,000 words on 392,000 balanced Stack Overflow users, with 10
canaries for each of nine configurations, shared by 4 to 103 users. Here it is a smaller LSTM of the same kind on
Stack Exchange, cut into users of equally many examples; a canary's expected number of users is scaled to what memorises
about as much in central training.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from coalmine import models
from coalmine.audits.memorisation import Asking, ask
from coalmine.canaries.insertion import insert
from coalmine.canaries.phrases import Configuration, Language, draw_phrases, grid
from coalmine.data import load
from coalmine.fl import (
    SGD,
    CentralTraining,
    FixedClipping,
    FixedSizeCohorts,
    LocalTraining,
    Mechanism,
    NoClipping,
    Training,
)
from coalmine.reproductions.table import Context, Table

Data = Literal["IID", "Non-IID"]
P_E = (0.01, 0.1, 1.0)


@dataclass(frozen=True)
class Setting:
    """A row of a table: the regime, and what the paper found (RS, its lowest, BS, its lowest, accuracy, perplexity).

    ``batch`` is in the paper's numbers, records for SGD and users for the others, and ``epochs`` are the paper's.
    """

    data: Data
    optimiser: Literal["SGD", "FedAvg", "FedAvg+Clip", "DP-FedAvg"]
    batch: int
    epochs: int
    paper: tuple[int, str, int, str, float, float]

    @property
    def name(self) -> str:
        """Of its file."""
        return f"{self.data}-{self.optimiser}-{self.batch}-{self.epochs}".lower().replace("+", "-")

    @property
    def title(self) -> str:
        """As the paper writes it."""
        kind = "b_r" if self.optimiser == "SGD" else "b_u"
        return f"{self.data}, {self.optimiser}, {kind} = {self.batch}"


TABLE_1 = (
    Setting("IID", "SGD", 32, 10, (54, "1/50K, 10%", 42, "3/50K, 10%", 24, 62.2)),
    Setting("IID", "SGD", 64, 10, (54, "1/50K, 10%", 42, "3/50K, 10%", 24.1, 61.5)),
    Setting("IID", "SGD", 128, 10, (52, "1/50K, 10%", 45, "3/50K, 10%", 24, 62)),
    Setting("IID", "SGD", 256, 10, (53, "1/50K, 10%", 43, "1/50K, 10%", 24.1, 61.1)),
    Setting("IID", "FedAvg", 500, 10, (66, "1/50K, 10%", 56, "1/50K, 10%", 24.6, 57.5)),
    Setting("IID", "FedAvg", 1000, 10, (69, "3/50K, 1%", 58, "1/50K, 10%", 24.6, 57.3)),
    Setting("IID", "FedAvg", 2000, 10, (67, "3/50K, 1%", 56, "1/50K, 10%", 24.6, 57.4)),
    Setting("IID", "FedAvg", 5000, 10, (65, "3/50K, 1%", 58, "1/50K, 10%", 24.6, 57.3)),
    Setting("Non-IID", "SGD", 32, 10, (37, "1/50K, 10%", 19, "3/50K, 10%", 23.7, 64.3)),
    Setting("Non-IID", "SGD", 64, 10, (49, "1/50K, 10%", 36, "1/50K, 10%", 24.1, 61.8)),
    Setting("Non-IID", "SGD", 128, 10, (48, "1/50K, 10%", 34, "1/50K, 10%", 24.1, 61.5)),
    Setting("Non-IID", "SGD", 256, 10, (51, "1/50K, 10%", 39, "3/50K, 10%", 24.1, 61.3)),
    Setting("Non-IID", "FedAvg", 500, 10, (21, "1/5K, 1%", 0, "-", 24.4, 58.8)),
    Setting("Non-IID", "FedAvg", 1000, 10, (23, "1/5K, 1%", 1, "1/5K, 100%", 24.3, 59.5)),
    Setting("Non-IID", "FedAvg", 2000, 10, (19, "1/5K, 1%", 1, "1/5K, 100%", 24.5, 58.3)),
    Setting("Non-IID", "FedAvg", 5000, 10, (26, "1/5K, 1%", 2, "1/5K, 100%", 24.5, 58.2)),
)
TABLE_2 = (
    Setting("IID", "FedAvg", 5000, 100, (65, "3/50K, 1%", 58, "1/50K, 10%", 24.6, 57.3)),
    Setting("IID", "FedAvg+Clip", 5000, 100, (58, "1/50K, 10%", 49, "1/50K, 10%", 24.2, 60)),
    Setting("IID", "DP-FedAvg", 5000, 100, (48, "1/50K, 10%", 42, "3/50K, 10%", 23.9, 63)),
    Setting("IID", "FedAvg+Clip", 5000, 10, (28, "1/50K, 100%", 18, "3/50K, 100%", 21.9, 83.2)),
    Setting("IID", "DP-FedAvg", 5000, 10, (26, "1/50K, 100%", 18, "3/50K, 100%", 21.8, 84.2)),
    Setting("Non-IID", "FedAvg", 5000, 100, (26, "1/5K, 1%", 2, "1/5K, 100%", 24.5, 58.2)),
    Setting("Non-IID", "FedAvg+Clip", 5000, 100, (11, "1/5K, 10%", 0, "-", 24, 61.5)),
    Setting("Non-IID", "DP-FedAvg", 5000, 100, (12, "1/5K, 10%", 0, "-", 23.3, 68.5)),
    Setting("Non-IID", "FedAvg+Clip", 5000, 10, (0, "-", 0, "-", 20.8, 95.9)),
    Setting("Non-IID", "DP-FedAvg", 5000, 10, (0, "-", 0, "-", 20.7, 97.1)),
)


@dataclass(frozen=True)
class Size:
    """How large the training is.

    ``users`` of ``examples`` each; ``sharers`` are the expected users of a canary. Central training takes ``epochs``.
    Federated training takes ``rounds`` (in Table 2 ``long_rounds`` for 100 epochs and a tenth of them for 10), with
    ``users_a_batch`` users in place of 500 of the paper's. The noise is such that it is about as long beside the clip
    norm as in the paper, where a noise multiplier of 1 is shared among 5,000 users: 0.23 times.
    """

    users: int
    examples: int
    vocabulary_size: int
    embedding: int
    units: int
    sharers: tuple[float, ...]
    epochs: int
    rounds: int
    long_rounds: int
    users_a_batch: int
    references: int
    clip: float
    noise: float
    test_clients: int = 60
    central_rate: float = 0.5
    client_rate: float = 1.0


SIZES = {
    "quick": Size(1500, 60, 1000, 32, 64, (1, 4, 12), 2, 375, 75, 8, 200_000, 1.0, 0.085),
    "full": Size(2300, 60, 2000, 48, 128, (1, 4, 12), 5, 1400, 560, 8, 2_000_000, 1.0, 0.05, test_clients=200),
}
_QUICK_1 = ("iid-sgd-32-10", "iid-fedavg-500-10", "non-iid-sgd-32-10", "non-iid-fedavg-500-10")
_QUICK_2 = ("non-iid-fedavg-5000-100", "non-iid-fedavg-clip-5000-100", "non-iid-dp-fedavg-5000-100")


@dataclass(frozen=True)
class Cell:
    """One training."""

    setting: Setting
    size: Size
    seed: int


def train(cell: Cell) -> dict[str, Any]:
    """Run one training, ask the model, and keep what the tables need."""
    size, setting = cell.size, cell.setting
    splits = load(
        "stackexchange",
        partition=f"balanced:{size.examples}",
        vocabulary_size=size.vocabulary_size,
        positions=12,
        seed=cell.seed,
    )
    chosen = np.random.default_rng(cell.seed).permutation(len(splits.train))[: size.users]
    data = splits.train.subset(np.sort(chosen))
    canaries = draw_phrases(
        Language.of(data),
        configurations=grid([sharers / len(data) for sharers in size.sharers], P_E),
        twins=0,
        seed=cell.seed,
    )
    insertion = insert(data, canaries)
    books = insertion.users[canaries.planted], insertion.copies[canaries.planted]
    if setting.data == "IID":
        insertion = insertion.shuffled(cell.seed)
    test = splits.test.subset(range(min(size.test_clients, len(splits.test))))
    training = _training(cell, replace(splits, train=insertion.data, test=test))
    last = training.run()[-1]
    found = ask(training.module(), canaries, Asking(references=size.references))
    kept = found.to_dict()
    return {
        "sampled": kept["random_sampling"],
        "sampled_lowest": kept["random_sampling_lowest"],
        "extracted": kept["beam_search"],
        "extracted_lowest": kept["beam_search_lowest"],
        "configurations": kept["configurations"],
        "exposures": np.round(found.sampled.exposures, 3).tolist(),
        "recall": last["recall@1"],
        "perplexity": last["perplexity"],
        "median_norm": last.get("median_norm"),
        "users": [int(books[0].min()), int(books[0].max())],
        "copies": [int(books[1].min()), int(books[1].max())],
        "clients": len(data),
    }


def _training(cell: Cell, splits: Any) -> Training | CentralTraining:
    size, setting = cell.size, cell.setting
    task = splits.train.task
    model = models.build("word-lstm", task, seed=cell.seed, embedding=size.embedding, units=size.units)
    if setting.optimiser == "SGD":
        steps = size.epochs * int(splits.train.sizes.sum()) // 32  # as many for every batch size, as in the paper
        return CentralTraining(
            model=model,
            data=splits.train,
            test=splits.test,
            rounds=10,
            steps=max(1, steps // 10),
            batch_size=setting.batch,
            optimiser=SGD(learning_rate=size.central_rate),
            order="shuffled" if setting.data == "IID" else "by-user",
            seed=cell.seed,
        )
    clipping = NoClipping() if setting.optimiser == "FedAvg" else FixedClipping(size.clip)
    return Training(
        model=model,
        data=splits.train,
        test=splits.test,
        rounds=size.rounds if setting in TABLE_1 else size.long_rounds * setting.epochs // 100,
        cohorts=FixedSizeCohorts(min(len(splits.train), size.users_a_batch * setting.batch // 500)),
        client=LocalTraining(optimiser=SGD(learning_rate=size.client_rate), batch_size=size.examples // 5),
        mechanism=Mechanism(
            clipping=clipping, noise_multiplier=size.noise if setting.optimiser == "DP-FedAvg" else 0.0
        ),
        server=SGD(learning_rate=1.0),
        seed=cell.seed,
    )


def table_1(context: Context) -> Table:
    """Central and federated training, IID and not, by batch size."""
    return _table(context, "Table 1", TABLE_1, _QUICK_1)


def table_2(context: Context) -> Table:
    """Clipping and differential privacy."""
    return _table(context, "Table 2", TABLE_2, _QUICK_2)


def _table(context: Context, title: str, settings: tuple[Setting, ...], quick: tuple[str, ...]) -> Table:
    size = SIZES[context.scale]
    wanted = [s for s in settings if context.scale == "full" or s.name in quick]
    cells = {f"secret-sharer-{s.name}": Cell(s, size, context.seed) for s in wanted}
    done = context.parts(train, cells)
    rows = [_row(setting, title, done[f"secret-sharer-{setting.name}"]) for setting in wanted]
    first = done[next(iter(cells))]
    note = (
        f"{size.users:,} users of {size.examples} Stack Exchange sentences, {size.vocabulary_size:,} words. 90 canaries"
        f" have {_span(first['users'])} users and {_span(first['copies'])} copies, and are ranked among"
        f" {size.references:,} references. Lowest configurations are (expected users, p_e); b_u = 500 is"
        f" {size.users_a_batch} users a round here. {_order(rows)}"
    )
    columns = ["setting", "paper: RS", "lowest", "BS", "lowest", "acc. %", "perp."]
    columns += ["ours: RS", "lowest", "BS", "lowest", "acc. %", "perp."]
    return Table(f"Secret sharer, {title}: {context.scale}, seed {context.seed}", columns, rows, note)


def _row(setting: Setting, title: str, done: dict[str, Any]) -> list[str]:
    name = setting.title if title == "Table 1" else f"{setting.data}, {setting.optimiser}, {setting.epochs} epochs"
    paper = [f"{value:g}" if isinstance(value, int | float) else value for value in setting.paper]
    return [
        name,
        *paper,
        str(done["sampled"]),
        _lowest(done["sampled_lowest"], done["clients"]),
        str(done["extracted"]),
        _lowest(done["extracted_lowest"], done["clients"]),
        f"{100 * done['recall']:.1f}",
        f"{done['perplexity']:.1f}",
    ]


def _lowest(pair: list[float] | None, clients: int) -> str:
    if pair is None:
        return "-"
    configuration = Configuration(*pair)
    return f"{configuration.p_u * clients:.3g}, {100 * configuration.p_e:g}%"


def _span(pair: list[int]) -> str:
    return f"{pair[0]:,} to {pair[1]:,}"


def _order(rows: list[list[str]]) -> str:
    beyond = [row[0] for row in rows if int(row[9]) > int(row[7])]
    if beyond:
        return f"Beam search found more than random sampling in: {'; '.join(beyond)}."
    return "Beam search never found more than random sampling."
