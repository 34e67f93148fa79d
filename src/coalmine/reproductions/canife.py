"""Figures 3, 5, 8a and 9 of Maddock et al. (2023) as tables: histograms of scores, and ablations.

The paper attacks ResNet18 on CIFAR-10 and a four-layer CNN on CelebA. We attack LEAF's CNN on a fifth of CIFAR-10, with
one example per client (Figure 3) or ten from a Dirichlet distribution of classes (Figures 5, 8a and 9). ResNet18 is
attacked once, at full scale.
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
    REFERENCE,
    Adversary,
    AttackCell,
    AttackRounds,
    Crafting,
    Scene,
    attack,
    attacked,
    frozen,
    mean,
    perfect_update,
    real_rounds,
    summary,
)
from coalmine.reproductions.canife_figures import histograms
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
    both = (0.0, NOISE)
    clipped = replace(size.single, client_rate=1.0)
    private = replace(size.single, noise_multiplier=NOISE, steps=size.private_rounds)
    cells: dict[str, AttackCell] = {}
    for pool in size.pools:
        cells |= _cells(f"pool-{pool}", size.single, size, pool, [(cohort, 0.0) for cohort in size.cohorts])
    for name, scene in (("single", size.single), ("clipped", clipped), ("private", private)):
        cells |= _cells(name, scene, size, size.pool, [(size.cohort, noise) for noise in both])
    reference = _cells("single", size.single, size, size.pool, [(size.cohort, 0.0)], adversaries=(REFERENCE,))
    parts = dict(context.parts(attack, cells | reference))
    perfect = context.parts(_perfect, {"canife-perfect": size})["canife-perfect"]
    titles = {"single": "a, b", "clipped": "every client clipped", "private": "trained with noise"}
    if size.resnet is not None:
        resnet = context.parts(_resnet, {"canife-resnet": size})["canife-resnet"]
        parts |= {f"canife-resnet-{name}": resnet[name] for name in ("paper", "ours")}
        titles["resnet"] = "a; ResNet18"
    papers = {
        ("single", 0.0): ("100%", "0.006"),
        ("private", NOISE): ("-", "0.478"),
        ("resnet", 0.0): ("100%", "0.006"),
    }
    rows = []
    for name, title in titles.items():
        pool = size.resnet_pool if name == "resnet" else size.pool
        for kind, noise in enumerate(both[:1] if name == "resnet" else both):
            labels = [title, str(size.cohort), str(pool), f"{noise:g}"]
            rows.append(_row_3(labels, papers.get((name, noise), ("-", "-")), parts, name, kind))
    (scaled,) = (parts[name] for name in reference)
    labels = ["a; the canary ignores the clients' learning rate", str(size.cohort), str(size.pool), "0"]
    labels += [_percent(scaled["metrics"]["accuracy"]), "100%", "0.006"]
    rows.append([*labels, *(_formatted(number, mean(scaled, number)) for number in ("accuracy", "std")), "-", "-"])
    measured = [_percent(perfect["accuracy"]), _short(perfect["std"]), "-", "-"]
    accuracy = _percent(perfect["metrics"]["accuracy"])
    rows.append(["a perfect canary", str(size.cohort), "-", f"{NOISE:g}", accuracy, "-", "-", *measured])
    for pool in size.pools:
        for kind, cohort in enumerate(size.cohorts):
            rows.append(_row_3(["c", str(cohort), str(pool), "0"], ("-", "-"), parts, f"pool-{pool}", kind))
    columns = ["figure", "clients per round", "mock clients", "σ", "model's accuracy", "paper: accuracy", "std"]
    columns += ["Loss 2: accuracy", "std", "coalmine: accuracy", "std"]
    low, high = perfect["interval"]
    note = (
        f"Means over {size.canaries} canaries, each in 100 rounds. The perfect canary, in {size.perfect_trials} rounds "
        f"of a training, has ε̂ᵣ = {perfect['epsilon']:.2f} ({low:.2f} to {high:.2f}) by gaussian-shift; the Gaussian "
        f"mechanism has {perfect['theory']:.2f} at δ = {DELTA:g}. In the paper, fewer clients per round make "
        "histograms narrower; so do larger pools, with diminishing returns."
    )
    title = f"CANIFE, Figure 3: {_setting(context)}"
    drawn = [row for adversary in (PAPER, OURS) for row in _scores(parts, adversary)]
    single, private_part = parts["canife-single-paper"], parts["canife-private-paper"]
    numbers = {"accuracy": [mean(single, "accuracy")], "std": [mean(single, "std")]}
    numbers |= {"reference std": [mean(scaled, "std")], "noisy std": [mean(private_part, "std", 1)]}
    for pool in size.pools:
        for kind, cohort in enumerate(size.cohorts):
            numbers[f"std {cohort}, {pool}"] = [mean(parts[f"canife-pool-{pool}-paper"], "std", kind)]
    claims = canife_claims.figure_3(size.cohorts, size.pools)
    return ReproducedTable(
        title, columns, rows, note, lambda: {"canife-figure-3": histograms(drawn, title)}, numbers, claims
    )


def _scores(parts: Parts, adversary: Adversary) -> list[dict[str, Any]]:
    """Return the scores to draw: those of an adversary's first canary, without noise and with it."""
    rows = []
    for noise, canaries in zip((0.0, NOISE), parts[f"canife-single-{adversary.name}"]["found"], strict=True):
        labels = {"canary": {"paper": "Loss 2", "ours": "coalmine"}[adversary.name], "noise": f"{noise:g}"}
        for side in ("with", "without"):
            rows += [{"score": score, "round": side, **labels} for score in canaries[0][side]]
    return rows


