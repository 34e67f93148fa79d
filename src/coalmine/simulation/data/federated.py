"""Examples grouped by client, all in one array."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from coalmine.arrays import Array
from coalmine.errors import InputError, check_count
from coalmine.simulation.data.appended import Appended
from coalmine.simulation.data.checks import (
    ExampleError,
    check_inputs,
    check_targets,
    checked_bounds,
    checked_rows,
)
from coalmine.simulation.data.vocabulary import Vocabulary

if TYPE_CHECKING:
    from coalmine.arrays import Ints


@dataclass(frozen=True, kw_only=True)
class Task:
    """The inputs and outputs of a model.

    Args:
        input_shape: Shape of one example, such as (channels, height, width) or (positions,).
        classes: Number of logits per example, or per position with ``per_position``.
        tokens: Size of the vocabulary if inputs are token ids; None if they are numbers (uint8 means pixels, 0 to 255).
        per_position: Whether there is a target at each position instead of one per example.
        ignored: Targets with this value do not count in the loss, such as padding.

    Raises:
        InputError: If a size is too small, or ``per_position`` comes with an input shape other than (positions,).

    Example:
        >>> Task(input_shape=(1, 28, 28), classes=10).target_shape
        ()
        >>> Task(input_shape=(20,), classes=1000, tokens=1000, per_position=True, ignored=0).target_shape
        (20,)
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
            raise InputError(f"per_position needs an input_shape (positions,), got {self.input_shape}")

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of the targets of one example."""
        return self.input_shape if self.per_position else ()


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs and targets of several examples: of a client, a batch or a test set.

    The arrays are views of larger ones where possible, so do not write to them.

    Args:
        inputs: uint8 pixels, float32 numbers or integer tokens, (n, *input_shape).
        targets: Integers, (n,) or (n, positions).
    """

    inputs: Array
    targets: Array

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, rows: slice | Ints) -> Examples:
        return Examples(self.inputs[rows], self.targets[rows])


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FederatedData:
    """The examples of many clients, in one array that subsets and partitions share without copying.

    Client i holds the examples ``rows[start:stop]`` with ``start, stop = bounds[i]``. Without ``rows`` it holds the
    examples ``start`` to ``stop``, and ``client(i)`` is a view. The arrays are checked once, when the object is built
    from them.

    Args:
        inputs: All examples, (examples, *input_shape): uint8 pixels, floating-point numbers or integer tokens.
        targets: Integers, (examples,) or (examples, positions).
        bounds: Start and stop of each client, (clients, 2).
        names: One name per client.
        task: What a model takes and predicts.
        rows: Order of the examples, for clients whose examples are not consecutive; None keeps the order.
        vocabulary: The words or characters behind the tokens.

    Raises:
        InputError: If shapes, types or values do not fit the task, or if a client is empty.

    Example:
        >>> import numpy as np
        >>> data = FederatedData(
        ...     inputs=np.zeros((5, 3), dtype=np.float32),
        ...     targets=np.array([0, 1, 1, 0, 1]),
        ...     bounds=np.array([[0, 2], [2, 5]]),
        ...     names=["ann", "bob"],
        ...     task=Task(input_shape=(3,), classes=2),
        ... )
        >>> data
        FederatedData(2 clients of 2 to 3 examples, 5 in all, 3, 2 classes)
        >>> data.client(1).targets
        array([1, 0, 1])
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
            raise InputError(f"every input needs a target, got {len(self.inputs)} inputs, {len(self.targets)} targets")
        if self.vocabulary is not None and len(self.vocabulary) != self.task.tokens:
            raise InputError(
                f"the vocabulary has {len(self.vocabulary)} entries, but the task has {self.task.tokens} tokens"
            )
        object.__setattr__(self, "rows", checked_rows(self.rows, len(self.inputs)))
        count = len(self.inputs if self.rows is None else self.rows)
        object.__setattr__(self, "bounds", checked_bounds(self.bounds, self.names, count))
        try:
            check_inputs(self.inputs, self.task)
            check_targets(self.targets, self.task)
        except ExampleError as error:
            raise InputError(f"{error}{self._owner(error.row)}") from None

    def _owner(self, row: int) -> str:
        """Return which client holds an example, as part of an error message."""
        places = np.array([row]) if self.rows is None else np.flatnonzero(self.rows == row)
        for place in places:
            owners = np.flatnonzero((self.bounds[:, 0] <= place) & (place < self.bounds[:, 1]))
            if owners.size:
                return f", of client {self.names[int(owners[0])]!r}"
        return ""

    @classmethod
    def from_users(
        cls, *, inputs: Array, targets: Array, users: ArrayLike, task: Task, vocabulary: Vocabulary | None = None
    ) -> FederatedData:
        """Group examples by a column of users: one client per user, in order of first appearance.

        If a user's examples are not consecutive the arrays are copied once, in the order of the users, so that clients
        are views.

        Args:
            inputs: (examples, *input_shape).
            targets: (examples,) or (examples, positions).
            users: The user of each example, integers or strings, (examples,).
            task: What a model takes and predicts.
            vocabulary: The words or characters behind the tokens.

        Raises:
            InputError: If there is not one user per example, or as for the constructor.

        Example:
            >>> import numpy as np
            >>> data = FederatedData.from_users(
            ...     inputs=np.arange(4, dtype=np.float32)[:, None],
            ...     targets=np.array([0, 1, 0, 1]),
            ...     users=["ann", "bob", "ann", "bob"],
            ...     task=Task(input_shape=(1,), classes=2),
            ... )
            >>> data.names, data.client(0).inputs.tolist()
            (['ann', 'bob'], [[0.0], [2.0]])
        """
        inputs, targets, column = np.asanyarray(inputs), np.asanyarray(targets), np.asarray(users)
        if column.ndim != 1 or len(column) != len(inputs):
            raise InputError(f"users must be one for each of {len(inputs)} examples, got an array of {column.shape}")
        if column.dtype.kind not in "iuUS":
            raise InputError(f"users must be integers or strings, got {column.dtype}")
        distinct, first, inverse, sizes = np.unique(column, return_index=True, return_inverse=True, return_counts=True)
        appearance = np.argsort(first)
        place = np.empty_like(appearance)
        place[appearance] = np.arange(len(distinct))
        rows = np.argsort(place[inverse], kind="stable")
        if not np.array_equal(rows, np.arange(len(rows))):
            inputs, targets = inputs[rows], targets[rows]
        return cls(
            inputs=inputs,
            targets=targets,
            bounds=consecutive_bounds(sizes[appearance]),
            names=[name.decode() if isinstance(name, bytes) else str(name) for name in distinct[appearance].tolist()],
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
        """Number of examples of each client, (clients,)."""
        return np.asarray(self.bounds[:, 1] - self.bounds[:, 0])

    @property
    def indices(self) -> Ints:
        """Rows of ``inputs`` that the clients hold, client by client, (examples,)."""
        places = np.repeat(self.bounds[:, 0], self.sizes) + numbered_within(self.sizes)
        return places if self.rows is None else self.rows[places]

    def client(self, index: int) -> Examples:
        """Return the examples of a client: a view if the data has no ``rows``, else a copy.

        Args:
            index: Number of the client; negative ones count from the end.

        Raises:
            InputError: If there is no such client.
        """
        if not -len(self) <= index < len(self):
            raise InputError(f"the index of a client must be in 0..{len(self) - 1}, got {index}")
        start, stop = self.bounds[index].tolist()
        return self._examples(start, stop)

    def _examples(self, start: int, stop: int) -> Examples:
        """Return the examples between two bounds."""
        where = slice(start, stop) if self.rows is None else self.rows[start:stop]
        return Examples(self.inputs[where], self.targets[where])

    def subset(self, indices: ArrayLike) -> FederatedData:
        """Return some of the clients, in the order of ``indices``; shares the arrays.

        Args:
            indices: Numbers of clients, at least one.

        Raises:
            InputError: If the indices are not integers, or there is no such client.

        Example:
            >>> from coalmine.simulation.data import load
            >>> load("digits").train.subset([3, 1]).names
            ['iid-3', 'iid-1']
        """
        chosen = np.asarray(indices)
        if chosen.ndim != 1 or chosen.size == 0 or chosen.dtype.kind not in "iu":
            raise InputError(f"a subset needs a list of client indices, got {indices!r:.80}")
        outside = chosen[(chosen < 0) | (chosen >= len(self))]
        if outside.size:
            raise InputError(f"the index of a client must be in 0..{len(self) - 1}, got {outside[0]}")
        return self._sharing(self.bounds[chosen], [self.names[i] for i in chosen.tolist()], self.rows)

    def regrouped(self, *, bounds: Ints, names: Sequence[str], rows: Ints | None) -> FederatedData:
        """Return the same examples grouped into other clients; shares the arrays and checks only the grouping.

        Args:
            bounds: Start and stop of each client, (clients, 2).
            names: One name per client.
            rows: Order of the examples, or None.

        Raises:
            InputError: If the grouping refers to examples that do not exist, or if a client is empty.
        """
        rows = checked_rows(rows, len(self.inputs))
        count = len(self.inputs if rows is None else rows)
        return self._sharing(checked_bounds(bounds, names, count), names, rows)

    def extended(self, extra: Examples, *, bounds: Ints, names: Sequence[str], rows: Ints) -> FederatedData:
        """Return these examples and ``extra`` ones in a new grouping, without copying the existing arrays.

        Only the extra examples and the grouping are checked.

        Args:
            extra: Examples to append; in ``rows`` the first of them is number ``len(inputs)``.
            bounds: Start and stop of each client in ``rows``, (clients, 2).
            names: One name per client.
            rows: Examples of the clients, client by client.

        Raises:
            InputError: If the extra examples do not fit the task, or the grouping is invalid.
        """
        check_inputs(extra.inputs, self.task)
        check_targets(extra.targets, self.task)
        order = checked_rows(rows, len(self.inputs) + len(extra))
        shared = self._sharing(checked_bounds(bounds, names, len(rows)), names, order)
        for name, appended in (("inputs", extra.inputs), ("targets", extra.targets)):
            object.__setattr__(shared, name, Appended(getattr(self, name), appended))
        return shared

    def _sharing(self, bounds: Ints, names: Sequence[str], rows: Ints | None) -> FederatedData:
        """Return a copy with another grouping that skips the checks of the arrays, which may be huge."""
        shared = object.__new__(FederatedData)
        for field in fields(self):
            object.__setattr__(shared, field.name, getattr(self, field.name))
        for name, value in (("bounds", bounds), ("names", names), ("rows", rows)):
            object.__setattr__(shared, name, value)
        return shared

    def pooled(self) -> Examples:
        """Return all examples of these clients, client by client; a view if they are consecutive.

        Example:
            >>> from coalmine.simulation.data import load
            >>> len(load("digits").test.pooled())
            180
        """
        if self.rows is None and np.array_equal(self.bounds[1:, 0], self.bounds[:-1, 1]):
            return self._examples(int(self.bounds[0, 0]), int(self.bounds[-1, 1]))
        rows = self.indices
        return Examples(self.inputs[rows], self.targets[rows])


@dataclass(frozen=True, kw_only=True)
class Splits:
    """Training users, test users, and users set aside for designing canaries. No user is in two of them.

    Args:
        train: Users to train on.
        test: Users to evaluate on.
        pool: Users whose data an adversary may use to design canaries; None if no users are set aside.

    Raises:
        InputError: If the splits have different tasks.

    Example:
        >>> from coalmine.simulation.data import load
        >>> splits = load("digits", pool_fraction=0.1)
        >>> len(splits.train), len(splits.test), len(splits.pool)
        (50, 6, 6)
    """

    train: FederatedData
    test: FederatedData
    pool: FederatedData | None = None

    def __post_init__(self) -> None:
        for name, part in (("test", self.test), ("pool", self.pool)):
            if part is not None and part.task != self.train.task:
                raise InputError(
                    f"all splits must have one task, got {self.train.task} in train, {part.task} in {name}"
                )


def consecutive_bounds(sizes: Ints) -> Ints:
    """Return the bounds (clients, 2) of consecutive clients of these sizes."""
    stops = np.cumsum(sizes)
    return np.stack([stops - sizes, stops], axis=1)


def numbered_within(sizes: Ints) -> Ints:
    """Return 0, 1, … for each of several consecutive groups of these sizes."""
    return np.asarray(np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes))
