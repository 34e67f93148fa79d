"""Figures 1, 4, 6 and 8 of Maddock et al. (2023) as tables: ε of single rounds along a training, and composed.

The paper trains on CelebA (ResNet18), Sent140 and Shakespeare (LSTMs) for 510 to 8,895 rounds. We train a small CNN on
MNIST by writer and smaller LSTMs on samples of the other two, for fewer rounds, with the noise that gives the same ε.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coalmine import accounting
from coalmine.accounting.sampling import Poisson
from coalmine.methods.canife.round_estimates import rate_ceiling
from coalmine.reproductions import canife_claims, canife_sizes
from coalmine.reproductions.canife import losses
from coalmine.reproductions.canife_attack import (
    DELTA,
    OURS,
    PAPER,
    AttackRounds,
    Crafting,
    Frozen,
    Scene,
    attacked,
    private_training,
    users,
)
from coalmine.reproductions.canife_figures import along_trainings
from coalmine.reproductions.cells import Number
from coalmine.reproductions.table import Context, ReproducedTable
from coalmine.results.tables import fixed
from coalmine.stats import Scores, best_threshold, gaussian_shift

# The canaries of the tables: the paper's, ours, ours in ten times as many rounds, and a perfect one.
CANARIES = {"paper": "Loss 2", "ours": "coalmine", "ours-more": "coalmine", "perfect": "perfect"}
PAPER_GAPS = {"mnist": "4 to 5 (CelebA)", "shakespeare": "4 to 5", "sent140": "4.5"}


@dataclass(frozen=True, kw_only=True)
class MonitoringSize:
    """Which trainings are attacked, and how often.

    Args:
        scenes: The trainings.
        epsilons: Claimed ε of each.
        cohorts: Clients per round of Figure 8.
        every: Rounds between attacks.
        trials: Trials per attack.
        more_trials: Trials per attack of the canary with more of them.
        pool: Mock clients.
        iterations: Iterations of the design.
    """

    scenes: tuple[Scene, ...]
    epsilons: tuple[float, ...]
    cohorts: tuple[int, ...]
    every: int
    trials: int = 100
    more_trials: int = 1000
    pool: int = 100
    iterations: int = 100


_WRITERS = Scene(
    data="mnist",
    model="ldp-cnn",
    steps=45,
    client_rate=0.5,
    clip_norm=0.6,
    options=(("pool_fraction", 0.2),),
    most=10,
    batch_size=50,
    clients=800,
)
_ROLES = Scene(
    data="shakespeare",
    model="shakespeare-lstm",
    steps=45,
    client_rate=3.0,
    clip_norm=0.3,
    options=(("pool_fraction", 0.15), ("min_examples", 4), ("positions", 40)),
    sizes=(("hidden", 32),),
    most=4,
    batch_size=50,
    clients=800,
)
_ACCOUNTS = Scene(
    data="sent140",
    model="sent140-lstm",
    steps=45,
    client_rate=5.75,
    clip_norm=0.3,
    options=(("pool_fraction", 0.2), ("min_examples", 2), ("vocabulary_size", 500)),
    sizes=(("embedding", 25), ("hidden", 32)),
    batch_size=50,
    clients=800,
)
SIZES = {
    "quick": MonitoringSize(scenes=(replace(_WRITERS, steps=20),), epsilons=(10, 50), cohorts=(25, 100), every=10),
    "full": MonitoringSize(
        scenes=(_WRITERS, _ROLES, _ACCOUNTS), epsilons=(10, 30, 50), cohorts=(25, 50, 100), every=15
    ),
}


@dataclass(frozen=True, kw_only=True)
class MonitoredTraining:
    """A training to a claimed ε, and the attacks on it."""

    scene: Scene
    epsilon: float
    size: MonitoringSize


def monitor(run: MonitoredTraining) -> dict[str, Any]:
    """Train, attack the current model every ``size.every`` rounds, and return the scores."""
    size, splits = run.size, users(run.scene)
    splits = replace(splits, train=splits.train.subset(range(min(run.scene.clients, len(splits.train)))))
    assert splits.pool is not None
    rate = run.scene.batch_size / len(splits.train)
    noise = accounting.noise_for(
        epsilon=run.epsilon, sampling=Poisson(rate), rounds=run.scene.steps, delta=DELTA, accountant="rdp"
    )
    scene = replace(run.scene, noise_multiplier=noise)
    training = private_training(scene, splits)
    periods = []
    for start in range(0, scene.steps, size.every):
        training.run(until=start)
        target = Frozen(
            model=training.module(),
            clients=splits.train,
            mock=splits.pool,
            client=scene.client,
            clip_norm=scene.clip_norm,
            metrics={},
        )
        period = {
            "round": start,
            "rounds": min(size.every, scene.steps - start),
            "perfect": _perfect(noise, size.trials, (scene.seed, start)),
        }
        for adversary, amounts in ((PAPER, [size.trials]), (OURS, [size.trials, size.more_trials])):
            designing = adversary.with_design(iterations=size.iterations)
            crafting = Crafting(adversary=designing, pool=size.pool, seed=scene.seed + start)
            rounds = [
                AttackRounds(cohort=scene.batch_size, noise_multiplier=noise, trials=trials, score=adversary.score)
                for trials in amounts
            ]
            names = [adversary.name, f"{adversary.name}-more"]
            first_canaries = [canaries[0] for canaries in attacked(target, crafting, rounds)]
            period |= dict(zip(names, first_canaries, strict=False))
        periods.append(period)
    last = training.run()[-1]
    accuracy = last["accuracy"] if "accuracy" in last else last["recall@1"]
    return {"noise": noise, "rate": rate, "clients": len(splits.train), "accuracy": accuracy, "periods": periods}


def _perfect(noise: float, trials: int, seed: tuple[int, int]) -> dict[str, Any]:
    """Return the scores of a perfect canary: those of the Gaussian mechanism itself."""
    rng = np.random.default_rng(seed)
    present = rng.random(trials) < 0.5
    scores = rng.normal(0, noise, trials) + present
    return {"with": scores[present].tolist(), "without": scores[~present].tolist()}


def figure_4(context: Context) -> ReproducedTable:
    """Compare ε̂ᵣ with εᵣ along trainings to ε = 10, 30 and 50, and the composed ε̂ with ε."""
    size = SIZES[context.scale]
    runs = {
        (scene.data, epsilon): MonitoredTraining(scene=replace(scene, seed=context.seed), epsilon=epsilon, size=size)
        for scene in size.scenes
        for epsilon in size.epsilons
    }
    parts = context.parts(monitor, {_name(run): run for run in runs.values()})
    rows: list[list[str]] = []
    claimed: dict[str, list[float]] = {}
    for (data, epsilon), run in runs.items():
        training = parts[_name(run)]
        for canary, title in CANARIES.items():
            numbers = _numbers(training, canary)
            gap = PAPER_GAPS[data] if canary == "paper" and epsilon == 50 else "-"
            row = [data, f"{epsilon:g}", f"{training['noise']:.3f}", fixed(_round_theory(training), 2)]
            row += [
                Number(training["accuracy"], ".1%"),
                title,
                f"{numbers['trials']:,}",
                Number(numbers["attack"], ".1%"),
            ]
            row += [numbers["along"], Number(numbers["mean"], ".2f"), gap]
            row += [Number(_round_theory(training) / numbers["mean"], ".1f"), Number(numbers["shift"], ".2f")]
            row += [Number(numbers["composed"], ".2f"), Number(epsilon / numbers["composed"], ".1f")]
            rows.append([*row, Number(numbers["composed_shift"], ".2f")])
            if canary == "paper":
                claimed[f"gap {data} {epsilon:g}"] = [_round_theory(training) / numbers["mean"]]
                claimed[f"composed {data} {epsilon:g}"] = [numbers["composed"]]
    columns = ["data", "ε", "σ", "εᵣ", "model's accuracy", "canary", "trials", "attack accuracy"]
    columns += ["ε̂ᵣ along the training (95% interval there)", "mean ε̂ᵣ", "paper: εᵣ / ε̂ᵣ", "εᵣ / ε̂ᵣ"]
    columns += ["mean by Gaussian shift", "composed ε̂", "ε / ε̂", "by Gaussian shift"]
    scene = size.scenes[0]
    note = (
        f"{scene.steps} rounds with about {scene.batch_size} clients, attacked every {size.every}. ε̂ᵣ is that of the "
        "best threshold and composed by RDP, both as published (δ = 1/trials for a round, 1e-05 for all); none of "
        "these is a bound. Gaussian shift uses δ = 1e-05 throughout. εᵣ is by RDP at 1e-05. The perfect canary's "
        "scores are drawn from the Gaussian mechanism."
    )
    title = f"CANIFE, Figures 1, 4 and 6: {context.scale}"
    drawn = [row for key, run in runs.items() for row in _points(*key, parts[_name(run)])]
    return ReproducedTable(
        title,
        columns,
        rows,
        note,
        lambda: {"canife-figure-4": along_trainings(drawn, title)},
        claimed,
        canife_claims.FIGURE_4,
    )


def _points(data: str, claimed: float, training: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what is drawn of a training: one row per attacked round and canary."""
    labels = {"data": data, "claimed": claimed, "theory": _round_theory(training)}
    rows = []
    for period in training["periods"]:
        for canary in ("paper", "ours", "perfect"):
            best = best_threshold(Scores(period[canary]["with"], period[canary]["without"]), delta=DELTA)
            numbers = {"epsilon": best.epsilon, "lower": best.lower, "upper": best.upper}
            finite = {name: value for name, value in numbers.items() if value is not None and np.isfinite(value)}
            rows.append({"round": period["round"], "canary": CANARIES[canary], **labels, **finite})
    return rows