def _row_3(labels: list[str], paper: tuple[str, str], parts: Parts, name: str, kind: int) -> list[str]:
    """Return a row of Figure 3 for one kind of rounds."""
    accuracy = parts[f"canife-{name}-paper"]["metrics"]["accuracy"]
    return [*labels, _percent(accuracy), *paper, *_measured(parts, name, kind)]


def _perfect(size: CanifeSize) -> dict[str, Any]:
    """Attack rounds of a training with a canary that is orthogonal to the updates of all clients."""
    target = frozen(replace(size.single, clients=size.perfect_clients))
    rounds = AttackRounds(cohort=size.cohort, noise_multiplier=NOISE, trials=size.perfect_trials, score="plain")
    audit = real_rounds(GivenUpdates(perfect_update(target)), target, rounds, seed=size.single.seed)
    scores = summary(audit)
    shift = gaussian_shift(Scores(scores["with"], scores["without"]), delta=DELTA)
    return scores | {
        "epsilon": shift.epsilon,
        "interval": [shift.lower, shift.upper],
        "theory": accounting.round_epsilon(noise_multiplier=NOISE, delta=DELTA),
        "metrics": dict(target.metrics),
    }


def _resnet(size: CanifeSize) -> dict[str, Any]:
    """Attack ResNet18, whose updates are too large to be kept, in rounds of a real training."""
    assert size.resnet is not None
    target, by_adversary = frozen(size.resnet), {}
    for adversary in (PAPER, OURS):
        crafting = Crafting(
            adversary=adversary.with_design(iterations=size.resnet_iterations, patience=size.resnet_iterations),
            pool=size.resnet_pool,
            seed=size.resnet.seed,
        )
        rounds = [AttackRounds(cohort=size.cohort, trials=size.resnet_trials, score=adversary.score)]
        findings = attacked(target, crafting, rounds, hold=real_rounds)
        by_adversary[adversary.name] = {"metrics": dict(target.metrics), "found": findings}
    return by_adversary


def figure_5(context: Context) -> ReproducedTable:
    """Vary where a design starts, how long it runs, and how good the model is, all without noise."""
    size = SIZES[context.scale].seeded(context.seed)
    starts: tuple[Start, ...] = ("random", "pool")
    pools = {
        (pool, start): _ablation(size, PAPER, pool=pool, start=start) for pool in size.user_pools for start in starts
    }
    lengths = {count: _ablation(size, _lasting(PAPER, count)) for count in size.iterations}
    ours = _ablation(size, OURS)
    texts = {steps: _ablation(size, PAPER, scene=replace(size.texts, steps=steps)) for steps in size.text_steps}
    parts = _attacks(context, [*pools.values(), *lengths.values(), ours, *texts.values()])
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
    title = f"CANIFE, Figure 5: {_setting(context)}"
    return ReproducedTable(title, columns, rows, note, numbers=numbers, claims=claims)


def losses(context: Context) -> ReproducedTable:
    """Compare Loss 1 and Loss 2 by the number of mock clients (Figure 8a)."""
    size = SIZES[context.scale].seeded(context.seed)
    adversaries = {"Loss 1": PAPER.with_design(loss=MeanLoss()), "Loss 2": PAPER}
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
    return ReproducedTable("CANIFE, Figure 8a", ["figure", "what", "paper", *_ABLATED], rows, numbers=numbers)


def figure_9(context: Context) -> ReproducedTable:
    """Vary the norm that a canary's update is designed to have."""
    size = SIZES[context.scale].seeded(context.seed)
    cells = {c: _ablation(size, PAPER.with_design(norm_constant=float(c))) for c in size.constants}
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
    title = f"CANIFE, Figure 9: {_setting(context)}"
    return ReproducedTable(title, columns, rows, note, numbers=numbers, claims=canife_claims.FIGURE_9)


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


def _lasting(adversary: Adversary, iterations: int) -> Adversary:
    """Return the adversary with a design of that many iterations; only the default number may stop early."""
    if iterations == adversary.settings.iterations:
        return adversary
    return adversary.with_design(iterations=iterations, patience=max(1, iterations))


def _name(cell: AttackCell) -> str:
    """Return the name of a cell's part; figures that need the same cell share it."""
    crafting = cell.crafting
    settings = crafting.adversary.settings
    parts = [cell.scene.data, str(cell.scene.steps), str(crafting.pool), crafting.start, crafting.adversary.name]
    parts += [type(settings.loss).__name__, str(settings.iterations), str(settings.patience)]
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
    adversaries: Sequence[Adversary] = (PAPER, OURS),
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
        for adversary in adversaries
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


def _setting(context: Context) -> str:
    return f"{context.scale}"
