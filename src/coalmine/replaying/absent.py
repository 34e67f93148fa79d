"""The client that stands for an absent one: its update is zero, or nearly zero where an aggregation refuses that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from coalmine.errors import InputError
from coalmine.replaying.extras import Extras
from coalmine.replaying.running import Runner


@dataclass(frozen=True)
class Absent:
    """The client that stands for an absent one.

    Args:
        client: The client.
        magnitude: Norm of its update, in clip norms: 0, unless an update of zero is refused.
        refusal: What became of an update of zero.
    """

    client: Any
    magnitude: float = 0.0
    refusal: str = ""


def find_absent(runner: Runner, extras: Extras, who: str) -> Absent:
    """Return a client that stands for an absent one."""
    clients, refusal = extras.clients, ""
    for magnitude in (0.0, 1e-5, 1e-3, 1e-2):
        client = near_zero(extras, magnitude)
        outcome = runner.run([[*clients, client]])
        if outcome.vector is not None and np.isfinite(outcome.vector).all():
            return Absent(client, magnitude, refusal)
        refusal = refusal or outcome.refusal or "the release is not finite"
    outcome = runner.run([clients])
    if outcome.vector is None:
        raise InputError(f"release fails on the clients as they are: {outcome.refusal}")
    raise InputError(f"release fails when one {who} joins the given ones: {refusal}")


def near_zero(extras: Extras, magnitude: float) -> Any:
    """Return a client whose update has one coordinate, where half precision does not round it to zero."""
    return extras.along(np.eye(1, extras.template.dim)[0], magnitude)
