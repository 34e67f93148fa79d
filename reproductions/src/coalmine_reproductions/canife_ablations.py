"""Figures 5, 8a and 9 of Maddock et al. (2023) as tables: what makes a canary easier to find, one change at a time.

The paper attacks a four-layer CNN on CelebA and an LSTM on Sent140. We attack LEAF's CNN on a fifth of CIFAR-10, with
ten examples per client from a Dirichlet distribution of classes, and a smaller LSTM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from coalmine.methods.canife.designed_canaries import Start
from coalmine_reproductions import canife_claims
from coalmine_reproductions.canife_attack import (
    OURS,
    PAPER,
    PUBLISHED,
    Adversary,
    AttackCell,
    Attacked,
    AttackRounds,
    Crafting,
    accuracy_and_std,
    attack,
    mean,
)
from coalmine_reproductions.canife_figures import lines, points
from coalmine_reproductions.canife_scenes import Scene
from coalmine_reproductions.canife_sizes import SIZES, CanifeSize
from coalmine_reproductions.cells import Number
from coalmine_reproductions.table import Context, ReproducedTable

_MEASURED = ["model's accuracy", "along the canary: accuracy", "std"]
_MEASURED += ["along the likelihood ratio: accuracy", "std", "health"]

_STARTS: tuple[Start, ...] = ("random", "pool")

# Columns of drawn rows with the titles of their axes.
_POOL, _ACCURACY = ("pool", "mock clients"), ("accuracy", "attack accuracy")


def figure_5(context: Context) -> ReproducedTable:
    """Vary where a design starts, how long it runs, and how good the model is, all without noise."""
    size = SIZES[context.scale].seeded(context.seed)
    models, starts, lengths, ours = _attacks(
        context,
        {steps: _ablation(size, PAPER, scene=replace(size.texts, steps=steps)) for steps in size.text_steps},
        {
            (pool, start): _ablation(size, PUBLISHED, pool=pool, start=start)
            for pool in size.user_pools
            for start in _STARTS
        },
        {count: _ablation(size, PUBLISHED.lasting(count)) for count in size.iterations},
        {"coalmine's design": _ablation(size, OURS)},
    )
    rows = [*_start_rows(starts), *_length_rows(lengths, ours, size.user_pool), *_model_rows(models, size.user_pool)]
    note = (
        "a and b: CIFAR-10, clients with ten examples of non-IID classes, LEAF's CNN; c: Sentiment140, LSTM. Means "
        f"over {size.canaries} canaries, each in 100 rounds with about {size.users} clients."
    )
    return ReproducedTable(
        f"CANIFE, Figure 5: {context.scale}",
        ["figure", "what", "mock clients", "paper", *_MEASURED],
        rows,
        note,
        lambda: _figure_5_charts(starts, lengths, models),
        _figure_5_numbers(starts, lengths, models),
        canife_claims.figure_5(size.user_pools, size.iterations, size.text_steps),
    )


def _start_rows(starts: Mapping[tuple[int, Start], Attacked]) -> list[list[str]]:
    """Return the rows of Figure 5a: by mock clients and by where a design starts."""
    return [
        _row(["a", f"start: {start}", str(pool), "std alike"], attacked) for (pool, start), attacked in starts.items()
    ]


def _length_rows(lengths: Mapping[int, Attacked], ours: Mapping[str, Attacked], pool: int) -> list[list[str]]:
    """Return the rows of Figure 5b: by the iterations of the paper's design, then our design."""
    papers = {1000: "95%", 3000: "almost 100%"}
    rows = [
        _row(["b", f"{count:,} iterations", str(pool), papers.get(count, "-")], attacked)
        for count, attacked in lengths.items()
    ]
    return rows + [_row(["b", name, str(pool), "-"], attacked) for name, attacked in ours.items()]


def _model_rows(models: Mapping[int, Attacked], pool: int) -> list[list[str]]:
    """Return the rows of Figure 5c: by the steps that the model was trained for."""
    return [
        _row(["c", f"{steps} steps", str(pool), "rises with the model's"], attacked)
        for steps, attacked in models.items()
    ]


def _figure_5_numbers(
    starts: Mapping[tuple[int, Start], Attacked], lengths: Mapping[int, Attacked], models: Mapping[int, Attacked]
) -> dict[str, list[float]]:
    """Return the numbers that decide the claims of Figure 5."""
    numbers = {f"{start} {pool}": [mean(attacked, "std")] for (pool, start), attacked in starts.items()}
    numbers |= {f"{count} iterations": [mean(attacked, "accuracy")] for count, attacked in lengths.items()}
    for steps, attacked in models.items():
        numbers[f"{steps} steps"] = [mean(attacked, "accuracy")]
        numbers[f"health {steps} steps"] = [mean(attacked, "health")]
    return numbers


def _figure_5_charts(
    starts: Mapping[tuple[int, Start], Attacked], lengths: Mapping[int, Attacked], models: Mapping[int, Attacked]
) -> dict[str, Any]:
    """Return the three charts of Figure 5."""
    starting = [
        {"pool": pool, "start": start, "std": mean(attacked, "std")} for (pool, start), attacked in starts.items()
    ]
    lasting = [{"count": count, "accuracy": mean(attacked, "accuracy")} for count, attacked in lengths.items()]
    by_model = [
        {"model": attacked["metrics"]["accuracy"], "accuracy": mean(attacked, "accuracy"), "data": "texts"}
        for attacked in models.values()
    ]
    std, count, model = ("std", "standard deviation"), ("count", "iterations"), ("model", "model's accuracy")
    return {
        "canife-figure-5a": lines(starting, x=_POOL, y=std, color="start", title="Figure 5a"),
        "canife-figure-5b": lines(lasting, x=count, y=_ACCURACY, title="Figure 5b"),
        "canife-figure-5c": points(by_model, x=model, y=_ACCURACY, color=("data", ""), title="Figure 5c"),
    }


