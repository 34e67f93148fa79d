"""Figures 3, 5, 8a and 9 of Maddock et al. (2023) as tables: histograms of scores, and ablations.

The paper attacks ResNet18 on CIFAR-10 and a four-layer CNN on CelebA. Here the CNN is LEAF's on a fifth of CIFAR-10,
with one example a client (Figure 3) or ten, unlike from client to client (Figures 5, 8a and 9); ResNet18 is attacked
once, at the full scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from coalmine import accounting
from coalmine.methods.canife.canaries import GivenUpdates
from coalmine.methods.canife.design.loss import MeanLoss
from coalmine.methods.canife.designed_canaries import Start
from coalmine.reproductions.canife_attack import (
    DELTA,
    OURS,
    PAPER,
    Adversary,
    Cell,
    Crafting,
    Rounds,
    Scene,
    attack,
    attacked,
    frozen,
    mean,
    perfect_update,
    really_held,
    summary,
)
from coalmine.reproductions.canife_figures import histograms
from coalmine.reproductions.table import Context, Table
from coalmine.simulation import Adam
from coalmine.stats import Scores, gaussian_shift

NOISE = 0.423
"""Of Figure 3b: ε = 25 for 39,062 rounds of 64 among 50,000 clients."""

Done = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is done: scenes, canaries for each figure, clients and mock clients, and what is varied."""

    single: Scene
    several: Scene
    texts: Scene
    resnet: Scene | None
    canaries: int
    cohort: int
    pool: int
    cohorts: tuple[int, ...]
    pools: tuple[int, ...]
    private_rounds: int
    perfect_trials: int
    perfect_clients: int
    users: int
    user_pool: int
    user_pools: tuple[int, ...]
    iterations: tuple[int, ...]
    text_steps: tuple[int, ...]
    constants: tuple[float, ...]
    resnet_pool: int = 128
    resnet_iterations: int = 200
    resnet_trials: int = 40

    def seeded(self, seed: int) -> Size:
        """From another seed."""
        single, several, texts = (replace(scene, seed=seed) for scene in (self.single, self.several, self.texts))
        resnet = None if self.resnet is None else replace(self.resnet, seed=seed)
        return replace(self, single=single, several=several, texts=texts, resnet=resnet)


_SINGLE = Scene(
    data="cifar10",
    model="leaf-cnn",
    steps=500,
    client_rate=0.01,
    options=(("partition", "iid:8800"), ("pool_fraction", 0.1)),
    clients=2000,
)
_SEVERAL = replace(
    _SINGLE,
    steps=400,
    client_rate=0.9,
    options=(("partition", "dirichlet:0.5/700"), ("pool_fraction", 0.25)),
    clients=600,
)
_TEXTS = Scene(
    data="sent140",
    model="sent140-lstm",
    steps=0,
    client_rate=5.75,
    options=(("min_examples", 2), ("vocabulary_size", 1000), ("pool_fraction", 0.2)),
    sizes=(("embedding", 50), ("hidden", 50)),
    optimizer=Adam(learning_rate=0.003),
    batch_size=32,
    clients=1200,
)
SIZES = {
    "quick": Size(
        single=replace(_SINGLE, steps=150, clients=600),
        several=replace(_SEVERAL, steps=150, clients=300),
        texts=replace(_TEXTS, clients=400),
        resnet=None,
        canaries=2,
        cohort=64,
        pool=256,
        cohorts=(16, 64),
        pools=(32, 256),
        private_rounds=20,
        perfect_trials=100,
        perfect_clients=300,
        users=60,
        user_pool=100,
        user_pools=(10, 100),
        iterations=(0, 200),
        text_steps=(0, 30, 90),
        constants=(1, 50, 1000),
    ),
    "full": Size(
        single=_SINGLE,
        several=_SEVERAL,
        texts=_TEXTS,
        resnet=replace(_SINGLE, model="resnet18-gn", steps=1000, optimizer=Adam(learning_rate=5e-4)),
        canaries=3,
        cohort=64,
        pool=512,
        cohorts=(16, 64, 256),
        pools=(32, 128, 512),
        private_rounds=100,
        perfect_trials=200,
        perfect_clients=600,
        users=100,
        user_pool=100,
        user_pools=(10, 100, 200),
        iterations=(0, 30, 200, 1000),
        text_steps=(0, 30, 90),
        constants=(1, 50, 300, 1000),
    ),
}


