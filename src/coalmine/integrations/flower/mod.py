"""A mod for the ClientApp, with which nodes of a real deployment send canaries."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message

from coalmine.errors import InputError
from coalmine.integrations.flower.arrays import Layout
from coalmine.methods.one_shot.canaries import update_canaries
from coalmine.methods.one_shot.families import UpdateCanaries
from coalmine.protocol import Vector

_SIZES = ("coalmine.dim", "coalmine.count", "coalmine.seed")
_FAMILY, _CANARY, _NORM, _KEYS = "coalmine.family", "coalmine.canary", "coalmine.norm", "coalmine.parameters"


def canary_mod(message: Message, context: Context, call_next: Any) -> Message:
    """Reply with a canary if the message asks for one, and with what the client trained otherwise.

    The client trains in both cases, so that its reply has the usual names and metrics. List this mod last, nearest to
    the app, so that mods that clip or add noise treat the canary like an update.

    Example:
        >>> from flwr.clientapp import ClientApp
        >>> app = ClientApp(mods=[canary_mod])
    """
    asked = next((record for record in message.content.config_records.values() if _CANARY in record), None)
    if asked is None:
        return call_next(message, context)
    received = next(iter(message.content.array_records.values()))
    # A copy: messages of Flower's legacy workflows have no shapes, and their clients empty what they read.
    before = ArrayRecord({key: Array(array.numpy()) for key, array in received.items()})
    # Before the client trains, which may change what it received.
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


def canary_request(
    config: ConfigRecord, canaries: UpdateCanaries, family: str, layout: Layout, *, canary: int | None, norm: float
) -> ConfigRecord:
    """Return a copy of ``config`` that asks a node for a canary.

    The message carries the numbers that a canary is made from, never its vector.

    Args:
        config: The configuration that the strategy sends.
        canaries: The canaries.
        family: Their family.
        layout: The layout of the model.
        canary: Number of the canary, or None for a held-out one, which only takes a small step.
        norm: Norm of the canary, or of the step.
    """
    sizes = dict(zip(_SIZES, (canaries.dim, canaries.count, canaries.seed), strict=True))
    wanted = {_FAMILY: family, _CANARY: -1 if canary is None else canary, _NORM: norm, _KEYS: "\n".join(layout.shapes)}
    return ConfigRecord({**config, **sizes, **wanted})


def _update(asked: ConfigRecord) -> Vector | None:
    """Return the update of the canary that was asked for, or None if it is held out."""
    if asked[_CANARY] < 0:
        return None
    try:
        canaries = _canaries(str(asked[_FAMILY]), *(int(asked[size]) for size in _SIZES))
    except KeyError as error:
        raise InputError(
            f"the request for a canary lacks {error}: server and client need the same version of coalmine"
        ) from None
    return canaries.canary(int(asked[_CANARY])) * np.float32(asked[_NORM])


# A host sends several canaries of the same audit in every round.
@lru_cache(maxsize=4)
def _canaries(family: str, dim: int, count: int, seed: int) -> UpdateCanaries:
    return update_canaries(family, dim=dim, count=count, seed=seed)
