"""Figure 3a of Maddock et al. (2023) on the paper's own network, ResNet18: slow, so a command of its own."""

from __future__ import annotations

from typing import Any

from coalmine.reproductions import canife_claims
from coalmine.reproductions.canife_attack import (
    OURS,
    PAPER,
    AttackRounds,
    Crafting,
    accuracy_and_std,
    attacked,
    mean,
    real_rounds,
)
from coalmine.reproductions.canife_scenes import frozen
from coalmine.reproductions.canife_sizes import SIZES, CanifeSize
from coalmine.reproductions.cells import Number
from coalmine.reproductions.table import Context, ReproducedTable


def resnet18(context: Context) -> ReproducedTable:
    """Attack ResNet18, as in Figure 3a, in rounds of a real training: its updates are too large to be kept."""
    size = SIZES[context.scale].seeded(context.seed)
    part = context.parts(_resnet, {"canife-resnet": size})["canife-resnet"]
    rows = [
        [title, "100%", "0.006", *accuracy_and_std(part[name]), Number(mean(part[name], "health"), ".3g")]
        for name, title in (("paper", "Loss 2"), ("ours", "coalmine"))
    ]
    accuracy = part["paper"]["metrics"]["accuracy"]
    note = (
        f"One canary each, {size.resnet_iterations} iterations, {size.resnet_pool} mock clients, {size.resnet_trials} "
        f"rounds with about {size.cohort} clients; the model has {accuracy:.1%} on test examples."
    )
    numbers = {"accuracy": [mean(part["paper"], "accuracy")], "std": [mean(part["paper"], "std")]}
    columns = ["canary", "paper: accuracy", "std", "accuracy", "std", "health"]
    title = f"CANIFE, Figure 3a on ResNet18: {context.scale}"
    return ReproducedTable(title, columns, rows, note, numbers=numbers, claims=canife_claims.RESNET)


def _resnet(size: CanifeSize) -> dict[str, Any]:
    """Return what both adversaries find, with the model's metrics."""
    target, by_adversary = frozen(size.resnet), {}
    for adversary in (PAPER, OURS):
        crafting = Crafting(
            adversary=adversary.lasting(size.resnet_iterations), pool=size.resnet_pool, seed=size.resnet.seed
        )
        rounds = [AttackRounds(cohort=size.cohort, trials=size.resnet_trials, score=adversary.score)]
        findings = attacked(target, crafting, rounds, hold=real_rounds)
        by_adversary[adversary.name] = {"metrics": dict(target.metrics), "found": findings}
    return by_adversary
