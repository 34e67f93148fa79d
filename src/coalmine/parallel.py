"""One way to run independent parts: here or in several processes (loky), with results as they finish.

A part is a function of one argument. What it returns must not depend on other parts, so the results are the same with
any number of workers. What is to survive a kill, the caller or the part itself writes to disk.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from threadpoolctl import threadpool_limits

from coalmine.errors import InputError
from coalmine.usercode import blamed, describe_error

Part = TypeVar("Part")
Result = TypeVar("Result")

_watched_parent: int | None = None  # in a worker: the process that it ends with


def finished(
    work: Callable[[Part], Result], parts: Mapping[str, Part], *, workers: int = 1
) -> Iterator[tuple[str, Result]]:
    """Do all parts, and yield the name and the result of each as soon as it is done.

    A part that fails stops the others: its exception is raised here. Workers end with this process, however it ends.

    Args:
        work: What to do. With several workers it is pickled, so it has to be importable.
        parts: Its argument by name.
        workers: Number of processes, each of one thread; 1 means that everything is done in this one.

    Raises:
        InputError: If a worker dies, or if the user's own code failed in one.

    Example:
        >>> dict(finished(abs, {"a": -1, "b": 2}))
        {'a': 1, 'b': 2}
    """
    if workers == 1 or len(parts) <= 1:
        for name, part in parts.items():
            with single_thread():
                result = work(part)
            yield name, result
        return
    import joblib
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    # loky replaces workers that have grown by 300 MB, which torch and drawing charts take, and warns of it.
    warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
    calls = [joblib.delayed(_in_worker)(work, name, part, os.getpid()) for name, part in parts.items()]
    with joblib.parallel_config("loky", inner_max_num_threads=1):
        outcomes = joblib.Parallel(workers, return_as="generator_unordered", batch_size=1)(calls)
    try:
        for name, result, messages in outcomes:
            for message in messages:
                warnings.warn(message, stacklevel=2)
            yield name, result
    except TerminatedWorkerError as error:
        raise InputError(
            "a worker process died, perhaps out of memory; run again to continue, with fewer workers if memory is short"
        ) from error
    finally:
        with warnings.catch_warnings():  # joblib warns of parts that are stopped
            warnings.simplefilter("ignore")
            outcomes.close()


def _in_worker(
    work: Callable[[Part], Result], name: str, part: Part, parent: int
) -> tuple[str, Result, list[Warning | str]]:
    """Do one part in a worker, and return its name, its result and the warnings it gave."""
    global _watched_parent  # noqa: PLW0603
    if _watched_parent is None:
        _watched_parent = parent
        end_with(parent)
    with warnings.catch_warnings(record=True) as caught, single_thread():
        try:
            result = work(part)
        except BaseException as error:
            # Tracebacks do not cross processes, so an error of the user's file is put into words here.
            if isinstance(error, InputError) or not blamed(error):
                raise
            raise InputError(f"your code failed: {describe_error(error)}") from None
    return name, result, [warning.message for warning in caught]


def end_with(parent: int) -> None:
    """End this worker as soon as its parent was killed; otherwise it would go on, and keep its directory locked."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def single_thread() -> Iterator[None]:
    """Compute with one thread in NumPy's linear algebra, and in torch if loaded, whatever OMP_NUM_THREADS says.

    More threads change the order of summation, and with it the last bits of results.
    """
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
