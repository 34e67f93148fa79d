"""Canaries made of tokens: a distribution over texts is optimized, texts are drawn from it, and the best is kept.

The relaxation is the Gumbel-softmax (Jang et al. 2017), which Guo et al. (2021) use to attack text models and which
section 3.3 of the CANIFE paper refers to. Texts are compared by their loss as discrete texts: no client could send the
gradient of a distribution.
"""

from __future__ import annotations

import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coalmine.errors import InputError, check_count, check_positive
from coalmine.methods.canife.design.loop import (
    Canary,
    DesignOutcome,
    DesignSettings,
    StartExamples,
    Target,
    best_labels,
    check_settings,
    descend,
    sample_losses,
    start_examples,
    start_labels,
)
from coalmine.methods.canife.design_pool import Pool
from coalmine.methods.canife.per_sample_gradients import sample_gradients
from coalmine.simulation.client import LocalTraining
from coalmine.simulation.data.federated import Task
from coalmine.simulation.workers import one_thread

_RATE = 1.0

# Head start of the starting text's tokens, on top of the logit that makes each as likely as all others together.
_START_LOGIT = 2.0


def design_texts(
    model: nn.Module,
    pool: Pool,
    *,
    task: Task,
    client: LocalTraining,
    count: int = 1,
    settings: DesignSettings | None = None,
    start: StartExamples = None,
    target: Target = "random",
    temperature: float = 1.0,
    draws: int = 32,
    gradients_by: str | None = None,
    seed: int = 0,
) -> DesignOutcome:
    """Design texts for the current model, all in one batch.

    A labeled text has the class ``target``. In a language model each token is also the target of the tokens before it,
    and is optimized as such. Each canary is the best of its starting text, the likeliest text and ``draws`` texts drawn
    from its distribution, by the loss of the discrete text.

    Args:
        model: The model at its current parameters.
        pool: Updates of mock clients, from the same model.
        task: What the model learns.
        client: What a client does with its examples; the canary's client does the same and is clipped.
        count: Number of canaries.
        settings: How they are optimized.
        start: Texts to start from; None for random tokens.
        target: The canaries' class, for labeled texts.
        temperature: Temperature of the Gumbel-softmax.
        draws: Number of texts drawn from each distribution.
        gradients_by: ``gradients_by`` of an earlier design for the same module, which saves choosing again.
        seed: Seed of the start, the Gumbel noise and the drawn texts.

    Returns:
        The canaries, the best first.

    Raises:
        InputError: If the inputs are not tokens, or a setting is out of range.
    """
    if task.tokens is None:
        raise InputError("the inputs are numbers, not tokens: use design_samples")
    settings, began = check_settings(settings, count, seed), time.perf_counter()
    pool.check_fits(model)
    check_positive("temperature", temperature)
    check_count("draws", draws)
    draw = torch.Generator().manual_seed(seed)
    allowed = torch.ones(task.tokens, dtype=torch.bool)
    if task.per_position and task.ignored is not None:
        allowed[task.ignored] = False
    tokens, labels = _starting_point(task, count, start, allowed, np.random.default_rng(seed))
    targets = start_labels(target, labels, task)
    forbidden = torch.zeros(task.tokens).masked_fill_(~allowed, -torch.inf)

    def as_samples(probabilities: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of texts given as distributions over tokens."""
        return (probabilities[:, :-1], probabilities[:, 1:]) if task.per_position else (probabilities, targets)

    def relaxed(values: list[Tensor]) -> tuple[Tensor, Tensor]:
        noise = torch.empty_like(values[0]).exponential_(generator=draw).log_()  # minus Gumbel noise
        return as_samples(((values[0] + forbidden - noise) / temperature).softmax(-1))

    with one_thread():
        gradients = sample_gradients(model, *as_samples(_one_hot(tokens, task)), implementation=gradients_by)
        loss = settings.loss_for(pool, client, gradients)
        if target == "best" and not task.per_position:
            targets = best_labels(gradients, loss, _one_hot(tokens, task), task.classes)
        logits = _one_hot(tokens, task) * (_START_LOGIT + np.log(task.tokens))
        descent = descend([logits], relaxed, gradients, loss, settings, default_rate=_RATE, project=lambda _: None)
        probabilities = (descent.last[0] + forbidden).softmax(-1)
        drawn = torch.multinomial(probabilities.flatten(0, 1), draws, replacement=True, generator=draw)
        drawn = drawn.view(*tokens.shape, draws).movedim(2, 1)
        candidates = torch.cat([tokens[:, None], probabilities.argmax(-1)[:, None], drawn], 1)
        values = [
            torch.stack(sample_losses(gradients, loss, *_discrete(texts, label, task)))
            for texts, label in zip(candidates, targets, strict=True)
        ]
    canaries = []
    for texts, label, (losses, norms) in zip(candidates, targets, values, strict=True):
        best = int(losses.argmin())
        text = texts[best].numpy()
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
    return descent.outcome(canaries, task, gradients, began)


def _starting_point(
    task: Task, count: int, start: StartExamples, allowed: Tensor, draw: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Return texts (k, positions), one token longer for a language model, and labels (k,)."""
    length = task.input_shape[0] + int(task.per_position)
    labels = torch.from_numpy(draw.integers(task.classes, size=count))
    tokens = draw.choice(np.flatnonzero(allowed.numpy()), (count, length))
    if start is not None:
        examples = start_examples(start, count, draw)
        texts = examples.inputs.astype(np.int64)
        if task.per_position:
            texts = np.concatenate([texts, examples.targets[:, -1:]], axis=1)
        else:
            labels = torch.from_numpy(examples.targets.astype(np.int64))
        # Padding is replaced by random tokens: it would have no gradient.
        tokens = np.where(allowed.numpy()[texts], texts, tokens)
    return torch.from_numpy(tokens.astype(np.int64)), labels


def _one_hot(tokens: Tensor, task: Task) -> Tensor:
    assert task.tokens is not None
    return F.one_hot(tokens, task.tokens).float()


def _discrete(texts: Tensor, label: Tensor, task: Task) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of texts (n, positions) of one class."""
    probabilities = _one_hot(texts, task)
    if task.per_position:
        return probabilities[:, :-1], probabilities[:, 1:]
    return probabilities, label.expand(len(texts))
