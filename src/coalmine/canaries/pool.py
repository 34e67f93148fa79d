"""The design pool: clipped updates of mock clients, which a canary is to be unlike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor, nn

from coalmine.data.federated import FederatedData
from coalmine.errors import InputError, check_count, check_positive
from coalmine.fl import flat
from coalmine.fl.client import Client, LocalTraining
from coalmine.fl.kernels.loop import Loop
from coalmine.fl.workers import one_thread
from coalmine.seeds import generator
from coalmine.stats.arrays import Ints

Index = tuple[slice | Tensor, ...]
"""A part of a parameter: some taps of a kernel, some rows of a table; ``()`` is all of it."""

# Rows that are zero in every update are left out where that spares at least this share of a parameter.
_WORTH = 0.1

# Columns turned to float64 at a time.
_COLUMNS = 1 << 16


@dataclass(frozen=True, eq=False)
class Block:
    """The updates of one parameter: ``rows`` (m, numbers) of its part ``index``, outside which all are zero."""

    shape: torch.Size
    index: Index
    rows: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Pool:
    """Updates of m mock clients in ``dim`` dimensions, none longer than ``clip_norm``, without what is always zero.

    What most of ResNet18's last kernels do on small images is to multiply padding, and most words of a vocabulary
    occur with no client: leaving these columns out of the matrix changes no product with it.
    """

    blocks: Sequence[Block]
    clip_norm: float

    @classmethod
    def of(cls, updates: Iterable[Tensor], shapes: Sequence[Sequence[int]], *, clip_norm: float) -> Pool:
        """From updates (d,), one after the other, of a model whose parameters have these shapes."""
        check_positive("clip_norm", clip_norm)
        sizes = [torch.Size(shape) for shape in shapes]
        kept: list[list[tuple[Index, Tensor]]] = [[] for _ in sizes]
        for number, update in enumerate(updates):
            norm = float(flat.norms(update[None]))
            if not math.isfinite(norm) or norm > clip_norm * (1 + 1e-5):
                raise InputError(
                    f"update {number} of the pool has norm {norm:.6g}, where clipped ones have at most {clip_norm:.6g}"
                )
            pieces = update.split([size.numel() for size in sizes])
            for piece, size, parts in zip(pieces, sizes, kept, strict=True):
                index = _nonzero(piece.view(size))
                parts.append((index, piece.view(size)[index].clone()))
        if not kept or not kept[0]:
            raise InputError("the design pool is empty: a canary needs mock clients to differ from")
        pool = cls(blocks=[_block(size, parts) for size, parts in zip(sizes, kept, strict=True)], clip_norm=clip_norm)
        if not any(bool(block.rows.any()) for block in pool.blocks):
            raise InputError("every update of the design pool is zero: its clients learn nothing")
        return pool

    def __len__(self) -> int:
        return len(self.blocks[0].rows)

    @property
    def dim(self) -> int:
        """The number of parameters."""
        return sum(block.shape.numel() for block in self.blocks)

    @property
    def bytes(self) -> int:
        """What the updates take in memory."""
        return sum(block.rows.nbytes for block in self.blocks)

    def check_fits(self, model: nn.Module) -> None:
        """Refuse a model whose trainable parameters are not those of the updates."""
        shapes = [value.shape for value in model.parameters() if value.requires_grad]
        if shapes != [block.shape for block in self.blocks]:
            count = sum(shape.numel() for shape in shapes)
            raise InputError(
                f"the design pool was made with another model: its updates have {self.dim:,} numbers in "
                f"{len(self.blocks)} parameters, the model trains {count:,} in {len(shapes)}"
            )

    def dots(self, vectors: Tensor) -> Tensor:
        """(k, m) float64: the product of each of ``vectors`` (k, d) with each update."""
        found = torch.zeros(len(vectors), len(self), dtype=torch.float64)
        for block, piece in self._pieces(vectors):
            part = piece[(slice(None), *block.index)].reshape(len(vectors), -1)
            for some, rows in zip(part.split(_COLUMNS, 1), block.rows.split(_COLUMNS, 1), strict=True):
                found += some.double() @ rows.double().T
        return found

    def combined(self, weights: Tensor) -> Tensor:
        """(k, d) float64: Σ weightᵢ · updateᵢ for each row of ``weights`` (k, m)."""
        found = torch.zeros(len(weights), self.dim, dtype=torch.float64)
        for block, piece in self._pieces(found):
            parts = [weights.double() @ rows.double() for rows in block.rows.split(_COLUMNS, 1)]
            where = (slice(None), *block.index)
            piece[where] = torch.cat(parts, 1).view_as(piece[where])
        return found

    @cached_property
    def gram(self) -> Tensor:
        """(m, m) float64: the products of the updates with one another."""
        found = torch.zeros(len(self), len(self), dtype=torch.float64)
        for block in self.blocks:
            for rows in block.rows.split(_COLUMNS, 1):
                some = rows.double()
                found.addmm_(some, some.T)
        return found

    def _pieces(self, vectors: Tensor) -> Iterator[tuple[Block, Tensor]]:
        pieces = vectors.split([block.shape.numel() for block in self.blocks], 1)
        return ((block, piece.unflatten(1, block.shape)) for block, piece in zip(self.blocks, pieces, strict=True))


def pool_updates(
    model: nn.Module,
    pool: FederatedData,
    client: LocalTraining,
    clip_norm: float,
    *,
    clients: FederatedData | None = None,
    seed: int = 0,
) -> Pool:
    """What mock clients with the data of ``pool`` would send from ``model``, clipped.

    ``clients`` are those under audit, where known: a pool that shares any of theirs is refused, since a canary made to
    be unlike the very clients of the rounds would say nothing of an adversary who does not have their data.
    """
    if clients is not None:
        check_apart(pool, clients)
    shapes = [value.shape for value in model.parameters() if value.requires_grad]
    return Pool.of(updates(model, pool, client, clip_norm, seed=seed), shapes, clip_norm=clip_norm)


def updates(
    model: nn.Module, data: FederatedData, client: LocalTraining, clip_norm: float, *, seed: int = 0
) -> Iterator[Tensor]:
    """The clipped update (d,) of each client of ``data`` in turn, as a training would have it; valid until the next."""
    flat.check_module(model, private=True)
    check_positive("clip_norm", clip_norm)
    check_count("seed", seed, least=0)
    loop = Loop(model, data.task, client)  # the others are for many clients at once
    weights = flat.parameter_vector(model)
    for i, name in enumerate(data.names):
        with one_thread():
            part = Client(data.client(i), 1.0, partial(generator, seed, "batches", i))
            found = loop.clipped_sum(weights, [part], clip_norm, torch.empty_like(weights))
        if not math.isfinite(found.norms[0]):
            raise InputError(f"the update of client {name!r} is not finite: lower the clients' learning rate")
        yield found.total


def check_apart(pool: FederatedData, clients: FederatedData) -> None:
    """Refuse a pool that shares examples with ``clients``, as far as that shows: by the same rows of the same array."""
    if not np.shares_memory(pool.inputs, clients.inputs):
        return
    shared = len(np.intersect1d(_addresses(pool), _addresses(clients)))
    if shared:
        raise InputError(
            f"{shared:,} of {len(pool.indices):,} examples of the design pool are those of clients under audit: set "
            "users aside for the pool, with pool_fraction of coalmine.data.load for one"
        )


def _addresses(data: FederatedData) -> Ints:
    start = data.inputs.__array_interface__["data"][0]
    return np.asarray(start + data.indices * data.inputs.strides[0])


def _nonzero(piece: Tensor) -> Index:
    """The part outside which a parameter's update is zero: a box of taps, or rows."""
    if piece.ndim == 4:
        used = piece.flatten(0, 1).ne(0).any(0)
        sides = [used.any(1).nonzero()[:, 0], used.any(0).nonzero()[:, 0]]
        spans = [slice(int(side[0]), int(side[-1]) + 1) if len(side) else slice(0, 0) for side in sides]
        return (slice(None), slice(None), *spans)
    if piece.ndim == 2:
        return (piece.ne(0).any(1).nonzero()[:, 0],)
    return ()


def _block(size: torch.Size, parts: list[tuple[Index, Tensor]]) -> Block:
    """All updates of a parameter, of the part that some of them touch; ``parts`` is used up."""
    index = _union([index for index, _ in parts], size)
    shape = torch.empty(size, device="meta")[index].shape
    if shape == size or (len(size) == 2 and shape.numel() > (1 - _WORTH) * size.numel()):
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
    return Block(size, index, rows.flatten(1))


def _union(indices: list[Index], size: torch.Size) -> Index:
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
