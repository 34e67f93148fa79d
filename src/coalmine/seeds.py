"""Random streams without state: each a function of the root seed, what it is for, and counters such as the round.

Nothing has to be saved to resume, workers need not agree on an order, and an audit cannot disturb a training's draws.
"""

from __future__ import annotations

from functools import lru_cache

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
)


def generator(seed: int, purpose: str, *counters: int) -> np.random.Generator:
    """The stream of ``purpose`` at up to three ``counters``: Philox, keyed by the seed, at a counter of its own.

    Streams of different counters never meet: the generator counts its own draws in the word below them.
    """
    words = [0, *counters, *[0] * (3 - len(counters))]
    return np.random.Generator(np.random.Philox(key=_key(seed, purpose), counter=words))


@lru_cache(maxsize=64)
def _key(seed: int, purpose: str) -> int:
    words = np.random.SeedSequence(check_count("seed", seed, least=0), spawn_key=(PURPOSES.index(purpose),))
    return int.from_bytes(words.generate_state(4, np.uint32).tobytes(), "little")
