"""Where the updates of a design pool are kept: in memory, or beyond a limit in temporary files.

Files hold the same float32 numbers and are mapped into memory, so whatever is computed from them is the same to the
bit. The operating system reads them as needed and drops them again when memory is short.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, eq=False)
class ParameterBlock:
    """The updates of one parameter: ``rows`` (m, numbers) of its part ``index``, outside which all are zero."""

    shape: torch.Size
    index: Index
    rows: Tensor


class UpdateStore:
    """Collects flat updates (d,) one by one, and returns them as blocks without columns of zeros.

    Args:
        shapes: Shapes of the parameters, in the order of the flat vector.
        memory: GiB of memory that updates may take. Once they take more, they are written to temporary files, all of
            their columns at first.
    """

    def __init__(self, shapes: Sequence[torch.Size], memory: float) -> None:
        self._shapes, self._memory = shapes, memory
        self._kept: list[list[tuple[Index, Tensor]]] = [[] for _ in shapes]
        self._indices: list[list[Index]] = [[] for _ in shapes]
        self._bytes, self._count = 0, 0
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._files: list[BinaryIO] = []

    def __len__(self) -> int:
        return self._count

    @property
    def is_on_disk(self) -> bool:
        """Whether updates are in files."""
        return self._directory is not None

    def add(self, update: Tensor) -> None:
        """Store a copy of an update."""
        self._count += 1
        pieces = update.split([shape.numel() for shape in self._shapes])
        for number, (piece, shape) in enumerate(zip(pieces, self._shapes, strict=True)):
            values = piece.view(shape)
            index = _nonzero_part(values)
            self._indices[number].append(index)
            if self.is_on_disk:
                _write(self._files[number], [values])
            else:
                self._kept[number].append((index, values[index].clone()))
                self._bytes += self._kept[number][-1][1].nbytes
        if not self.is_on_disk and self._bytes > self._memory * _GIB:
            self._move_to_disk()

    def blocks(self) -> list[ParameterBlock]:
        """Return all updates, parameter by parameter; the store is then empty."""
        if not self.is_on_disk:
            return [_block(shape, parts) for shape, parts in zip(self._shapes, self._kept, strict=True)]
        blocks = [self._mapped_block(number) for number in range(len(self._shapes))]
        assert self._directory is not None
        # The files have no name from here on, and vanish with the tensors that are mapped to them.
        self._directory.cleanup()
        return blocks

    def _move_to_disk(self) -> None:
        """Write what is in memory to files."""
        self._directory = tempfile.TemporaryDirectory(prefix="coalmine-pool-", ignore_cleanup_errors=True)
        for number, (shape, parts) in enumerate(zip(self._shapes, self._kept, strict=True)):
            self._files.append((Path(self._directory.name) / str(number)).open("wb"))
            whole = torch.zeros(shape)
            for where, values in parts:
                whole.zero_()
                whole[where] = values
                _write(self._files[number], [whole])
            parts.clear()

    def _mapped_block(self, number: int) -> ParameterBlock:
        """Return the block of a parameter, mapped to a file."""
        shape, file = self._shapes[number], self._files[number]
        file.close()
        path = Path(file.name)
        rows = _mapped(path, self._count, shape)
        index, part = _worthwhile(_union(self._indices[number], shape), shape)
        if not index:
            return ParameterBlock(shape, index, rows.flatten(1))
        compact = path.with_suffix(".compact")
        with compact.open("wb") as smaller:
            _write(smaller, (row[index] for row in rows))
        path.unlink()
        return ParameterBlock(shape, index, _mapped(compact, self._count, part).flatten(1))


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


def _mapped(path: Path, count: int, shape: torch.Size) -> Tensor:
    """Return ``count`` arrays of a shape that a file holds, (count, *shape)."""
    numbers = count * shape.numel()
    whole = torch.from_file(str(path), shared=False, size=numbers) if numbers else torch.zeros(0)
    return whole.view(count, *shape)


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


def _block(size: torch.Size, parts: list[tuple[Index, Tensor]]) -> ParameterBlock:
    """Gather all updates of a parameter over the part that any of them touches; consumes ``parts`` to save memory."""
    index, shape = _worthwhile(_union([index for index, _ in parts], size), size)
    rows = torch.zeros(len(parts), *shape)
    whole = torch.zeros(size)
    for row in rows:
        where, values = parts.pop(0)
        if not index:
            row[where] = values
        else:
            whole[where] = values
            row.copy_(whole[index])
            whole[where] = 0
    return ParameterBlock(size, index, rows.flatten(1))


def _worthwhile(index: Index, size: torch.Size) -> tuple[Index, torch.Size]:
    """Return a part and its shape, or the whole parameter if the part is nearly as large."""
    shape = torch.empty(size, device="meta")[index].shape
    if shape == size or (len(size) == 2 and shape.numel() > (1 - _WORTHWHILE) * size.numel()):
        return (), size
    return index, shape


def _union(indices: Sequence[Index], size: torch.Size) -> Index:
    """Return the smallest part of a parameter that contains all of ``indices``."""
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
        return (touched.nonzero()[:, 0],)
    return ()
