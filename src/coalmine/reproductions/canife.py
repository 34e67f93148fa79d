"""Figures 3, 5, 8a and 9 of Maddock et al. (2023) as tables: histograms of scores, and ablations.

The paper attacks ResNet18 on CIFAR-10 and a four-layer CNN on CelebA. We attack LEAF's CNN on a fifth of CIFAR-10, with
one example per client (Figure 3) or ten from a Dirichlet distribution of classes (Figures 5, 8a and 9). ResNet18 is
attacked by a command of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from coalmine import accounting
from coalmine.methods.canife.canaries import GivenUpdates
from coalmine.methods.canife.design.loss import MeanLoss
from coalmine.methods.canife.designed_canaries import Start
from coalmine.reproductions import canife_claims
from coalmine.reproductions.canife_attack import (
    DELTA,
    OURS,
    PAPER,
    PUBLISHED,
    REFERENCE,
    Adversary,
    AttackCell,
    AttackRounds,
    Crafting,
    attack,
    mean,
    perfect_update,
    real_rounds,
    summary,
)
from coalmine.reproductions.canife_figures import histograms, lines, points
from coalmine.reproductions.canife_scenes import Scene, frozen
from coalmine.reproductions.canife_sizes import SIZES, CanifeSize
from coalmine.reproductions.cells import Number
from coalmine.reproductions.table import Context, ReproducedTable
from coalmine.stats import Scores, gaussian_shift

NOISE = 0.423
"""Noise multiplier of Figure 3b: ε = 25 for 39,062 rounds with 64 of 50,000 clients each."""

Parts = Mapping[str, Any]
"""Results of attacks by the name of their part."""


def figure_3(context: Context) -> ReproducedTable:
    """Attack clients with one example: with and without noise, by clients per round and mock clients."""
    size = SIZES[context.scale].seeded(context.seed)
    cells = figure_3_cells(size)
    parts = dict(context.parts(attack, cells))
    perfect = context.parts(_perfect, {"canife-perfect": size})["canife-perfect"]
    quiet, noisy = size.cohorts.index(size.cohort), len(size.cohorts)
    shown = [
        ("a", f"pool-{size.pool}", quiet, 0.0, "0.006"),
        ("b; the same model", f"pool-{size.pool}", noisy, NOISE, "-"),
    ]
    for title, name, papers in (
        ("every client clipped", "clipped", ("-", "-")),
        ("b; trained with noise", "private", ("-", "0.478")),
    ):
        shown += [(title, name, kind, noise, papers[kind]) for kind, noise in enumerate((0.0, NOISE))]
    rows = []
    for title, name, kind, noise, std in shown:
        labels = [title, str(size.cohort), str(size.pool), f"{noise:g}"]
        rows.append(_row_3(labels, ("-" if noise else "100%", std), parts, name, kind))
    reference = parts["canife-single-reference"]
    labels = ["a; conventions of the published code", str(size.cohort), str(size.pool), "0"]
    labels += [_percent(reference["metrics"]["accuracy"]), "100%", "0.006"]
    texts = [_formatted(number, mean(reference, number, kind)) for kind in (0, 1) for number in ("accuracy", "std")]
    rows.append([*labels, *texts])
    measured = [_percent(perfect["accuracy"]), _short(perfect["std"]), "-", "-"]
    accuracy = _percent(perfect["metrics"]["accuracy"])
    rows.append(["a perfect canary", str(size.cohort), "-", f"{NOISE:g}", accuracy, "-", "-", *measured])
    for pool in size.pools:
        for kind, cohort in enumerate(size.cohorts):
            rows.append(_row_3(["c", str(cohort), str(pool), "0"], ("-", "-"), parts, f"pool-{pool}", kind))
    columns = ["figure", "clients per round", "mock clients", "σ", "model's accuracy", "paper: accuracy", "std"]
    columns += ["Loss 2: accuracy", "std", "coalmine: accuracy", "std"]
    note = (
        f"Means over {size.canaries} canaries, each in 100 rounds. The row with the published code's conventions has "
        f"one kind of canary ({size.reference_iterations:,} iterations), scored along its update and, under coalmine, "
        f"along the likelihood ratio. The perfect canary is orthogonal to the updates of all {size.perfect_clients} "
        f"clients, in {size.perfect_trials} rounds of a training."
    )
    title = f"CANIFE, Figure 3: {context.scale}"
    single, private = parts[f"canife-pool-{size.pool}-paper"], parts["canife-private-paper"]
    numbers = {"accuracy": [mean(single, "accuracy", quiet)], "std": [mean(single, "std", quiet)]}
    numbers |= {"reference std": [mean(reference, "std")], "noisy std": [mean(private, "std", 1)]}
    numbers["perfect epsilon"] = [perfect["epsilon"]]
    for pool in size.pools:
        for kind, cohort in enumerate(size.cohorts):
            numbers[f"std {cohort}, {pool}"] = [mean(parts[f"canife-pool-{pool}-paper"], "std", kind)]

    def draw() -> dict[str, Any]:
        scores = [
            row for name in ("paper", "ours") for row in _scores(parts[f"canife-pool-{size.pool}-{name}"], name, quiet)
        ]
        widths = [
            {"pool": pool, "clients per round": str(cohort), "std": numbers[f"std {cohort}, {pool}"][0]}
            for pool in size.pools
            for cohort in size.cohorts
        ]
        x, y = ("pool", "mock clients"), ("std", "standard deviation")
        chart = lines(widths, x=x, y=y, color="clients per round", log=True, title="CANIFE, Figure 3c")
        return {"canife-figure-3": histograms(scores, title), "canife-figure-3c": chart}

    claims = canife_claims.figure_3(size.cohorts, size.pools)
    return ReproducedTable(title, columns, rows, note, draw, numbers, claims)


def figure_3_cells(size: CanifeSize) -> dict[str, AttackCell]:
    """Return the attacks of Figure 3 by the names of their parts."""
    single, both = size.single, ((size.cohort, 0.0), (size.cohort, NOISE))
    clipped = replace(single, client_rate=1.0)
    private = replace(single, noise_multiplier=NOISE, steps=size.private_rounds)
    reference = AttackCell(
        scene=single,
        crafting=Crafting(
            adversary=REFERENCE.lasting(size.reference_iterations),
            pool=size.pool,
            count=size.canaries,
            seed=single.seed,
        ),
        rounds=tuple(AttackRounds(cohort=size.cohort, score=score) for score in (PAPER.score, OURS.score)),
    )
    cells = {"canife-single-reference": reference}
    for pool in size.pools:
        rounds = [(cohort, 0.0) for cohort in size.cohorts] + ([both[1]] if pool == size.pool else [])
        cells |= _cells(f"pool-{pool}", single, size, pool, rounds)
    for name, scene in (("clipped", clipped), ("private", private)):
        cells |= _cells(name, scene, size, size.pool, both)
    return cells


def _scores(part: Parts, adversary: str, quiet: int) -> list[dict[str, Any]]:
    """Return the scores to draw: those of an adversary's first canary, without noise and with it."""
    rows = []
    for noise, kind in ((0.0, quiet), (NOISE, -1)):
        labels = {"canary": {"paper": "Loss 2", "ours": "coalmine"}[adversary], "noise": f"{noise:g}"}
        for side in ("with", "without"):
            rows += [{"score": score, "round": side, **labels} for score in part["found"][kind][0][side]]
    return rows


