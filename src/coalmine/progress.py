"""Progress reports without a user interface: loops announce themselves, and a listener decides what to show.

The command line shows bars or lines (`bars`, `listening`). Without a listener, `track` and `reporting` cost practically
nothing.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, TypeVar

Item = TypeVar("Item")

Advance = Callable[[int, str], None]
"""Called with the number of steps done so far, and a short text about the current state."""

Listener = Callable[[str, int], tuple[Advance, Callable[[], None]]]
"""Called with a task's name and its number of steps; returns the functions to call on progress and at the end."""

Track = Callable[[Iterable[Any]], Iterable[Any]]
"""Wraps an iterable to report progress through it, like `track` with its name filled in."""

_PATIENCE = 2.0  # seconds before work in Python shows a bar
_NEWS = 10  # how often `track` asks for words

# Nobody has said yet who listens (None), nobody does (empty), or one listener.
_listeners: ContextVar[Sequence[Listener] | None] = ContextVar("listeners", default=None)


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """Send all progress made inside this context to ``listener``; None silences it."""
    token = _listeners.set([] if listener is None else [listener])
    try:
        yield
    finally:
        _listeners.reset(token)


@contextmanager
def bars(patience: float = 0.0) -> Iterator[None]:
    """Show a bar with the remaining time for each task that takes longer than ``patience`` seconds."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    name, words = TextColumn("{task.description}"), TextColumn("{task.fields[words]}")
    columns = (name, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), words)
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:

        def listener(what: str, total: int) -> tuple[Advance, Callable[[], None]]:
            start = time.monotonic()
            # Hidden at first: a bar that flashes up for a moment is worse than none.
            task = shown.add_task(what, total=total or None, visible=not patience, words="")

            def advance(done: int, text: str) -> None:
                visible = time.monotonic() - start > patience
                shown.update(task, completed=done, words=text, visible=visible)

            return advance, lambda: shown.remove_task(task)

        with listening(listener):
            yield


@contextmanager
def shown_if_slow() -> Iterator[None]:
    """Show bars for work of more than two seconds, in a terminal or a notebook, unless somebody listens already."""
    ipython = sys.modules.get("IPython")
    notebook = ipython is not None and hasattr(ipython.get_ipython(), "kernel")
    # rich draws in notebooks by ipywidgets, and warns where it is missing.
    can_show = importlib.util.find_spec("ipywidgets") is not None if notebook else sys.stderr.isatty()
    with bars(_PATIENCE) if can_show and _listeners.get() is None else nullcontext():
        yield


@contextmanager
def reporting(what: str, total: int) -> Iterator[Advance]:
    """Announce the task ``what`` of ``total`` steps, and yield its `Advance`."""
    advance: Advance = lambda done, text: None  # noqa: E731
    end: Callable[[], None] = lambda: None  # noqa: E731
    for listener in _listeners.get() or ():
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
        words: Returns a short text about the current state; called about ten times in all, if anybody listens.
    """
    length = len(work) if total is None and isinstance(work, Sized) else total or 0
    # The words may take a while to find, such as a bound so far: they are not asked for in vain, nor after every item.
    said = words if words is not None and _listeners.get() else str
    text, pause = "", max(1, length // _NEWS)
    with reporting(what, length) as advance:
        for done, item in enumerate(work, start=1):
            yield item
            if done % pause == 0:
                text = said() or ""
            advance(done, text)
