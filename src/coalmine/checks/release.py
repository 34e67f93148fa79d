"""One run of the user's aggregation: the clients go in, the release comes out as one vector."""

from __future__ import annotations

import copy
import hashlib
import inspect
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coalmine.arrays import Floats
from coalmine.checks.clients import dotted, leaves, numbers_of, precision
from coalmine.checks.isolation import Isolated
from coalmine.errors import InputError

# Numbers of earlier releases that are kept (32 MB).
_MOST_REMEMBERED = 1 << 22


@dataclass(frozen=True)
class Outcome:
    """What a run released.

    Args:
        vector: All numbers of the release, rounds one after another; empty if there was no release.
        sizes: Name of each array of one round's release, and how many numbers it has.
        refusal: Why there was no release: what was raised.
        precision: Machine precision of the coarsest array.
    """

    vector: Floats
    sizes: dict[str, int]
    refusal: str = ""
    precision: float = 1.2e-7

    @property
    def is_finite(self) -> bool:
        """Whether there was a release, and all of it is finite."""
        return not self.refusal and bool(np.isfinite(self.vector).all())


class Runner:
    """Runs an aggregation with the randomness that belongs to a seed, without any trace of earlier runs.

    Runs set the generators: use them inside ``isolated.leaves_no_trace()``.

    Args:
        release: Function from a list of clients to what is released. Parameters without a default that are called
            ``seed`` or ``rng`` receive a seed or a NumPy generator.
        seed: Root of all seeds.
    """

    def __init__(self, release: Callable[..., Any], *, seed: int) -> None:
        if not callable(release):
            raise InputError(f"release must be a function of a list of clients, got {type(release).__name__}")
        self.isolated, self._seed = Isolated(release), seed
        try:
            parameters = list(inspect.signature(release).parameters.values())[1:]
        except (TypeError, ValueError):  # built-in functions may have no signature
            parameters = []
        self._asks = [p.name for p in parameters if p.name in ("seed", "rng") and p.default is p.empty]
        self._memory: dict[bytes, Outcome] = {}
        self.remembers = False
        self.calls, self.seconds = 0, 0.0

    def run(self, rounds: Sequence[Sequence[Any]], draw: int = 0) -> Outcome:
        """Run one or more rounds, or return what the same run released before.

        Args:
            rounds: The clients of each round.
            draw: Number of the random draw: equal numbers mean equal randomness.
        """
        try:
            content = pickle.dumps((draw, [list(members) for members in rounds]), protocol=5)
            key = hashlib.blake2b(content).digest()
        except Exception:  # pickle raises whatever the user's objects raise
            return self._run(rounds, draw)
        if not self.remembers or key not in self._memory:
            outcome = self._run(rounds, draw)
            if len(self._memory) * outcome.vector.size > _MOST_REMEMBERED:
                self._memory.clear()
            self._memory[key] = outcome
        return self._memory[key]

    def _run(self, rounds: Sequence[Sequence[Any]], draw: int) -> Outcome:
        outcomes: list[Outcome] = []
        with self.isolated.copied() as release:
            clients = copy.deepcopy([list(members) for members in rounds])  # before seeding: copying must not draw
            with self.isolated.seeded(self._seed, draw):
                for number, members in enumerate(clients):
                    sequence = np.random.SeedSequence([self._seed, draw, number, 2])
                    values = {"seed": int(sequence.generate_state(1)[0]), "rng": np.random.default_rng(sequence)}
                    outcomes.append(self._call(release, members, {name: values[name] for name in self._asks}))
                    if outcomes[-1].refusal:
                        return outcomes[-1]
        vector = np.concatenate([outcome.vector for outcome in outcomes])
        return Outcome(vector, outcomes[0].sizes, precision=max(outcome.precision for outcome in outcomes))

    def _call(self, release: Callable[..., Any], members: list[Any], arguments: dict[str, Any]) -> Outcome:
        """Run one round."""
        self.calls += 1
        start = time.perf_counter()
        try:
            released = release(members, **arguments)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            return Outcome(np.empty(0), {}, refusal=f"{type(error).__name__}: {error}"[:200])
        finally:
            self.seconds += time.perf_counter() - start
        if released is None:
            return Outcome(np.empty(0), {}, refusal="no release")
        parts: dict[str, Floats] = {}
        coarsest = 0.0
        for path, leaf in leaves(released).items():
            if isinstance(leaf, str | bytes) or leaf is None:
                continue
            try:
                parts[dotted(path) or "output"] = numbers_of(leaf).ravel()
            except (TypeError, ValueError):
                raise InputError(
                    "release must return arrays or numbers, in lists, dicts or dataclasses; got "
                    f"{type(leaf).__name__} at {dotted(path) or 'the top'}"
                ) from None
            coarsest = max(coarsest, precision(leaf))
        if not sum(part.size for part in parts.values()):
            raise InputError(f"release must return numbers, got {type(released).__name__} without any")
        sizes = {name: part.size for name, part in parts.items()}
        return Outcome(np.concatenate(list(parts.values())), sizes, precision=coarsest)
