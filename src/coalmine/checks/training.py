"""What an audit remembers of a training beside the scores of its canaries, and what that says about the claim.

`TrainingChecks` records the noise of updates (`update_noise`) and who took part, and tests both after the training.
docs/checks.md describes the checks, and has the proofs.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Floats, Ints
from coalmine.checks.accounting import accounting_findings
from coalmine.checks.findings import Replay
from coalmine.checks.update_noise import NOISE_CHECKS, missing_canaries, noise_findings
from coalmine.checks.update_record import THE_UPDATE, NoiseRecord
from coalmine.checks.update_shares import noise_floor
from coalmine.claims import Claim
from coalmine.claims.sampling import AtMost, Epochs, FixedSize, Poisson, Sampling
from coalmine.errors import InputError, check_count
from coalmine.layers import Layers
from coalmine.protocol import Release, Vector
from coalmine.results.verdict import CHECK_RATE, Check, Finding
from coalmine.stats.exact_tests import rate_p_value, repeated_size_gain
from coalmine.vectors import CPU, on

# Clients whose participation should be no likelier than anybody's. That they take part *more* often refutes the claim;
# that they take part less often is a warning, since clients may leave.
_WATCHED = ("the clients of the round before", "the clients with the most rounds so far", "recent clients")
_COHORT_TESTS = 2 + len(_WATCHED)  # rate, alike sizes, and one per group that is watched


@dataclass(eq=False)
class CohortRecord:
    """Counts of who took part; memory does not grow with the product of rounds and clients.

    Args:
        ids: The clients that took part, ascending, (clients,).
        times: How often each of them did, (clients,).
        last: The last round of each, (clients,).
        hits: How many clients of the groups that are watched took part, in all rounds, (groups,).
        trials: How many clients the groups had, (groups,).
        sizes: Number of clients that were drawn in each round, (rounds,).
        released: How many of them all were in a release: those of aborted rounds are not, (1,).
        available: Number of clients that could have taken part in each round, (rounds,).
        repeats: Number of rounds with exactly the clients of the round before, (1,).
    """

    ids: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    times: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    last: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    hits: Ints = field(default_factory=lambda: np.zeros(len(_WATCHED), np.int64))
    trials: Ints = field(default_factory=lambda: np.zeros(len(_WATCHED), np.int64))
    sizes: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    released: Ints = field(default_factory=lambda: np.zeros(1, np.int64))
    available: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    repeats: Ints = field(default_factory=lambda: np.zeros(1, np.int64))


class TrainingChecks:
    """What an audit remembers of a training in order to check it, and what the checks find.

    Args:
        dim: Number of parameters.
        rounds: Number of rounds.
        seed: Seed of the coordinates that are sampled.
        layers: The model's tensors, if known.
        noise_scale: Noise of each parameter, relative to the claimed one, (dim,); None if it is the same for all.

    Attributes:
        participation_refutes: Whether the claim relies on how the clients were drawn.
        aborted: How many of the rounds were aborted.
        clips_canaries: Whether canaries were too long before the training clipped them, so that scores test that.
        replays: Replays that an integration made by itself, by the names of their checks.
        cohorts: Who took part.
    """

    def __init__(
        self, dim: int, rounds: int, seed: int, layers: Layers | None, noise_scale: Vector | None = None
    ) -> None:
        self.dim, self.rounds, self.seed = dim, rounds, seed
        self.layers = layers or Layers({THE_UPDATE: (dim,)})
        self._noise_scale, self.even_noise = noise_scale, noise_scale is not None
        self.noise_multiplier: float | None = None
        self.participation_refutes, self.aborted, self.clips_canaries = True, 0, False
        self.replays: dict[str, Replay] = {}
        self.cohorts = CohortRecord()
        self._last_cohort: tuple[int, CohortRecord] | None = None  # its round, and the record before it
        self._noise: NoiseRecord | None = None  # made with the first update: the layers may become known until then

    # During the training

    def record(self, release: Release, clip_norm: float, inserted: Vector | None = None) -> None:
        """Record the update of a round, if there are canaries to compare its noise with.

        Args:
            release: The update, whose vector is flat.
            clip_norm: Clip norm of the round.
            inserted: Sum of the canaries that were to be inserted, (dim,).
        """
        if inserted is None or not math.isfinite(clip_norm * release.rounding):
            return
        if self._noise is None:
            self._noise = NoiseRecord(self.layers, self.rounds, self.seed)
        update, canaries = on(CPU, release.vector), on(CPU, inserted)
        canaries = canaries if clip_norm == 1 else canaries / np.float32(clip_norm)
        rounding = release.rounding
        if self._noise_scale is not None:
            # In units of its own noise, each parameter has the claimed noise.
            scale = on(CPU, self._noise_scale)
            update, canaries, rounding = update / scale, canaries / scale, rounding / float(scale.min())
        norm = (release.divisor or 0.0) / clip_norm
        self._noise.add(release.round, update, canaries, rounding=rounding, norm=norm, unprocessed=release.unprocessed)

    def cohort(self, round: int, clients: int | Sequence[int], available: int) -> None:
        """Record who took part in a round, in place of who did when the same round failed.

        Args:
            round: The round.
            clients: A whole number for each client that took part, the same in every round, or only how many did.
            available: Number of clients that could have taken part.

        Raises:
            InputError: If clients are not numbers, one is listed twice, or more took part than were available.
        """
        is_number = isinstance(clients, int | np.integer)
        size = check_count("clients", clients, least=0) if isinstance(clients, int | np.integer) else len(clients)
        if size > check_count("available", available):
            raise InputError(f"{size} clients took part, but only {available} were available")
        try:
            ids = np.unique(np.asarray([] if is_number else clients, dtype=np.int64))
        except (TypeError, ValueError, OverflowError):
            raise InputError("clients must be whole numbers, one per client, or only how many took part") from None
        if len(ids) != size and not is_number:
            raise InputError("a client is listed twice in a round: list each once")
        if self._last_cohort is not None and self._last_cohort[0] == round:
            self.cohorts = self._last_cohort[1]
        self._last_cohort = round, copy.deepcopy(self.cohorts)
        seen, number = self.cohorts, len(self.cohorts.sizes)
        seen.sizes, seen.available = np.append(seen.sizes, size), np.append(seen.available, available)
        seen.released += size
        if is_number:
            return
        new = np.setdiff1d(ids, seen.ids, assume_unique=True)
        places = np.searchsorted(seen.ids, new)
        seen.ids = np.insert(seen.ids, places, new)
        seen.times, seen.last = np.insert(seen.times, places, 0), np.insert(seen.last, places, -1)
        present = np.zeros(len(seen.ids), dtype=bool)
        present[np.searchsorted(seen.ids, ids)] = True
        if number > 0:
            # How many of the groups that are watched took part. Each group depends on earlier rounds only.
            usual = max(1.0, float(np.mean(seen.sizes[:-1])))
            window = max(1, math.floor(available / usual) - 1)
            before, often = seen.last == number - 1, seen.times > seen.times.sum() / available
            groups = np.array([before, often, (seen.times > 0) & (seen.last >= number - window)])
            seen.trials += groups.sum(axis=1)
            seen.hits += (groups & present).sum(axis=1)
            seen.repeats += bool(before.any() and np.array_equal(before, present))
        seen.times += present
        seen.last[present] = number

    def skip(self, round: int) -> None:
        """Record that a round released nothing. Its clients were drawn, which counts, but nothing shows them."""
        if self._last_cohort is not None and self._last_cohort[0] == round:
            seen, self._last_cohort = self.cohorts, None
            seen.times -= seen.last == len(seen.sizes) - 1
            seen.released -= seen.sizes[-1]

    # After the training

    def findings(self, claim: Claim | None, stated: Claim | None = None) -> tuple[list[str], list[Finding]]:
        """Return the names of the checks that were made, and what they found.

        All statistical checks together have the false-alarm rate `CHECK_RATE`, of which each gets an equal share.

        Args:
            claim: What is claimed of these canaries, or None.
            stated: The claim as whoever claims it states it.
        """
        made = [check for check, replay in self.replays.items() if replay.complete]
        noise = self._claimed_noise(claim)
        if noise is not None:
            made += [*NOISE_CHECKS, Check.CANARIES_SHOW]
        if len(self.cohorts.sizes):
            made.append(Check.PARTICIPATION)
        level = CHECK_RATE / max(1, len(made))
        findings: list[Finding] = []
        if noise is not None and self._noise is not None:
            floor = noise_floor(self._noise, noise, level)
            findings = noise_findings(
                self._noise, floor, level, even_noise=self.even_noise, clips=self.clips_canaries
            ) + missing_canaries(self._noise, float(noise.max()))
        if len(self.cohorts.sizes):
            sampling = None if stated is None else stated.sampling  # that of ``claim`` may be about the canaries
            for finding in cohort_findings(self.cohorts, sampling, level=level):
                findings.append(replace(finding, refutes=finding.refutes and self.participation_refutes))
        adjusted = [replace(finding, p_value=min(1.0, len(made) * finding.p_value)) for finding in findings]
        replayed = list[Finding]()
        # A replay has a rate of its own, CHECK_RATE by itself.
        for check, replay in self.replays.items():
            replayed += [replace(finding, check=check) for finding in replay.findings]
        if any(finding.refutes for finding in replayed):  # what the noise is too small for makes it look odd, too
            adjusted = [finding for finding in adjusted if finding.check != Check.SHAPE]
        # Neither has the accounting, which is no matter of chance.
        users = int(self.cohorts.available.max(initial=0))
        replayed += accounting_findings(stated, range(self.rounds - self.aborted, self.rounds + 1), users)
        if self.clips_canaries:
            made.append(Check.CLIPPING)  # by the test of the claim, which has a rate of its own
        return list(dict.fromkeys(map(str, made))), [*replayed, *adjusted]

    def _claimed_noise(self, claim: Claim | None) -> Floats | None:
        """Return the claimed noise multiplier of each bin of rounds; None if noise was not recorded, or is not claimed.

        Rounds that share a bin are judged by the smallest noise among them.
        """
        if claim is None or self._noise is None:
            return None
        noise = np.full(self.rounds, claim.noise_multiplier or self.noise_multiplier or 0.0)
        schedule = np.array(claim.noise_schedule).reshape(-1, 2)
        if len(schedule):
            noise[:] = schedule[:, 0].min()  # of rounds beyond the schedule
            each = np.repeat(schedule[:, 0], schedule[:, 1].astype(int))[: self.rounds]
            noise[: len(each)] = each
        bins = np.full(self._noise.bins, np.inf)
        np.minimum.at(bins, self._noise.bin_of_round, noise)
        return bins if (np.isfinite(bins) & (bins > 0)).all() else None  # infinite noise has no size to compare with

    # Stored with a result, so that the gate finds again what was found, and in checkpoints

    def stored(self) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Return all that `findings` needs but the claim: terms, ready for JSON, and arrays."""
        terms = {
            "dim": self.dim,
            "rounds": self.rounds,
            "seed": self.seed,
            "layers": list(self.layers.shapes.items()),
            "participation_refutes": self.participation_refutes,
            "aborted": self.aborted,
            "clips_canaries": self.clips_canaries,
            "noise_multiplier": self.noise_multiplier,
            "even_noise": self.even_noise,
            "replays": {check: replay.to_dict() for check, replay in self.replays.items()},
        }
        # Who took part is nobody's business after the training: only how often clients did.
        arrays = self.state(carried=False) | {"cohort_ids": np.zeros(0, np.int64)}
        return terms, arrays

    @classmethod
    def from_stored(cls, terms: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> Self:
        """Return the checks that `stored` describes."""
        layers = Layers({name: tuple(shape) for name, shape in terms["layers"]})
        checks = cls(terms["dim"], terms["rounds"], terms["seed"], layers)
        checks.restore(arrays)
        for name in ("participation_refutes", "aborted", "clips_canaries", "noise_multiplier", "even_noise"):
            setattr(checks, name, terms[name])
        checks.replays = {check: Replay.from_dict(replay) for check, replay in terms["replays"].items()}
        return checks

    def state(self, *, carried: bool = True) -> dict[str, npt.NDArray[Any]]:
        """Return what a checkpoint keeps, or only what `findings` needs."""
        state = dict[str, npt.NDArray[Any]]()
        for name, counts in vars(self.cohorts).items():
            state[f"cohort_{name}"] = np.array(counts)
        if self._noise is not None:
            state |= {f"noise_{name}": array for name, array in self._noise.state(carried=carried).items()}
        return state

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore a saved state."""
        self.cohorts = CohortRecord(**{name: np.array(state[f"cohort_{name}"]) for name in vars(self.cohorts)})
        if "noise_energies" not in state:
            return
        self._noise = NoiseRecord(self.layers, self.rounds, self.seed)
        kept = {name: array for name, array in state.items() if name.startswith("noise_")}
        self._noise.restore({name.removeprefix("noise_"): array for name, array in kept.items()})


def cohort_findings(record: CohortRecord, sampling: Sampling | None, *, level: float) -> list[Finding]:
    """Return where participation contradicts the claimed sampling.

    Args:
        record: Who took part, in at least one round.
        sampling: The sampling that the claim assumes for clients, or None if it assumes none.
        level: Significance of all tests together.

    Example:
        >>> checks = TrainingChecks(10, 5, 0, None)
        >>> for t in range(5):
        ...     checks.cohort(t, range(30), available=120)
        >>> [finding.sentence for finding in cohort_findings(checks.cohorts, FixedSize(30, 120), level=1e-3)]
        ['The same 30 of 120 clients took part in all 5 rounds, which fixed:30/120 makes next to impossible']
    """
    rounds, most, sentence, refutes = len(record.sizes), int(record.times.max(initial=0)), "", True
    if isinstance(sampling, Poisson | FixedSize):
        return _drawn(record, sampling, level)
    if isinstance(sampling, AtMost | Epochs):
        allowed = sampling.times if isinstance(sampling, AtMost) else sampling.epochs
        if len(np.unique(record.available)) == 1:
            # Somebody took part at least as often as the average, also if only numbers of clients are known.
            most = max(most, -(-int(record.released[0]) // int(record.available[0])))
        if most > allowed:  # where epochs end does not matter to the claim
            sentence = f"A client took part in {most} rounds, but the claim is for {sampling}."
    elif rounds >= 3 and record.repeats[0] == rounds - 1 and record.sizes[0] < record.available[0]:
        # The claim does not rely on sampling, so this is only a warning.
        refutes = False
        sentence = (
            f"The same {record.sizes[0]} of {record.available[0]} clients took part in all {rounds} rounds. A "
            "claim with amplification by sampling would not hold."
        )
    return [Finding(check=Check.PARTICIPATION, sentence=sentence, refutes=refutes)] if sentence else []


def _drawn(record: CohortRecord, sampling: Poisson | FixedSize, level: float) -> list[Finding]:
    """Return contradictions to random draws."""
    name = f"{sampling.name}:{sampling.rate:.4g}" if isinstance(sampling, Poisson) else str(sampling)
    rounds, available, total = len(record.sizes), int(record.available.sum()), int(record.sizes.sum())
    rate = realized = total / available
    same_clients = bool(record.repeats[0] == rounds - 1)
    findings: list[Finding] = []
    tests: list[tuple[float, str, bool]] = []  # p-value, what it means, and whether that refutes the claim
    if isinstance(sampling, FixedSize):
        largest = int(np.argmax(record.sizes / record.available))
        size, of = int(record.sizes[largest]), int(record.available[largest])
        if size > (sampling.rate or 1.0) * of * (1 + 1e-12):
            sentence = f"{size} of {of} clients took part in round {largest}, more than {name} claims"
            findings.append(Finding(check=Check.PARTICIPATION, sentence=sentence))
        # The sizes are public; who fills them is what is tested, where they are all the same.
        watched = _WATCHED if len(np.unique(record.sizes)) == len(np.unique(record.available)) == 1 else ()
    else:
        rate, watched = float(sampling.rate or 0.0), _WATCHED
        sentence = f"{total / rounds:.4g} clients took part per round on average, more than {name} claims"
        tests.append((rate_p_value(total, available, rate), sentence, True))
        # Do cohorts vary in size as random draws do?
        gain = 0.0
        for before, size, of in zip(record.sizes[:-1], record.sizes[1:], record.available[1:], strict=True):
            gain += repeated_size_gain(int(size), int(before), int(of), rate)
        smallest, largest = int(record.sizes.min()), int(record.sizes.max())
        values = f"always {smallest}" if smallest == largest else f"from {smallest} to {largest}"
        sentence = f"The number of clients per round varies too little for {name} ({values})"
        tests.append((math.exp(min(0.0, -gain)), sentence, True))
    for number, group in enumerate(watched):
        hits, trials = int(record.hits[number]), int(record.trials[number])
        if not trials:
            continue
        more, share = rate_p_value(hits, trials, rate), hits / trials
        if number == 0 and same_clients:
            sentence = (
                f"The same {record.sizes[0]} of {record.available[0]} clients took part in all {rounds} rounds, "
                f"which {name} makes next to impossible"
            )
            if _COHORT_TESTS * more <= level:  # nothing else is worth saying then
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
    for chance, sentence, refutes in tests:
        p_value = _COHORT_TESTS * chance
        if p_value <= level:
            findings.append(Finding(check=Check.PARTICIPATION, sentence=sentence, p_value=p_value, refutes=refutes))
    return findings
