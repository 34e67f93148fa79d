"""Where the updates of a design pool are kept: in memory, or beyond a limit in a temporary file.

The file holds the same float32 numbers and is mapped into memory, so whatever is computed from it is the same to the
bit. The operating system reads it as needed and drops it again when memory is short.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from coalmine.errors import InputError

Index = tuple[slice | Tensor, ...]
"""A part of a parameter: some taps of a kernel, some rows of a table; ``()`` is all of it."""

POOL_MEMORY = 4.0
"""GiB of memory that updates may take by default."""

# Rows of a matrix that are zero in every update are dropped if that saves at least this share of it.
_WORTHWHILE = 0.1

_GIB = 1 << 30


class UpdateStore:
    """Collects flat updates (d,) one by one, and returns them as a matrix without columns of zeros.

    Args:
        shapes: Shapes of the parameters, in the order of the flat vector.
        memory: GiB of memory that updates may take. Once they take more, they are written to a temporary file, all of
            their columns at first.
    """

    def __init__(self, shapes: Sequence[torch.Size], memory: float) -> None:
        self._shapes, self._memory = shapes, memory
        self._kept: list[list[tuple[Index, Tensor]]] = [[] for _ in shapes]
        self._indices: list[list[Index]] = [[] for _ in shapes]
        self._bytes, self._count = 0, 0
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._file: BinaryIO | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def is_on_disk(self) -> bool:
        """Whether updates are in a file."""
        return self._file is not None

    def add(self, update: Tensor) -> None:
        """Store a copy of an update."""
        self._count += 1
        pieces = update.split([shape.numel() for shape in self._shapes])
        for number, (piece, shape) in enumerate(zip(pieces, self._shapes, strict=True)):
            values = piece.view(shape)
            index = _nonzero_part(values)
            self._indices[number].append(index)
            if self._file is None:
                self._kept[number].append((index, values[index].clone()))
                self._bytes += self._kept[number][-1][1].nbytes
        if self._file is not None:
            _write(self._file, [update])
        elif self._bytes > self._memory * _GIB:
            self._move_to_disk()

    def matrix(self) -> tuple[Tensor, Tensor | None]:
        """Return all updates (m, kept numbers) and the columns of the flat update that are kept, None if all are.

        The store is then empty.
        """
        columns = _columns(self._shapes, self._indices)
        if self._file is None:
            return _gathered(self._shapes, self._kept, columns), _all_or(columns, self._shapes)
        self._file.close()
        path, kept = Path(self._file.name), _all_or(columns, self._shapes)
        rows = _mapped(path, self._count)
        if kept is not None:
            compact = path.with_suffix(".compact")
            with compact.open("wb") as smaller:
                _write(smaller, (row[kept] for row in rows))
            rows = _mapped(compact, self._count)
        assert self._directory is not None
        # The file has no name from here on, and vanishes with the tensor that is mapped to it.
        self._directory.cleanup()
        return rows, kept

    def _move_to_disk(self) -> None:
        """Write what is in memory to a file."""
        self._directory = tempfile.TemporaryDirectory(prefix="coalmine-pool-", ignore_cleanup_errors=True)
        self._file = (Path(self._directory.name) / "updates").open("wb")
        for parts in zip(*self._kept, strict=True):
            wholes = [torch.zeros(shape) for shape in self._shapes]
            for whole, (where, values) in zip(wholes, parts, strict=True):
                whole[where] = values
            _write(self._file, wholes)
        self._kept = []


def _write(file: BinaryIO, values: Iterable[Tensor]) -> None:
    """Append numbers to a file."""
    try:
        for each in values:
            file.write(each.contiguous().numpy().data)
        file.flush()
    except OSError as error:
        raise InputError(
            f"the design pool is larger than pool_memory and does not fit into {Path(file.name).parent.parent} "
            f"({error.strerror}): use fewer mock clients, raise pool_memory, or point TMPDIR to a larger disk"
        ) from error


def _mapped(path: Path, count: int) -> Tensor:
    """Return the numbers in a file as ``count`` rows."""
    numbers = path.stat().st_size // 4
    whole = torch.from_file(str(path), shared=False, size=numbers) if numbers else torch.zeros(0)
    return whole.view(count, numbers // count)


def _nonzero_part(piece: Tensor) -> Index:
    """Return the part outside which a parameter's update is zero: a box of kernel taps, or rows of a matrix."""
    if piece.ndim == 4:
        used = piece.flatten(0, 1).ne(0).any(0)
        sides = [used.any(1).nonzero()[:, 0], used.any(0).nonzero()[:, 0]]
        spans = [slice(int(side[0]), int(side[-1]) + 1) if len(side) else slice(0, 0) for side in sides]
        return (slice(None), slice(None), *spans)
    if piece.ndim == 2:
        return (piece.ne(0).any(1).nonzero()[:, 0],)
    return ()


def _columns(shapes: Sequence[torch.Size], indices: Sequence[Sequence[Index]]) -> list[Tensor]:
    """Return for each parameter which numbers of the flat update are kept, in ascending order."""
    starts = torch.tensor([0, *(shape.numel() for shape in shapes)]).cumsum(0).tolist()
    return [
        torch.arange(start, start + shape.numel()).view(shape)[_union(parts, shape)].flatten()
        for start, shape, parts in zip(starts, shapes, indices, strict=False)
    ]


def _all_or(columns: Sequence[Tensor], shapes: Sequence[torch.Size]) -> Tensor | None:
    """Return the columns of all parameters together; None if they are all there are."""
    whole = sum(shape.numel() for shape in shapes)
    return None if sum(map(len, columns)) == whole else torch.cat(list(columns))


def _gathered(
    shapes: Sequence[torch.Size], kept: Sequence[list[tuple[Index, Tensor]]], columns: Sequence[Tensor]
) -> Tensor:
    """Return the matrix of all updates; consumes ``kept``, the parts per parameter, to save memory."""
    # Zeros take no memory before they are written, so that little is held twice.
    matrix = torch.zeros(len(kept[0]), sum(map(len, columns)))
    pieces, start = matrix.split([len(part) for part in columns], 1), 0
    for shape, part, parts, piece in zip(shapes, columns, kept, pieces, strict=True):
        whole = torch.zeros(shape)
        for row in piece:
            where, values = parts.pop(0)
            whole[where] = values
            row.copy_(whole.flatten()[part - start])
            whole[where] = 0
        start += shape.numel()
    return matrix


def _union(indices: Sequence[Index], size: torch.Size) -> Index:
    """Return a part of a parameter that contains all of ``indices``: a smaller one where that is worthwhile."""
    if len(size) == 4:
        spans = [[index[axis] for index in indices] for axis in (2, 3)]
        used = [[span for span in each if isinstance(span, slice) and span.stop > span.start] for each in spans]
        if not all(used):
            return (slice(None), slice(None), slice(0, 0), slice(0, 0))
        boxes = [slice(min(s.start for s in each), max(s.stop for s in each)) for each in used]
        return (slice(None), slice(None), *boxes)
    if len(size) == 2:
        touched = torch.zeros(size[0], dtype=torch.bool)
        for (rows,) in indices:
            touched[rows] = True
        if touched.float().mean() <= 1 - _WORTHWHILE:
            return (touched.nonzero()[:, 0],)
    return ()
