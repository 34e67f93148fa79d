"""Stateless random streams: each is a function of the root seed, its purpose, and counters such as the round.

A resumed run needs no saved generator state, workers need no agreed order, and an audit cannot disturb the random
draws of the training it watches.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coalmine.errors import check_count

PURPOSES = (
    "cohort",
    "batches",
    "noise",
    "clip-count",
    "central",
    "participation",
    "insertion",
    "phrases",
    "sharers",
    "references",
    "design",
    "coins",
    "aside",
    "checks",
    "canaries",
)
"""What streams are for. A purpose's position is part of its key: append new ones, never reorder."""

_KEYS: dict[tuple[int, str], int] = {}  # 128-bit keys of Philox by seed and purpose


def generator(seed: int, purpose: str, *counters: int) -> np.random.Generator:
    """Return the random stream for a purpose and up to three counters.

    The streams are Philox generators whose key is derived from seed and purpose. The counters fill the upper words of
    Philox's 256-bit counter and the generator advances the lowest one, so streams never overlap.

    Args:
        seed: Root seed of the run, at least 0.
        purpose: One of `PURPOSES`.
        counters: Up to three non-negative integers, such as the round and the client.

    Returns:
        A new generator; the same arguments always give the same stream.

    Example:
        >>> generator(1, "noise", 3).random() == generator(1, "noise", 3).random()
        True
        >>> generator(1, "noise", 3).random() == generator(1, "noise", 4).random()
        False
    """
    # A round asks for many streams of few keys, and deriving a key takes longer than a short stream's draws.
    if (seed, purpose) not in _KEYS:
        words = np.random.SeedSequence(check_count("seed", seed, least=0), spawn_key=(PURPOSES.index(purpose),))
        _KEYS[seed, purpose] = int.from_bytes(words.generate_state(4, np.uint32).tobytes(), "little")
    # The lowest word counts the draws of this stream: 2⁶⁴ of them would be needed to run into the next.
    counter = [0, *counters, *[0] * (3 - len(counters))]
    return np.random.Generator(np.random.Philox(key=_KEYS[seed, purpose], counter=counter))


def default_rng(seed: Any) -> np.random.Generator:
    """Return the generator of ``numpy.random.default_rng``, which code under audit may have replaced.

    Example:
        >>> default_rng(3).random() == np.random.default_rng(3).random()
        True
    """
    return np.random.Generator(np.random.PCG64(seed))
