"""Several runs at a time: each in a process of its own, whose progress and errors appear in this one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from multiprocessing.connection import Connection, wait
from typing import Any

from coalmine.errors import InputError
from coalmine.progress import Relay, listening, relayed, track
from coalmine.runs.termination import Termination
from coalmine.usercode import blamed, describe_error

Work = Callable[[], object]
"""Something to do, without a result: it writes files."""

_PATIENCE = 60.0  # seconds that a process gets to save its round when it is told to stop


def do_all(work: Mapping[str, Work], *, workers: int, what: str) -> None:
    """Do all of the work, up to ``workers`` pieces of it at a time, and report progress.

    A piece that fails ends the others, as SIGTERM does: runs save their round and stop.

    Args:
        work: What to do, by name. With several workers each piece is done in a process of its own.
        workers: Number of processes; 1 means that everything is done in this one.
        what: Name of the work, for the progress bar.

    Raises:
        InputError: If a process fails with one, or dies.
    """
    if workers == 1:
        for piece in track(list(work.values()), what):
            piece()
        return
    with ExitStack() as stack:
        stack.enter_context(Termination().watched())
        running: dict[Connection[Any, Any], _Process] = {}
        stack.callback(lambda: _stop(list(running.values())))
        waiting = list(work.items())
        for _ in track(range(len(work)), what):
            while waiting and len(running) < workers:
                process = _Process(*waiting.pop(0))
                running[process.connection] = process
            _until_one_is_done(running)


def _until_one_is_done(running: dict[Connection[Any, Any], _Process]) -> None:
    while True:
        for connection in wait(list(running)):
            if running[connection].receive():  # type: ignore[index]
                running.pop(connection).join()  # type: ignore[call-overload]
                return


def _stop(processes: Sequence[_Process]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        process.join()


class _Process:
    """A piece of work in a process, which sends its progress and finally None or an exception."""

    def __init__(self, name: str, work: Work) -> None:
        # As for the workers of a training: fork needs no importable main module, and shares what is loaded.
        method = "fork" if "fork" in multiprocessing.get_all_start_methods() else "spawn"
        context: Any = multiprocessing.get_context(method)
        self.connection, child_end = context.Pipe(duplex=False)
        self._process = context.Process(target=_do, args=(work, child_end))  # not a daemon: it may have workers
        self._process.start()
        child_end.close()
        self._relay = Relay(name)

    def receive(self) -> bool:
        """Show a message of progress or a warning, or return True at the end; raise an exception of the work."""
        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            self._process.join(5)
            raise InputError(
                f"a process died with exit code {self._process.exitcode}, perhaps out of memory; run again to "
                "continue, with fewer workers if memory is short"
            ) from None
        if message is None:
            return True
        if isinstance(message, Warning):
            warnings.warn(message, stacklevel=2)
            return False
        if isinstance(message, Exception):
            raise message
        self._relay.show(message)
        return False

    def terminate(self) -> None:
        """Ask the process to stop."""
        self._process.terminate()

    def join(self) -> None:
        """Wait for the end of the process, and end it by force if it does not come."""
        self._relay.close()
        self._process.join(_PATIENCE)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self.connection.close()


def _do(work: Work, connection: Connection[Any, Any]) -> None:
    """Work in a child process."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the parent's handler is the parent's
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        with listening(relayed(connection.send)), warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: connection.send(message)
            work()
        connection.send(None)
    except (BrokenPipeError, KeyboardInterrupt):
        return
    except BaseException as error:
        # Tracebacks do not cross processes, so an error of the user's file is put into words here.
        ours = isinstance(error, Exception) and (isinstance(error, InputError) or not blamed(error))
        connection.send(error if ours else InputError(f"your code failed: {describe_error(error)}"))


def _end_with_parent() -> None:
    """End this process when the parent is gone, so that the sweep can be started again at once."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    # Sibling processes inherit the other end of the pipe that join waits for, so the parent's death may not close it.
    while os.getppid() == parent.pid and parent.is_alive():
        parent.join(0.1)
    os._exit(1)
