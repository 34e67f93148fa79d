"""The design pool: the clipped updates of mock clients as a compact matrix U (m × d)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from coalmine.errors import InputError, check_positive
from coalmine.simulation import flat

Index = tuple[slice | Tensor, ...]
"""A part of a parameter: some taps of a kernel, some rows of a table; ``()`` is all of it."""

# Rows of a matrix that are zero in every update are dropped if that saves at least this share of it.
_WORTHWHILE = 0.1

# Columns converted to float64 at a time.
_COLUMNS = 1 << 16

# A matrix of at most this many numbers is kept whole in float64: it is multiplied in every round.
_SMALL = 1 << 20


@dataclass(frozen=True, eq=False)
class ParameterBlock:
    """The updates of one parameter: ``rows`` (m, numbers) of its part ``index``, outside which all are zero."""

    shape: torch.Size
    index: Index
    rows: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Pool:
    """Updates of m mock clients in ``dim`` dimensions, none longer than ``clip_norm``, without columns of zeros.

    Most taps of ResNet18's last kernels only ever meet padding on small images, and most words of a vocabulary occur
    with no mock client. Dropping these columns changes no product with the matrix.
    """

    blocks: Sequence[ParameterBlock]
    clip_norm: float

    @classmethod
    def of(cls, updates: Iterable[Tensor], shapes: Sequence[Sequence[int]], *, clip_norm: float) -> Pool:
        """Build a pool from flat updates (d,).

        Args:
            updates: One update per mock client, clipped.
            shapes: Shapes of the model's trainable parameters, in the order of the flat vector.
            clip_norm: The norm they were clipped to.

        Raises:
            InputError: If there are no updates, all are zero, or one exceeds the clip norm.
        """
        check_positive("clip_norm", clip_norm)
        sizes = [torch.Size(shape) for shape in shapes]
        kept: list[list[tuple[Index, Tensor]]] = [[] for _ in sizes]
        for number, update in enumerate(updates):
            norm = float(flat.norms(update[None]))
            if not math.isfinite(norm) or norm > clip_norm * (1 + 1e-5):
                raise InputError(
                    f"update {number} of the design pool has norm {norm:.6g}, which exceeds the clip norm "
                    f"{clip_norm:.6g}: clip it first"
                )
            pieces = update.split([size.numel() for size in sizes])
            for piece, size, parts in zip(pieces, sizes, kept, strict=True):
                index = _nonzero_part(piece.view(size))
                parts.append((index, piece.view(size)[index].clone()))
        if not kept or not kept[0]:
            raise InputError("the design pool is empty: give it at least one mock client")
        pool = cls(blocks=[_block(size, parts) for size, parts in zip(sizes, kept, strict=True)], clip_norm=clip_norm)
        if not any(bool(block.rows.any()) for block in pool.blocks):
            raise InputError("every update of the design pool is zero: its clients learn nothing from their data")
        return pool

    def __len__(self) -> int:
        return len(self.blocks[0].rows)

    @property
    def dim(self) -> int:
        """The number of parameters."""
        return sum(block.shape.numel() for block in self.blocks)

    def check_fits(self, model: nn.Module) -> None:
        """Raise an error unless the model's trainable parameters are those of the updates."""
        shapes = [value.shape for value in model.parameters() if value.requires_grad]
        if shapes != [block.shape for block in self.blocks]:
            count = sum(shape.numel() for shape in shapes)
            raise InputError(
                f"the design pool was made with another model: its updates have {self.dim:,} numbers in "
                f"{len(self.blocks)} parameters, this model trains {count:,} in {len(shapes)}"
            )

    def dots(self, vectors: Tensor) -> Tensor:
        """Return (k, m) in float64: the product of each of ``vectors`` (k, d) with each update."""
        if self._whole is not None:
            return vectors.double() @ self._whole.T
        products = torch.zeros(len(vectors), len(self), dtype=torch.float64)
        for block, piece in self._pieces(vectors):
            part = piece[(slice(None), *block.index)].reshape(len(vectors), -1)
            for columns, rows in zip(part.split(_COLUMNS, 1), block.rows.split(_COLUMNS, 1), strict=True):
                products += columns.double() @ rows.double().T
        return products

    def combined(self, weights: Tensor) -> Tensor:
        """Return (k, d) in float64: Σ weightᵢ · updateᵢ for each row of ``weights`` (k, m)."""
        return weights.double() @ self._whole if self._whole is not None else self._combined(weights)

    def _combined(self, weights: Tensor) -> Tensor:
        sums = torch.zeros(len(weights), self.dim, dtype=torch.float64)
        for block, piece in self._pieces(sums):
            parts = [weights.double() @ rows.double() for rows in block.rows.split(_COLUMNS, 1)]
            where = (slice(None), *block.index)
            piece[where] = torch.cat(parts, 1).view_as(piece[where])
        return sums

    @cached_property
    def gram(self) -> Tensor:
        """U Uᵀ, (m, m) in float64."""
        gram = torch.zeros(len(self), len(self), dtype=torch.float64)
        for block in self.blocks:
            for rows in block.rows.split(_COLUMNS, 1):
                columns = rows.double()
                gram.addmm_(columns, columns.T)
        return gram

    @cached_property
    def spectrum(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues (m,), at least 0, and eigenvectors (m, m) of `gram` in squared clip norms."""
        values, vectors = torch.linalg.eigh(self.gram / self.clip_norm**2)
        return values.clamp(min=0), vectors

    @cached_property
    def _whole(self) -> Tensor | None:
        """The dense matrix (m, d) in float64 if it is small."""
        if len(self) * self.dim > _SMALL:
            return None
        return self._combined(torch.eye(len(self), dtype=torch.float64))

    def _pieces(self, vectors: Tensor) -> Iterator[tuple[ParameterBlock, Tensor]]:
        """Yield each block with the piece of ``vectors`` (k, d) that belongs to its parameter."""
        pieces = vectors.split([block.shape.numel() for block in self.blocks], 1)
        return ((block, piece.unflatten(1, block.shape)) for block, piece in zip(self.blocks, pieces, strict=True))


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
    index = _union([index for index, _ in parts], size)
    shape = torch.empty(size, device="meta")[index].shape
    if shape == size or (len(size) == 2 and shape.numel() > (1 - _WORTHWHILE) * size.numel()):
        index, shape = (), size
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


def _union(indices: list[Index], size: torch.Size) -> Index:
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
