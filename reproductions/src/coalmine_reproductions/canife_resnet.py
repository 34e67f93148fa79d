"""Figure 3a of Maddock et al. (2023) on the paper's own network, ResNet18: slow, so a command of its own."""

from __future__ import annotations

from functools import partial

from coalmine.methods.canife.designed_canaries import ScoreName
from coalmine_reproductions import canife_claims
from coalmine_reproductions.canife_attack import (
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
    real_rounds,
)
from coalmine_reproductions.canife_sizes import SIZES, CanifeSize
from coalmine_reproductions.cells import Number
from coalmine_reproductions.table import Context, ReproducedTable


def resnet18(context: Context) -> ReproducedTable:
    """Attack ResNet18, as in Figure 3a, in rounds of a real training: its updates are too large to be kept."""
    size = SIZES[context.scale].seeded(context.seed)
    iterations, reference_iterations = size.resnet_iterations, size.resnet_reference_iterations
    cells = {
        "canife-resnet-paper": _cell(size, PAPER.lasting(iterations), PAPER.score),
        "canife-resnet-ours": _cell(size, OURS.lasting(iterations), OURS.score),
        "canife-resnet-reference": _cell(size, REFERENCE.lasting(reference_iterations), PAPER.score, OURS.score),
    }
    parts = context.parts(partial(attack, hold=real_rounds), cells)
    paper, ours, reference = (parts[name] for name in cells)
    published = "Loss 2, conventions of the published code"
    rows = [
        [title, f"{length:,}", scored_along, "100%", "0.006", *accuracy_and_std(part, rounds), _health(part)]
        for title, length, scored_along, part, rounds in (
            ("Loss 2", iterations, "the canary", paper, 0),
            ("coalmine", iterations, "the likelihood ratio", ours, 0),
            (published, reference_iterations, "the canary", reference, 0),
            (published, reference_iterations, "the likelihood ratio", reference, 1),
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
    columns = ["canary", "iterations", "scored along", "paper: accuracy", "paper: std", "accuracy", "std", "health"]
    title = f"CANIFE, Figure 3a on ResNet18: {context.scale}"
    return ReproducedTable(title, columns, rows, note, numbers=numbers, claims=canife_claims.RESNET)


def _cell(size: CanifeSize, adversary: Adversary, *scores: ScoreName) -> AttackCell:
    """Return one canary of an adversary, and rounds that are scored along these directions."""
    crafting = Crafting(adversary=adversary, pool=size.resnet_pool, seed=size.resnet.seed)
    rounds = tuple(AttackRounds(cohort=size.cohort, trials=size.resnet_trials, score=score) for score in scores)
    return AttackCell(scene=size.resnet, crafting=crafting, rounds=rounds)


def _health(part: Attacked) -> Number:
    """Return the mean health of the canaries of an attack as a cell."""
    return Number(mean(part, "health"), ".3g")
