"""Long vectors in pieces, by several threads at once: where a piece ends does not depend on how many there are."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch

_PIECE = 1 << 20  # numbers: what is done to one takes longer than to hand it to a thread


class Threads:
    """Works on vectors piece by piece; from ``count`` 2 on in as many threads, started at the first use.

    What is done to a piece must not depend on the others.
    """

    def __init__(self, count: int = 1) -> None:
        self._count = count
        self._pool: ThreadPoolExecutor | None = None

    def each(self, length: int, work: Callable[[slice], object], *, piece: int = _PIECE) -> None:
        """Call ``work`` for each ``piece`` of a vector of this length; the last may be shorter."""
        pieces = [slice(start, min(start + piece, length)) for start in range(0, length, piece)]
        if self._count == 1 or len(pieces) == 1:
            for some in pieces:
                work(some)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._count, initializer=partial(torch.set_num_threads, 1))
        for _ in self._pool.map(work, pieces):
            pass

    def close(self) -> None:
        """End the threads."""
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None
