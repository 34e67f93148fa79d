"""Tables 2 to 4 and Figures 1 and 2 of the one-shot paper (Andrew et al. 2023), scaled down to one machine.

The paper trains a next-word LSTM with 4.1 M parameters on 341,000 Stack Overflow users, each of whom takes part once in
2,048 rounds, with 1,000 canaries. We train a smaller LSTM on the #ubuntu chat, split into clients with equal numbers of
messages, each of whom also takes part once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coalmine import EpochParticipation, OneShot
from coalmine.accounting import theory
from coalmine.accounting.sampling import AtMost
from coalmine.reproductions import one_shot_claims
from coalmine.reproductions.cells import Number
from coalmine.reproductions.table import Context, ReproducedTable
from coalmine.simulation import SGD, AdaptiveClipping, LocalTraining, Mechanism, ShuffledCohorts, Training, models
from coalmine.simulation.data import load
from coalmine.simulation.flat import parameter_vector

PAPER_NOISE = (0.0, 0.0644, 0.1023, 0.1836, 0.2344)
FIGURE_NOISE = (0.0, 0.1023, 0.2344)
REPETITIONS = (1, 2, 3, 5, 10)

# Andrew et al. (2023), Tables 2 to 4.
_RDP = ("∞", "100k", "1000", "100", "50")
_ACCURACY = (("25.3%", "25.3%"), ("24.0%", "23.9%"), ("23.1%", "23.1%"), ("21.5%", "21.5%"), ("20.6%", "20.5%"))
_TABLE_3 = (
    ("6.24", "51300", "3.91", "5.49"),
    ("6.17", "425", "1.26", "1.74"),
    ("4.67", "243", "1.01", "1.22"),
    ("2.44", "92.0", "0.802", "0.865"),
    ("0.177", "78.9", "0.478", "0.675"),
)
_TABLE_4 = (
    (0.464, 0.590, 0.396, 0.407, 0.196),
    (0.976, 0.422, 0.340, 0.432, 0.116),
    (0.326, 0.157, 0.347, 0.951, 0.401),
)
# Critical values of the Anderson–Darling statistic at the 1% and 15% levels.
_ONE_PER_CENT, _FIFTEEN_PER_CENT = 1.088, 0.574


@dataclass(frozen=True)
class OneShotSize:
    """Size of the trainings.

    Args:
        data: Data set.
        vocabulary_size: Words of the vocabulary.
        embedding: Dimension of the embedding.
        units: Units of the LSTM.
        examples: Messages per client.
        clients: Number of clients.
        rounds: Number of rounds.
        canaries: Inserted canaries, and the number of held-out ones.
        test_clients: Clients of the test set.
    """

    data: str
    vocabulary_size: int
    embedding: int
    units: int
    examples: int
    clients: int
    rounds: int
    canaries: int
    test_clients: int


SIZES = {
    "quick": OneShotSize("ubuntu-irc", 1000, 32, 64, 8, 3000, 60, 1000, 60),
    "full": OneShotSize("ubuntu-irc", 2000, 64, 128, 8, 12_000, 128, 1000, 250),
}


@dataclass(frozen=True)
class CanaryTraining:
    """One training.

    Args:
        noise_multiplier: Noise multiplier.
        repetitions: Rounds in which each canary is inserted; 0 for a training without canaries.
        size: Size of the training.
        seed: Seed for all random choices.
    """

    noise_multiplier: float
    repetitions: int
    size: OneShotSize
    seed: int

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"noise-{self.noise_multiplier}-times-{self.repetitions}"


def train(cell: CanaryTraining) -> dict[str, Any]:
    """Run one training and return what the tables need."""
    size = cell.size
    splits = load(
        size.data,
        partition=f"balanced:{size.examples}",
        vocabulary_size=size.vocabulary_size,
        positions=16,
        seed=cell.seed,
    )
    data = splits.train.subset(np.random.default_rng(cell.seed).permutation(len(splits.train))[: size.clients])
    model = models.build("word-lstm", data.task, seed=cell.seed, embedding=size.embedding, units=size.units)
    start = parameter_vector(model).numpy().copy()
    audits = []
    if cell.repetitions:
        updates = OneShot(
            dim=start.size,
            rounds=size.rounds,
            canaries=size.canaries,
            view="updates",
            score="max",
            participation=EpochParticipation(cell.repetitions),
            design="fixed",
            seed=cell.seed,
        )
        audits = [updates, updates.seen_by("final"), updates.seen_by("final-change", initial=start)]
    training = Training(
        model=model,
        data=data,
        test=splits.test.subset(range(min(size.test_clients, len(splits.test)))),
        rounds=size.rounds,
        cohorts=ShuffledCohorts(size.rounds),
        client=LocalTraining(optimizer=SGD(learning_rate=1.0), batch_size=size.examples),
        mechanism=Mechanism(clipping=AdaptiveClipping(initial=0.3), noise_multiplier=cell.noise_multiplier),
        server=SGD(learning_rate=1.0, momentum=0.9),
        audits=audits,
        seed=cell.seed,
    )
    last = training.run()[-1]
    kept: dict[str, Any] = {"recall": last["recall@1"], "dim": training.dim, "clients": len(data)}
    for audit in audits:
        result = audit.result(delta=len(data) ** -1.1)
        assert result.scores is not None
        epsilons = {e.method: e.epsilon for e in result.estimates}
        kept[audit.view] = {
            "estimate": epsilons["gaussian-fit"],
            "published": epsilons["published-lower-bound"],
            "bound": epsilons["exact-null"],
            "anderson": result.metrics["anderson_darling"],
            "scores": np.round(result.scores.members, 7).tolist(),
        }
    return kept


def _trainings(context: Context, keys: list[tuple[float, int]]) -> dict[tuple[float, int], dict[str, Any]]:
    """Return the results of trainings by their noise multiplier and repetitions."""
    cells = {key: CanaryTraining(*key, SIZES[context.scale], context.seed) for key in keys}
    parts = context.parts(train, {cell.name: cell for cell in cells.values()})
    return {key: parts[cell.name] for key, cell in cells.items()}


def _setting(context: Context) -> str:
    size = SIZES[context.scale]
    return (
        f"{size.clients:,} clients with {size.examples} #ubuntu messages, each once in {size.rounds} rounds, "
        f"{size.canaries:,} canaries, {context.scale}"
    )


def table_2(context: Context) -> ReproducedTable:
    """Compare the accuracy with and without canaries."""
    trained = _trainings(context, [(noise, times) for noise in PAPER_NOISE for times in (0, 1)])
    rows = [
        [
            f"{noise:g}",
            *printed,
            Number(trained[noise, 0]["recall"], ".2%"),
            Number(trained[noise, 1]["recall"], ".2%"),
        ]
        for noise, printed in zip(PAPER_NOISE, _ACCURACY, strict=True)
    ]
    columns = ["noise", "paper: without", "paper: with canaries", "ours: without", "ours: with canaries"]
    title = f"One-shot, Table 2, accuracy: {_setting(context)}"
    numbers = {f"noise {noise:g}, times {times}": [100 * cell["recall"]] for (noise, times), cell in trained.items()}
    return ReproducedTable(title, columns, rows, numbers=numbers, claims=one_shot_claims.table_2(PAPER_NOISE))


def table_3(context: Context) -> ReproducedTable:
    """Compare adversaries who see all updates and the final model."""
    trained = _trainings(context, [(noise, 1) for noise in PAPER_NOISE])
    rows = []
    for noise, rdp, printed in zip(PAPER_NOISE, _RDP, _TABLE_3, strict=True):
        cell = trained[noise, 1]
        delta = cell["clients"] ** -1.1
        once = theory(noise_multiplier=noise, sampling=AtMost(1), rounds=1, delta=delta).epsilon if noise else np.inf
        updates, final, change = cell["updates"], cell["final"], cell["final-change"]
        rows.append(
            [f"{noise:g}", rdp, *printed, _short(once)]
            + [_short(updates["published"]), _short(updates["estimate"]), Number(updates["bound"], ".3g", bound=True)]
            + [_short(v) for v in (final["published"], final["estimate"], change["estimate"])]
            + [Number(change["bound"], ".3g", bound=True)]
        )
    columns = ["noise", "paper: ε RDP", "ε_lo-all", "ε_est-all", "ε_lo-final", "ε_est-final"]
    columns += ["ours: theory", "ε_lo-all", "ε_est-all", "bound-all"]
    columns += ["ε_lo-final", "ε_est-final", "ε_est-change", "bound-change"]
    numbers = {
        f"{key} {view} {noise:g}": [float(trained[noise, 1][view][key])]
        for noise in PAPER_NOISE
        for view in ("updates", "final", "final-change")
        for key in ("estimate", "published", "bound")
    }
    claims = one_shot_claims.table_3(PAPER_NOISE, _TABLE_3)
    return ReproducedTable(f"One-shot, Table 3: {_setting(context)}", columns, rows, numbers=numbers, claims=claims)


def table_4(context: Context) -> ReproducedTable:
    """Test with Anderson–Darling statistics whether the final cosines are normal."""
    trained = _trainings(context, [(noise, times) for noise in FIGURE_NOISE for times in REPETITIONS])
    rows = [
        [f"{noise:g}"]
        + [
            f"{p:.3f} / {trained[noise, times]['final']['anderson']:.3f}"
            for p, times in zip(printed, REPETITIONS, strict=True)
        ]
        for noise, printed in zip(FIGURE_NOISE, _TABLE_4, strict=True)
    ]
    statistics = [trained[noise, times]["final"]["anderson"] for noise in FIGURE_NOISE for times in REPETITIONS]
    note = (
        f"Of 15 statistics {sum(s > _FIFTEEN_PER_CENT for s in statistics)} exceed {_FIFTEEN_PER_CENT} and "
        f"{sum(s > _ONE_PER_CENT for s in statistics)} exceed {_ONE_PER_CENT}, the 15% and 1% levels; in the"
        " paper, 3 and 0 do."
    )
    columns = ["noise", *(f"{times} times: paper / ours" for times in REPETITIONS)]
    title = f"One-shot, Table 4, Anderson–Darling of the final cosines: {_setting(context)}"
    numbers = {
        "above the 15% level": [float(sum(s > _FIFTEEN_PER_CENT for s in statistics))],
        "above the 1% level": [float(sum(s > _ONE_PER_CENT for s in statistics))],
    }
    return ReproducedTable(title, columns, rows, note, numbers=numbers, claims=one_shot_claims.TABLE_4)


def figure_1(context: Context) -> ReproducedTable:
    """Show the mean and standard deviation of the final cosines, in units of the null's standard deviation."""
    trained = _trainings(context, [(noise, times) for noise in FIGURE_NOISE for times in REPETITIONS])
    rows = []
    for view in ("final", "final-change"):
        for noise in FIGURE_NOISE:
            row = [view, f"{noise:g}"]
            for times in REPETITIONS:
                scores = np.array(trained[noise, times][view]["scores"]) * np.sqrt(trained[noise, times]["dim"])
                row.append(Number(float(scores.mean()), ".2f", spread=float(scores.std(ddof=1))))
            rows.append(row)
    columns = ["view", "noise", *(f"{times} times" for times in REPETITIONS)]
    title = f"One-shot, Figure 1, mean ± std of √d · final cosine (null 0 ± 1): {_setting(context)}"
    numbers = {
        f"{view} {noise:g} {times}": [float(np.mean(cell[view]["scores"]) * np.sqrt(cell["dim"]))]
        for (noise, times), cell in trained.items()
        for view in ("final", "final-change")
    }
    note = "The paper shows densities: repetitions separate them, and noise brings them together."
    claims = one_shot_claims.separation(FIGURE_NOISE, REPETITIONS, what="the mean cosine")
    return ReproducedTable(title, columns, rows, note, numbers=numbers, claims=claims)


