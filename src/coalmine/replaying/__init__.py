"""Replay: one client more, the same randomness.

`replay` runs an aggregation with and without one client and compares what is released. docs/replay.md explains it.

Where to find what: `api` has the function, `search` goes through all clients and rounds to try. `extras` makes clients
(`clients` knows what they are made of, `absent` finds what stands for an absent one), `quiet_places` finds where noise
looks small. `running` runs the aggregation once, with the generators of `randomness` and without leaving a trace
(`isolation`). `movement` compares two runs and `noise` measures what covers their difference; `state_search` and
`state` look for noise that the release keeps. `judge` turns that into findings, `shrinking` finds the smallest example,
and `result` is what the user gets. `mechanisms` replays those of `coalmine.simulation`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coalmine.lazy import lazy_names

if TYPE_CHECKING:
    from coalmine.replaying.api import replay as replay
    from coalmine.replaying.clients import Client as Client
    from coalmine.replaying.mechanisms import replay_mechanism as replay_mechanism
    from coalmine.replaying.result import Moved as Moved
    from coalmine.replaying.result import Replay as Replay

# Lazy, because replaying a NumPy function needs no torch, which the mechanisms of `coalmine.simulation` import.
__getattr__, __all__ = lazy_names(
    __name__,
    {
        "coalmine.replaying.api": ("replay",),
        "coalmine.replaying.clients": ("Client",),
        "coalmine.replaying.mechanisms": ("replay_mechanism",),
        "coalmine.replaying.result": ("Moved", "Replay"),
    },
)