def figure_8(context: Context) -> ReproducedTable:
    """Compare Loss 1 with Loss 2, and attack accuracy and ε̂ by clients per round."""
    size = SIZES[context.scale]
    ablation = losses(context)
    rows = [[*row[:-1], "-", "-"] for row in ablation.rows]
    claimed = dict(ablation.numbers)
    epsilon = max(size.epsilons)
    runs = {
        cohort: MonitoredTraining(
            scene=replace(size.scenes[0], batch_size=cohort, seed=context.seed), epsilon=epsilon, size=size
        )
        for cohort in size.cohorts
    }
    parts = context.parts(monitor, {_name(run): run for run in runs.values()})
    for cohort, run in runs.items():
        training = parts[_name(run)]
        both = [_numbers(training, canary) for canary in ("paper", "ours")]
        labels = ["b, c", f"{cohort} clients per round, σ = {training['noise']:.3f}"]
        labels += ["accuracy falls, ε̂ rises with clients"]
        cells = [cell for n in both for cell in (Number(n["attack"], ".1%"), Number(n["deviation"], ".3g"))]
        composed = [Number(numbers["composed"], ".2f") for numbers in both]
        rows.append([*labels, Number(training["accuracy"], ".1%"), *cells, *composed])
        claimed |= {f"accuracy {cohort}": [both[0]["attack"]], f"composed {cohort}": [both[0]["composed"]]}
    columns = [*ablation.columns[:-1], "composed ε̂, the paper's canary", "coalmine's"]
    note = (
        "a: without noise, CIFAR-10, LEAF's CNN. b, c: writers of MNIST, trained to "
        f"ε = {epsilon:g}; the paper's canary scored along its update, then ours along the likelihood ratio."
    )
    claims = canife_claims.figure_8(canife_sizes.SIZES[context.scale].user_pools, size.cohorts)
    title = f"CANIFE, Figure 8: {context.scale}"
    return ReproducedTable(title, columns, rows, note, numbers=claimed, claims=claims)