def _row_3(labels: list[str], paper: tuple[str, str], parts: Parts, name: str, kind: int) -> list[str]:
    """Return a row of Figure 3 for one kind of rounds."""
    accuracy = parts[f"canife-{name}-paper"]["metrics"]["accuracy"]
    return [*labels, _percent(accuracy), *paper, *_measured(parts, name, kind)]


def _perfect(size: CanifeSize) -> dict[str, Any]:
    """Attack rounds of a training with a canary that is orthogonal to the updates of all clients."""
    target = frozen(replace(size.single, clients=size.perfect_clients))
    rounds = AttackRounds(cohort=size.cohort, noise_multiplier=NOISE, trials=size.perfect_trials, score="plain")
    scores = summary(real_rounds(GivenUpdates(perfect_update(target)), target, rounds, seed=size.single.seed))
    shift = gaussian_shift(Scores(scores["with"], scores["without"]), delta=DELTA)
    return scores | {
        "epsilon": shift.epsilon,
        "interval": [shift.lower, shift.upper],
        "theory": accounting.round_epsilon(noise_multiplier=NOISE, delta=DELTA),
        "metrics": dict(target.metrics),
    }


def figure_5(context: Context) -> ReproducedTable:
    """Vary where a design starts, how long it runs, and how good the model is, all without noise."""
    size = SIZES[context.scale].seeded(context.seed)
    starts: tuple[Start, ...] = ("random", "pool")
    pools = {
        (pool, start): _ablation(size, PUBLISHED, pool=pool, start=start)
        for pool in size.user_pools
        for start in starts
    }
    lengths = {count: _ablation(size, PUBLISHED.lasting(count)) for count in size.iterations}
    ours = _ablation(size, OURS)
    texts = {steps: _ablation(size, PAPER, scene=replace(size.texts, steps=steps)) for steps in size.text_steps}
    parts = _attacks(context, [*texts.values(), *pools.values(), *lengths.values(), ours])
    rows = []
    for (pool, start), cell in pools.items():
        rows.append(_ablated(["a", f"start: {start}", str(pool), "std alike"], parts[_name(cell)]))
    papers = {1000: "95%", 3000: "almost 100%"}
    for count, cell in lengths.items():
        labels = ["b", f"{count:,} iterations", str(size.user_pool), papers.get(count, "-")]
        rows.append(_ablated(labels, parts[_name(cell)]))
    rows.append(_ablated(["b", "coalmine's design", str(size.user_pool), "-"], parts[_name(ours)]))
    for steps, cell in texts.items():
        labels = ["c", f"{steps} steps", str(size.user_pool), "rises with the model's"]
        rows.append(_ablated(labels, parts[_name(cell)]))
    note = (
        "a and b: CIFAR-10, clients with ten examples of non-IID classes, LEAF's CNN; c: Sentiment140, LSTM. Means "
        f"over {size.canaries} canaries, each in 100 rounds with about {size.users} clients."
    )
    columns = ["figure", "what", "mock clients", "paper", *_ABLATED]
    numbers = {f"{start} {pool}": [mean(parts[_name(cell)], "std")] for (pool, start), cell in pools.items()}
    numbers |= {f"{count} iterations": [mean(parts[_name(cell)], "accuracy")] for count, cell in lengths.items()}
    for steps, cell in texts.items():
        numbers[f"{steps} steps"] = [mean(parts[_name(cell)], "accuracy")]
        numbers[f"health {steps} steps"] = [mean(parts[_name(cell)], "health")]
    claims = canife_claims.figure_5(size.user_pools, size.iterations, size.text_steps)
    title = f"CANIFE, Figure 5: {context.scale}"

    def draw() -> dict[str, Any]:
        starting = [
            {"pool": pool, "start": start, "std": mean(parts[_name(cell)], "std")}
            for (pool, start), cell in pools.items()
        ]
        lasting = [{"count": n, "accuracy": numbers[f"{n} iterations"][0]} for n in lengths]
        by_model = [
            {
                "model": parts[_name(cell)]["metrics"]["accuracy"],
                "accuracy": numbers[f"{steps} steps"][0],
                "data": "texts",
            }
            for steps, cell in texts.items()
        ]
        x, y = ("pool", "mock clients"), ("accuracy", "attack accuracy")
        return {
            "canife-figure-5a": lines(starting, x=x, y=("std", "standard deviation"), color="start", title="Figure 5a"),
            "canife-figure-5b": lines(lasting, x=("count", "iterations"), y=y, title="Figure 5b"),
            "canife-figure-5c": points(
                by_model, x=("model", "model's accuracy"), y=y, color=("data", ""), title="Figure 5c"
            ),
        }

    return ReproducedTable(title, columns, rows, note, draw, numbers, claims)


