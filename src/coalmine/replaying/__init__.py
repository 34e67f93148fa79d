"""Replay: one client more, the same randomness.

`replay` runs an aggregation with and without one client and compares what is released. docs/replay.md explains it.
"""

from coalmine.replaying.clients import Client
from coalmine.replaying.mechanisms import replay_mechanism
from coalmine.replaying.result import Moved, Replay
from coalmine.replaying.search import replay

__all__ = ["Client", "Moved", "Replay", "replay", "replay_mechanism"]
