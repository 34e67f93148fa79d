"""Progress reports without a user interface: loops announce themselves, and a listener decides what to show.

The command line installs its progress bar with `listening`. Without a listener, `track` and `reporting` cost
practically nothing.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import ExitStack, contextmanager
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

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """Send all progress made inside this context to ``listener``; None silences it."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def shown_if_slow() -> Iterator[None]:
    """Show a bar for work of more than two seconds, if nobody listens and standard error is a terminal."""
    if _listener.get() is not None or not sys.stderr.isatty():
        yield
        return
    with listening(_bar_if_slow):
        yield


def _bar_if_slow(what: str, total: int) -> tuple[Advance, Callable[[], None]]:
    start, bar = time.monotonic(), None

    def advance(done: int, text: str) -> None:
        nonlocal bar
        if bar is None and time.monotonic() - start > _PATIENCE:
            from rich.console import Console
            from rich.progress import Progress

            bar = Progress(console=Console(stderr=True), transient=True)
            bar.start()
            bar.add_task(what, total=total or None)
        if bar is not None:
            bar.update(bar.task_ids[0], completed=done, description=f"{what} ({text})")

    return advance, lambda: None if bar is None else bar.stop()


_EVERY = 0.2  # seconds between messages of progress from another process

Message = tuple[int, str, int] | tuple[int, int, str] | tuple[int]
"""Progress of another process: a number for the task with its name and steps, its progress, or its end."""


def relayed(send: Callable[[Message], object]) -> Listener:
    """Return a listener that sends progress to another process, where a `Relay` shows it."""
    tasks = itertools.count()

    def listener(what: str, total: int) -> tuple[Advance, Callable[[], None]]:
        task, last = next(tasks), -math.inf
        send((task, what, total))

        def advance(done: int, text: str) -> None:
            nonlocal last
            if time.monotonic() - last > _EVERY:
                last = time.monotonic()
                send((task, done, text))

        def end() -> None:
            send((task,))

        return advance, end

    return listener


class Relay:
    """Shows the progress that another process sent with `relayed`, to whoever listens here.

    Args:
        name: What the other process does, shown before its tasks.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: dict[int, tuple[ExitStack, Advance]] = {}

    def show(self, message: Message) -> None:
        """Show one message."""
        match message:
            case (int(task), str(what), int(total)):
                stack = ExitStack()
                self._tasks[task] = stack, stack.enter_context(reporting(f"{self._name}: {what}", total))
            case (int(task), int(done), str(text)):
                self._tasks[task][1](done, text)
            case (int(task),):
                self._tasks.pop(task)[0].close()

    def close(self) -> None:
        """End all tasks: the other process is gone."""
        while self._tasks:
            self._tasks.popitem()[1][0].close()


@contextmanager
def reporting(what: str, total: int) -> Iterator[Advance]:
    """Announce the task ``what`` of ``total`` steps, and yield its `Advance`."""
    listener = _listener.get()
    if listener is None:
        yield lambda done, text: None
        return
    advance, end = listener(what, total)
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
    heard = _listener.get() is not None
    with reporting(what, length) as advance:
        for done, item in enumerate(work, start=1):
            yield item
            advance(done, (words() or "") if heard and words is not None else "")
