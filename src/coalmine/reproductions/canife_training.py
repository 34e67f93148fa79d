"""Figures 1, 4, 6 and 8 of Maddock et al. (2023) as tables: ε of single rounds along a training, and composed.

The paper trains on CelebA (ResNet18), Sent140 and Shakespeare (LSTMs), for 510 to 8,895 rounds. Here it is MNIST by
writer, with a small CNN, and smaller LSTMs of the same kind on samples of the other two, for fewer rounds, with as much
noise as the same ε asks for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from coalmine import accounting
from coalmine.accounting.sampling import Poisson
from coalmine.cli.console import number
from coalmine.methods.canife.round_estimates import rate_ceiling
from coalmine.reproductions.canife import losses
from coalmine.reproductions.canife_attack import (
    DELTA,
    OURS,
    PAPER,
    Crafting,
    Frozen,
    Rounds,
    Scene,
    attacked,
    private_training,
    users,
)
from coalmine.reproductions.canife_figures import along_trainings
from coalmine.reproductions.table import Context, Table
from coalmine.stats import Scores, best_threshold, gaussian_shift

# Canaries that are shown: the paper's, ours, ours in ten times as many rounds, a perfect one.
CANARIES = {"paper": "Loss 2", "ours": "coalmine", "ours-more": "coalmine", "perfect": "perfect"}
PAPER_GAPS = {"mnist": "4 to 5 (CelebA)", "shakespeare": "4 to 5", "sent140": "4.5"}


@dataclass(frozen=True, kw_only=True)
class Size:
    """Which trainings, attacked every so many rounds, each time in so many trials; with which ε and cohorts."""

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
    "quick": Size(scenes=(replace(_WRITERS, steps=20),), epsilons=(10, 50), cohorts=(25, 100), every=10),
    "full": Size(scenes=(_WRITERS, _ROLES, _ACCOUNTS), epsilons=(10, 30, 50), cohorts=(25, 50, 100), every=15),
}


@dataclass(frozen=True, kw_only=True)
class Monitored:
    """A training to a promised ε, with the attacks on it."""

    scene: Scene
    epsilon: float
    size: Size


def monitor(run: Monitored) -> dict[str, Any]:
    """Train; before every so many rounds attack the model as it is, and keep the scores."""
    size, splits = run.size, users(run.scene)
    splits = replace(splits, train=splits.train.subset(range(min(run.scene.clients, len(splits.train)))))
    assert splits.pool is not None
    rate = run.scene.batch_size / len(splits.train)
    noise = accounting.noise_for(
        epsilon=run.epsilon, sampling=Poisson(rate), rounds=run.scene.steps, delta=DELTA, accountant="rdp"
    )
    scene = replace(run.scene, noise=noise)
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
        found = {
            "round": start,
            "rounds": min(size.every, scene.steps - start),
            "perfect": _perfect(noise, size.trials, (scene.seed, start)),
        }
        for adversary, amounts in ((PAPER, [size.trials]), (OURS, [size.trials, size.more_trials])):
            designing = adversary.with_design(iterations=size.iterations)
            crafting = Crafting(adversary=designing, pool=size.pool, seed=scene.seed + start)
            rounds = [
                Rounds(cohort=scene.batch_size, noise=noise, trials=trials, score=adversary.score) for trials in amounts
            ]
            names = [adversary.name, f"{adversary.name}-more"]
            found |= dict(zip(names, [some[0] for some in attacked(target, crafting, rounds)], strict=False))
        periods.append(found)
    last = training.run()[-1]
    accuracy = last["accuracy"] if "accuracy" in last else last["recall@1"]
    return {"noise": noise, "rate": rate, "clients": len(splits.train), "accuracy": accuracy, "periods": periods}


def _perfect(noise: float, trials: int, seed: tuple[int, int]) -> dict[str, Any]:
    """Scores that a perfect canary would have: those of the Gaussian mechanism itself."""
    draw = np.random.default_rng(seed)
    present = draw.random(trials) < 0.5
    scores = draw.normal(0, noise, trials) + present
    return {"with": scores[present].tolist(), "without": scores[~present].tolist()}


def figure_4(context: Context) -> Table:
    """ε̂ᵣ along trainings to ε = 10, 30 and 50 against εᵣ, and ε̂ of the whole trainings against ε."""
    size = SIZES[context.scale]
    runs = {
        (scene.data, epsilon): Monitored(scene=replace(scene, seed=context.seed), epsilon=epsilon, size=size)
        for scene in size.scenes
        for epsilon in size.epsilons
    }
    done = context.parts(monitor, {_name(run): run for run in runs.values()})
    rows = []
    for (data, epsilon), run in runs.items():
        found = done[_name(run)]
        for canary, title in CANARIES.items():
            shown = _figures(found, canary)
            gap = PAPER_GAPS[data] if canary == "paper" and epsilon == 50 else "-"
            terms = [data, f"{epsilon:g}", f"{found['noise']:.3f}", number(_round_theory(found), 2)]
            terms += [f"{100 * found['accuracy']:.1f}%", title, f"{shown['trials']:,}", shown["attack"]]
            terms += [shown["along"], number(shown["mean"], 2), gap, f"{_round_theory(found) / shown['mean']:.1f}"]
            terms += [number(shown["shift"], 2), number(shown["composed"], 2), f"{epsilon / shown['composed']:.1f}"]
            rows.append([*terms, number(shown["composed_shift"], 2)])
    columns = ["data", "ε", "σ", "εᵣ", "model's accuracy", "canary", "trials", "attack accuracy"]
    columns += ["ε̂ᵣ along the training (95% interval there)", "mean ε̂ᵣ", "paper: εᵣ / ε̂ᵣ", "εᵣ / ε̂ᵣ"]
    columns += ["mean by Gaussian shift", "composed ε̂", "ε / ε̂", "by Gaussian shift"]
    scene = size.scenes[0]
    note = (
        f"{scene.steps} rounds of about {scene.batch_size} clients, attacked every {size.every}; ε̂ᵣ is of the best "
        "threshold, as published, and composed as published (RDP, δ = 1/trials for a round, 1e-05 for all); none of "
        "these is a bound. Gaussian shift has δ = 1e-05 throughout. εᵣ is RDP's at 1e-05. The perfect canary's scores "
        "are drawn from the Gaussian mechanism."
    )
    title = f"CANIFE, Figures 1, 4 and 6: {context.scale}, seed {context.seed}"
    drawn = [row for key, run in runs.items() for row in _points(*key, done[_name(run)])]
    return Table(title, columns, rows, note, lambda: {"canife-figure-4": along_trainings(drawn, title)})


def _points(data: str, promised: float, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What is drawn of a training: each attacked round by each canary."""
    terms = {"data": data, "promised": promised, "theory": _round_theory(found)}
    rows = []
    for period in found["periods"]:
        for canary in ("paper", "ours", "perfect"):
            one = best_threshold(Scores(period[canary]["with"], period[canary]["without"]), delta=DELTA)
            figures = {"epsilon": one.epsilon, "lower": one.lower, "upper": one.upper}
            finite = {name: value for name, value in figures.items() if value is not None and np.isfinite(value)}
            rows.append({"round": period["round"], "canary": CANARIES[canary], **terms, **finite})
    return rows