def figure_8a(context: Context) -> ReproducedTable:
    """Compare Loss 1 and Loss 2 by the number of mock clients."""
    size = SIZES[context.scale].seeded(context.seed)
    adversaries = {"Loss 1": PUBLISHED.with_design(loss="mean"), "Loss 2": PUBLISHED}
    papers = {"Loss 1": "rises with the pool", "Loss 2": "high, almost constant"}
    (losses,) = _attacks(
        context,
        {
            (pool, name): _ablation(size, adversary, pool=pool)
            for pool in size.user_pools
            for name, adversary in adversaries.items()
        },
    )
    rows = [
        _row(["a", f"{name}, {pool} mock clients", papers[name]], attacked) for (pool, name), attacked in losses.items()
    ]
    numbers = {f"{name} {pool}": [mean(attacked, "accuracy")] for (pool, name), attacked in losses.items()}
    for (pool, name), attacked in losses.items():
        numbers[f"{name} {pool} by likelihood ratio"] = [mean(attacked, "accuracy", 1)]

    def draw() -> dict[str, Any]:
        drawn = [{"pool": pool, "loss": name, "accuracy": numbers[f"{name} {pool}"][0]} for pool, name in losses]
        return {"canife-figure-8a": lines(drawn, x=_POOL, y=_ACCURACY, color="loss", title="CANIFE, Figure 8a")}

    columns = ["figure", "what", "paper", *_MEASURED]
    return ReproducedTable("CANIFE, Figure 8a", columns, rows, draw=draw, numbers=numbers)


def figure_9(context: Context) -> ReproducedTable:
    """Vary the norm that a canary's update is designed to have."""
    size = SIZES[context.scale].seeded(context.seed)
    adversary = PUBLISHED.lasting(size.constant_iterations)
    (norms,) = _attacks(
        context, {c: _ablation(size, adversary.with_design(norm_constant=float(c))) for c in size.constants}
    )
    rows = []
    for constant, attacked in norms.items():
        labels = [f"{constant:g}", "high" if constant <= 50 else "falls", "about 1" if constant <= 600 else "falls"]
        rows.append([*_row(labels, attacked), Number(mean(attacked, "norm"), ".3g")])
    columns = ["norm constant", "paper: accuracy", "paper: health", *_MEASURED, "norm"]
    note = (
        f"Means over {size.canaries} canaries, each in 100 rounds with about {size.users} clients; {size.user_pool} "
        "mock clients; norms are before clipping, in units of the clip norm."
    )
    numbers = {
        f"{name} {constant:g}": [mean(attacked, name)]
        for constant, attacked in norms.items()
        for name in ("accuracy", "health")
    }
    title = f"CANIFE, Figure 9: {context.scale}"

    def draw() -> dict[str, Any]:
        drawn = [
            {"constant": constant, "number": number, "value": numbers[f"{name} {constant:g}"][0]}
            for constant in norms
            for number, name in (("attack accuracy", "accuracy"), ("health", "health"))
        ]
        x, y = ("constant", "norm constant"), ("value", "")
        return {"canife-figure-9": lines(drawn, x=x, y=y, panel="number", log=True, title=title)}

    return ReproducedTable(title, columns, rows, note, draw, numbers, canife_claims.figure_9(size.constants))


def _ablation(
    size: CanifeSize,
    adversary: Adversary,
    *,
    scene: Scene | None = None,
    pool: int | None = None,
    start: Start = "random",
) -> AttackCell:
    """Return an attack without noise, with several examples per user, scored in both ways."""
    scene = scene or size.several
    crafting = Crafting(
        adversary=adversary, pool=pool or size.user_pool, count=size.canaries, start=start, seed=scene.seed
    )
    return AttackCell(
        scene=scene,
        crafting=crafting,
        rounds=tuple(AttackRounds(cohort=size.users, score=score) for score in (PAPER.score, OURS.score)),
    )


def _attacks(context: Context, *groups: Mapping[Any, AttackCell]) -> list[dict[Any, Attacked]]:
    """Attack the cells of all groups in one go, and return the results of each group by its own keys."""
    parts = context.parts(attack, {_name(cell): cell for group in groups for cell in group.values()})
    return [{key: parts[_name(cell)] for key, cell in group.items()} for group in groups]


def _name(cell: AttackCell) -> str:
    """Return the name of a cell's part; figures that need the same cell share it."""
    crafting = cell.crafting
    settings = crafting.adversary.settings
    parts = [cell.scene.data, str(cell.scene.steps), str(crafting.pool), crafting.start, crafting.adversary.name]
    parts += [settings.loss, str(settings.iterations), str(settings.patience)]
    # Cells differ in nothing else: other learning rates and schedules have other names of adversaries.
    return "-".join(["canife", *parts, f"{settings.norm_constant:g}"]).lower()


def _row(labels: Sequence[str], attacked: Attacked) -> list[str]:
    """Return a row of an ablation: the paper's score, then ours."""
    measured = [cell for kind in (0, 1) for cell in accuracy_and_std(attacked, kind)]
    model = Number(attacked["metrics"]["accuracy"], ".1%")
    return [*labels, model, *measured, Number(mean(attacked, "health"), ".3g")]
