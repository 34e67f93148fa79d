"""Canaries made of text: a distribution over tokens is optimized, then texts are drawn from it and the best is kept.

The relaxation is the Gumbel-softmax (Jang et al. 2017), as Guo et al. (2021) attack texts with it. What counts is the
loss of the text itself: distributions have no gradient that a client could send.
"""

from __future__ import annotations

import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coalmine.errors import InputError, check_count, check_positive
from coalmine.methods.canife.design import Canary, Design, DesignSettings, checked_settings, descend, valued
from coalmine.methods.canife.design_samples import Target, best_classes, checked_class
from coalmine.methods.canife.pool import Pool
from coalmine.methods.canife.sample_gradients import sample_gradients
from coalmine.simulation.client import LocalTraining
from coalmine.simulation.data.federated import Examples, FederatedData, Task
from coalmine.simulation.workers import one_thread

_RATE = 1.0

# By how much the logit of a start's own tokens exceeds the others', beyond what makes them as likely as all others.
_START_LOGIT = 2.0


def design_texts(
    model: nn.Module,
    pool: Pool,
    *,
    task: Task,
    client: LocalTraining,
    count: int = 1,
    settings: DesignSettings | None = None,
    start: Examples | FederatedData | None = None,
    target: Target = "random",
    temperature: float = 1.0,
    draws: int = 32,
    way: str | None = None,
    seed: int = 0,
) -> Design:
    """Design ``count`` texts for ``model`` as it is now, all in one batch.

    They start from random tokens, or from texts of ``start``. A classified text has the class ``target``; in a language
    model's, each token is the target of those before it, and moves as such. Each canary is the best of its start, of
    ``draws`` texts drawn from its distribution and of the likeliest one, by the loss of the text as it stands.
    ``way`` is that of an earlier `Design` for the same module.
    """
    if task.tokens is None:
        raise InputError("the inputs are numbers, not tokens: design_samples designs these")
    settings, began = checked_settings(settings, count, seed), time.perf_counter()
    pool.check_fits(model)
    check_positive("temperature", temperature)
    check_count("draws", draws)
    draw = torch.Generator().manual_seed(seed)
    allowed = torch.ones(task.tokens, dtype=torch.bool)
    if task.per_position and task.ignored is not None:
        allowed[task.ignored] = False
    tokens, targets = _starts(task, count, start, allowed, np.random.default_rng(seed))
    if isinstance(target, int):
        targets = torch.full_like(targets, checked_class(target, task))
    elif target not in ("random", "best"):
        raise InputError(f"target must be a class, random or best, got {target!r}")
    closed = torch.zeros(task.tokens).masked_fill_(~allowed, -torch.inf)

    def as_samples(chances: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of texts given as distributions over tokens."""
        return (chances[:, :-1], chances[:, 1:]) if task.per_position else (chances, targets)

    def relaxed(values: list[Tensor]) -> tuple[Tensor, Tensor]:
        noise = torch.empty_like(values[0]).exponential_(generator=draw).log_()
        return as_samples(((values[0] + closed - noise) / temperature).softmax(-1))

    with one_thread():
        gradients = sample_gradients(model, *as_samples(_one_hot(tokens, task)), way=way)
        loss = settings.loss_for(pool, client, gradients)
        if target == "best" and not task.per_position:
            targets = best_classes(gradients, loss, _one_hot(tokens, task), task.classes)
        logits = _one_hot(tokens, task) * (_START_LOGIT + np.log(task.tokens))
        found = descend([logits], relaxed, gradients, loss, settings, usual_rate=_RATE, project=lambda _: None)
        chances = (found.last[0] + closed).softmax(-1)
        drawn = torch.multinomial(chances.flatten(0, 1), draws, replacement=True, generator=draw)
        drawn = drawn.view(*tokens.shape, draws).movedim(2, 1)
        texts = torch.cat([tokens[:, None], chances.argmax(-1)[:, None], drawn], 1)
        values = [
            torch.stack(valued(gradients, loss, *_hard(some, label, task)))
            for some, label in zip(texts, targets, strict=True)
        ]
    canaries = []
    for candidates, label, (losses, norms) in zip(texts, targets, values, strict=True):
        best = int(losses.argmin())
        text = candidates[best].numpy()
        canaries.append(
            Canary(
                inputs=text[:-1] if task.per_position else text,
                targets=text[1:] if task.per_position else label.numpy(),
                loss=float(losses[best]),
                initial_loss=float(losses[0]),
                norm=float(norms[best]),
            )
        )
    canaries.sort(key=lambda canary: canary.loss)
    return Design(
        canaries=tuple(canaries),
        task=task,
        losses=found.losses,
        not_finite=found.not_finite,
        way=type(gradients).__name__,
        seconds=time.perf_counter() - began,
    )


def _starts(
    task: Task, count: int, start: Examples | FederatedData | None, allowed: Tensor, draw: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Texts (k, positions), one token more for a language model, and labels (k,)."""
    length = task.input_shape[0] + int(task.per_position)
    labels = torch.from_numpy(draw.integers(task.classes, size=count))
    tokens = draw.choice(np.flatnonzero(allowed.numpy()), (count, length))
    if start is not None:
        examples = start.pooled() if isinstance(start, FederatedData) else start
        if len(examples) < count:
            raise InputError(f"{count} canaries cannot start from {len(examples)} texts")
        rows = draw.choice(len(examples), count, replace=False)
        texts = examples.inputs[rows].astype(np.int64)
        if task.per_position:
            texts = np.concatenate([texts, examples.targets[rows, -1:]], axis=1)
        else:
            labels = torch.from_numpy(examples.targets[rows].astype(np.int64))
        # padding gives way to random tokens: it would count nothing
        tokens = np.where(allowed.numpy()[texts], texts, tokens)
    return torch.from_numpy(tokens.astype(np.int64)), labels


def _one_hot(tokens: Tensor, task: Task) -> Tensor:
    assert task.tokens is not None
    return F.one_hot(tokens, task.tokens).float()


def _hard(texts: Tensor, label: Tensor, task: Task) -> tuple[Tensor, Tensor]:
    """Inputs and targets of texts (n, positions) of one class."""
    chances = _one_hot(texts, task)
    return (chances[:, :-1], chances[:, 1:]) if task.per_position else (chances, label.expand(len(texts)))