def figure_3(context: Context) -> Table:
    """One example a client, with and without noise; by clients a round and mock clients; a perfect canary."""
    size = SIZES[context.scale].seeded(context.seed)
    both = (0.0, NOISE)
    clipped = replace(size.single, client_rate=1.0)
    private = replace(size.single, noise=NOISE, steps=size.private_rounds)
    cells: dict[str, Cell] = {}
    for pool in size.pools:
        cells |= _cells(f"pool-{pool}", size.single, size, pool, [(cohort, 0.0) for cohort in size.cohorts])
    for name, scene in (("single", size.single), ("clipped", clipped), ("private", private)):
        cells |= _cells(name, scene, size, size.pool, [(size.cohort, noise) for noise in both])
    done = dict(context.parts(attack, cells))
    perfect = context.parts(_perfect, {"canife-perfect": size})["canife-perfect"]
    titles = {"single": "a, b", "clipped": "every client clipped", "private": "trained with noise"}
    if size.resnet is not None:
        found = context.parts(_resnet, {"canife-resnet": size})["canife-resnet"]
        done |= {f"canife-resnet-{name}": found[name] for name in ("paper", "ours")}
        titles["resnet"] = "a; ResNet18"
    papers = {
        ("single", 0.0): ("100%", "0.006"),
        ("private", NOISE): ("-", "0.478"),
        ("resnet", 0.0): ("100%", "0.006"),
    }
    rows = []
    for name, title in titles.items():
        pool = size.resnet_pool if name == "resnet" else size.pool
        for which, noise in enumerate(both[:1] if name == "resnet" else both):
            terms = [title, str(size.cohort), str(pool), f"{noise:g}"]
            rows.append(_row_3(terms, papers.get((name, noise), ("-", "-")), done, name, which))
    shown = [_percent(perfect["metrics"]["accuracy"]), "-", "-", _percent(perfect["accuracy"]), _short(perfect["std"])]
    rows.append(["a perfect canary", str(size.cohort), "-", f"{NOISE:g}", *shown, "-", "-"])
    for pool in size.pools:
        for which, cohort in enumerate(size.cohorts):
            rows.append(_row_3(["c", str(cohort), str(pool), "0"], ("-", "-"), done, f"pool-{pool}", which))
    columns = ["figure", "clients a round", "mock clients", "σ", "model's accuracy", "paper: accuracy", "std"]
    columns += ["Loss 2: accuracy", "std", "coalmine: accuracy", "std"]
    low, high = perfect["interval"]
    note = (
        f"Means over {size.canaries} canaries, each in 100 rounds. The perfect canary, in {size.perfect_trials} rounds "
        f"of a training, has ε̂ᵣ = {perfect['epsilon']:.2f} ({low:.2f} to {high:.2f}) by gaussian-shift; the Gaussian "
        f"mechanism has {perfect['theory']:.2f} at δ = {DELTA:g}. The paper: fewer clients a round make histograms "
        "tighter, and larger pools do so less and less."
    )
    title = f"CANIFE, Figure 3: {_setting(context)}"
    drawn = [row for adversary in (PAPER, OURS) for row in _scores(done, adversary)]
    return Table(title, columns, rows, note, lambda: {"canife-figure-3": histograms(drawn, title)})


def _scores(done: Done, adversary: Adversary) -> list[dict[str, Any]]:
    """What is drawn: the scores of an adversary's best canary, without noise and with it."""
    rows = []
    for noise, some in zip((0.0, NOISE), done[f"canife-single-{adversary.name}"]["found"], strict=True):
        terms = {"canary": {"paper": "Loss 2", "ours": "coalmine"}[adversary.name], "noise": f"{noise:g}"}
        rows += [{"score": score, "round": side, **terms} for side in ("with", "without") for score in some[0][side]]
    return rows


def _row_3(terms: list[str], paper: tuple[str, str], done: Done, name: str, which: int) -> list[str]:
    accuracy = done[f"canife-{name}-paper"]["metrics"]["accuracy"]
    return [*terms, _percent(accuracy), *paper, *_measured(done, name, which)]


