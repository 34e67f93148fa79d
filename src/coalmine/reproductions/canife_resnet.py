"""Figure 3a of Maddock et al. (2023) on the paper's own network, ResNet18: slow, so a command of its own."""

from __future__ import annotations

from typing import Any

from coalmine.methods.canife.designed_canaries import ScoreName
from coalmine.reproductions import canife_claims
from coalmine.reproductions.canife_attack import (
    OURS,
    PAPER,
    REFERENCE,
    Adversary,
    AttackCell,
    AttackRounds,
    Crafting,
    accuracy_and_std,
    attacked,
    mean,
    real_rounds,
)
from coalmine.reproductions.canife_scenes import remembered
from coalmine.reproductions.canife_sizes import SIZES, CanifeSize
from coalmine.reproductions.cells import Number
from coalmine.reproductions.table import Context, ReproducedTable


def resnet18(context: Context) -> ReproducedTable:
    """Attack ResNet18, as in Figure 3a, in rounds of a real training: its updates are too large to be kept."""
    size = SIZES[context.scale].seeded(context.seed)
    cells = {
        "paper": _cell(size, PAPER.lasting(size.resnet_iterations), "plain"),
        "ours": _cell(size, OURS.lasting(size.resnet_iterations), "likelihood-ratio"),
        "reference": _cell(size, REFERENCE.lasting(size.resnet_reference_iterations), "plain", "likelihood-ratio"),
    }
    parts = context.parts(_attack, {f"canife-resnet-{name}": cell for name, cell in cells.items()})
    paper, ours, reference = (parts[f"canife-resnet-{name}"] for name in cells)
    short, long = f"{size.resnet_iterations:,}", f"{size.resnet_reference_iterations:,}"
    rows = [
        [title, iterations, scored, "100%", "0.006", *accuracy_and_std(part, kind), Number(mean(part, "health"), ".3g")]
        for title, iterations, scored, part, kind in (
            ("Loss 2", short, "its own update", paper, 0),
            ("coalmine", short, "the likelihood ratio", ours, 0),
            ("conventions of the published code", long, "its own update", reference, 0),
            ("conventions of the published code", long, "the likelihood ratio", reference, 1),
        )
    ]
    note = (
        f"One canary each, {size.resnet_pool} mock clients, {size.resnet_trials} rounds with about {size.cohort} "
        f"clients; the model has {paper['metrics']['accuracy']:.1%} on test examples."
    )
    numbers = {
        "accuracy": [mean(paper, "accuracy")],
        "std": [mean(paper, "std")],
        "reference std": [mean(reference, "std")],
    }
    columns = ["canary", "iterations", "scored along", "paper: accuracy", "std", "accuracy", "std", "health"]
    title = f"CANIFE, Figure 3a on ResNet18: {context.scale}"
    return ReproducedTable(title, columns, rows, note, numbers=numbers, claims=canife_claims.RESNET)


def _cell(size: CanifeSize, adversary: Adversary, *scores: ScoreName) -> AttackCell:
    """Return one canary of an adversary, and rounds that are scored along these directions."""
    crafting = Crafting(adversary=adversary, pool=size.resnet_pool, seed=size.resnet.seed)
    rounds = tuple(AttackRounds(cohort=size.cohort, trials=size.resnet_trials, score=score) for score in scores)
    return AttackCell(scene=size.resnet, crafting=crafting, rounds=rounds)


def _attack(cell: AttackCell) -> dict[str, Any]:
    """Train, design and attack in real rounds; return the findings with the model's metrics."""
    target = remembered(cell.scene)
    return {
        "metrics": dict(target.metrics),
        "found": attacked(target, cell.crafting, cell.rounds, hold=real_rounds),
    }
