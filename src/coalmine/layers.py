"""The layers of a model: which parameters of the flat vector belong together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from coalmine.arrays import Floats, Ints
from coalmine.errors import InputError, check_count, check_kind, check_positive, did_you_mean
from coalmine.vectors import is_float, is_tensor, named

LayerSpec = Mapping[str, Any] | Sequence[int] | Any
"""What `Layers.of` accepts: sizes or shapes by name, a list of sizes, a module, or a state dict."""

_EXAMPLES = 3  # tensors or coordinates that a sentence lists before it becomes hard to read


class Layers:
    """Names and shapes of a model's tensors, in the order of the flat vector.

    Args:
        shapes: Shape of each tensor by name; ``()`` for a scalar.

    Example:
        >>> layers = Layers.of({"weight": (10, 4), "bias": 10, "scale": ()})
        >>> layers.dim, layers.starts.tolist()
        (51, [0, 40, 50])

    Attributes:
        names: Names of the tensors that are not empty.
        sizes: Number of parameters of each of these tensors, (tensors,).
        starts: Where each of them starts in the flat vector, (tensors,).
        ends: Where each of them ends, (tensors,).
        dim: Number of all parameters.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.shapes = shapes
        # An empty tensor would start where the next one does, and take its name.
        self.names = [name for name, shape in shapes.items() if math.prod(shape)]
        self.sizes: Ints = np.array([math.prod(shapes[name]) for name in self.names], dtype=np.int64)
        self.ends: Ints = np.cumsum(self.sizes)
        self.starts: Ints = self.ends - self.sizes
        self.dim = int(self.sizes.sum())

    @classmethod
    def of(cls, spec: LayerSpec) -> Layers:
        """Return the layers that sizes or shapes by name, a list of sizes, a module or a state dict describe.

        Of a module only parameters that are trained count, of a state dict only floating-point ones.

        Raises:
            InputError: If it is none of these, or a size is not a whole number of at least 0.
        """
        if isinstance(spec, Layers):
            return spec
        tensors = named(spec)
        if tensors is None:
            raise InputError(
                f"layers must be sizes by name such as {{'fc.weight': 640, 'fc.bias': 10}}, a list of sizes, a module "
                f"or a state dict, got {type(spec).__name__}"
            )
        shapes = {}
        for name, value in tensors.items():
            # Entries of a state dict that are no parameters, such as BatchNorm's number of batches, are integers.
            if isinstance(spec, Mapping) and hasattr(value, "shape") and not is_float(value):
                continue
            shape: Any = getattr(value, "shape", value)
            sizes = np.atleast_1d(shape).tolist()
            shapes[str(name)] = tuple(check_count(f"the size of {name}", size, least=0) for size in sizes)
        return cls(shapes)

    def slice_of(self, name: str) -> slice:
        """Return where a tensor lies in the flat vector.

        Raises:
            InputError: If there is no such tensor.
        """
        if name not in self.names:
            raise InputError(f"the model has no tensor {name!r}. {did_you_mean(name, self.names)}")
        index = self.names.index(name)
        return slice(int(self.starts[index]), int(self.ends[index]))

    def spread(self, values: Mapping[str, float], what: str) -> Floats:
        """Return the number of its tensor for each parameter, (dim,).

        Args:
            values: A positive number for each tensor that is not empty, by name.
            what: What the numbers are, for errors.

        Raises:
            InputError: If a tensor has no number, a number has no tensor, or a number is not positive.
        """
        for name in values:
            self.slice_of(name)
        missing = [name for name in self.names if name not in values]
        if missing:
            raise InputError(f"{what} must have a number for every tensor, got none for {missing[0]!r}")
        numbers = [check_positive(f"{what} of {name}", values[name]) for name in self.names]
        return np.repeat(np.array(numbers), self.sizes)

    def name_of(self, places: Ints, among: Ints | None = None, what: str = "coordinate") -> tuple[str, bool]:
        """Return what some coordinates of the flat vector are called in a sentence, and whether that is a plural.

        Coordinates inside one tensor are counted from its start.

        Args:
            places: The coordinates, ascending, at least one.
            among: The coordinates that were looked at, ascending; neighbors among them make a stretch. All by default.
            what: What a number of the vector is called.

        Example:
            >>> layers = Layers.of({"weight": 40, "bias": 10})
            >>> layers.name_of(np.arange(40, 50)), layers.name_of(np.arange(42, 45))
            (('bias', False), ('coordinates 2–4 of bias', True))
            >>> layers.name_of(np.arange(1, 50, 3))[0]
            'every 3rd coordinate, from coordinate 1 on,'
            >>> layers.name_of(np.array([1, 7, 34, 45]))[0]
            '4 coordinates, such as 1, 7 and 34,'
        """
        columns = places if among is None else np.searchsorted(among, places)
        breaks = np.flatnonzero(np.diff(columns) > 1)
        firsts, lasts = places[np.r_[0, breaks + 1]], places[np.r_[breaks, places.size - 1]]
        if firsts.size == 1:
            return self.name_of_stretch(int(firsts[0]), int(lasts[0]), what)
        # Noise is often forgotten for whole tensors, such as all biases: name these instead of their coordinates.
        tensors = [self._spans.get(span, "") for span in zip(firsts.tolist(), lasts.tolist(), strict=True)]
        if len(tensors) <= _EXAMPLES and all(tensors):
            return _listed(tensors), True
        tensor, start = self._around(int(places[0]), int(places[-1]))
        steps = np.diff(places)
        if places.size > _EXAMPLES and (steps == steps[0]).all():
            nth = {2: "second", 3: "3rd"}.get(int(steps[0]), f"{steps[0]}th")
            return f"every {nth} {what}{tensor}, from {what} {places[0] - start:,} on,", False
        count = f"{places.size:,}" if among is None else f"{places.size:,} of {among.size:,}"
        examples = _listed([f"{place - start:,}" for place in places[:_EXAMPLES].tolist()])
        return f"{count} {what}s{tensor}, such as {examples},", True

    def name_of_stretch(self, first: int, last: int, what: str = "coordinate") -> tuple[str, bool]:
        """Return what the coordinates from ``first`` to ``last`` are called, as `name_of` does.

        Example:
            >>> Layers.of({"weight": 40, "bias": 10}).name_of_stretch(0, 39)
            ('weight', False)
        """
        if (first, last) in self._spans:
            return self._spans[first, last], False
        tensor, start = self._around(first, last)
        if first == last:
            return f"{what} {first - start:,}{tensor}", False
        return f"{what}s {first - start:,}–{last - start:,}{tensor}", True

    @cached_property
    def _spans(self) -> dict[tuple[int, int], str]:
        """The tensors by their first and last coordinate."""
        spans = zip(self.starts.tolist(), (self.ends - 1).tolist(), strict=True)
        return dict(zip(spans, self.names, strict=True))

    def _around(self, first: int, last: int) -> tuple[str, int]:
        """Return " of" the tensor that has both coordinates, and its start; empty and 0 if none of several has."""
        index = int(np.searchsorted(self.ends, first, side="right"))
        if len(self.names) < 2 or last >= self.ends[index]:  # the name of the only tensor says nothing
            return "", 0
        return f" of {self.names[index]}", int(self.starts[index])

    def check(self, dim: int) -> Layers:
        """Return the layers if they have ``dim`` parameters.

        Raises:
            InputError: If they do not.
        """
        if self.dim != dim:
            raise InputError(f"the layers have {self.dim:,} parameters, but the audit is for {dim:,}")
        return self


def read_model(model: Any) -> tuple[int, Layers | None]:
    """Return the number of parameters of a model, and its tensors if they are known.

    Args:
        model: The number of parameters, one flat array or tensor, or whatever `Layers.of` accepts; also an iterator
            such as ``module.parameters()``.

    Example:
        >>> read_model(100), read_model({"weight": 80, "bias": 20})[0]
        ((100, None), 100)
    """
    if is_tensor(model) or isinstance(model, np.ndarray):
        return check_count("the number of parameters", math.prod(model.shape), least=2), None
    model = list(model) if isinstance(model, Iterator) else model
    if not isinstance(model, Layers) and named(model) is None:
        numbers = (int, float, str, np.generic)
        check_kind("model", model, numbers, "the number of parameters, or what has them (a module, a state dict, …),")
        return check_count("the number of parameters", model, least=2), None
    layers = Layers.of(model)
    return check_count("the number of parameters", layers.dim, least=2), layers


def _listed(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]])
