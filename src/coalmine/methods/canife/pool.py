"""The design pool: clipped updates of mock clients, which a canary is to be unlike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor, nn

from coalmine.arrays import Ints
from coalmine.errors import InputError, check_count, check_positive
from coalmine.seeds import generator
from coalmine.simulation import flat
from coalmine.simulation.client import Client, LocalTraining
from coalmine.simulation.data.federated import FederatedData, Task
from coalmine.simulation.kernels.choice import promising_kernel
from coalmine.simulation.kernels.loop import Loop
from coalmine.simulation.kernels.stacked import Stacked
from coalmine.simulation.mechanisms.central import EqualWeights, Weighting
from coalmine.simulation.workers import one_thread

Index = tuple[slice | Tensor, ...]
"""A part of a parameter: some taps of a kernel, some rows of a table; ``()`` is all of it."""

# Rows that are zero in every update are left out where that spares at least this share of a parameter.
_WORTH = 0.1

# Columns turned to float64 at a time.
_COLUMNS = 1 << 16

# Numbers of a matrix so small that it may as well be kept whole in float64: it is asked for in every round.
_SMALL = 1 << 20


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
        if self._whole is not None:
            return vectors.double() @ self._whole.T
        found = torch.zeros(len(vectors), len(self), dtype=torch.float64)
        for block, piece in self._pieces(vectors):
            part = piece[(slice(None), *block.index)].reshape(len(vectors), -1)
            for some, rows in zip(part.split(_COLUMNS, 1), block.rows.split(_COLUMNS, 1), strict=True):
                found += some.double() @ rows.double().T
        return found

    def combined(self, weights: Tensor) -> Tensor:
        """(k, d) float64: Σ weightᵢ · updateᵢ for each row of ``weights`` (k, m)."""
        return weights.double() @ self._whole if self._whole is not None else self._combined(weights)

    def _combined(self, weights: Tensor) -> Tensor:
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

    @cached_property
    def spectrum(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues (m,), none below 0, and eigenvectors (m, m) of ``gram`` in squared clip norms."""
        values, vectors = torch.linalg.eigh(self.gram / self.clip_norm**2)
        return values.clamp(min=0), vectors

    @cached_property
    def _whole(self) -> Tensor | None:
        """(m, d) float64, where that is small."""
        if len(self) * self.dim > _SMALL:
            return None
        return self._combined(torch.eye(len(self), dtype=torch.float64))

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
    weighting: Weighting | None = None,
    seed: int = 0,
) -> Pool:
    """What mock clients with the data of ``pool`` would send from ``model``, clipped, and weighed by ``weighting``.

    ``clients`` are those under audit, where known: a pool that shares any of theirs is refused, since a canary made to
    be unlike the very clients of the rounds would say nothing of an adversary who does not have their data.
    """
    if clients is not None:
        check_apart(pool, clients)
    found = ClientUpdates(model, pool.task, client)
    return found.pool(flat.parameter_vector(model), pool, clip_norm, weighting=weighting, seed=seed)


def updates(
    model: nn.Module, data: FederatedData, client: LocalTraining, clip_norm: float, *, seed: int = 0
) -> Iterator[Tensor]:
    """The clipped update (d,) of each client of ``data`` in turn, as a training would have it."""
    return ClientUpdates(model, data.task, client).of(flat.parameter_vector(model), data, clip_norm, seed=seed)


