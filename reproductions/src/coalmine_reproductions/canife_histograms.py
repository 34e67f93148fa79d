"""Figure 3 of Maddock et al. (2023) as a table: scores of rounds with and without a canary, and how much they vary.

The paper attacks ResNet18 on CIFAR-10. We attack LEAF's CNN on a fifth of CIFAR-10, with one example per client.
ResNet18 is attacked by a command of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from coalmine import claims
from coalmine.methods.canife.canaries import GivenUpdates
from coalmine.stats import Scores, gaussian_shift
from coalmine_reproductions import canife_claims
from coalmine_reproductions.canife_attack import (
    DELTA,
    OURS,
    PAPER,
    REFERENCE,
    Adversary,
    AttackCell,
    Attacked,
    AttackRounds,
    Crafting,
    accuracy_and_std,
    attack,
    mean,
    perfect_update,
    real_rounds,
    summary,
)
from coalmine_reproductions.canife_figures import histograms, lines
from coalmine_reproductions.canife_scenes import Scene, frozen
from coalmine_reproductions.canife_sizes import SIZES, CanifeSize
from coalmine_reproductions.cells import Number
from coalmine_reproductions.table import Context, ReproducedTable

NOISE = 0.423
"""Noise multiplier of Figure 3b: ε = 25 for 39,062 rounds with 64 of 50,000 clients each."""

Parts = Mapping[str, Attacked]
"""Results of attacks by the name of their part."""

_PERFECT = "canife-perfect"
_COLUMNS = ["figure", "clients per round", "mock clients", "σ", "model's accuracy", "paper: accuracy", "std"]
_COLUMNS += ["Loss 2: accuracy", "std", "coalmine: accuracy", "std"]


def figure_3(context: Context) -> ReproducedTable:
    """Attack clients with one example: with and without noise, by clients per round and mock clients."""
    size = SIZES[context.scale].seeded(context.seed)
    parts = context.parts(attack, _attacks(size)) | context.parts(_perfect, {_PERFECT: size})
    rows = [*_noise_rows(size, parts), _reference_row(size, parts, size.pool), _perfect_row(size, parts)]
    rows += _pool_rows(size, parts) + [_reference_row(size, parts, pool) for pool in size.pools if pool != size.pool]
    title = f"CANIFE, Figure 3: {context.scale}"
    return ReproducedTable(
        title,
        _COLUMNS,
        rows,
        _note(size),
        lambda: _charts(size, parts, title),
        _numbers(size, parts),
        canife_claims.figure_3(size.cohorts, size.pools),
    )


def _attacks(size: CanifeSize) -> dict[str, AttackCell]:
    """Return the attacks of Figure 3 by the names of their parts."""
    single, both = size.single, ((size.cohort, 0.0), (size.cohort, NOISE))
    clipped = replace(single, client_rate=1.0)
    private = replace(single, noise_multiplier=NOISE, steps=size.private_rounds)
    cells = {_reference_part(pool): _reference(size, pool) for pool in size.pools}
    for pool in size.pools:
        rounds = [(cohort, 0.0) for cohort in size.cohorts] + ([both[1]] if pool == size.pool else [])
        cells |= _by_both(f"pool-{pool}", single, size, pool, rounds)
    for name, scene in (("clipped", clipped), ("private", private)):
        cells |= _by_both(name, scene, size, size.pool, both)
    return cells


def _by_both(
    name: str, scene: Scene, size: CanifeSize, pool: int, rounds: Sequence[tuple[int, float]]
) -> dict[str, AttackCell]:
    """Return an attack by each adversary, against ``pool`` mock clients, in rounds of (clients, noise)."""
    return {
        _part(name, adversary): AttackCell(
            scene=scene,
            crafting=Crafting(adversary=adversary, pool=pool, count=size.canaries, seed=scene.seed),
            rounds=tuple(
                AttackRounds(cohort=cohort, noise_multiplier=noise, score=adversary.score) for cohort, noise in rounds
            ),
        )
        for adversary in (PAPER, OURS)
    }


def _reference(size: CanifeSize, pool: int) -> AttackCell:
    """Return the attack by the conventions of the published code, scored in both ways."""
    adversary = REFERENCE.lasting(size.reference_iterations)
    return AttackCell(
        scene=size.single,
        crafting=Crafting(adversary=adversary, pool=pool, count=size.canaries, seed=size.single.seed),
        rounds=tuple(AttackRounds(cohort=size.cohort, score=score) for score in (PAPER.score, OURS.score)),
    )


def _perfect(size: CanifeSize) -> dict[str, Any]:
    """Attack rounds of a training with a canary that is orthogonal to the updates of all clients."""
    target = frozen(replace(size.single, clients=size.perfect_clients))
    rounds = AttackRounds(cohort=size.cohort, noise_multiplier=NOISE, trials=size.perfect_trials, score="plain")
    scores = summary(real_rounds(GivenUpdates(perfect_update(target)), target, rounds, seed=size.single.seed))
    shift = gaussian_shift(Scores(scores["with"], scores["without"]), delta=DELTA)
    return scores | {
        "epsilon": shift.epsilon,
        "interval": [shift.lower, shift.upper],
        "claim": claims.round_epsilon(noise_multiplier=NOISE, delta=DELTA),
        "metrics": dict(target.metrics),
    }


def _part(name: str, adversary: Adversary) -> str:
    """Return the name of the part of one adversary's attack."""
    return f"canife-{name}-{adversary.name}"


def _reference_part(pool: int) -> str:
    """Return the name of the part of the attack by the conventions of the published code."""
    return f"canife-reference-{pool}"


