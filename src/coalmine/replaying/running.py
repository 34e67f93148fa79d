"""One run of the user's aggregation: the clients go in, the release comes out as one vector."""

from __future__ import annotations

import copy
import hashlib
import inspect
import pickle
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from coalmine.arrays import Floats
from coalmine.errors import InputError
from coalmine.replaying.clients import leaves, numbers_of, precision, words
from coalmine.replaying.isolation import Isolated
from coalmine.replaying.randomness import kept, set_to

# Random draws that there are, if they do not take more rounds.
_MOST_DRAWS = 1 << 30

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
        self.idle: list[Any] | None = None
        self.most_draws = _MOST_DRAWS
        self.calls, self.seconds = 0, 0.0

    def leaves_no_trace(self) -> AbstractContextManager[None]:
        """Leave all generators as they were, whatever runs in between."""
        return kept(self._isolated.generators)

    def remember(self) -> None:
        """From now on, do not run again what ran before: only if equal randomness gives equal releases."""
        self._memory = {}

    def vary_state(self, idle: Sequence[Any], *, most_draws: int) -> None:
        """From now on, let draw k begin after k rounds of these clients, for a release with noise in its state.

        Args:
            idle: The clients.
            most_draws: How many draws there are.
        """
        self.idle, self._memory, self.most_draws = list(idle), None, most_draws

    @property
    def state_varies(self) -> bool:
        """Whether draws differ in the state that they begin with."""
        return self.idle is not None

    def successive(self, members: Sequence[Any], seeds: Sequence[int | None]) -> list[Floats]:
        """Return the releases of successive rounds of the same clients; fewer if one of them fails.

        Args:
            members: The clients of each round.
            seeds: For each round, the random draw that generators are set to before it; None lets them run on.
        """
        return [vectors[0] for vectors in self.branching(members, seeds)]

    def branching(
        self, members: Sequence[Any], seeds: Sequence[int | None], branches: Sequence[int] = ()
    ) -> list[list[Floats]]:
        """Return the releases of successive rounds, each followed by what it would have been after other random draws.

        Args:
            members: The clients of each round.
            seeds: As for `successive`.
            branches: Further random draws to try in each round, each on a copy: the next round continues from the
                round without them.

        Returns:
            For each round its release and those of the branches; fewer rounds if one of them fails.
        """
        releases: list[list[Floats]] = []
        clients = [copy.deepcopy(list(members)) for _ in seeds]  # copying must not draw
        with self._isolated.copied() as release, ExitStack() as stack:
            draw = number = 0
            for present, seed in zip(clients, seeds, strict=True):
                number += 1
                others = [self._branch(release, members, branch) for branch in branches]
                if seed is not None:
                    draw, number = seed, 0
                    stack.enter_context(set_to((self._seed, draw), self._isolated.generators))
                outcome = self._call(release, present, self._arguments(draw, number))
                vectors = [each.vector for each in (outcome, *others) if each.vector is not None]
                size = (releases or [vectors])[0][0].size if vectors else 0
                if len(vectors) <= len(branches) or any(vector.size != size for vector in vectors):
                    break
                releases.append(vectors)
        return releases

    def _branch(self, release: Callable[..., Any], members: Sequence[Any], draw: int) -> Outcome:
        """Run one round of a copy of ``release``, which itself goes on afterwards as if nothing had happened."""
        owned = self._isolated.generators
        with kept(owned), self._isolated.copied(release) as twin:
            present = copy.deepcopy(list(members))
            with set_to((self._seed, draw), owned):
                return self._call(twin, present, self._arguments(draw, 0))

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
        ahead = 0 if self.idle is None else draw
        with self._isolated.copied() as release, ExitStack() as stack:
            # Copied before the generators are set: copying must not draw.
            clients = [copy.deepcopy(list(members)) for members in [*[self.idle or []] * ahead, *rounds]]
            outcomes: list[Outcome] = []
            for number, members in enumerate(clients):
                if number in (0, ahead):  # rounds ahead have the same randomness in all draws
                    seed = draw if number == ahead else 0
                    stack.enter_context(set_to((self._seed, seed), self._isolated.generators))
                outcomes.append(self._call(release, members, self._arguments(seed, number)))
                if outcomes[-1].vector is None:
                    return outcomes[-1]
        seen = outcomes[ahead:]
        vectors = [outcome.vector for outcome in seen if outcome.vector is not None]
        coarsest = max(outcome.precision for outcome in seen)
        return Outcome(np.concatenate(vectors), seen[0].names, precision=coarsest)

    def _call(self, release: Callable[..., Any], members: list[Any], arguments: dict[str, Any]) -> Outcome:
        """Run one round."""
        self.calls += 1
        start = time.perf_counter()
        try:
            released = release(members, **arguments)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            return Outcome(None, refusal=f"{type(error).__name__}: {error}"[:200])
        finally:
            self.seconds += time.perf_counter() - start
        return _outcome(released)

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