def _name(run: MonitoredTraining) -> str:
    return f"canife-{run.scene.data}-{run.epsilon:g}-clients-{run.scene.batch_size}"


def _round_theory(training: Mapping[str, Any]) -> float:
    """Return εᵣ, the ε of a single round."""
    return accounting.round_epsilon(noise_multiplier=training["noise"], delta=DELTA, accountant="rdp")


def _numbers(training: Mapping[str, Any], canary: str) -> dict[str, Any]:
    """Return what the scores of one canary show for each attacked round, and composed."""
    periods = training["periods"]
    scores = [Scores(period[canary]["with"], period[canary]["without"]) for period in periods]
    best = [best_threshold(s, delta=DELTA) for s in scores]
    # Scores that separate perfectly have an infinite ratio of rates, but show no more than the ceiling.
    ceilings = [rate_ceiling(s.members.size, s.observed.size, DELTA) for s in scores]
    epsilons = [min(estimate.epsilon, ceiling) for estimate, ceiling in zip(best, ceilings, strict=True)]
    shifts = [gaussian_shift(s, delta=DELTA).epsilon for s in scores]
    lengths = [period["rounds"] for period in periods]
    trials = scores[0].members.size + scores[0].observed.size
    along = [
        f"{period['round']}: {fixed(estimate.epsilon, 1)} ({fixed(estimate.lower, 1)}–{fixed(estimate.upper, 1)})"
        for period, estimate in zip(periods, best, strict=True)
    ]
    deviations = [(s.members.std(ddof=1), s.observed.std(ddof=1)) for s in scores]
    return {
        "trials": trials,
        "attack": float(np.mean([s.max_accuracy for s in scores])),
        "deviation": float(np.mean(deviations)),
        "along": "; ".join(along),
        "mean": float(np.mean(epsilons)),
        "shift": float(np.mean(shifts)),
        "composed": _composed(epsilons, lengths, training["rate"], 1 / trials),
        "composed_shift": _composed(shifts, lengths, training["rate"], None),
    }


def _composed(epsilons: Sequence[float], lengths: Sequence[int], rate: float, round_delta: float | None) -> float:
    """Return the composed ε̂; without ``round_delta`` all is at the same δ and inverted exactly."""
    return accounting.compose_rounds(
        list(zip(epsilons, lengths, strict=True)),
        sampling=Poisson(rate),
        delta=DELTA,
        round_delta=round_delta,
        inversion="exact" if round_delta is None else "rdp",
        accountant="rdp",
    )
