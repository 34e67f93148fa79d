"""A mod for the ClientApp, with which nodes of a real deployment send canaries."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message

from coalmine.integrations.flower.arrays import Layout
from coalmine.methods.one_shot.canaries import update_canaries
from coalmine.methods.one_shot.families import UpdateCanaries

_PREFIX = "coalmine."  # of our keys in the configuration that a message carries

# A host sends several canaries of the same audit in every round.
_cached_canaries = lru_cache(maxsize=4)(update_canaries)


def canary_mod(message: Message, context: Context, call_next: Any) -> Message:
    """Reply with a canary if the message asks for one, and with what the client trained otherwise.

    The client trains in both cases, so that its reply has the usual names and metrics. List this mod last, nearest to
    the app, so that mods that clip or add noise treat the canary like an update.

    Example:
        >>> from flwr.clientapp import ClientApp
        >>> app = ClientApp(mods=[canary_mod])
    """
    asked: dict[str, Any] = {}
    for record in message.content.config_records.values():
        asked |= {key.removeprefix(_PREFIX): value for key, value in record.items() if key.startswith(_PREFIX)}
    if not asked:
        return call_next(message, context)
    received = next(iter(message.content.array_records.values()))
    # A copy: messages of Flower's legacy workflows have no shapes, and their clients empty what they read.
    before = ArrayRecord({key: Array(array.numpy()) for key, array in received.items()})
    layout = Layout({key: tuple(before[key].shape) for key in asked["parameters"].split("\n")})
    if asked["canary"] < 0:  # held out
        sent = layout.nudged(before, asked["norm"])
    else:
        canaries = _cached_canaries(asked["family"], dim=asked["dim"], count=asked["count"], seed=asked["seed"])
        sent = layout.moved(before, canaries.canary(asked["canary"]) * np.float32(asked["norm"]))
    reply = call_next(message, context)
    if reply.has_content():
        reply.content[next(iter(reply.content.array_records))] = sent
    return reply


def canary_request(
    config: ConfigRecord, canaries: UpdateCanaries, family: str, layout: Layout, *, canary: int, norm: float
) -> ConfigRecord:
    """Return a copy of ``config`` that asks a node for a canary.

    The message carries the numbers that a canary is made from, never its vector.

    Args:
        config: The configuration that the strategy sends.
        canaries: The canaries.
        family: Their family.
        layout: The layout of the model.
        canary: Number of the canary, or -1 for a held-out one, which only takes a small step.
        norm: Norm of the canary, or of the step.
    """
    numbers = {"dim": canaries.dim, "count": canaries.count, "seed": canaries.seed, "canary": canary, "norm": norm}
    names = {"family": family, "parameters": "\n".join(layout.shapes)}
    return ConfigRecord({**config, **{_PREFIX + key: value for key, value in (numbers | names).items()}})
