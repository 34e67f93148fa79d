"""Checks of who took part: do the clients of each round agree with the claimed sampling?

Clients are watched whose participation should be no likelier than anybody's: those of the round before, those who took
part more often than average, and those who took part recently. That they take part *more* often refutes the claim; that
they take part less often is a warning, since clients may leave. docs/checks.md has the proofs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Ints
from coalmine.claims.sampling import AtMost, Epochs, FixedSize, Poisson, Sampling
from coalmine.errors import InputError, check_count
from coalmine.results.finding import Check, Finding
from coalmine.stats.noise_tests import rate_p_value, repeated_size_gain

_WATCHED = ("the clients of the round before", "the clients with the most rounds so far", "recent clients")
_ARRAYS = ("ids", "times", "last", "hits", "trials", "sizes", "available", "repeats")
_TESTS = 2 + len(_WATCHED)  # rate, alike sizes, and one per group that is watched


class CohortRecord:
    """Counts of who took part; memory does not grow with the product of rounds and clients."""

    def __init__(self) -> None:
        self._index: dict[int, int] = {}
        self.times, self.last = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        self.hits, self.trials = np.zeros(len(_WATCHED), dtype=np.int64), np.zeros(len(_WATCHED), dtype=np.int64)
        self.sizes, self.available = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        # Largest number of rounds between two participations that was too small for an epoch, and repeated cohorts.
        self.repeats = np.zeros(1, dtype=np.int64)
        self.too_soon: dict[int, int] = {}

    @property
    def ids(self) -> Ints:
        """Identifiers of the clients seen so far, in the order of `times`."""
        return np.array(list(self._index), dtype=np.int64)

    @property
    def rounds(self) -> int:
        """Number of rounds recorded."""
        return len(self.sizes)

    def add(self, clients: int | Sequence[int], available: int, epoch: int | None = None) -> None:
        """Record a round.

        Args:
            clients: Identifiers of the clients that took part, or only their number.
            available: Number of clients that could have taken part.
            epoch: First round of the current epoch, if the claim has epochs.

        Raises:
            InputError: If more clients took part than were available, or one is listed twice.
        """
        size = check_count("clients", clients, least=0) if isinstance(clients, int | np.integer) else len(clients)
        if size > check_count("available", available):
            raise InputError(f"{size} clients took part, but only {available} were available")
        self.sizes, self.available = np.append(self.sizes, size), np.append(self.available, available)
        if not isinstance(clients, int | np.integer):
            self._add_clients(np.asarray(clients, dtype=np.int64), available, epoch)

    def _add_clients(self, clients: Ints, available: int, epoch: int | None) -> None:
        if len(np.unique(clients)) != len(clients):
            raise InputError("a client is listed twice in a round: list each once")
        round = self.rounds - 1
        for client in clients.tolist():
            self._index.setdefault(client, len(self._index))
        new = len(self._index) - len(self.times)
        self.times = np.append(self.times, np.zeros(new, dtype=np.int64))
        self.last = np.append(self.last, np.full(new, -1, dtype=np.int64))
        present = np.zeros(len(self.times), dtype=bool)
        present[[self._index[client] for client in clients.tolist()]] = True
        if round > 0:
            self._watch(present, round, available)
        if epoch is not None:
            again = present & (self.last >= epoch)
            self.too_soon |= {int(self.ids[i]): round for i in np.flatnonzero(again)}
        self.times += present
        self.last[present] = round

    def _watch(self, present: npt.NDArray[np.bool_], round: int, available: int) -> None:
        """Count how many of the groups that are watched took part. Each group depends on earlier rounds only."""
        usual = max(1.0, float(np.mean(self.sizes[:-1])))
        window = max(1, math.floor(available / usual) - 1)
        seen = self.times > 0
        groups = (
            seen & (self.last == round - 1),
            self.times > self.times.sum() / available,
            seen & (self.last >= round - window),
        )
        for number, group in enumerate(groups):
            self.trials[number] += int(group.sum())
            self.hits[number] += int((group & present).sum())
        before = groups[0]
        self.repeats += bool(before.sum() and np.array_equal(before, present))

    # Checkpoints

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return what a checkpoint keeps."""
        soon = np.array(list(self.too_soon.items()), dtype=np.int64).reshape(-1, 2)
        return {f"cohort_{name}": np.array(getattr(self, name)) for name in _ARRAYS} | {"cohort_soon": soon}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore a saved state."""
        self._index = {int(client): number for number, client in enumerate(state["cohort_ids"])}
        for name in _ARRAYS[1:]:
            setattr(self, name, np.array(state[f"cohort_{name}"]))
        self.too_soon = {int(client): int(round) for client, round in state["cohort_soon"]}


def cohort_findings(record: CohortRecord, sampling: Sampling | None, *, level: float) -> list[Finding]:
    """Return where participation contradicts the claimed sampling.

    Args:
        record: Who took part.
        sampling: The sampling that the claim assumes for clients, or None if it assumes none.
        level: Significance of all tests together.

    Example:
        >>> record = CohortRecord()
        >>> for _ in range(5):
        ...     record.add(range(30), available=120)
        >>> [finding.sentence for finding in cohort_findings(record, FixedSize(30, 120), level=1e-3)]
        ['The same 30 of 120 clients took part in all 5 rounds, which fixed:30/120 makes next to impossible']
    """
    if record.rounds == 0:
        return []
    match sampling:
        case Poisson() | FixedSize():
            return _drawn(record, sampling, level)
        case AtMost():
            return _too_often(record, sampling)
        case Epochs():
            return _too_soon(record, sampling)
    return _repeated(record)


def _drawn(record: CohortRecord, sampling: Poisson | FixedSize, level: float) -> list[Finding]:
    """Return contradictions to random draws."""
    findings: list[Finding] = []
    tests: list[_Test] = []
    rate, available = float(sampling.rate or 0.0), int(record.available.sum())
    total = int(record.sizes.sum())
    steady = True
    if isinstance(sampling, FixedSize):
        largest = int(np.argmax(record.sizes / record.available))
        size, of = int(record.sizes[largest]), int(record.available[largest])
        if size > (sampling.rate or 1.0) * of * (1 + 1e-12):
            sentence = f"{size} of {of} clients took part in round {largest}, more than {_named(sampling)} claims"
            findings.append(Finding(check=Check.PARTICIPATION, sentence=sentence))
        rate = total / available  # the sizes are public; who fills them is what is tested
        steady = len(np.unique(record.sizes)) == len(np.unique(record.available)) == 1
    else:
        mean = total / record.rounds
        sentence = f"{mean:.4g} clients took part per round on average, more than {_named(sampling)} claims"
        tests.append(_Test(rate_p_value(total, available, rate), sentence))
        tests.append(_alike_sizes(record, sampling))
    if steady and record.hits.size:
        tests += _groups(record, rate, sampling)
    low = [test for test in tests if _TESTS * test.p_value <= level]
    same = [test for test in low if test.same]
    return findings + [
        Finding(check=Check.PARTICIPATION, sentence=test.sentence, p_value=_TESTS * test.p_value, refutes=test.refutes)
        for test in same or low
    ]


@dataclass(frozen=True)
class _Test:
    """A p-value and what it means, whether that refutes the claim, and whether the same clients always take part."""

    p_value: float
    sentence: str
    refutes: bool = True
    same: bool = False


def _alike_sizes(record: CohortRecord, sampling: Sampling) -> _Test:
    """Return the test whether cohorts vary in size as random draws do."""
    gains = [
        repeated_size_gain(size, before, population, float(sampling.rate or 0.0))
        for before, size, population in zip(
            record.sizes[:-1].tolist(), record.sizes[1:].tolist(), record.available[1:].tolist(), strict=True
        )
    ]
    sentence = f"The number of clients per round varies too little for {_named(sampling)} ({_values(record.sizes)})"
    return _Test(math.exp(min(0.0, -sum(gains))), sentence)


def _groups(record: CohortRecord, rate: float, sampling: Sampling) -> list[_Test]:
    """Return the tests of each group of clients that was watched."""
    tests = []
    realized = float(record.sizes.sum() / record.available.sum())
    for number, name in enumerate(_WATCHED):
        hits, trials = int(record.hits[number]), int(record.trials[number])
        if not trials:
            continue
        more = rate_p_value(hits, trials, rate)
        if number == 0 and record.repeats[0] == record.rounds - 1:
            sentence = (
                f"The same {record.sizes[0]} of {record.available[0]} clients took part in all {record.rounds} rounds, "
                f"which {_named(sampling)} makes next to impossible"
            )
            tests.append(_Test(more, sentence, same=True))
        elif hits > rate * trials:
            sentence = (
                f"{name.capitalize()} took part more often than {_named(sampling)} allows ({hits / trials:.2g} of the "
                f"time instead of {rate:.2g})"
            )
            tests.append(_Test(more, sentence))
        else:
            sentence = (
                f"{name.capitalize()} took part less often than others ({hits / trials:.2g} of the time instead of "
                f"{realized:.2g}): they look shuffled, for which {_named(sampling)} is not computed, unless clients "
                "come and go"
            )
            tests.append(_Test(rate_p_value(trials - hits, trials, 1 - realized), sentence, refutes=False))
    return tests


def _too_often(record: CohortRecord, sampling: AtMost) -> list[Finding]:
    most = int(record.times.max(initial=0))
    if most <= sampling.times:
        return []
    return [
        Finding(
            check=Check.PARTICIPATION, sentence=f"A client took part in {most} rounds, but the claim is for {sampling}."
        )
    ]


def _too_soon(record: CohortRecord, sampling: Epochs) -> list[Finding]:
    if not record.too_soon:
        return []
    client, round = next(iter(record.too_soon.items()))
    sentence = (
        f"{len(record.too_soon)} clients took part twice in one of {sampling.epochs} epochs, such as "
        f"client {client} in round {round}."
    )
    return [Finding(check=Check.PARTICIPATION, sentence=sentence)]


def _repeated(record: CohortRecord) -> list[Finding]:
    """Warn if the same part of the clients always takes part, where the claim does not rely on sampling."""
    if record.rounds < 3 or record.repeats[0] < record.rounds - 1 or record.sizes[0] == record.available[0]:
        return []
    sentence = (
        f"The same {record.sizes[0]} of {record.available[0]} clients took part in all {record.rounds} rounds. A claim "
        "with amplification by sampling would not hold."
    )
    return [Finding(check=Check.PARTICIPATION, sentence=sentence, refutes=False)]


def _values(sizes: Ints) -> str:
    different = np.unique(sizes)
    if len(different) == 1:
        return f"always {different[0]}"
    return f"from {different[0]} to {different[-1]}"


def _named(sampling: Sampling) -> str:
    """Return the name of a sampling scheme, with no more digits than one reads."""
    return f"{sampling.name}:{sampling.rate:.4g}" if isinstance(sampling, Poisson) else str(sampling)