def _perfect(size: Size) -> dict[str, Any]:
    """A vector orthogonal to all that clients send, planted in rounds of a training."""
    target = frozen(replace(size.single, clients=size.perfect_clients))
    rounds = Rounds(cohort=size.cohort, noise=NOISE, trials=size.perfect_trials, score="plain")
    audit = really_held(GivenUpdates(perfect_update(target)), target, rounds, seed=size.single.seed)
    found = summary(audit)
    shift = gaussian_shift(Scores(found["with"], found["without"]), delta=DELTA)
    return found | {
        "epsilon": shift.epsilon,
        "interval": [shift.lower, shift.upper],
        "theory": accounting.round_epsilon(noise_multiplier=NOISE, delta=DELTA),
        "metrics": dict(target.metrics),
    }


def _resnet(size: Size) -> dict[str, Any]:
    """ResNet18, whose clients' updates are too many to be kept: rounds are really held."""
    assert size.resnet is not None
    target, found = frozen(size.resnet), {}
    for adversary in (PAPER, OURS):
        crafting = Crafting(
            adversary=adversary.with_design(iterations=size.resnet_iterations, patience=size.resnet_iterations),
            pool=size.resnet_pool,
            seed=size.resnet.seed,
        )
        rounds = [Rounds(cohort=size.cohort, trials=size.resnet_trials, score=adversary.score)]
        some = attacked(target, crafting, rounds, hold=really_held)
        found[adversary.name] = {"metrics": dict(target.metrics), "found": some}
    return found


def figure_5(context: Context) -> Table:
    """Where a design starts, how long it takes, and how good the model is, all without noise."""
    size = SIZES[context.scale].seeded(context.seed)
    starts: tuple[Start, ...] = ("random", "pool")
    pools = {
        (pool, start): _ablation(size, PAPER, pool=pool, start=start) for pool in size.user_pools for start in starts
    }
    lengths = {count: _ablation(size, _lasting(PAPER, count)) for count in size.iterations}
    ours = _ablation(size, OURS)
    texts = {steps: _ablation(size, PAPER, scene=replace(size.texts, steps=steps)) for steps in size.text_steps}
    done = _done(context, [*pools.values(), *lengths.values(), ours, *texts.values()])
    rows = []
    for (pool, start), cell in pools.items():
        rows.append(_ablated(["a", f"start: {start}", str(pool), "std alike"], done[_name(cell)]))
    papers = {1000: "95%", 3000: "almost 100%"}
    for count, cell in lengths.items():
        terms = ["b", f"{count:,} iterations", str(size.user_pool), papers.get(count, "-")]
        rows.append(_ablated(terms, done[_name(cell)]))
    rows.append(_ablated(["b", "coalmine's design", str(size.user_pool), "-"], done[_name(ours)]))
    for steps, cell in texts.items():
        terms = ["c", f"{steps} steps", str(size.user_pool), "rises with the model's"]
        rows.append(_ablated(terms, done[_name(cell)]))
    note = (
        "a and b: CIFAR-10, clients of ten examples with unlike classes, LEAF's CNN; c: Sentiment140, LSTM. Means over "
        f"{size.canaries} canaries, each in 100 rounds of about {size.users} clients."
    )
    columns = ["figure", "what", "mock clients", "paper", *_ABLATED]
    return Table(f"CANIFE, Figure 5: {_setting(context)}", columns, rows, note)


def losses(context: Context) -> Table:
    """Figure 8a: Loss 1 and Loss 2, by mock clients."""
    size = SIZES[context.scale].seeded(context.seed)
    adversaries = {"Loss 1": PAPER.with_design(loss=MeanLoss()), "Loss 2": PAPER}
    papers = {"Loss 1": "rises with the pool", "Loss 2": "high, almost constant"}
    cells = {
        (pool, name): _ablation(size, adversary, pool=pool)
        for pool in size.user_pools
        for name, adversary in adversaries.items()
    }
    done = _done(context, cells.values())
    rows = [
        _ablated(["a", f"{name}, {pool} mock clients", papers[name]], done[_name(cell)])
        for (pool, name), cell in cells.items()
    ]
    return Table("CANIFE, Figure 8a", ["figure", "what", "paper", *_ABLATED], rows)