class ClientUpdates:
    """What clients who train like ``client`` send, from any parameters of a module: all their local epochs, clipped.

    ``mock`` are clients whose updates will be asked for again and again: where it pays, and gives the same for the
    first of them, they train together.
    """

    def __init__(
        self, module: nn.Module, task: Task, client: LocalTraining, *, mock: FederatedData | None = None
    ) -> None:
        flat.check_module(module, private=True)
        self._loop = Loop(module, task, client)
        faster = None if mock is None else promising_kernel(module, mock, client)
        self._together, self._tried = faster if isinstance(faster, Stacked) else None, False

    def of(
        self,
        weights: Tensor,
        data: FederatedData,
        clip_norm: float,
        *,
        weighting: Weighting | None = None,
        seed: int = 0,
    ) -> Iterator[Tensor]:
        """The update (d,) of each client of ``data`` in turn, from the parameters ``weights``.

        It is clipped and, with ``weighting``, weighed as a mechanism would.
        """
        check_positive("clip_norm", clip_norm)
        for name, part in zip(data.names, self._clients(data, weighting, seed), strict=True):
            with one_thread():
                found = self._loop.clipped_sum(weights, [part], clip_norm, torch.empty_like(weights))
            _check_finite(name, found.norms[0])
            yield found.total

    def pool(
        self,
        weights: Tensor,
        data: FederatedData,
        clip_norm: float,
        *,
        weighting: Weighting | None = None,
        seed: int = 0,
    ) -> Pool:
        """The updates of all clients of ``data`` from the parameters ``weights``."""
        check_positive("clip_norm", clip_norm)
        found = None
        if self._together is not None:
            found = self._stacked(self._together, weights, data, clip_norm, self._clients(data, weighting, seed))
        rows = self.of(weights, data, clip_norm, weighting=weighting, seed=seed) if found is None else found
        return Pool.of(rows, self._loop.model.shapes, clip_norm=clip_norm)

    def _stacked(
        self, kernel: Stacked, weights: Tensor, data: FederatedData, clip_norm: float, clients: Sequence[Client]
    ) -> Tensor | None:
        """The updates (clients, d) of clients who train together; None, for good, if the kernel is not for this module.

        It is tried where it is first used: it must give what the loop gives for the first client, and neither draw
        random numbers nor change what the module keeps.
        """
        parts, norms, start, before = [], [], 0, torch.get_rng_state()
        try:
            with one_thread():
                for count in kernel.chunks(data.sizes.tolist()):
                    some, lengths = kernel.clipped_updates(weights, clients[start : start + count], clip_norm)
                    parts.append(some)
                    norms += lengths.tolist()
                    start += count
                found = torch.cat(parts)
                if not self._tried:
                    first = self._loop.clipped_sum(weights, clients[:1], clip_norm, torch.empty_like(weights)).total
                    self._tried = bool((found[0] - first).norm() <= 1e-3 * first.norm())
                    self._tried &= not kernel.model.buffers_changed and torch.equal(before, torch.get_rng_state())
        except (RuntimeError, TypeError, ValueError, AttributeError, LookupError):
            self._tried = False
        if not self._tried:
            self._together = None
            torch.set_rng_state(before)
            return None
        for name, norm in zip(data.names, norms, strict=True):
            _check_finite(name, norm)
        return found

    def _clients(self, data: FederatedData, weighting: Weighting | None, seed: int) -> list[Client]:
        check_count("seed", seed, least=0)
        counts = (weighting or EqualWeights()).weights(data.sizes)
        return [
            Client(data.client(i), float(count), partial(generator, seed, "batches", i))
            for i, count in enumerate(counts)
        ]


def _check_finite(name: str, norm: float) -> None:
    if not math.isfinite(norm):
        raise InputError(f"the update of client {name!r} is not finite: lower the clients' learning rate")


def check_apart(pool: FederatedData, clients: FederatedData) -> None:
    """Refuse a pool that shares examples with ``clients``, as far as that shows: by the same rows of the same array."""
    if not np.shares_memory(pool.inputs, clients.inputs):
        return
    shared = len(np.intersect1d(_addresses(pool), _addresses(clients)))
    if shared:
        raise InputError(
            f"{shared:,} of {len(pool.indices):,} examples of the design pool are those of clients under audit: set "
            "users aside for the pool, with pool_fraction of coalmine.simulation.data.load for one"
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
