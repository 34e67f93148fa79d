"""One run of the user's aggregation: the clients go in, the release comes out as one vector."""

from __future__ import annotations

import copy
import hashlib
import inspect
import pickle
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from coalmine.arrays import Floats
from coalmine.errors import InputError
from coalmine.replaying.clients import leaves, numbers_of, precision, words
from coalmine.replaying.isolation import Isolated
from coalmine.replaying.randomness import kept, set_to

# Numbers of earlier releases that are kept (32 MB).
_MOST_REMEMBERED = 1 << 22


@dataclass(frozen=True)
class Outcome:
    """What a run released.

    Args:
        vector: All numbers of the release, rounds one after another; None if there was no release.
        names: Name of each array of the release, and how many numbers it has.
        refusal: Why there was no release: what was raised.
        precision: Machine precision of the coarsest array.
    """

    vector: Floats | None
    names: tuple[tuple[str, int], ...] = ()
    refusal: str = ""
    precision: float = 1.2e-7


class Runner:
    """Runs an aggregation with the randomness that belongs to a seed, without any trace of earlier runs.

    Runs set the generators: use them inside ``leaves_no_trace``.

    Args:
        release: Function from a list of clients to what is released. Parameters without a default that are called
            ``seed`` or ``rng`` receive a seed or a NumPy generator.
        seed: Root of all seeds.
    """

    def __init__(self, release: Callable[..., Any], *, seed: int) -> None:
        if not callable(release):
            raise InputError(f"release must be a function of a list of clients, got {type(release).__name__}")
        self._isolated, self._seed = Isolated(release), seed
        self._asks = _asks(release)
        self._memory: dict[bytes, Outcome] | None = None
        self.calls, self.seconds = 0, 0.0

    def leaves_no_trace(self) -> AbstractContextManager[None]:
        """Leave all generators as they were, whatever runs in between."""
        return kept(self._isolated.generators)

    def remember(self) -> None:
        """From now on, do not run again what ran before: only if equal randomness gives equal releases."""
        self._memory = {}

    def run(self, rounds: Sequence[Sequence[Any]], draw: int = 0) -> Outcome:
        """Run one or more rounds.

        Args:
            rounds: The clients of each round.
            draw: Number of the random draw: equal numbers mean equal randomness.
        """
        key = None if self._memory is None else _digest(rounds, draw)
        if self._memory is None or key is None:
            return self._run(rounds, draw)
        if key not in self._memory:
            outcome = self._run(rounds, draw)
            size = 0 if outcome.vector is None else outcome.vector.size
            if len(self._memory) * size > _MOST_REMEMBERED:
                self._memory.clear()
            self._memory[key] = outcome
        return self._memory[key]

    def _run(self, rounds: Sequence[Sequence[Any]], draw: int) -> Outcome:
        with self._isolated.copied() as release:
            # Copied before the generators are set: copying must not draw.
            clients = [copy.deepcopy(list(members)) for members in rounds]
            with set_to((self._seed, draw), self._isolated.generators):
                outcomes = []
                for number, members in enumerate(clients):
                    self.calls += 1
                    start = time.perf_counter()
                    try:
                        released = release(members, **self._arguments(draw, number))
                    except (KeyboardInterrupt, SystemExit):
                        raise
                    except BaseException as error:
                        return Outcome(None, refusal=f"{type(error).__name__}: {error}"[:200])
                    finally:
                        self.seconds += time.perf_counter() - start
                    outcomes.append(_outcome(released))
                    if outcomes[-1].vector is None:
                        return outcomes[-1]
        vectors = [outcome.vector for outcome in outcomes if outcome.vector is not None]
        coarsest = max(outcome.precision for outcome in outcomes)
        return Outcome(np.concatenate(vectors), outcomes[0].names, precision=coarsest)

    def _arguments(self, draw: int, number: int) -> dict[str, Any]:
        if not self._asks:
            return {}
        sequence = np.random.SeedSequence([self._seed, draw, number, 2])
        values = {"seed": int(sequence.generate_state(1)[0]), "rng": np.random.default_rng(sequence)}
        return {name: values[name] for name in self._asks}


def _digest(rounds: Sequence[Sequence[Any]], draw: int) -> bytes | None:
    """Return a key of clients and a draw; None for clients that cannot be written as bytes."""
    try:
        return hashlib.blake2b(pickle.dumps((draw, [list(members) for members in rounds]), protocol=5)).digest()
    except Exception:  # pickle raises whatever the user's objects raise
        return None


def _asks(release: Callable[..., Any]) -> list[str]:
    """Return which of ``seed`` and ``rng`` a function needs."""
    try:
        parameters = list(inspect.signature(release).parameters.values())[1:]
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.name in ("seed", "rng") and p.default is p.empty]


def _outcome(released: Any) -> Outcome:
    """Return a release as one vector."""
    if released is None:
        return Outcome(None, refusal="no release")
    parts, names, coarsest = [], [], 0.0
    for path, leaf in leaves(released).items():
        if isinstance(leaf, str | bytes) or leaf is None:
            continue
        try:
            numbers = numbers_of(leaf).ravel()
        except (TypeError, ValueError):
            raise InputError(
                f"release must return arrays or numbers, in lists, dicts or dataclasses; got {type(leaf).__name__}"
                f"{f' at {words(path)}' if path else ''}"
            ) from None
        parts.append(numbers)
        names.append((words(path) or "output", numbers.size))
        coarsest = max(coarsest, precision(leaf))
    if not sum(part.size for part in parts):
        raise InputError(f"release must return numbers, got {type(released).__name__} without any")
    return Outcome(np.concatenate(parts), tuple(names), precision=coarsest)
