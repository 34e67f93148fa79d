"""SIGTERM, as batch systems send it before they kill a process: a run finishes its round, saves it, and stops.

They wait for some 30 seconds. A round that takes longer than a third of that is given up.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from coalmine.errors import Terminated

_PATIENCE = 10.0  # seconds


class Termination:
    """Raises `Terminated` on SIGTERM while it is watched for; work within `deferred` asks whether it was ``requested``.

    A second SIGTERM is never deferred, and a first one for ten seconds at most. Where the process has a handler of its
    own, outside its main thread, and on Windows, nothing changes.

    Attributes:
        requested: Whether SIGTERM has come.
    """

    def __init__(self) -> None:
        self.requested = self._deferred = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch for SIGTERM."""
        main = threading.current_thread() is threading.main_thread()
        timed = hasattr(signal, "setitimer")  # not on Windows
        if not main or not timed or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            yield
            return
        signal.signal(signal.SIGTERM, self._received)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Let work go on until it looks at ``requested``."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False
            if self.requested:
                signal.setitimer(signal.ITIMER_REAL, 0)

    def _received(self, number: int, frame: FrameType | None) -> Any:
        again, self.requested = self.requested, True
        if again or not self._deferred:
            raise Terminated("stopped by SIGTERM")
        signal.signal(signal.SIGALRM, self._waited)
        signal.setitimer(signal.ITIMER_REAL, _PATIENCE)

    def _waited(self, number: int, frame: FrameType | None) -> Any:
        if self._deferred:
            raise Terminated("stopped by SIGTERM in the middle of a round, which is run again on resuming")
