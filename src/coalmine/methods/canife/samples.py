"""Canaries made of numbers, above all images, and canaries made of tokens (section 3.3 of the paper).

Numbers are optimized themselves. Of texts a distribution is optimized, texts are drawn from it, and the best is kept.
The relaxation is the Gumbel-softmax (Jang et al. 2017), which Guo et al. (2021) use to attack text models. Texts are
compared by their loss as discrete texts: no client could send the gradient of a distribution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coalmine.arrays import Array, Floats
from coalmine.errors import InputError
from coalmine.methods.canife.design import (
    Descent,
    DesignLoss,
    DesignSettings,
    Schedule,
    descend,
    sample_design_losses,
    step_size,
)
from coalmine.methods.canife.pool import Pool
from coalmine.methods.canife.sample_gradients import SampleGradients, sample_gradients
from coalmine.parallel import single_thread
from coalmine.seeds import default_rng
from coalmine.simulation.client import LocalTraining, tensors
from coalmine.simulation.data.federated import Examples, FederatedData, Task
from coalmine.simulation.flat import device_of, parameter_vector

# A canary's class: one for all, or drawn at random.
Target = int | Literal["random"]

# What a design starts from: examples (those of all clients together), or None for random numbers or tokens.
StartExamples = Examples | FederatedData | None

# Learning rates of Adam as a share of the valid range: the best ones we measured, for long and for short designs.
_RATE, _SHORT_RATE, _SHORT = 0.1, 0.3, 100

# Learning rates of Adam for the logits of texts. Each canary is designed with all of them at once, each from a random
# text of its own, and the best text is kept: at a high rate a design may end in a local minimum, at a low rate a short
# one does not get far, and from some texts none gets far. On Sentiment140, between one in six and two in four starts
# ended with ten times the loss of the others, at every rate and for either class.
_TEXT_RATES = (1.0, 0.3, 0.1)

# Head start of the starting text's tokens, on top of the logit that makes each as likely as all others together.
_START_LOGIT = 2.0

# Texts drawn from each distribution.
_DRAWS = 32

# The lowest and the highest valid number, or None if all are valid.
Range = tuple[float, float] | None

# Returns the losses and norms (k,) of inputs and targets.
Losses = Callable[[Tensor, Tensor], tuple[Floats, Floats]]


@dataclass(frozen=True, eq=False)
class Canary:
    """A designed sample with its target, as a client holds them.

    Args:
        inputs: The sample, (*input_shape).
        targets: Its class, or the next token of each position.
        loss: Design loss of the sample as it is here.
        initial_loss: Design loss of its start.
        norm: Norm of its client's update before clipping, in clip norms.
    """

    inputs: Array
    targets: Array
    loss: float
    initial_loss: float
    norm: float

    @property
    def health(self) -> float:
        """The share of the initial loss that the design removed: 1 is perfect, 0 no better than the start."""
        return float(1 - self.loss / self.initial_loss) if self.initial_loss > 0 else 1.0


@dataclass(frozen=True, kw_only=True, eq=False)
class DesignOutcome:
    """Designed canaries, the best first, and how the design went.

    Args:
        canaries: The samples.
        task: The task they are examples of.
        iterations: Number of iterations made.
        not_finite: Iteration, counted from 1, in which a loss or its derivative was not finite and the design stopped,
            or None. The canaries are the best before it.
        gradients: What computed per-sample gradients; it can serve the next design.
    """

    canaries: tuple[Canary, ...]
    task: Task
    iterations: int
    not_finite: int | None
    gradients: SampleGradients

    @property
    def clients(self) -> FederatedData:
        """Each canary as a client whose only example it is."""
        inputs = np.stack([canary.inputs for canary in self.canaries])
        targets = np.stack([canary.targets for canary in self.canaries])
        return clients_of(inputs, targets, self.task)


def clients_of(inputs: Array, targets: Array, task: Task) -> FederatedData:
    """Return each of these examples as a client of its own."""
    bounds = np.stack([np.arange(len(inputs)), np.arange(1, len(inputs) + 1)], axis=1)
    names = [f"canary-{i}" for i in range(len(inputs))]
    return FederatedData(inputs=inputs, targets=targets, bounds=bounds, names=names, task=task)


def valid_range(data: FederatedData) -> tuple[float, float]:
    """Return the range of a model's inputs: 0 to 1 for pixels, otherwise that of the numbers that occur."""
    if data.inputs.dtype == np.uint8:
        return 0.0, 1.0
    return float(data.inputs.min()), float(data.inputs.max())


