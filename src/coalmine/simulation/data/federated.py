"""Examples grouped by client, in one array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from coalmine.arrays import Array as Array
from coalmine.errors import InputError, check_count
from coalmine.simulation.data.appended import Appended
from coalmine.simulation.data.vocabulary import Vocabulary

if TYPE_CHECKING:
    from coalmine.arrays import Ints

_BLOCK = 1 << 22  # values looked at together, so that checking a memory-mapped array needs little memory


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a model takes and gives.

    Inputs are numbers (uint8 are pixels, 0 to 255) or, with ``tokens``, integers below ``tokens``. The model gives
    ``classes`` logits for each example, or with ``per_position`` for each position of it. Targets equal to ``ignored``
    do not count.
    """

    input_shape: tuple[int, ...]
    classes: int
    tokens: int | None = None
    per_position: bool = False
    ignored: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "input_shape", tuple(self.input_shape))
        if not self.input_shape:
            raise InputError("input_shape must have at least one dimension, got ()")
        for length in self.input_shape:
            check_count("each dimension of input_shape", length)
        check_count("classes", self.classes, least=2)
        if self.tokens is not None:
            check_count("tokens", self.tokens, least=2)
        if self.per_position and len(self.input_shape) != 1:
            raise InputError(f"a target for each position needs an input_shape (positions,), got {self.input_shape}")

    @property
    def target_shape(self) -> tuple[int, ...]:
        """The shape of one example's targets."""
        return self.input_shape if self.per_position else ()


