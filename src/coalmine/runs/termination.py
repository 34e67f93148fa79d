"""SIGTERM, as batch systems send it before they kill a process: a run finishes its round, saves it, and stops."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from coalmine.errors import Terminated


class Termination:
    """Raises `Terminated` on SIGTERM while it is watched for; work within `deferred` asks whether it was ``requested``.

    A second SIGTERM is never deferred. Where the process has a handler of its own, or outside its main thread, nothing
    changes.

    Attributes:
        requested: Whether SIGTERM has come.
    """

    def __init__(self) -> None:
        self.requested = self._deferred = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch for SIGTERM."""
        main = threading.current_thread() is threading.main_thread()
        if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
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

    def _received(self, number: int, frame: FrameType | None) -> Any:
        again, self.requested = self.requested, True
        if again or not self._deferred:
            raise Terminated("stopped by SIGTERM")
