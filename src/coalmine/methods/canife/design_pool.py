"""The design pool: the clipped updates of mock clients as a compact matrix U (m × d)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from coalmine.errors import InputError, check_positive
from coalmine.methods.canife.pool_storage import POOL_MEMORY, UpdateStore
from coalmine.simulation import flat

# Columns converted to float64 at a time.
_COLUMNS = 1 << 16

# A matrix of at most this many numbers is kept whole in float64: it is multiplied in every round.
_SMALL = 1 << 20


@dataclass(frozen=True, kw_only=True, eq=False)
class Pool:
    """Updates of m mock clients in ``dim`` dimensions, none longer than ``clip_norm``, without columns of zeros.

    Most taps of ResNet18's last kernels only ever meet padding on small images, and most words of a vocabulary occur
    with no mock client. Dropping these columns changes no product with the matrix.

    Args:
        rows: One update per row, (m, kept numbers).
        columns: Where each kept number stands in the flat update, ascending; None if all are kept.
        shapes: Shapes of the model's trainable parameters.
        clip_norm: The norm that updates were clipped to.
    """

    rows: Tensor
    columns: Tensor | None
    shapes: Sequence[torch.Size]
    clip_norm: float

    @classmethod
    def of(
        cls,
        updates: Iterable[Tensor],
        shapes: Sequence[Sequence[int]],
        *,
        clip_norm: float,
        memory: float = POOL_MEMORY,
    ) -> Pool:
        """Build a pool from flat updates (d,).

        Args:
            updates: One update per mock client, clipped.
            shapes: Shapes of the model's trainable parameters, in the order of the flat vector.
            clip_norm: The norm they were clipped to.
            memory: GiB of memory that they may take. A larger pool is kept in a temporary file.

        Raises:
            InputError: If there are no updates, all are zero, one exceeds the clip norm, or the file does not fit on
                the disk.
        """
        check_positive("clip_norm", clip_norm)
        sizes = [torch.Size(shape) for shape in shapes]
        store = UpdateStore(sizes, memory)
        for number, update in enumerate(updates):
            norm = float(flat.norms(update[None]))
            if not math.isfinite(norm) or norm > clip_norm * (1 + 1e-5):
                raise InputError(
                    f"update {number} of the design pool has norm {norm:.6g}, which exceeds the clip norm "
                    f"{clip_norm:.6g}: clip it first"
                )
            store.add(update.cpu())
        if not shapes or not len(store):
            raise InputError("the design pool is empty: give it at least one mock client")
        rows, columns = store.matrix()
        if not bool(rows.any()):
            raise InputError("every update of the design pool is zero: its clients learn nothing from their data")
        return cls(rows=rows, columns=columns, shapes=sizes, clip_norm=clip_norm)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def dim(self) -> int:
        """The number of parameters."""
        return sum(shape.numel() for shape in self.shapes)

    def check_fits(self, model: nn.Module) -> None:
        """Raise an error unless the model's trainable parameters are those of the updates."""
        shapes = [value.shape for value in model.parameters() if value.requires_grad]
        if shapes != list(self.shapes):
            count = sum(shape.numel() for shape in shapes)
            raise InputError(
                f"the design pool was made with another model: its updates have {self.dim:,} numbers in "
                f"{len(self.shapes)} parameters, this model trains {count:,} in {len(shapes)}"
            )

    def dots(self, vectors: Tensor) -> Tensor:
        """Return (k, m) in float64: the product of each of ``vectors`` (k, d) with each update."""
        if self._whole is not None:
            return vectors.double() @ self._whole.T
        products = torch.zeros(len(vectors), len(self), dtype=torch.float64)
        for columns, rows in self._chunks():
            products += vectors[:, columns].double() @ rows.T
        return products

    def combined(self, weights: Tensor) -> Tensor:
        """Return (k, d) in float64: Σ weightᵢ · updateᵢ for each row of ``weights`` (k, m)."""
        return weights.double() @ self._whole if self._whole is not None else self._combined(weights)

    def _combined(self, weights: Tensor) -> Tensor:
        sums = torch.zeros(len(weights), self.dim, dtype=torch.float64)
        for columns, rows in self._chunks():
            sums[:, columns] = weights.double() @ rows
        return sums

    @cached_property
    def gram(self) -> Tensor:
        """U Uᵀ, (m, m) in float64."""
        gram = torch.zeros(len(self), len(self), dtype=torch.float64)
        for _, rows in self._chunks():
            gram.addmm_(rows, rows.T)
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

    def _chunks(self) -> Iterator[tuple[slice | Tensor, Tensor]]:
        """Yield some columns of the flat update at a time, with the updates there in float64."""
        for start in range(0, self.rows.shape[1], _COLUMNS):
            part = slice(start, start + _COLUMNS)
            yield part if self.columns is None else self.columns[part], self.rows[:, part].double()