def losses(context: Context) -> ReproducedTable:
    """Compare Loss 1 and Loss 2 by the number of mock clients (Figure 8a)."""
    size = SIZES[context.scale].seeded(context.seed)
    adversaries = {"Loss 1": PUBLISHED.with_design(loss=MeanLoss()), "Loss 2": PUBLISHED}
    papers = {"Loss 1": "rises with the pool", "Loss 2": "high, almost constant"}
    cells = {
        (pool, name): _ablation(size, adversary, pool=pool)
        for pool in size.user_pools
        for name, adversary in adversaries.items()
    }
    parts = _attacks(context, cells.values())
    rows = [
        _ablated(["a", f"{name}, {pool} mock clients", papers[name]], parts[_name(cell)])
        for (pool, name), cell in cells.items()
    ]
    numbers = {f"{name} {pool}": [mean(parts[_name(cell)], "accuracy")] for (pool, name), cell in cells.items()}
    for (pool, name), cell in cells.items():
        numbers[f"{name} {pool} by likelihood ratio"] = [mean(parts[_name(cell)], "accuracy", 1)]

    def draw() -> dict[str, Any]:
        drawn = [{"pool": p, "loss": name, "accuracy": numbers[f"{name} {p}"][0]} for p, name in cells]
        x, y = ("pool", "mock clients"), ("accuracy", "attack accuracy")
        return {"canife-figure-8a": lines(drawn, x=x, y=y, color="loss", title="CANIFE, Figure 8a")}

    columns = ["figure", "what", "paper", *_ABLATED]
    return ReproducedTable("CANIFE, Figure 8a", columns, rows, draw=draw, numbers=numbers)


