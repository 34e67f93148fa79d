"""Nodes of a real deployment that send canaries: a mod for the ClientApp."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message

from coalmine.errors import InputError
from coalmine.integrations.flower.arrays import Layout
from coalmine.methods.one_shot.updates import UpdateCanaries, update_canaries

_SIZES = ("coalmine.dim", "coalmine.count", "coalmine.seed")
_FAMILY, _CANARY, _NORM, _KEYS = "coalmine.family", "coalmine.canary", "coalmine.norm", "coalmine.parameters"


def canary_mod(message: Message, context: Context, call_next: Any) -> Message:
    """Reply with the canary that the message asks for, in place of what the client trained; else do nothing.

    The client trains all the same, so that its reply has the names and metrics of any other. Put it last among the
    mods, nearest to the app, so that clipping and noise treat the canary as they treat an update.
    """
    asked = next((record for record in message.content.config_records.values() if _CANARY in record), None)
    if asked is None:
        return call_next(message, context)
    given = next(iter(message.content.array_records.values()))
    # Messages of Flower's old workflows know no shapes, and their clients empty what they read.
    before = ArrayRecord({key: Array(array.numpy()) for key, array in given.items()})
    update = _update(asked)
    reply = call_next(message, context)
    if reply.has_error():
        return reply
    name = next(iter(reply.content.array_records))
    layout = Layout({key: tuple(before[key].shape) for key in str(asked[_KEYS]).split("\n")})
    if update is None:
        reply.content[name] = layout.nudged(before, float(asked[_NORM]))
    else:
        reply.content[name] = layout.moved(before, update)
    return reply


def request(
    config: ConfigRecord, canaries: UpdateCanaries, family: str, layout: Layout, *, canary: int | None, norm: float
) -> ConfigRecord:
    """A copy of ``config`` that asks a node for a canary of length ``norm``; for a step so long where it is None.

    What travels are the numbers that a canary is made from, never the canary.
    """
    sizes = dict(zip(_SIZES, (canaries.dim, canaries.count, canaries.seed), strict=True))
    own = {_FAMILY: family, _CANARY: -1 if canary is None else canary, _NORM: norm, _KEYS: "\n".join(layout.shapes)}
    return ConfigRecord({**config, **sizes, **own})


def _update(asked: ConfigRecord) -> Any:
    if asked[_CANARY] < 0:
        return None
    try:
        canaries = _canaries(str(asked[_FAMILY]), *(int(asked[size]) for size in _SIZES))
    except KeyError as error:
        raise InputError(f"a message asks for a canary without {error}: the server has another version") from None
    return canaries.canary(int(asked[_CANARY])) * np.float32(asked[_NORM])


@lru_cache(maxsize=4)
def _canaries(family: str, dim: int, count: int, seed: int) -> UpdateCanaries:
    return update_canaries(family, dim=dim, count=count, seed=seed)