def _noise_rows(size: CanifeSize, parts: Parts) -> list[list[str]]:
    """Return the rows of Figures 3a and 3b: without noise and with it, on three models."""
    single = f"pool-{size.pool}"
    quiet, noisy = _quiet(size), len(size.cohorts)
    shown = [
        ("a", single, quiet, 0.0, "0.006"),
        ("b; the same model", single, noisy, NOISE, "-"),
        ("every client clipped", "clipped", 0, 0.0, "-"),
        ("every client clipped", "clipped", 1, NOISE, "-"),
        ("b; trained with noise", "private", 0, 0.0, "-"),
        ("b; trained with noise", "private", 1, NOISE, "0.478"),
    ]
    return [
        _row([figure, *_setting(size, noise)], ("-" if noise else "100%", std), parts, name, kind)
        for figure, name, kind, noise, std in shown
    ]


def _pool_rows(size: CanifeSize, parts: Parts) -> list[list[str]]:
    """Return the rows of Figure 3c: by clients per round and mock clients."""
    return [
        _row(["c", str(cohort), str(pool), "0"], ("-", "-"), parts, f"pool-{pool}", kind)
        for pool in size.pools
        for kind, cohort in enumerate(size.cohorts)
    ]


def _row(labels: Sequence[str], paper: Sequence[str], parts: Parts, name: str, kind: int) -> list[str]:
    """Return a row for one kind of rounds: the paper's canary, then ours."""
    papers, ours = (parts[_part(name, adversary)] for adversary in (PAPER, OURS))
    return [*labels, _model(papers), *paper, *accuracy_and_std(papers, kind), *accuracy_and_std(ours, kind)]


def _reference_row(size: CanifeSize, parts: Parts, pool: int) -> list[str]:
    """Return a row of the published code's conventions: one kind of canary, scored in two ways."""
    reference, is_single = parts[_reference_part(pool)], pool == size.pool
    labels = [f"{'a' if is_single else 'c'}; conventions of the published code", str(size.cohort), str(pool), "0"]
    measured = [cell for kind in (0, 1) for cell in accuracy_and_std(reference, kind)]
    return [*labels, _model(reference), "100%", "0.006" if is_single else "-", *measured]


def _perfect_row(size: CanifeSize, parts: Parts) -> list[str]:
    """Return the row of the perfect canary, which has no mock clients."""
    perfect = parts[_PERFECT]
    measured = [Number(perfect["accuracy"], ".1%"), Number(perfect["std"], ".3g")]
    labels = ["a perfect canary", str(size.cohort), "-", f"{NOISE:g}"]
    return [*labels, _model(perfect), "-", "-", *measured, "-", "-"]


def _setting(size: CanifeSize, noise: float) -> list[str]:
    """Return the cells that say clients per round, mock clients and noise."""
    return [str(size.cohort), str(size.pool), f"{noise:g}"]


def _model(part: Attacked) -> Number:
    """Return the cell that says the accuracy of the attacked model."""
    return Number(part["metrics"]["accuracy"], ".1%")


def _quiet(size: CanifeSize) -> int:
    """Return which kind of rounds of Figure 3c is that of Figure 3a."""
    return size.cohorts.index(size.cohort)


def _note(size: CanifeSize) -> str:
    return (
        f"Means over {size.canaries} canaries, each in 100 rounds. Rows with the published code's conventions have "
        f"one kind of canary ({size.reference_iterations:,} iterations), scored along its update and, under coalmine, "
        f"along the likelihood ratio. The perfect canary is orthogonal to the updates of all {size.perfect_clients} "
        f"clients, in {size.perfect_trials} rounds of a training."
    )


def _numbers(size: CanifeSize, parts: Parts) -> dict[str, list[float]]:
    """Return the numbers that decide the claims about the paper's canary."""
    by_pool = {pool: parts[_part(f"pool-{pool}", PAPER)] for pool in size.pools}
    single, quiet = by_pool[size.pool], _quiet(size)
    numbers = {
        "accuracy": mean(single, "accuracy", quiet),
        "std": mean(single, "std", quiet),
        "noisy std": mean(parts[_part("private", PAPER)], "std", 1),
        "perfect epsilon": parts[_PERFECT]["epsilon"],
    }
    for pool, part in by_pool.items():
        numbers[f"reference std, {pool}"] = mean(parts[_reference_part(pool)], "std")
        numbers |= {f"std {cohort}, {pool}": mean(part, "std", kind) for kind, cohort in enumerate(size.cohorts)}
    return {name: [value] for name, value in numbers.items()}


def _charts(size: CanifeSize, parts: Parts, title: str) -> dict[str, Any]:
    """Return the histograms of Figures 3a and 3b, and the standard deviations of Figure 3c."""
    scores = [
        row
        for adversary, canary in ((PAPER, "Loss 2"), (OURS, "coalmine"))
        for row in _scores(parts[_part(f"pool-{size.pool}", adversary)], canary, _quiet(size))
    ]
    deviations = [
        {"pool": pool, "clients per round": str(cohort), "std": mean(parts[_part(f"pool-{pool}", PAPER)], "std", kind)}
        for pool in size.pools
        for kind, cohort in enumerate(size.cohorts)
    ]
    x, y = ("pool", "mock clients"), ("std", "standard deviation")
    chart = lines(deviations, x=x, y=y, color="clients per round", log=True, title="CANIFE, Figure 3c")
    return {"canife-figure-3": histograms(scores, title), "canife-figure-3c": chart}


def _scores(part: Attacked, canary: str, quiet: int) -> list[dict[str, Any]]:
    """Return the scores to draw: those of an adversary's first canary, without noise and with it."""
    return [
        {"score": score, "round": side, "canary": canary, "noise": f"{noise:g}"}
        for noise, kind in ((0.0, quiet), (NOISE, -1))
        for side in ("with", "without")
        for score in part["found"][kind][0][side]
    ]