@dataclass(frozen=True, eq=False)
class Examples:
    """Some examples: a client's, a batch's, a test set's.

    ``inputs`` is (n, *input_shape): uint8 pixels, float32 numbers or integer tokens. ``targets`` is (n,) or
    (n, positions), integers. The arrays are views of larger ones where possible: do not write into them.
    """

    inputs: Array
    targets: Array

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FederatedData:
    """The examples of many clients, all in one array that is never copied.

    Client i holds the examples ``rows[start:stop]`` for ``bounds[i] = start, stop``; without ``rows`` these are the
    examples start to stop themselves, and ``client(i)`` is a view. Every array is checked once, here; subsets and
    regroupings share them unchecked.
    """

    inputs: Array
    targets: Array
    bounds: Ints
    names: Sequence[str]
    task: Task
    rows: Ints | None = None
    vocabulary: Vocabulary | None = None

    def __post_init__(self) -> None:
        for name in ("inputs", "targets"):
            object.__setattr__(self, name, np.asanyarray(getattr(self, name)))
        if len(self.inputs) != len(self.targets):
            raise InputError(
                f"every input needs its targets, got {len(self.inputs)} inputs, {len(self.targets)} targets"
            )
        if self.vocabulary is not None and len(self.vocabulary) != self.task.tokens:
            raise InputError(
                f"the vocabulary has {len(self.vocabulary)} entries, but the task {self.task.tokens} tokens"
            )
        object.__setattr__(self, "rows", _checked_rows(self.rows, len(self.inputs)))
        count = len(self.inputs if self.rows is None else self.rows)
        object.__setattr__(self, "bounds", _checked_bounds(self.bounds, self.names, count))
        try:
            _check_inputs(self.inputs, self.task)
            _check_targets(self.targets, self.task)
        except _ExampleError as error:
            raise InputError(f"{error}{self._whose(error.row)}") from None

    def _whose(self, row: int) -> str:
        places = np.array([row]) if self.rows is None else np.flatnonzero(self.rows == row)
        owners = [np.flatnonzero((self.bounds[:, 0] <= place) & (place < self.bounds[:, 1])) for place in places]
        found = [int(owner[0]) for owner in owners if owner.size]
        return f", of client {self.names[found[0]]!r}" if found else ""

    @classmethod
    def of_users(
        cls, *, inputs: Array, targets: Array, users: ArrayLike, task: Task, vocabulary: Vocabulary | None = None
    ) -> FederatedData:
        """Data with a column of users: one client for each, in the order in which they first appear.

        Where a user's examples lie apart the arrays are copied once, in the users' order, so that clients are views.
        """
        inputs, targets, column = np.asanyarray(inputs), np.asanyarray(targets), np.asarray(users)
        if column.ndim != 1 or len(column) != len(inputs):
            raise InputError(f"users must be one for each of {len(inputs)} examples, got an array of {column.shape}")
        if column.dtype.kind not in "iuUS":
            raise InputError(f"users must be whole numbers or texts, got {column.dtype}")
        found, first, inverse, sizes = np.unique(column, return_index=True, return_inverse=True, return_counts=True)
        appearance = np.argsort(first)
        place = np.empty_like(appearance)
        place[appearance] = np.arange(len(found))
        rows = np.argsort(place[inverse], kind="stable")
        if not np.array_equal(rows, np.arange(len(rows))):
            inputs, targets = inputs[rows], targets[rows]
        stops = np.cumsum(sizes[appearance])
        return cls(
            inputs=inputs,
            targets=targets,
            bounds=np.stack([stops - sizes[appearance], stops], axis=1),
            names=[name.decode() if isinstance(name, bytes) else str(name) for name in found[appearance].tolist()],
            task=task,
            vocabulary=vocabulary,
        )

    def __len__(self) -> int:
        return len(self.bounds)

    def __iter__(self) -> Iterator[Examples]:
        return (self.client(i) for i in range(len(self)))

    def __repr__(self) -> str:
        sizes = self.sizes
        of = f" of {sizes.min()} to {sizes.max()}" if sizes.min() < sizes.max() else f" of {sizes[0]}"
        shape = "×".join(map(str, self.task.input_shape))
        kind = f"{shape} tokens" if self.task.tokens is not None else shape
        classes = f"{self.task.classes} classes"
        clients = "1 client" if len(self) == 1 else f"{len(self)} clients"
        return f"FederatedData({clients}{of} examples, {sizes.sum()} in all, {kind}, {classes})"

    @property
    def sizes(self) -> Ints:
        """How many examples each client has, (clients,)."""
        return np.asarray(self.bounds[:, 1] - self.bounds[:, 0])

    @property
    def indices(self) -> Ints:
        """Which rows of ``inputs`` the clients hold, client by client: (examples,)."""
        places = np.repeat(self.bounds[:, 0], self.sizes) + numbered_within(self.sizes)
        return places if self.rows is None else self.rows[places]

    def client(self, index: int) -> Examples:
        """The examples of a client: a view where the data has no ``rows``."""
        if not -len(self) <= index < len(self):
            raise InputError(f"a client's index must be in 0..{len(self) - 1}, got {index}")
        start, stop = self.bounds[index].tolist()
        return self._examples(start, stop)

    def _examples(self, start: int, stop: int) -> Examples:
        where = slice(start, stop) if self.rows is None else self.rows[start:stop]
        return Examples(self.inputs[where], self.targets[where])

    def subset(self, indices: ArrayLike) -> FederatedData:
        """Some of the clients, in the order given; the arrays are shared."""
        chosen = np.asarray(indices)
        if chosen.ndim != 1 or chosen.size == 0 or chosen.dtype.kind not in "iu":
            raise InputError(f"a subset needs a list of clients' indices, got {indices!r:.80}")
        outside = chosen[(chosen < 0) | (chosen >= len(self))]
        if outside.size:
            raise InputError(f"a client's index must be in 0..{len(self) - 1}, got {outside[0]}")
        return self._sharing(self.bounds[chosen], [self.names[i] for i in chosen.tolist()], self.rows)

    def regrouped(self, *, bounds: Ints, names: Sequence[str], rows: Ints | None) -> FederatedData:
        """The same arrays under other clients; only the grouping is checked."""
        rows = _checked_rows(rows, len(self.inputs))
        count = len(self.inputs if rows is None else rows)
        return self._sharing(_checked_bounds(bounds, names, count), names, rows)

    def extended(self, extra: Examples, *, bounds: Ints, names: Sequence[str], rows: Ints) -> FederatedData:
        """The same clients' examples and ``extra`` ones, as ``rows`` deals them out; row ``len(inputs)`` is the first.

        The examples there are stay where they are; only the extra ones and the grouping are checked.
        """
        _check_inputs(extra.inputs, self.task)
        _check_targets(extra.targets, self.task)
        rows_checked = _checked_rows(rows, len(self.inputs) + len(extra))
        shared = self._sharing(_checked_bounds(bounds, names, len(rows)), names, rows_checked)
        for name, more in (("inputs", extra.inputs), ("targets", extra.targets)):
            object.__setattr__(shared, name, Appended(getattr(self, name), more))
        return shared

    def _sharing(self, bounds: Ints, names: Sequence[str], rows: Ints | None) -> FederatedData:
        shared = object.__new__(FederatedData)
        for field in fields(self):
            object.__setattr__(shared, field.name, getattr(self, field.name))
        for name, value in (("bounds", bounds), ("names", names), ("rows", rows)):
            object.__setattr__(shared, name, value)
        return shared

    def pooled(self) -> Examples:
        """All examples of these clients; a view where they lie one after the other."""
        if self.rows is None and np.array_equal(self.bounds[1:, 0], self.bounds[:-1, 1]):
            return self._examples(int(self.bounds[0, 0]), int(self.bounds[-1, 1]))
        rows = self.indices
        return Examples(self.inputs[rows], self.targets[rows])


