"""Each example's gradient by a model's parameters, as a function of the example that can be differentiated by it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coalmine.errors import InputError
from coalmine.methods.canife.recorded_layers import RecordedConv2d, SoftEmbedding, Tape, recorded
from coalmine.simulation.flat import check_module, stateless

Box = tuple[slice, ...]
"""The part of a parameter that its gradient can reach, as an index; ``()`` is all of it."""


class SampleGradients(Protocol):
    """A way to compute them."""

    @property
    def boxes(self) -> Sequence[Box]:
        """The part of each parameter outside which its gradient is always zero."""

    def of(self, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        """A tensor (k, *part of the parameter) for each parameter.

        ``inputs`` are numbers (k, *input_shape) or distributions over tokens (k, positions, tokens); ``targets`` are
        labels (k,) or distributions over them, (k, classes) or (k, positions, classes). The gradients have a graph
        wherever inputs or targets have one.
        """


class TwiceBack:
    """For every module: one example after another, back through the module and back through that."""

    def __init__(self, module: nn.Module) -> None:
        self._module = _prepared(module, None)
        self._parameters = [value for value in self._module.parameters() if value.requires_grad]
        self.boxes: list[Box] = [()] * len(self._parameters)

    def of(self, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        """As the protocol says."""
        found = []
        for one, aim in zip(inputs.split(1), targets.split(1), strict=True):
            loss = _losses(self._module(one), aim)[0]
            found.append(torch.autograd.grad(loss, self._parameters, create_graph=True, allow_unused=True))
        return [
            torch.stack([torch.zeros_like(value) if row is None else row for row in rows])
            for value, rows in zip(self._parameters, zip(*found, strict=True), strict=True)
        ]


class FromLayers:
    """For modules of Linear, Conv2d, GroupNorm, Embedding and LSTM layers: all examples in one pass.

    A layer's inputs and deltas give each example's gradient; only these are differentiated by the example. ``inputs``
    and ``targets`` are examples of what is to come, from which the boxes are seen.
    """

    def __init__(self, module: nn.Module, inputs: Tensor, targets: Tensor) -> None:
        self._tape = Tape()
        self._module = _prepared(module, self._tape)
        parameters = [value for value in self._module.parameters() if value.requires_grad]
        for value in parameters:
            value.requires_grad_(False)
        self._place = {id(value): place for place, value in enumerate(parameters)}
        self.of(inputs, targets)
        self.boxes: list[Box] = [()] * len(parameters)
        for layer in self._module.modules():
            if isinstance(layer, RecordedConv2d) and layer.taps is not None and id(layer.weight) in self._place:
                self.boxes[self._place[id(layer.weight)]] = (slice(None), slice(None), *layer.taps)

    def of(self, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        """As the protocol says."""
        self._tape.uses.clear()
        losses = _losses(self._module(inputs), targets)
        uses = list(self._tape.uses)
        self._tape.uses.clear()
        deltas = torch.autograd.grad(losses.sum(), [use.output for use in uses], create_graph=True)
        found: dict[int, Tensor] = {}
        for use, delta in zip(uses, deltas, strict=True):
            for value, rows in zip(use.parameters, use.gradients(delta, len(inputs)), strict=True):
                place = self._place.get(id(value))
                if place is not None:
                    found[place] = found[place] + rows if place in found else rows
        return [found[place] for place in range(len(self._place))]


def sample_gradients(module: nn.Module, inputs: Tensor, targets: Tensor, *, way: str | None = None) -> SampleGradients:
    """The fastest way for this module, tried on two examples.

    A module may use its layers' weights by ways of its own, or mix the examples of a batch: the way by layers is taken
    only if it gives there what the general one gives. A module that cannot be differentiated twice is refused. ``way``
    names the one that was found for the same module with other parameters, and spares the trial.
    """
    if way == FromLayers.__name__:
        return FromLayers(module, inputs.detach()[:1], targets.detach()[:1])
    if way == TwiceBack.__name__:
        return TwiceBack(module)
    check_module(module, private=True)
    module = copy.deepcopy(module).to(inputs.dtype)
    inputs, targets = (torch.cat([some, some])[:2].detach() for some in (inputs, targets))
    general = TwiceBack(module)
    gradients, moved = _tried(general, inputs, targets)
    lengths = [rows.flatten(1).norm(dim=1) for rows in gradients]
    if not bool(torch.stack(lengths).any()):
        raise InputError(
            "the model's loss has no gradient by its parameters at the canary's start: a canary cannot be seen there"
        )
    try:
        faster = FromLayers(module, inputs, targets)
        found, found_moved = _tried(faster, inputs, targets)
    except (RuntimeError, TypeError, ValueError, AttributeError, LookupError):
        return general
    tolerance = 1e-3 * float(torch.stack(lengths).max())
    for rows, box, expected in zip(found, faster.boxes, gradients, strict=True):
        whole = torch.zeros_like(expected)
        whole[(slice(None), *box)] = rows
        if not bool((whole - expected).abs().max() <= tolerance):
            return general
    return faster if bool((found_moved - moved).norm() <= 1e-2 * moved.norm()) else general


def moved_by(rows: Sequence[Tensor], leaves: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor]:
    """The derivative of Σ ⟨rows, weights⟩ by each of ``leaves``, which gradients ``rows`` were made from.

    Parameters whose gradient is the same for every example, those not used among them, count nothing in it.
    """
    moving = [(row, weight) for row, weight in zip(rows, weights, strict=True) if row.requires_grad]
    found: Sequence[Tensor | None] = [None]
    if moving:
        some, by = zip(*moving, strict=True)
        found = torch.autograd.grad(some, list(leaves), by, allow_unused=True)
    known = [move for move in found if move is not None]
    if len(known) < len(leaves):
        raise InputError(
            "the model's loss does not depend on its inputs, or only through whole numbers: samples all have the same "
            "gradient, or one that cannot be differentiated, and none can be designed to differ"
        )
    return known


def _tried(way: SampleGradients, inputs: Tensor, targets: Tensor) -> tuple[list[Tensor], Tensor]:
    """The gradients, and the derivative by the inputs of half their squared norms."""
    inputs = inputs.clone().requires_grad_()
    try:
        found = way.of(inputs, targets)
        (moved,) = moved_by(found, [inputs], [rows.detach() for rows in found])
    except InputError:
        raise
    except RuntimeError as error:
        raise InputError(
            f"the model's gradient cannot be differentiated by its inputs, which designing a canary needs: {error}"
        ) from error
    return [rows.detach() for rows in found], moved


def _prepared(module: nn.Module, tape: Tape | None) -> nn.Module:
    """A copy in which embeddings take distributions over tokens, and with a ``tape`` all layers note what they do."""
    # Without its noise: clients train with dropout, but a canary cannot know what will be dropped.
    found = stateless(copy.deepcopy(module)).eval()
    for parent in list(found.modules()):
        for name, layer in list(parent.named_children()):
            if hasattr(layer, "inplace"):
                layer.inplace = False  # type: ignore[assignment]
            replaced = recorded(layer, tape) if tape is not None else None
            if replaced is None and isinstance(layer, nn.Embedding) and layer.max_norm is None:
                replaced = SoftEmbedding(layer)
            if replaced is not None:
                setattr(parent, name, replaced)
    return found


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Each example's mean cross-entropy: (k,)."""
    if not targets.is_floating_point():
        return F.cross_entropy(logits, targets, reduction="none")
    each = -(targets * logits.log_softmax(-1)).sum(-1)
    return each.flatten(1).mean(1) if each.ndim > 1 else each
