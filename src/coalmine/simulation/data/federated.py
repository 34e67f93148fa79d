"""Examples grouped by client, all in one array."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from coalmine.arrays import Array
from coalmine.errors import InputError, check_count

if TYPE_CHECKING:
    from coalmine.arrays import Ints
    from coalmine.simulation.data.text import Vocabulary


@dataclass(frozen=True, kw_only=True)
class Task:
    """The inputs and outputs of a model.

    Args:
        input_shape: Shape of one example, such as (channels, height, width) or (positions,).
        classes: Number of logits per example, or per position with ``per_position``.
        tokens: Size of the vocabulary if inputs are token ids; None if they are numbers (uint8 means pixels, 0 to 255).
        per_position: Whether there is a target at each position instead of one per example.
        ignored: Targets with this value do not count in the loss, such as padding. The default is that of torch's
            ``cross_entropy``, which no label has.
        target_shape: Shape of the targets of one example, which follows from the others.

    Raises:
        InputError: If there are fewer than two classes, or ``per_position`` comes with more than one dimension.

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
    ignored: int = -100
    target_shape: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "input_shape", tuple(self.input_shape))
        object.__setattr__(self, "target_shape", self.input_shape if self.per_position else ())
        check_count("classes", self.classes, least=2)
        if self.per_position and len(self.input_shape) != 1:
            raise InputError(f"per_position needs an input_shape (positions,), got {self.input_shape}")


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
    examples ``start`` to ``stop``, and ``client(i)`` is a view.

    Args:
        inputs: All examples, (examples, *input_shape): uint8 pixels, floating-point numbers or integer tokens.
        targets: Integers, (examples,) or (examples, positions).
        bounds: Start and stop of each client, (clients, 2).
        names: One name per client.
        task: What a model takes and predicts.
        rows: Order of the examples, for clients whose examples are not consecutive; None keeps the order.
        vocabulary: The words or characters behind the tokens.
        sizes: Number of examples of each client, (clients,), which follows from ``bounds``.

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
    sizes: Ints = field(init=False)

    def __post_init__(self) -> None:
        for name in ("inputs", "targets", "bounds"):
            object.__setattr__(self, name, np.asarray(getattr(self, name)))
        object.__setattr__(self, "sizes", self.bounds[:, 1] - self.bounds[:, 0])
        if len(self.inputs) != len(self.targets):
            raise InputError(f"every input needs a target, got {len(self.inputs)} inputs, {len(self.targets)} targets")
        inputs, targets, task = self.inputs, self.targets, self.task
        if inputs.shape[1:] != task.input_shape or targets.shape[1:] != task.target_shape:
            raise InputError(
                f"an example must have the shape {task.input_shape} and its target {task.target_shape}, got "
                f"{inputs.shape[1:]} and {targets.shape[1:]}"
            )
        # Slices clip bounds that lie outside of the data without a word, and an empty client has no mean loss.
        start, stop = self.bounds.T
        held = len(inputs if self.rows is None else self.rows)
        wrong = np.flatnonzero((start < 0) | (stop > held) | (start >= stop))
        if wrong.size:
            name, bounds = self.names[wrong[0]], self.bounds[wrong[0]].tolist()
            raise InputError(f"client {name!r} must hold at least one of {held} examples, got the bounds {bounds}")
        # Minimum and maximum are NaN or infinite if any value is, and need no array of flags as large as the data.
        if inputs.dtype.kind == "f" and not np.isfinite([inputs.min(), inputs.max()]).all():
            raise InputError(f"inputs must be finite, got {inputs.min()} to {inputs.max()}")
        limits = [("label", targets, task.classes)]
        if task.tokens is not None:
            limits.append(("token", inputs, task.tokens))
        for what, values, limit in limits:
            if values.dtype.kind not in "iu":
                raise InputError(f"each {what} must be an integer, got {values.dtype}")
            invalid = (values < 0) | (values >= limit)
            if what == "label":
                invalid &= values != task.ignored
            if invalid.any():
                row = int(np.argwhere(invalid)[0][0])
                raise InputError(f"each {what} must be in 0..{limit - 1}, got {values[invalid][0]} in example {row}")

    @classmethod
    def from_users(cls, *, inputs: Array, targets: Array, users: ArrayLike, task: Task) -> FederatedData:
        """Group examples by a column of users: one client per user, in order of first appearance.

        If a user's examples are not consecutive the arrays are copied once, in the order of the users, so that clients
        are views.

        Args:
            inputs: (examples, *input_shape).
            targets: (examples,) or (examples, positions).
            users: The user of each example, integers or strings, (examples,).
            task: What a model takes and predicts.

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
        inputs, targets = np.asarray(inputs), np.asarray(targets)
        # Names are strings everywhere: 7 and "7" must not be two users in two parts of a data set.
        column = [str(user) for user in np.asarray(users).tolist()]
        if len(column) != len(inputs):
            raise InputError(f"every example needs a user, got {len(inputs)} examples and {len(column)} users")
        names, owners, order = group_by_user(column)
        if not np.array_equal(order, np.arange(len(order))):
            inputs, targets = inputs[order], targets[order]
        stops = np.cumsum(np.bincount(owners))
        bounds = np.stack([stops - np.bincount(owners), stops], axis=1)
        return cls(inputs=inputs, targets=targets, bounds=bounds, names=names, task=task)

    def __len__(self) -> int:
        return len(self.bounds)

    def __iter__(self) -> Iterator[Examples]:
        return (self.client(i) for i in range(len(self)))

    def __repr__(self) -> str:
        task, total = self.task, self.sizes.sum()
        sizes = " to ".join(map(str, np.unique([self.sizes.min(), self.sizes.max()])))
        shape = "×".join(map(str, task.input_shape))
        kind = shape if task.tokens is None else f"{shape} tokens"
        return f"FederatedData({len(self)} clients of {sizes} examples, {total} in all, {kind}, {task.classes} classes)"

    @property
    def indices(self) -> Ints:
        """Rows of ``inputs`` that the clients hold, client by client, (examples,)."""
        starts, sizes = self.bounds[:, 0], self.sizes
        # 0, 1, … within each client, from where it starts.
        places = np.arange(sizes.sum()) + np.repeat(starts - (np.cumsum(sizes) - sizes), sizes)
        return np.asarray(places if self.rows is None else self.rows[places])

    @cached_property
    def fingerprint(self) -> str:
        """A short digest of who holds which rows, and of up to 1,000 examples."""
        # Hashing all of a large data set would take longer than a round.
        sample = np.unique(np.linspace(0, len(self.inputs) - 1, 1000).astype(np.int64))
        rows = np.empty(0, dtype=np.int64) if self.rows is None else self.rows
        digest = hashlib.blake2b(digest_size=6)
        for array in (self.bounds, rows, self.inputs[sample], self.targets[sample]):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def client(self, index: int) -> Examples:
        """Return the examples of client ``index``: a view if the data has no ``rows``, else a copy."""
        # A slice is a view; an array of rows makes a copy.
        start, stop = self.bounds[index].tolist()
        where = slice(start, stop) if self.rows is None else self.rows[start:stop]
        return Examples(self.inputs[where], self.targets[where])

    def subset(self, indices: ArrayLike) -> FederatedData:
        """Return some of the clients, in the order of ``indices``; shares the arrays.

        Args:
            indices: Numbers of clients, at least one.

        Example:
            >>> from coalmine.simulation.data import load
            >>> load("digits").train.subset([3, 1]).names
            ['iid-3', 'iid-1']
        """
        chosen = np.asarray(indices)
        return replace(self, bounds=self.bounds[chosen], names=[self.names[i] for i in chosen.tolist()])

    def pooled(self) -> Examples:
        """Return all examples of these clients, client by client.

        Example:
            >>> from coalmine.simulation.data import load
            >>> len(load("digits").test.pooled())
            180
        """
        rows = self.indices
        return Examples(self.inputs[rows], self.targets[rows])


@dataclass(frozen=True, kw_only=True)
class Splits:
    """Training users, test users, and users set aside for designing canaries. No user is in two of them.

    Args:
        train: Users to train on.
        test: Users to evaluate on.
        pool: Users whose data an adversary may use to design canaries; None if no users are set aside.

    Example:
        >>> from coalmine.simulation.data import load
        >>> splits = load("digits", pool_fraction=0.1)
        >>> len(splits.train), len(splits.test), len(splits.pool)
        (50, 6, 6)
    """

    train: FederatedData
    test: FederatedData
    pool: FederatedData | None = None


def group_by_user(users: Sequence[str]) -> tuple[list[str], Ints, Ints]:
    """Return the distinct users, the user of each example in a new order, and that order: a user's examples together.

    Users are numbered by first appearance, and a user's examples keep their order.
    """
    numbers: dict[str, int] = {}
    column = np.array([numbers.setdefault(user, len(numbers)) for user in users], dtype=np.int64)
    # Stable, so that a user's examples keep their order in time.
    order = np.argsort(column, kind="stable")
    return list(numbers), column[order], order