def figure_9(context: Context) -> Table:
    """How long a canary's update is asked to be."""
    size = SIZES[context.scale].seeded(context.seed)
    cells = {c: _ablation(size, PAPER.with_design(norm_constant=float(c))) for c in size.constants}
    done = _done(context, cells.values())
    rows = []
    for constant, cell in cells.items():
        terms = [f"{constant:g}", "high" if constant <= 50 else "falls", "about 1" if constant <= 600 else "falls"]
        rows.append([*_ablated(terms, done[_name(cell)]), _short(mean(done[_name(cell)], "norm"))])
    columns = ["norm constant", "paper: accuracy", "paper: health", *_ABLATED, "norm"]
    note = (
        f"Means over {size.canaries} canaries, each in 100 rounds of about {size.users} clients; {size.user_pool} mock "
        "clients; norms are in clip norms, before clipping."
    )
    return Table(f"CANIFE, Figure 9: {_setting(context)}", columns, rows, note)


_ABLATED = ["model's accuracy", "along the canary: accuracy", "std"]
_ABLATED += ["along the likelihood ratio: accuracy", "std", "health"]


def _ablated(terms: list[str], found: Done) -> list[str]:
    """A row of an ablation: the paper's score, then ours."""
    figures = [_shown(what, mean(found, what, which)) for which in (0, 1) for what in ("accuracy", "std")]
    return [*terms, _percent(found["metrics"]["accuracy"]), *figures, _short(mean(found, "health"))]


def _ablation(
    size: Size,
    adversary: Adversary,
    *,
    scene: Scene | None = None,
    pool: int | None = None,
    start: Start = "random",
) -> Cell:
    """A cell without noise, of users with several examples, scored in both ways."""
    scene = scene or size.several
    crafting = Crafting(
        adversary=adversary, pool=pool or size.user_pool, count=size.canaries, start=start, seed=scene.seed
    )
    return Cell(
        scene=scene,
        crafting=crafting,
        rounds=tuple(Rounds(cohort=size.users, score=score) for score in (PAPER.score, OURS.score)),
    )


def _lasting(adversary: Adversary, iterations: int) -> Adversary:
    """For so many iterations, and not fewer, unless they are the usual ones."""
    if iterations == adversary.settings.iterations:
        return adversary
    return adversary.with_design(iterations=iterations, patience=max(1, iterations))


def _name(cell: Cell) -> str:
    """Figures that need the same cell share it."""
    made = cell.crafting
    settings = made.adversary.settings
    parts = [cell.scene.data, str(cell.scene.steps), str(made.pool), made.start, made.adversary.name]
    parts += [type(settings.loss).__name__, str(settings.iterations), str(settings.patience)]
    return "-".join(["canife", *parts, f"{settings.norm_constant:g}"]).lower()


def _done(context: Context, cells: Iterable[Cell]) -> dict[str, dict[str, Any]]:
    return context.parts(attack, {_name(cell): cell for cell in cells})


def _cells(name: str, scene: Scene, size: Size, pool: int, rounds: Sequence[tuple[int, float]]) -> dict[str, Cell]:
    """A cell for each adversary: against ``pool`` mock clients, in rounds of (clients, noise)."""
    return {
        f"canife-{name}-{adversary.name}": Cell(
            scene=scene,
            crafting=Crafting(adversary=adversary, pool=pool, count=size.canaries, seed=scene.seed),
            rounds=tuple(Rounds(cohort=cohort, noise=noise, score=adversary.score) for cohort, noise in rounds),
        )
        for adversary in (PAPER, OURS)
    }


def _measured(done: Done, name: str, which: int) -> list[str]:
    """Accuracy and deviation of the paper's canary, then of ours."""
    pair = [done[f"canife-{name}-{adversary.name}"] for adversary in (PAPER, OURS)]
    return [_shown(what, mean(found, what, which)) for found in pair for what in ("accuracy", "std")]


def _shown(what: str, value: float) -> str:
    return _percent(value) if what == "accuracy" else _short(value)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def _short(value: float) -> str:
    return f"{value:.3g}"


def _setting(context: Context) -> str:
    return f"{context.scale}, seed {context.seed}"
