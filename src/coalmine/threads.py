"""One thread for all arithmetic: more of them change the order of summation, and with it the last bits of results."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits


@contextmanager
def single_thread() -> Iterator[None]:
    """Compute with one thread in NumPy's linear algebra, and in torch if loaded, whatever OMP_NUM_THREADS says."""
    torch = sys.modules.get("torch")
    threads = None if torch is None else torch.get_num_threads()
    with threadpool_limits(1, user_api="blas"):
        if torch is not None:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            if torch is not None:
                torch.set_num_threads(threads)
