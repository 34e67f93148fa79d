"""The layers of a model: which parameters of the flat vector belong together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coalmine.arrays import Ints
from coalmine.errors import InputError, check_count, did_you_mean

LayerSpec = Mapping[str, Any] | Sequence[int] | Any
"""What `Layers.of` accepts: sizes or shapes by name, a list of sizes, a module, or a state dict."""


@dataclass(frozen=True)
class Layers:
    """Names and shapes of a model's tensors, in the order of the flat vector.

    Args:
        shapes: Shape of each tensor by name; ``()`` for a scalar.

    Example:
        >>> layers = Layers.of({"weight": (10, 4), "bias": 10, "scale": ()})
        >>> layers.dim, layers.starts.tolist()
        (51, [0, 40, 50])
    """

    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(cls, spec: LayerSpec) -> Layers:
        """Return the layers that sizes or shapes by name, a list of sizes, a module or a state dict describe.

        Of a module only parameters that are trained count, of a state dict only floating-point ones.

        Raises:
            InputError: If it is none of these, or a size is not a whole number of at least 0.
        """
        if isinstance(spec, Layers):
            return spec
        if hasattr(spec, "named_parameters"):
            return cls({name: tuple(p.shape) for name, p in spec.named_parameters() if p.requires_grad})
        if isinstance(spec, Mapping):
            sized = {name: value for name, value in spec.items() if not _is_counter(value)}
            return cls({str(name): _shape(str(name), value) for name, value in sized.items()})
        if isinstance(spec, list | tuple):
            return cls({f"tensor {i}": _shape(f"tensor {i}", value) for i, value in enumerate(spec)})
        raise InputError(
            f"layers must be sizes by name such as {{'fc.weight': 640, 'fc.bias': 10}}, a list of sizes, a module or a "
            f"state dict, got {type(spec).__name__}"
        )

    @property
    def names(self) -> list[str]:
        """Names of the tensors that are not empty."""
        return [name for name, shape in self.shapes.items() if math.prod(shape)]

    @property
    def sizes(self) -> Ints:
        """Number of parameters of each tensor that is not empty, (tensors,)."""
        return np.array([math.prod(self.shapes[name]) for name in self.names], dtype=np.int64)

    @property
    def starts(self) -> Ints:
        """Where each tensor starts in the flat vector, (tensors,)."""
        return np.cumsum(self.sizes) - self.sizes

    @property
    def ends(self) -> Ints:
        """Where each tensor ends in the flat vector, (tensors,)."""
        return np.cumsum(self.sizes)

    @property
    def dim(self) -> int:
        """Number of all parameters."""
        return int(self.sizes.sum())

    def slice_of(self, name: str) -> slice:
        """Return where a tensor lies in the flat vector.

        Raises:
            InputError: If there is no such tensor.
        """
        if name not in self.names:
            raise InputError(f"the model has no tensor {name!r}. {did_you_mean(name, self.names)}")
        index = self.names.index(name)
        return slice(int(self.starts[index]), int(self.ends[index]))

    def called(self, first: int, last: int) -> str | None:
        """Return the name of the tensor from coordinate ``first`` to ``last``, if there is one."""
        spans = zip(self.starts.tolist(), (self.ends - 1).tolist(), strict=True)
        return next((name for name, span in zip(self.names, spans, strict=True) if span == (first, last)), None)

    def check(self, dim: int) -> Layers:
        """Return the layers if they have ``dim`` parameters.

        Raises:
            InputError: If they do not.
        """
        if self.dim != dim:
            raise InputError(f"the layers have {self.dim:,} parameters, but the audit is for {dim:,}")
        return self


def _is_counter(value: Any) -> bool:
    """Return whether an entry of a state dict holds no parameters, such as BatchNorm's number of batches."""
    kind = getattr(value, "dtype", None)
    if kind is None or not hasattr(value, "shape"):
        return False
    return not (kind.is_floating_point if hasattr(kind, "is_floating_point") else np.dtype(kind).kind == "f")


def _shape(name: str, value: Any) -> tuple[int, ...]:
    shape = getattr(value, "shape", value)
    sizes = tuple(shape) if isinstance(shape, Sequence) and not isinstance(shape, str) else (shape,)
    return tuple(check_count(f"the size of {name}", size, least=0) for size in sizes)