def design_samples(
    model: nn.Module,
    pool: Pool,
    *,
    task: Task,
    client: LocalTraining,
    count: int = 1,
    settings: DesignSettings | None = None,
    start: StartExamples = None,
    target: Target = "random",
    valid: Range = (0.0, 1.0),
    gradients: SampleGradients | None = None,
    seed: int = 0,
) -> DesignOutcome:
    """Design samples of numbers, or texts, for the current model, all in one batch.

    A labeled text has the class ``target``. In a language model each token is also the target of the tokens before it,
    and is optimized as such. A canary made of tokens is the best of its starting text, the likeliest text and 32 texts
    drawn from its distribution, by the loss of the discrete text. Unless the settings give a learning rate, it is
    designed with three rates at once, from three random texts if no start is given.

    Args:
        model: The model at its current parameters.
        pool: Updates of mock clients, from the same model.
        task: What the model learns.
        client: What a client does with its examples; the canary's client does the same and is clipped.
        count: Number of canaries.
        settings: How they are optimized.
        start: Examples to start from, which keep their class if ``target`` is ``"random"``; None for random numbers or
            tokens.
        target: The canaries' class; it does not apply to language models.
        valid: Range that numbers stay in (`valid_range` finds that of a data set); None leaves them free, as in the
            paper.
        gradients: ``gradients`` of an earlier design for the same module, which saves choosing again.
        seed: Seed of the start, and of the Gumbel noise and the drawn texts.

    Returns:
        The canaries, the best first.

    Raises:
        InputError: If a setting is out of range, or the model's gradient does not depend on its inputs.

    Example:
        >>> from coalmine.methods.canife.pool import MockClients
        >>> from coalmine.simulation import SGD, LocalTraining, models
        >>> from coalmine.simulation.data import load
        >>> digits = load("digits", partition="iid:60", pool_fraction=0.3)
        >>> model, client = models.build("mlp", digits.train.task), LocalTraining(optimizer=SGD(learning_rate=0.5))
        >>> pool = MockClients(model, digits.pool, client, clients=digits.train).pool(1.0)
        >>> design = design_samples(
        ...     model, pool, task=digits.train.task, client=client, settings=DesignSettings(iterations=20)
        ... )
        >>> design.canaries[0].health > 0.5
        True
    """
    settings, weights = settings or DesignSettings(), parameter_vector(model)
    if len(weights) != len(pool.used):
        raise InputError(
            f"the design pool was made with another model: its updates have {len(pool.used):,} coordinates, this model "
            f"trains {len(weights):,} parameters"
        )
    device = device_of(model)
    kind: _Numbers | _Texts
    if task.tokens is None:
        kind = _Numbers(task, count, start, seed, device, valid, short=settings.iterations < _SHORT)
    else:
        rates = _TEXT_RATES if settings.learning_rate is None else (1.0,)
        kind = _Texts(task, count, start, seed, device, rates)
    targets = kind.labels
    if target != "random":
        if target not in range(task.classes):
            raise InputError(f"target must be a class in 0..{task.classes - 1} or random, got {target!r}")
        targets = torch.full_like(targets, target)
    with single_thread():
        if gradients is None:
            gradients = sample_gradients(model, *kind.samples(kind.start, targets))
        else:
            gradients.load(weights)
        loss = DesignLoss(
            pool,
            settings.loss,
            step=step_size(client),
            norm_constant=settings.norm_constant,
            used=gradients.used,
            device=device,
        )
        descent = descend(
            kind.variable,
            lambda values: kind.samples(kind.relaxed(values), targets),
            gradients,
            loss,
            settings,
            rate=kind.rate,
            schedule=kind.schedule,
            project=kind.project,
        )
        canaries = kind.canaries(descent, targets, partial(sample_design_losses, gradients, loss))
    return DesignOutcome(
        canaries=tuple(sorted(canaries, key=lambda canary: canary.loss)),
        task=task,
        iterations=descent.iterations,
        not_finite=descent.not_finite,
        gradients=gradients,
    )


def _start_examples(start: Examples | FederatedData, count: int, draw: np.random.Generator) -> Examples:
    """Return ``count`` examples to start from, drawn without replacement."""
    examples = start.pooled() if isinstance(start, FederatedData) else start
    if len(examples) < count:
        raise InputError(f"{count} canaries cannot start from {len(examples)} examples: give at least {count}")
    rows = draw.choice(len(examples), count, replace=False)
    return Examples(examples.inputs[rows], examples.targets[rows])


