"""The design pool: the clipped updates of mock clients as a compact matrix U (m × d)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from coalmine.errors import InputError, check_positive
from coalmine.methods.canife.pool_storage import POOL_MEMORY, ParameterBlock, UpdateStore
from coalmine.simulation import flat

# Numbers of an update that are converted to float64 at a time: a whole copy would be twice as large as the pool.
FLOAT64_PIECE = 1 << 16

# A matrix of at most this many numbers is kept whole in float64: it is multiplied in every round.
_SMALL = 1 << 20


@dataclass(frozen=True, kw_only=True, eq=False)
class Pool:
    """Updates of m mock clients in ``dim`` dimensions, none longer than ``clip_norm``, without columns of zeros.

    Most taps of ResNet18's last kernels only ever meet padding on small images, and most words of a vocabulary occur
    with no mock client. Dropping these columns changes no product with the matrix.
    """

    blocks: Sequence[ParameterBlock]
    clip_norm: float

    @classmethod
    def of(
        cls,
        updates: Iterable[Tensor],
        shapes: Sequence[Sequence[int]],
        *,
        clip_norm: float,
        pool_memory: float = POOL_MEMORY,
    ) -> Pool:
        """Build a pool from flat updates (d,).

        Args:
            updates: One update per mock client, clipped.
            shapes: Shapes of the model's trainable parameters, in the order of the flat vector.
            clip_norm: The norm they were clipped to.
            pool_memory: GiB of memory that they may take. A larger pool is kept in temporary files.

        Raises:
            InputError: If there are no updates, all are zero, one exceeds the clip norm, or the files do not fit on the
                disk.
        """
        check_positive("clip_norm", clip_norm)
        store = UpdateStore([torch.Size(shape) for shape in shapes], pool_memory)
        for number, update in enumerate(updates):
            norm = float(flat.norms(update[None]))
            if not math.isfinite(norm) or norm > clip_norm * (1 + 1e-5):
                raise InputError(
                    f"update {number} of the design pool has norm {norm:.6g}, which exceeds the clip norm "
                    f"{clip_norm:.6g}: clip it first"
                )
            store.add(update.detach().cpu().float())
        if not shapes or not len(store):
            raise InputError("the design pool is empty: give it at least one mock client")
        pool = cls(blocks=store.blocks(), clip_norm=clip_norm)
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
            for columns, rows in zip(part.split(FLOAT64_PIECE, 1), block.rows.split(FLOAT64_PIECE, 1), strict=True):
                products += columns.double() @ rows.double().T
        return products

    def combined(self, weights: Tensor) -> Tensor:
        """Return (k, d) in float64: Σ weightᵢ · updateᵢ for each row of ``weights`` (k, m)."""
        return weights.double() @ self._whole if self._whole is not None else self._combined(weights)

    def _combined(self, weights: Tensor) -> Tensor:
        sums = torch.zeros(len(weights), self.dim, dtype=torch.float64)
        for block, piece in self._pieces(sums):
            # A block without an index is written straight into the result: a second float64 vector would take 0.8 GB
            # at 10⁸ parameters.
            part = (
                torch.empty(len(weights), block.rows.shape[1], dtype=torch.float64)
                if block.index
                else piece.view(len(weights), -1)
            )
            for columns, rows in zip(part.split(FLOAT64_PIECE, 1), block.rows.split(FLOAT64_PIECE, 1), strict=True):
                columns.copy_(weights.double() @ rows.double())
            if block.index:
                where = (slice(None), *block.index)
                piece[where] = part.view_as(piece[where])
        return sums

    @cached_property
    def gram(self) -> Tensor:
        """U Uᵀ, (m, m) in float64."""
        gram = torch.zeros(len(self), len(self), dtype=torch.float64)
        for block in self.blocks:
            for rows in block.rows.split(FLOAT64_PIECE, 1):
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
