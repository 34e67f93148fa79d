"""How far something is, said to whoever listens: loops name themselves, and the command line decides what to show.

Nobody listens unless :func:`listening` says so; then :func:`track` costs nothing worth measuring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")

Advance = Callable[[int, str], None]
"""Told how much is done, and a few words on where it stands."""

Listener = Callable[[str, int], tuple[Advance, Callable[[], None]]]
"""Told what begins and how long it is; gives what to call as it goes on, and at its end."""

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def listening(listener: Listener | None) -> Iterator[None]:
    """Let ``listener`` hear of all that is tracked inside."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextmanager
def reporting(what: str, total: int, done: int = 0) -> Iterator[Advance]:
    """Say that ``what`` begins, of ``total`` steps, some ``done``; gives what to call as it goes on."""
    listener = _listener.get()
    if listener is None:
        yield lambda done, words: None
        return
    advance, end = listener(what, total)
    try:
        if done:
            advance(done, "")
        yield advance
    finally:
        end()


def track(work: Iterable[Item], what: str, total: int | None = None) -> Iterator[Item]:
    """Go through ``work``, and say how far it is; ``total`` where it has no length."""
    length = len(work) if total is None and isinstance(work, Sized) else total or 0
    with reporting(what, length) as advance:
        for done, item in enumerate(work, start=1):
            yield item
            advance(done, "")