def figure_8(context: Context) -> Table:
    """Loss 1 against Loss 2; attack accuracy and ε̂ by clients a round."""
    size = SIZES[context.scale]
    ablation = losses(context)
    rows = [[*row[:-1], "-", "-"] for row in ablation.rows]
    epsilon = max(size.epsilons)
    runs = {
        cohort: Monitored(
            scene=replace(size.scenes[0], batch_size=cohort, seed=context.seed), epsilon=epsilon, size=size
        )
        for cohort in size.cohorts
    }
    done = context.parts(monitor, {_name(run): run for run in runs.values()})
    for cohort, run in runs.items():
        found = done[_name(run)]
        both = [_figures(found, canary) for canary in ("paper", "ours")]
        terms = ["b, c", f"{cohort} clients a round, σ = {found['noise']:.3f}", "accuracy falls, ε̂ rises with clients"]
        cells = [part for shown in both for part in (shown["attack"], f"{shown['deviation']:.3g}")]
        composed = [number(shown["composed"], 2) for shown in both]
        rows.append([*terms, f"{100 * found['accuracy']:.1f}%", *cells, *composed])
    columns = [*ablation.columns[:-1], "composed ε̂, the paper's canary", "coalmine's"]
    note = (
        "a: without noise, CIFAR-10, LEAF's CNN. b, c: writers of MNIST, trained to "
        f"ε = {epsilon:g}; the paper's canary along its update, then ours along the likelihood ratio."
    )
    return Table(f"CANIFE, Figure 8: {context.scale}, seed {context.seed}", columns, rows, note)


def _name(run: Monitored) -> str:
    return f"canife-{run.scene.data}-{run.epsilon:g}-clients-{run.scene.batch_size}"


def _round_theory(found: Mapping[str, Any]) -> float:
    return accounting.round_epsilon(noise_multiplier=found["noise"], delta=DELTA, accountant="rdp")


def _figures(found: Mapping[str, Any], canary: str) -> dict[str, Any]:
    """What the scores of one canary say of each attacked round, and composed."""
    periods = found["periods"]
    scores = [Scores(period[canary]["with"], period[canary]["without"]) for period in periods]
    best = [best_threshold(some, delta=DELTA) for some in scores]
    # Rates of scores that separate perfectly say no more than their ceiling.
    ceilings = [rate_ceiling(some.members.size, some.observed.size, DELTA) for some in scores]
    epsilons = [min(one.epsilon, ceiling) for one, ceiling in zip(best, ceilings, strict=True)]
    shifts = [gaussian_shift(some, delta=DELTA).epsilon for some in scores]
    lengths = [period["rounds"] for period in periods]
    trials = scores[0].members.size + scores[0].observed.size
    along = [
        f"{period['round']}: {number(one.epsilon, 1)} ({number(one.lower, 1)}–{number(one.upper, 1)})"
        for period, one in zip(periods, best, strict=True)
    ]
    deviations = [(some.members.std(ddof=1), some.observed.std(ddof=1)) for some in scores]
    return {
        "trials": trials,
        "attack": f"{100 * np.mean([some.max_accuracy for some in scores]):.1f}%",
        "deviation": float(np.mean(deviations)),
        "along": "; ".join(along),
        "mean": float(np.mean(epsilons)),
        "shift": float(np.mean(shifts)),
        "composed": _composed(epsilons, lengths, found["rate"], 1 / trials),
        "composed_shift": _composed(shifts, lengths, found["rate"], None),
    }


def _composed(epsilons: Sequence[float], lengths: Sequence[int], rate: float, round_delta: float | None) -> float:
    return accounting.compose_rounds(
        list(zip(epsilons, lengths, strict=True)),
        sampling=Poisson(rate),
        delta=DELTA,
        round_delta=round_delta,
        inversion="exact" if round_delta is None else "rdp",
        accountant="rdp",
    )