@dataclass(frozen=True, kw_only=True)
class Splits:
    """Training users, test users, and users set aside for designing canaries: no user is in two of them."""

    train: FederatedData
    test: FederatedData
    pool: FederatedData | None = None

    def __post_init__(self) -> None:
        for name, part in (("test", self.test), ("pool", self.pool)):
            if part is not None and part.task != self.train.task:
                raise InputError(
                    f"all splits must have one task, got {self.train.task} in train, {part.task} in {name}"
                )


def numbered_within(sizes: Ints) -> Ints:
    """0, 1, … for each of several groups of these sizes, one after the other."""
    return np.asarray(np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes))


class _ExampleError(InputError):
    """Something is wrong with the example at ``row``."""

    def __init__(self, message: str, row: int) -> None:
        super().__init__(f"{message} in example {row}")
        self.row = row


def _checked_rows(rows: ArrayLike | None, examples: int) -> Ints | None:
    if rows is None:
        return None
    index = np.asarray(rows)
    if index.ndim != 1 or index.dtype.kind not in "iu":
        raise InputError(f"rows must be a list of whole numbers, got {index.dtype} of shape {index.shape}")
    if index.size and (index.min() < 0 or index.max() >= examples):
        bad = index[(index < 0) | (index >= examples)][0]
        raise InputError(f"rows must be in 0..{examples - 1}, got {bad}")
    return index.astype(np.int64, copy=False)


def _checked_bounds(bounds: ArrayLike, names: Sequence[str], examples: int) -> Ints:
    pairs = np.asarray(bounds)
    if pairs.size == 0:
        raise InputError("the data has no clients: at least one is needed")
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
        raise InputError(f"bounds must be pairs of whole numbers, got {pairs.dtype} of shape {pairs.shape}")
    if len(names) != len(pairs):
        raise InputError(f"every client needs a name, got {len(names)} names for {len(pairs)} clients")
    pairs = pairs.astype(np.int64, copy=False)
    outside = np.flatnonzero((pairs < 0).any(axis=1) | (pairs > examples).any(axis=1))
    if outside.size:
        start, stop = pairs[outside[0]]
        raise InputError(f"client {names[outside[0]]!r} has the bounds {start}:{stop}, outside of 0:{examples}")
    empty = np.flatnonzero(pairs[:, 1] <= pairs[:, 0])
    if empty.size:
        raise InputError(f"client {names[empty[0]]!r} has no examples")
    return pairs


def _blocks(array: Array) -> Iterator[tuple[int, Array]]:
    step = max(1, _BLOCK // max(1, int(np.prod(array.shape[1:]))))
    return ((start, array[start : start + step]) for start in range(0, len(array), step))


def _check_inputs(inputs: Array, task: Task) -> None:
    if inputs.shape[1:] != task.input_shape:
        raise InputError(f"inputs must have the shape {task.input_shape}, got {inputs.shape[1:]}")
    if task.tokens is not None:
        if inputs.dtype.kind not in "iu":
            raise InputError(f"tokens must be whole numbers, got {inputs.dtype}")
        _check_range("token", inputs, task.tokens, None)
    elif inputs.dtype.kind == "f":
        for start, block in _blocks(inputs):
            finite = np.isfinite(block)
            if not finite.all():
                row = int(np.argmin(finite.reshape(len(block), -1).all(axis=1)))
                value = block[row][~finite[row]].flat[0]
                raise _ExampleError(f"inputs must be finite, got {value}", start + row)
    elif inputs.dtype != np.uint8:
        raise InputError(f"inputs must be uint8 pixels or floating-point numbers, got {inputs.dtype}")


def _check_targets(targets: Array, task: Task) -> None:
    if targets.shape[1:] != task.target_shape:
        wanted = f"({task.input_shape[0]},)" if task.per_position else "one label"
        raise InputError(f"an example's targets must be {wanted}, got the shape {targets.shape[1:]}")
    if targets.dtype.kind not in "iu":
        raise InputError(f"labels must be whole numbers, got {targets.dtype}")
    _check_range("label", targets, task.classes, task.ignored)


def _check_range(what: str, values: Array, limit: int, ignored: int | None) -> None:
    for start, block in _blocks(values):
        if block.min() >= 0 and block.max() < limit:
            continue
        bad = (block < 0) | (block >= limit)
        if ignored is not None:
            bad &= block != ignored
        if bad.any():
            row = int(np.argmax(bad.reshape(len(block), -1).any(axis=1)))
            value = np.asarray(block[row])[np.asarray(bad[row])].flat[0]
            raise _ExampleError(f"a {what} must be in 0..{limit - 1}, got {value}", start + row)
