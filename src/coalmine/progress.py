"""Progress reports without a user interface: loops announce themselves, and a listener decides what to show.

The command line installs its progress bar with `listening`. Without a listener, `track` and `reporting` cost
practically nothing.
"""

from __future__ import annotations

import math
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

Item = TypeVar("Item")

Advance = Callable[[int, str], None]
"""Called with the number of steps done so far, and a short text about the current state."""

Listener = Callable[[str, int], tuple[Advance, Callable[[], None]]]
"""Called with a task's name and its number of steps; returns the functions to call on progress and at the end."""

Track = Callable[[Iterable[Any]], Iterable[Any]]
"""Wraps an iterable to report progress through it, like `track` with its name filled in."""

_PATIENCE = 2.0  # seconds
_EVERY = 0.2  # seconds between updates of a notebook

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """Send all progress made inside this context to ``listener``; None silences it."""
    token = _listener.set(listener or _silent)
    try:
        yield
    finally:
        _listener.reset(token)


def _silent(what: str, total: int) -> tuple[Advance, Callable[[], None]]:
    return lambda done, text: None, lambda: None


@contextmanager
def shown_if_slow() -> Iterator[None]:
    """Show bars with the time left for work of more than two seconds, in a terminal or a notebook.

    Nothing is shown if somebody listens already, or if standard error is neither.
    """
    if _listener.get() is None and _in_notebook():
        bars: _Bars = _NotebookBars()
    elif _listener.get() is None and sys.stderr.isatty():
        bars = _TerminalBars()
    else:
        yield
        return
    try:
        with listening(bars.listener):
            yield
    finally:
        bars.close()


class _Bars(ABC):
    """Shows each task once it has taken a while."""

    def listener(self, what: str, total: int) -> tuple[Advance, Callable[[], None]]:
        """Listen to one task."""
        start, key = time.monotonic(), object()

        def advance(done: int, text: str) -> None:
            seconds = time.monotonic() - start
            if seconds > _PATIENCE:
                self.show(key, f"{what} ({text})" if text else what, done, total, seconds)

        return advance, lambda: self.remove(key)

    @abstractmethod
    def show(self, key: object, what: str, done: int, total: int, seconds: float) -> None:
        """Show that so many of ``total`` steps were done in so many seconds; a total of 0 is unknown."""

    @abstractmethod
    def remove(self, key: object) -> None:
        """Stop showing a task, if it was shown."""

    @abstractmethod
    def close(self) -> None:
        """Stop showing anything."""


class _TerminalBars(_Bars):
    """Bars of rich on standard error."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import Progress

        self._progress = Progress(console=Console(stderr=True), transient=True)
        self._tasks: dict[object, Any] = {}

    def show(self, key: object, what: str, done: int, total: int, seconds: float) -> None:
        if key not in self._tasks:
            self._progress.start()
            self._tasks[key] = self._progress.add_task(what, total=total or None)
        self._progress.update(self._tasks[key], completed=done, description=what)

    def remove(self, key: object) -> None:
        if key in self._tasks:
            self._progress.remove_task(self._tasks.pop(key))

    def close(self) -> None:
        self._progress.stop()


class _NotebookBars(_Bars):
    """Lines of text below a notebook's cell, updated in place. They need nothing but IPython."""

    def __init__(self) -> None:
        self._lines: dict[object, str] = {}
        self._display: Any = None
        self._drawn = -math.inf

    def show(self, key: object, what: str, done: int, total: int, seconds: float) -> None:
        left = f", {_duration(seconds * (total - done) / done)} left" if total and done else ""
        filled = 20 * done // total if total else 0
        bar = f"{'█' * filled}{'░' * (20 - filled)} {done:,} of {total:,}" if total else f"{done:,}"
        self._lines[key] = f"{what}: {bar}{left}"
        if time.monotonic() - self._drawn > _EVERY:
            self._draw()

    def remove(self, key: object) -> None:
        if self._lines.pop(key, None) is not None:
            self._draw()

    def close(self) -> None:
        self._lines.clear()
        if self._display is not None:
            self._draw()

    def _draw(self) -> None:
        from IPython.display import display

        self._drawn = time.monotonic()
        content = {"text/plain": "\n".join(self._lines.values())}
        if self._display is None:
            self._display = display(content, raw=True, display_id=True)
        else:
            self._display.update(content, raw=True)


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def _duration(seconds: float) -> str:
    """Return a time in words, such as ``"1:05 min"``."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02} h"


@contextmanager
def reporting(what: str, total: int) -> Iterator[Advance]:
    """Announce the task ``what`` of ``total`` steps, and yield its `Advance`."""
    advance, end = (_listener.get() or _silent)(what, total)
    try:
        yield advance
    finally:
        end()


def track(
    work: Iterable[Item], what: str, total: int | None = None, words: Callable[[], str | None] | None = None
) -> Iterator[Item]:
    """Yield the items of ``work`` and report progress.

    Args:
        work: The items.
        what: Name of the task.
        total: Number of items, if ``work`` has no length.
        words: Returns a short text about the current state; called after every item, if anybody listens.
    """
    length = len(work) if total is None and isinstance(work, Sized) else total or 0
    heard = _listener.get() not in (None, _silent)
    with reporting(what, length) as advance:
        for done, item in enumerate(work, start=1):
            yield item
            advance(done, (words() or "") if heard and words is not None else "")