class _Numbers:
    """Samples of numbers, which are optimized themselves: ``start`` (k, *input_shape) with ``labels`` (k,)."""

    schedule: Schedule = "cosine"

    def __init__(
        self, task: Task, count: int, start: StartExamples, seed: int, device: torch.device, valid: Range, short: bool
    ) -> None:
        self._valid, draw = valid, default_rng(seed)
        width = 1.0 if valid is None else valid[1] - valid[0]
        self.rate = (_SHORT_RATE if short else _RATE) * width
        if start is None:
            numbers = draw.uniform(*(valid or (0.0, 1.0)), (count, *task.input_shape)).astype(np.float32)
            inputs, labels = torch.from_numpy(numbers), torch.from_numpy(draw.integers(task.classes, size=count))
        else:
            inputs, labels = tensors(_start_examples(start, count, draw), task)
        self.start, self.labels = inputs.to(device), labels.to(device)
        self.project(self.start)
        self.variable = self.start

    def relaxed(self, values: Tensor) -> Tensor:
        return values

    def project(self, values: Tensor) -> None:
        """Bring numbers back into their valid range, in place."""
        if self._valid is not None:
            values.clamp_(*self._valid)

    def samples(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return inputs, targets

    def canaries(self, descent: Descent, targets: Tensor, losses: Losses) -> list[Canary]:
        """Return the best samples of the descent."""
        before, _ = losses(self.start, targets)
        after, norms = losses(descent.best, targets)
        inputs, labels = descent.best.cpu().numpy(), targets.cpu().numpy()
        return [Canary(*values) for values in zip(inputs, labels, after, before, norms, strict=True)]


class _Texts:
    """Texts, whose logits (k, positions, tokens) are optimized.

    Each canary is optimized once per rate, so k is the number of rates times that of canaries, rate by rate. ``start``
    holds the starting texts as distributions, one token longer for a language model; ``labels`` (k,) are their classes.
    The variable is logits divided by the rate, so that one step of Adam moves logits in proportion to their rate.
    """

    rate = 1.0
    schedule: Schedule = "constant"

    def __init__(
        self, task: Task, count: int, start: StartExamples, seed: int, device: torch.device, rates: Sequence[float]
    ) -> None:
        assert task.tokens is not None
        self._rates, self._count = torch.tensor(rates).repeat_interleave(count)[:, None, None].to(device), count
        self._task, self._draw = task, torch.Generator().manual_seed(seed)
        allowed = torch.ones(task.tokens, dtype=torch.bool)
        if task.per_position and task.ignored >= 0:
            allowed[task.ignored] = False
        self._forbidden = torch.zeros(task.tokens).masked_fill_(~allowed, -torch.inf).to(device)
        draw = default_rng(seed)
        labels = draw.integers(task.classes, size=count)
        length = task.input_shape[0] + int(task.per_position)
        starts = count if start is not None else len(self._rates)
        tokens = draw.choice(np.flatnonzero(allowed.numpy()), (starts, length))
        if start is not None:
            examples = _start_examples(start, count, draw)
            texts = examples.inputs.astype(np.int64)
            if task.per_position:
                texts = np.concatenate([texts, examples.targets[:, -1:]], axis=1)
            else:
                labels = examples.targets.astype(np.int64)
            # Padding is replaced by random tokens: it would have no gradient. All rates start from the same text.
            tokens = np.tile(np.where(allowed.numpy()[texts], texts, tokens), (len(rates), 1))
        self.labels = torch.from_numpy(np.tile(labels, len(rates))).to(device)
        self._tokens = torch.from_numpy(tokens.astype(np.int64)).to(device)
        self.start = self._one_hot(self._tokens)
        self.variable = self.start * (_START_LOGIT + math.log(task.tokens)) / self._rates

    def relaxed(self, values: Tensor) -> Tensor:
        """Return a draw of the Gumbel-softmax."""
        # Minus Gumbel noise, drawn on the CPU: seeds mean the same on every device.
        noise = torch.empty(values.shape).exponential_(generator=self._draw).log_().to(values)
        return (values * self._rates + self._forbidden - noise).softmax(-1)

    def project(self, values: Tensor) -> None:
        """Do nothing: all logits are valid."""

    def samples(self, texts: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of texts given as distributions over tokens."""
        if self._task.per_position:
            return texts[:, :-1], texts[:, 1:]
        return texts, targets

    def canaries(self, descent: Descent, targets: Tensor, losses: Losses) -> list[Canary]:
        """Return for each canary the best, over its rates, of the starting text, the likeliest and the drawn ones."""
        probabilities = (descent.last * self._rates + self._forbidden).softmax(-1)
        drawn = torch.multinomial(probabilities.flatten(0, 1).cpu(), _DRAWS, replacement=True, generator=self._draw)
        drawn = drawn.to(probabilities.device).view(*probabilities.shape[:2], _DRAWS).movedim(2, 1)
        discrete = torch.cat([self._tokens[:, None], probabilities.argmax(-1)[:, None], drawn], 1)
        canaries = []
        for texts, label in zip(discrete, targets, strict=True):
            values, norms = losses(*self.samples(self._one_hot(texts), label.expand(len(texts))))
            best = int(values.argmin())
            inputs, target = self.samples(texts[best : best + 1], label[None])
            facts = (values[best], values[0], norms[best])  # the first text is the start
            canaries.append(Canary(inputs[0].cpu().numpy(), target[0].cpu().numpy(), *facts))
        return [min(canaries[i :: self._count], key=lambda canary: canary.loss) for i in range(self._count)]

    def _one_hot(self, tokens: Tensor) -> Tensor:
        assert self._task.tokens is not None
        return F.one_hot(tokens, self._task.tokens).float()
