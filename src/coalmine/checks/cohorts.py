"""Checks of who took part: do the clients of each round agree with the claimed sampling?

Clients are watched whose participation should be no likelier than anybody's: those of the round before, those who took
part more often than average, and those who took part recently. That they take part *more* often refutes the claim; that
they take part less often is a warning, since clients may leave. docs/checks.md has the proofs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from coalmine.claims.sampling import AtMost, Epochs, FixedSize, Poisson, Sampling
from coalmine.errors import InputError, check_count
from coalmine.results.verdict import Check, Finding
from coalmine.stats.exact_tests import rate_p_value, repeated_size_gain

_WATCHED = ("the clients of the round before", "the clients with the most rounds so far", "recent clients")
_ARRAYS = ("times", "last", "hits", "trials", "sizes", "available", "repeats")
_TESTS = 2 + len(_WATCHED)  # rate, alike sizes, and one per group that is watched


class CohortRecord:
    """Counts of who took part; memory does not grow with the product of rounds and clients."""

    def __init__(self) -> None:
        self.rounds = 0
        self._index: dict[int, int] = {}
        self.times, self.last = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        self.hits, self.trials = np.zeros(len(_WATCHED), dtype=np.int64), np.zeros(len(_WATCHED), dtype=np.int64)
        self.sizes, self.available = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        # Largest number of rounds between two participations that was too small for an epoch, and repeated cohorts.
        self.repeats = np.zeros(1, dtype=np.int64)
        self.too_soon: dict[int, int] = {}

    def add(self, clients: int | Sequence[int], available: int, epoch: int | None = None) -> None:
        """Record a round.

        Args:
            clients: Identifiers of the clients that took part, or only their number.
            available: Number of clients that could have taken part.
            epoch: First round of the current epoch, if the claim has epochs.

        Raises:
            InputError: If more clients took part than were available, or one is listed twice.
        """
        counted = isinstance(clients, int | np.integer)
        size = check_count("clients", clients, least=0) if isinstance(clients, int | np.integer) else len(clients)
        if size > check_count("available", available):
            raise InputError(f"{size} clients took part, but only {available} were available")
        ids = np.zeros(0, dtype=np.int64) if counted else np.asarray(clients, dtype=np.int64)
        if len(np.unique(ids)) != len(ids):
            raise InputError("a client is listed twice in a round: list each once")
        round = self.rounds
        self.rounds += 1
        self.sizes, self.available = np.append(self.sizes, size), np.append(self.available, available)
        if counted:
            return
        for client in ids.tolist():
            self._index.setdefault(client, len(self._index))
        new = len(self._index) - len(self.times)
        self.times = np.append(self.times, np.zeros(new, dtype=np.int64))
        self.last = np.append(self.last, np.full(new, -1, dtype=np.int64))
        present = np.zeros(len(self.times), dtype=bool)
        present[[self._index[client] for client in ids.tolist()]] = True
        if round > 0:
            # How many of the groups that are watched took part. Each group depends on earlier rounds only.
            usual = max(1.0, float(np.mean(self.sizes[:-1])))
            window = max(1, math.floor(available / usual) - 1)
            seen, before = self.times > 0, self.last == round - 1
            groups = np.array([before, self.times > self.times.sum() / available, seen & (self.last >= round - window)])
            self.trials += groups.sum(axis=1)
            self.hits += (groups & present).sum(axis=1)
            self.repeats += bool(before.any() and np.array_equal(before, present))
        if epoch is not None:
            known = list(self._index)
            for number in np.flatnonzero(present & (self.last >= epoch)).tolist():
                self.too_soon[known[number]] = round
        self.times += present
        self.last[present] = round

    # Checkpoints

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return what a checkpoint keeps."""
        state = {f"cohort_{name}": np.array(getattr(self, name)) for name in _ARRAYS}
        state["cohort_ids"] = np.array(list(self._index), dtype=np.int64)  # in the order of ``times``
        state["cohort_soon"] = np.array(list(self.too_soon.items()), dtype=np.int64).reshape(-1, 2)
        return state

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore a saved state."""
        for name in _ARRAYS:
            setattr(self, name, np.array(state[f"cohort_{name}"]))
        self._index = {int(client): number for number, client in enumerate(state["cohort_ids"])}
        self.too_soon = {int(client): int(round) for client, round in state["cohort_soon"]}
        self.rounds = len(self.sizes)


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
    if isinstance(sampling, Poisson | FixedSize):
        return _drawn(record, sampling, level)
    sentence, refutes = "", True
    most = int(record.times.max(initial=0))
    if isinstance(sampling, AtMost):
        if most > sampling.times:
            sentence = f"A client took part in {most} rounds, but the claim is for {sampling}."
    elif isinstance(sampling, Epochs):
        if record.too_soon:
            client, round = next(iter(record.too_soon.items()))
            sentence = (
                f"{len(record.too_soon)} clients took part twice in one of {sampling.epochs} epochs, such as "
                f"client {client} in round {round}."
            )
    elif record.rounds >= 3 and record.repeats[0] == record.rounds - 1 and record.sizes[0] < record.available[0]:
        # The claim does not rely on sampling, so this is only a warning.
        refutes = False
        sentence = (
            f"The same {record.sizes[0]} of {record.available[0]} clients took part in all {record.rounds} rounds. A "
            "claim with amplification by sampling would not hold."
        )
    return [Finding(check=Check.PARTICIPATION, sentence=sentence, refutes=refutes)] if sentence else []


def _drawn(record: CohortRecord, sampling: Poisson | FixedSize, level: float) -> list[Finding]:
    """Return contradictions to random draws."""
    name = f"{sampling.name}:{sampling.rate:.4g}" if isinstance(sampling, Poisson) else str(sampling)
    claimed, available, total = float(sampling.rate or 0.0), int(record.available.sum()), int(record.sizes.sum())
    rate = realized = total / available
    findings: list[Finding] = []
    tests: list[tuple[float, str, bool]] = []  # p-value, what it means, and whether that refutes the claim
    if isinstance(sampling, FixedSize):
        largest = int(np.argmax(record.sizes / record.available))
        size, of = int(record.sizes[largest]), int(record.available[largest])
        if size > (sampling.rate or 1.0) * of * (1 + 1e-12):
            sentence = f"{size} of {of} clients took part in round {largest}, more than {name} claims"
            findings.append(Finding(check=Check.PARTICIPATION, sentence=sentence))
        # The sizes are public; who fills them is what is tested, where they are all the same.
        watch = len(np.unique(record.sizes)) == len(np.unique(record.available)) == 1
    else:
        rate, watch = claimed, True
        mean = total / record.rounds
        sentence = f"{mean:.4g} clients took part per round on average, more than {name} claims"
        tests.append((rate_p_value(total, available, rate), sentence, True))
        # Do cohorts vary in size as random draws do?
        gain = 0.0
        for before, size, of in zip(record.sizes[:-1], record.sizes[1:], record.available[1:], strict=True):
            gain += repeated_size_gain(int(size), int(before), int(of), rate)
        smallest, largest = int(record.sizes.min()), int(record.sizes.max())
        values = f"always {smallest}" if smallest == largest else f"from {smallest} to {largest}"
        sentence = f"The number of clients per round varies too little for {name} ({values})"
        tests.append((math.exp(min(0.0, -gain)), sentence, True))
    for number, group in enumerate(_WATCHED if watch else ()):
        hits, trials = int(record.hits[number]), int(record.trials[number])
        if not trials:
            continue
        more, share = rate_p_value(hits, trials, rate), hits / trials
        if number == 0 and record.repeats[0] == record.rounds - 1:
            sentence = (
                f"The same {record.sizes[0]} of {record.available[0]} clients took part in all {record.rounds} rounds, "
                f"which {name} makes next to impossible"
            )
            if _TESTS * more <= level:  # nothing else is worth saying then
                tests = [(more, sentence, True)]
                break
        elif hits > rate * trials:
            sentence = (
                f"{group.capitalize()} took part more often than {name} allows ({share:.2g} of the time instead of "
                f"{rate:.2g})"
            )
            tests.append((more, sentence, True))
        else:
            sentence = (
                f"{group.capitalize()} took part less often than others ({share:.2g} of the time instead of "
                f"{realized:.2g}): they look shuffled, for which {name} is not computed, unless clients come and go"
            )
            tests.append((rate_p_value(trials - hits, trials, 1 - realized), sentence, False))
    for p_value, sentence, refutes in tests:
        if _TESTS * p_value <= level:
            finding = Finding(check=Check.PARTICIPATION, sentence=sentence, p_value=_TESTS * p_value, refutes=refutes)
            findings.append(finding)
    return findings