def figure_2(context: Context) -> ReproducedTable:
    """Show ε of the final model by repetitions of the canaries."""
    trained = _trainings(context, [(noise, times) for noise in FIGURE_NOISE for times in REPETITIONS])
    rows = []
    for view in ("final", "final-change"):
        for noise in FIGURE_NOISE:
            for label, key in (("ε_est", "estimate"), ("ε_lo", "published"), ("lower bound", "bound")):
                values = [
                    Number(trained[noise, times][view][key], ".3g", bound=key == "bound") for times in REPETITIONS
                ]
                rows.append([view, f"{noise:g}", label, *values])
    columns = ["view", "noise", "figure", *(f"{times} times" for times in REPETITIONS)]
    note = "The paper shows bars: ε_est rises steeply with repetitions and falls with noise."
    numbers = {
        f"{view} {noise:g} {times}": [float(cell[view]["estimate"])]
        for (noise, times), cell in trained.items()
        for view in ("final", "final-change")
    }
    claims = one_shot_claims.separation(FIGURE_NOISE, REPETITIONS, what="ε_est")
    title = f"One-shot, Figure 2: {_setting(context)}"
    return ReproducedTable(title, columns, rows, note, numbers=numbers, claims=claims)


def _short(value: float) -> str:
    return Number(value, ".3g")