def figure_9(context: Context) -> ReproducedTable:
    """Vary the norm that a canary's update is designed to have."""
    size = SIZES[context.scale].seeded(context.seed)
    cells = figure_9_cells(size)
    parts = _attacks(context, cells.values())
    rows = []
    for constant, cell in cells.items():
        labels = [f"{constant:g}", "high" if constant <= 50 else "falls", "about 1" if constant <= 600 else "falls"]
        rows.append([*_ablated(labels, parts[_name(cell)]), _short(mean(parts[_name(cell)], "norm"))])
    columns = ["norm constant", "paper: accuracy", "paper: health", *_ABLATED, "norm"]
    note = (
        f"Means over {size.canaries} canaries, each in 100 rounds with about {size.users} clients; {size.user_pool} "
        "mock clients; norms are before clipping, in units of the clip norm."
    )
    numbers = {
        f"{name} {constant:g}": [mean(parts[_name(cell)], name)]
        for constant, cell in cells.items()
        for name in ("accuracy", "health")
    }
    title = f"CANIFE, Figure 9: {context.scale}"

    def draw() -> dict[str, Any]:
        drawn = [
            {"constant": constant, "number": number, "value": numbers[f"{name} {constant:g}"][0]}
            for constant in cells
            for number, name in (("attack accuracy", "accuracy"), ("health", "health"))
        ]
        x, y = ("constant", "norm constant"), ("value", "")
        return {"canife-figure-9": lines(drawn, x=x, y=y, panel="number", log=True, title=title)}

    return ReproducedTable(title, columns, rows, note, draw, numbers, canife_claims.figure_9(size.constants))


def figure_9_cells(size: CanifeSize) -> dict[float, AttackCell]:
    """Return the attacks of Figure 9 by norm constant."""
    adversary = PUBLISHED.lasting(size.constant_iterations)
    return {c: _ablation(size, adversary.with_design(norm_constant=float(c))) for c in size.constants}


_ABLATED = ["model's accuracy", "along the canary: accuracy", "std"]
_ABLATED += ["along the likelihood ratio: accuracy", "std", "health"]


def _ablated(labels: list[str], part: Parts) -> list[str]:
    """Return a row of an ablation: the paper's score, then ours."""
    cells = [_formatted(name, mean(part, name, kind)) for kind in (0, 1) for name in ("accuracy", "std")]
    return [*labels, _percent(part["metrics"]["accuracy"]), *cells, _short(mean(part, "health"))]


def _ablation(
    size: CanifeSize,
    adversary: Adversary,
    *,
    scene: Scene | None = None,
    pool: int | None = None,
    start: Start = "random",
) -> AttackCell:
    """Return a cell without noise, with several examples per user, scored in both ways."""
    scene = scene or size.several
    crafting = Crafting(
        adversary=adversary, pool=pool or size.user_pool, count=size.canaries, start=start, seed=scene.seed
    )
    return AttackCell(
        scene=scene,
        crafting=crafting,
        rounds=tuple(AttackRounds(cohort=size.users, score=score) for score in (PAPER.score, OURS.score)),
    )


def _name(cell: AttackCell) -> str:
    """Return the name of a cell's part; figures that need the same cell share it."""
    crafting = cell.crafting
    settings = crafting.adversary.settings
    parts = [cell.scene.data, str(cell.scene.steps), str(crafting.pool), crafting.start, crafting.adversary.name]
    parts += [type(settings.loss).__name__, str(settings.iterations), str(settings.patience)]
    # Cells differ in nothing else: other learning rates and schedules have other names of adversaries.
    return "-".join(["canife", *parts, f"{settings.norm_constant:g}"]).lower()


def _attacks(context: Context, cells: Iterable[AttackCell]) -> dict[str, dict[str, Any]]:
    """Return the results of all cells by name."""
    return context.parts(attack, {_name(cell): cell for cell in cells})


def _cells(
    name: str,
    scene: Scene,
    size: CanifeSize,
    pool: int,
    rounds: Sequence[tuple[int, float]],
) -> dict[str, AttackCell]:
    """Return a cell for each adversary, against ``pool`` mock clients, in rounds of (clients, noise)."""
    return {
        f"canife-{name}-{adversary.name}": AttackCell(
            scene=scene,
            crafting=Crafting(adversary=adversary, pool=pool, count=size.canaries, seed=scene.seed),
            rounds=tuple(
                AttackRounds(cohort=cohort, noise_multiplier=noise, score=adversary.score) for cohort, noise in rounds
            ),
        )
        for adversary in (PAPER, OURS)
    }


def _measured(parts: Parts, name: str, kind: int) -> list[str]:
    """Return the accuracy and standard deviation of the paper's canary, then of ours."""
    pair = [parts[f"canife-{name}-{adversary.name}"] for adversary in (PAPER, OURS)]
    return [_formatted(number, mean(part, number, kind)) for part in pair for number in ("accuracy", "std")]


def _formatted(name: str, value: float) -> str:
    return _percent(value) if name == "accuracy" else _short(value)


def _percent(share: float) -> str:
    return Number(share, ".1%")


def _short(value: float) -> str:
    return Number(value, ".3g")
