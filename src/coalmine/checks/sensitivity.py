"""`replay`: run an aggregation with and without one client, with the same randomness, and compare.

`ClientSums` replays a mechanism that takes a list of clients, and then lets the tests of noise call it with a sum.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from coalmine.arrays import Floats
from coalmine.checks.clients import Probe, ProbeClients, Setting, Template, leaves, numbers_of
from coalmine.checks.comparison import DOUBT, Movement, Round, Scale
from coalmine.checks.findings import Moved, Replay
from coalmine.checks.release import Outcome, Runner
from coalmine.errors import InputError, check_count, check_nonnegative, check_positive
from coalmine.layers import Layers
from coalmine.progress import shown_if_slow, track
from coalmine.protocol import Vector
from coalmine.results.verdict import Check
from coalmine.seeds import default_rng

_LEAST_DRAWS = 6
# Random draws that measure the noise: as many as it takes for this many residuals, within limits.
_RESIDUALS, _FEW_DRAWS, _MOST_DRAWS = 8000, 12, 128
_MOST_REMOVED = 8  # given clients that are left out, one at a time

# Sums of clients: coordinates of an update at most, and by default. The clients that carry a sum take up 1.1 · dim^1.5
# numbers together, or 1.1 · dim² if their ℓ₁ norm is clipped.
_LARGEST, _DEFAULT_DIM = {"l1": 3_000, "l2": 100_000}, {"l1": 300, "l2": 10_000}
_STEADY = 0.01  # change of what a client does over all calls that is still taken for rounding
_LONGER = 1.05  # clients that share an update may move the output by so much more than one client moves it at most
_EVERY_ROUND = 20  # rounds in which a client takes part if releases remember it
_CORRELATED = 2.5  # standard errors beyond which the noise of two rounds seems to be correlated, so that it is measured


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    """What a replay tries, and what counts as a bug.

    Args:
        adjacency: What it means to leave out a client: ``"zero-out"`` (its update is zero; the number of clients is
            public) or ``"add-remove"`` (it is not there at all).
        hostile: Whether clients may send what no honest client does, such as NaN or a negative number of examples.
            Findings about these then refute the claim; otherwise they are warnings.
        dropouts: Whether rounds with few clients happen, too.
        rounds: Number of rounds in which a client of the first one may still be seen; 1 turns this check off.
        divisor: What the release divides the sum of updates by; 1 for a sum. By default it is measured, by swapping an
            update of the clip norm for its negative.
        draws: Number of runs with other random numbers that measure the noise, at least 6; by default from the size of
            the release. More of them see a smaller excess in arrays of a few coordinates.
        quick: Whether to try only the clients and rounds that find most, in about a third of the runs.
        size_released: Whether the size of the noise follows from what is released, such as a clip norm that is part of
            it. Otherwise a size that depends on a client counts as a movement.
        who: What a client is called in sentences, such as ``"example"``.
        norm: Which norm of an update the clip norm limits: ``"l2"`` or ``"l1"``.
        seed: Seed for all random choices.

    Raises:
        InputError: If a value is out of range.
    """

    adjacency: str = "zero-out"
    hostile: bool = False
    dropouts: bool = True
    rounds: int = 3
    divisor: float | None = None
    draws: int | None = None
    quick: bool = False
    size_released: bool = False
    who: str = "client"
    norm: str = "l2"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.adjacency not in ("zero-out", "add-remove"):
            raise InputError(f'adjacency must be "zero-out" or "add-remove", got {self.adjacency!r}')
        if self.norm not in ("l1", "l2"):
            raise InputError(f'norm must be "l1" or "l2", got {self.norm!r}')
        check_count("rounds", self.rounds)
        check_count("seed", self.seed, least=0)
        if self.draws is not None:
            check_count("draws", self.draws, least=_LEAST_DRAWS)
        if self.divisor is not None:
            check_positive("divisor", self.divisor)


_DEFAULT = ReplayOptions()


def replay(
    release: Callable[..., Any],
    clients: Sequence[Any],
    *,
    clip_norm: float,
    noise_multiplier: float | None,
    options: ReplayOptions = _DEFAULT,
) -> Replay:
    """Run an aggregation with and without one client, with the same randomness, and compare.

    With all generators in the same state, both releases have the same noise, and their difference is what the client
    did. It must not exceed what the noise covers: (standard deviation of the noise) / (noise multiplier). That noise is
    measured by a few runs with other random numbers, so sums and averages are alike.
    The clients that join are as difficult as possible: huge, tiny, in one array only, with many examples, NaN, and so
    on. What moves the release too far is a bug, whatever the data: this is no statistical test, except that the noise
    is measured, for which a correct aggregation is refuted in at most one of 1,000 replays.

    Args:
        release: Function from a list of clients to what is released: arrays, or lists, dicts or dataclasses of them.
            Parameters ``seed`` and ``rng`` without a default receive a seed and a NumPy generator. State that it keeps
            is copied before each run, and generators are restored afterwards.
        clients: The clients of an ordinary round, at least one: arrays or tensors, or tuples, lists, dicts or
            dataclasses of them and of whole numbers, such as `Client`.
        clip_norm: The claimed clip norm.
        noise_multiplier: The claimed noise multiplier: standard deviation of the noise over sensitivity. 0 or None if
            the release is not meant to carry noise; movements are then compared with the clip norm / divisor.
        options: What is tried, and what counts as a bug.

    Returns:
        The findings, and how far each client moved the release.

    Raises:
        InputError: If the clients hold no floating-point arrays or differ in their shapes, if the aggregation fails on
            the clients as they are, or if its randomness cannot be repeated.

    Example:
        >>> from coalmine.checks import Client
        >>> rng = np.random.default_rng(0)
        >>> def noisy_average(clients):  # weights by examples, but the noise is for equal weights
        ...     clipped = [c.update / max(1.0, np.linalg.norm(c.update)) for c in clients]
        ...     average = np.average(clipped, axis=0, weights=[c.examples for c in clients])
        ...     return average + rng.normal(0, 2.0 / len(clients), average.size)
        >>> clients = [Client(rng.normal(size=500), examples=20) for _ in range(9)]
        >>> result = replay(noisy_average, clients, clip_norm=1.0, noise_multiplier=2.0)
        >>> result.ok, result.findings[0].check
        (False, 'examples')
    """
    if isinstance(clients, Mapping | str | bytes) or not hasattr(clients, "__len__") or len(clients) == 0:
        raise InputError(f"clients must be a list of at least one client, got {type(clients).__name__} {clients!r:.60}")
    noise = check_nonnegative("noise_multiplier", noise_multiplier or 0.0)
    if math.isinf(noise):
        raise InputError(f"noise_multiplier must be finite, got {noise_multiplier}")
    clip = check_positive("clip_norm", clip_norm)
    runner = Runner(release, seed=options.seed)
    order = int(options.norm[1])
    probes = ProbeClients(clients, clip_norm=clip, who=options.who, seed=options.seed, order=order)
    with runner.isolated.leaves_no_trace(), shown_if_slow():
        search = _Search(runner, probes, noise, options)
        for step in track(search.steps(), "replay", words=lambda: f"{runner.seconds / runner.calls:.2g} s per run"):
            step()
        return search.result()


class _Search:
    """The runs of one replay: with and without one client, in all the rounds that it is tried in."""

    def __init__(self, runner: Runner, probes: ProbeClients, noise_multiplier: float, options: ReplayOptions) -> None:
        self._runner, self._probes, self._options = runner, probes, options
        self._rows: list[Moved] = []
        self._without_noise = self._noise_in_state = False
        self._doubt = 0.0  # until movements turn out not to depend on the draw
        self._nobody, self._nobody_moves, self._refusal = self._null_client()
        members = [self._without(probes.clients)]
        outcome = runner.run(members)
        if not outcome.is_finite:
            why = outcome.refusal or "numbers that are not finite"
            raise InputError(f"release fails on the clients as they are: {why}")
        if not np.array_equal(outcome.vector, runner.run(members).vector):
            raise InputError(
                "the randomness of the release cannot be repeated: let it draw from NumPy, torch or random, or "
                "from the arguments seed or rng, and from no clock or hardware source"
            )
        runner.remembers = True
        wanted = math.ceil(_RESIDUALS / outcome.vector.size)
        self._draws = options.draws or int(np.clip(wanted, _FEW_DRAWS, _MOST_DRAWS))
        self._base = self._round(members)
        # A client at the clip norm in the place of its opposite moves the release twice as far as it may.
        sensitivity = probes.clip / options.divisor if options.divisor else self._half_apart(probes.direction, 1.0)
        self._scale = Scale(
            noise_multiplier=noise_multiplier, sensitivity=sensitivity or probes.clip, order=probes.order,
            size_released=options.size_released,
        )  # fmt: skip
        # What the client that stands for an absent one does itself, relative to one at the clip norm. A tiny update
        # does as much as any other if updates are scaled to the clip norm.
        if self._nobody_moves:
            apart = self._half_apart(np.eye(1, probes.template.dim)[0], self._nobody_moves)
            self._nobody_moves = max(self._nobody_moves, apart / self._scale.sensitivity)
        self._claimed, self._layers = noise_multiplier, Layers.of(outcome.sizes)

    def steps(self) -> list[Callable[[], object]]:
        """Look at the noise and a first client, and return what is left to try."""
        options = self._options
        first, *others = self._probes.all()
        settings = self._probes.settings(dropouts=options.dropouts)
        self._look_for_noise(first)
        exact = self._try(first).shown == 1
        few = options.quick or not exact
        if exact:
            self._doubt = DOUBT
        if few:  # comparisons take many runs if movements depend on the draw
            others = [probe for probe in others if probe.essential and options.hostile >= probe.hostile]
            settings = [setting for setting in settings if setting.essential]
        steps: list[Callable[[], object]] = [partial(self._try, probe) for probe in others]
        if options.rounds > 1 and not self._noise_in_state:
            steps.append(self._try_rounds)
        steps += [partial(self._try_setting, setting, few) for setting in settings]
        if not options.quick:
            steps.append(partial(self._try_removals, _MOST_REMOVED if exact else 1))
        return steps

    def result(self) -> Replay:
        """Return what was observed."""
        return Replay(
            moved=tuple(self._rows), clip_norm=self._probes.clip, noise_multiplier=self._claimed,
            noise=self._base.noise.level if self._claimed else 0.0, unit=self._scale.sensitivity,
            tolerance=self._probes.tolerance + self._nobody_moves,
            clients=len(self._probes.clients), calls=self._runner.calls,
            seed=self._options.seed, who=self._options.who, hostile=self._options.hostile,
            without_noise=self._without_noise, noise_in_state=self._noise_in_state,
        )  # fmt: skip

    def _null_client(self) -> tuple[Any, float, str]:
        """Return a client that stands for an absent one, the norm of its update, and what became of one of zero.

        Its update is zero, or nearly zero where an aggregation refuses that.
        """
        refusal = ""
        for length in (0.0, 1e-5, 1e-3, 1e-2):
            # One coordinate, where half precision does not round it to zero.
            client = self._probes.along(np.eye(1, self._probes.template.dim)[0], length)
            outcome = self._runner.run([[*self._probes.clients, client]])
            if outcome.is_finite:
                return client, length, refusal
            refusal = refusal or outcome.refusal or "the release is not finite"
        alone = self._runner.run([self._probes.clients]).refusal
        if alone:
            raise InputError(f"release fails on the clients as they are: {alone}")
        raise InputError(f"release fails when one {self._options.who} joins the given ones: {refusal}")

    def _look_for_noise(self, first: Probe) -> None:
        """Look at the noise itself: is there any?"""
        if self._refusal:
            client = f"one {self._options.who} with an update of zero joined"
            self._rows.append(Moved(check=Check.REFUSED, client=client, example="0 * v", refusal=self._refusal))
        has_noise = not self._scale.noise_multiplier or self._base.noise.level > 0
        if has_noise or not self._compared(self._base, self._probes.clients, first).bare:
            return
        # Successive rounds of the same clients have noise of their own if it comes from a state. What a server does
        # without noise, such as momentum, changes smoothly: second differences of releases point in one direction.
        # Those of independent noise are not even similar, three rounds apart.
        releases = self._runner.run([self._without(self._probes.clients)] * 6).vector.reshape(6, -1)
        early, *_, late = np.diff(releases, n=2, axis=0)
        lengths = float(np.linalg.norm(early)) * float(np.linalg.norm(late))
        rounding = 64 * (self._probes.template.precision * float(np.linalg.norm(releases))) ** 2
        self._noise_in_state = lengths > rounding and abs(float(early @ late)) < 0.9 * lengths
        self._without_noise = True
        self._scale = replace(self._scale, noise_multiplier=0.0)  # movements are compared with the clip norm then

    def _compared(self, around: Round, others: Sequence[Any], probe: Probe, place: int | None = None) -> Movement:
        """Compare a round of other clients with one that a client joined.

        A similar client, whose update is a little shorter, helps where noise has few values.
        """
        longer = min(probe.length, 1.0)
        lengths = probe.length, longer, longer * self._scale.shorter
        joined, *similar = (_inserted([probe.build(length)], others, place) for length in lengths)
        return around.compare([joined], self._scale, doubt=self._doubt, similar=similar)

    def _try(self, probe: Probe) -> Movement:
        """Let a client join the given ones."""
        movement = self._compared(self._base, self._probes.clients, probe)
        self._observe(probe, movement)
        return movement

    def _try_setting(self, setting: Setting, few: bool) -> None:
        """Let simple clients join a round of other clients."""
        around = self._round([self._without(setting.others, setting.place)], like=self._base)
        outcome, simple = around.outcome(), self._probes.simplest()
        named = partial(replace, check=setting.check, does=setting.does)
        if not outcome.is_finite or outcome.vector.size != self._base.outcome().vector.size:
            return
        for probe in simple[:1] if few else simple:
            movement = self._compared(around, setting.others, probe, setting.place)
            self._observe(named(probe, may_refuse=setting.may_refuse, plain=False), movement)

    def _try_removals(self, most: int) -> None:
        """Leave out the given clients, one at a time."""
        clients = self._probes.clients
        for index, client in enumerate(clients[:most]):
            # As many clients as elsewhere, so that it is the client that counts and not their number.
            others = [*clients[:index], *clients[index + 1 :], *self._without([])]
            around = self._round([self._without(others)], like=self._base)
            movement = around.compare([[*others, client]], self._scale, doubt=self._doubt)
            code = f"{self._options.who}s[{index}]"
            given = self._probes.simplest()[0]  # only its words matter: the client is compared already
            given = replace(given, check=Check.GIVEN, sends=f"({code})", code=code, plain=False, essential=False)
            self._observe(given, movement)

    def _try_rounds(self) -> None:
        """Look for a client of the first round in the releases of later ones.

        A long update is looked for too, since what clipping cut off may come back (error feedback).
        """
        rounds, noise = self._options.rounds, self._base.noise
        ordinary = self._without(self._probes.clients)
        around, rest = self._round([ordinary] * rounds, like=self._base), [ordinary] * (rounds - 1)
        plain = around.outcome().vector
        for probe in self._probes.simplest():
            joined = [*self._probes.clients, probe.build(probe.length)]
            moved = self._runner.run([joined, *rest]).vector
            if not probe.essential or plain.size != moved.size or not plain.size:
                continue
            later = slice(plain.size // rounds, None)
            left = np.abs(plain[later] - moved[later]) > 8 * self._probes.template.precision * np.abs(plain[later])
            shared = ""
            if not left.any():
                # The noise of rounds is correlated if that is how two draws of each round differ.
                again = around.outcome(1).vector
                if not self._scale.noise_multiplier or again.size != plain.size:
                    continue
                standard = (plain - again).reshape(rounds, -1) / np.where(noise.bare, np.inf, noise.std)
                standard /= np.maximum(np.linalg.norm(standard, axis=1, keepdims=True), 1e-300)
                correlations = np.abs(np.triu(standard @ standard.T, 1))
                if correlations.max() <= _CORRELATED / math.sqrt(standard.shape[1]):
                    continue  # nothing of the first round is left in later ones
                shared = ", whose noise is shared with later rounds in part"
            movement = around.compare([joined, *rest], self._scale, doubt=self._doubt)
            does = f"took part in the first of {rounds} rounds{shared}"
            self._observe(replace(probe, check=Check.MEMORY, does=does, plain=False), movement)
            # Who takes part in every round may add up, as in momentum, however short single steps are. With noise it
            # depends on how rounds are meant to share it what that costs, as in tree aggregation.
            if not self._scale.noise_multiplier and probe.length <= 1:
                last = Round(
                    _LastRound(self._runner), [ordinary], draws=self._draws, precision=self._probes.template.precision
                )
                does = f"took part in this and the {_EVERY_ROUND - 1} rounds before"
                movement = last.compare([joined], self._scale, doubt=self._doubt)
                self._observe(replace(probe, check=Check.SENSITIVITY, does=does, plain=False), movement)

    def _observe(self, probe: Probe, movement: Movement) -> None:
        holders = np.searchsorted(self._layers.ends, np.asarray(movement.bare, dtype=np.int64), side="right")
        self._rows.append(
            Moved(
                check=str(probe.check), client=f"one {self._options.who} {probe.sends} {probe.does}",
                example=probe.code, length=probe.length, clip_norms=movement.length / self._scale.sensitivity,
                excess=movement.excess, lower=movement.lower, p_value=movement.p_value, shown=movement.shown,
                noise_ratio=movement.noise_ratio, arrays=[self._layers.names[i] for i in np.unique(holders)],
                bare=len(movement.bare), not_finite=movement.not_finite,
                refusal="" if probe.may_refuse else movement.refusal, hostile=probe.hostile, plain=probe.plain,
            )
        )  # fmt: skip

    def _round(self, members: Sequence[Sequence[Any]], like: Round | None = None) -> Round:
        draws = self._draws if len(members) == 1 else max(_LEAST_DRAWS - 2, self._draws // 2)
        return Round(self._runner, members, draws=draws, precision=self._probes.template.precision, like=like)

    def _without(self, others: Sequence[Any], place: int | None = None) -> list[Any]:
        """Return a round without the client in question."""
        return _inserted([] if self._options.adjacency == "add-remove" else [self._nobody], others, place)

    def _half_apart(self, direction: np.ndarray[Any, Any], length: float) -> float:
        """Return half of how far the release moves if a client is replaced by its opposite; 0 if that is not known."""
        clients, along = self._probes.clients, self._probes.along
        one = self._runner.run([[*clients, along(direction, length)]]).vector
        two = self._runner.run([[*clients, along(-direction, length)]]).vector
        if one.shape != two.shape:
            return 0.0
        difference = np.nan_to_num(one - two, posinf=0.0, neginf=0.0)
        return float(np.linalg.norm(difference, self._probes.order)) / 2


class _LastRound(Runner):
    """Runs of several rounds of the same clients, of which the last release counts."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def run(self, rounds: Sequence[Sequence[Any]], draw: int = 0) -> Outcome:
        """Return the last release."""
        # Copies, since an aggregation may add up in place.
        repeated = [copy.deepcopy(list(clients)) for clients in rounds for _ in range(_EVERY_ROUND)]
        outcome = self._runner.run(repeated, draw)
        return replace(outcome, vector=outcome.vector[-sum(outcome.sizes.values()) :])


def _inserted(clients: list[Any], others: Sequence[Any], place: int | None) -> list[Any]:
    """Return others with these clients among them; by default at the end."""
    place = len(others) if place is None else place
    return [*others[:place], *clients, *others[place:]]


class ClientSums:
    """A mechanism of clients, replayed once, that can be called with a sum of updates of norm 1.

    Whether clients are clipped and weighted as claimed needs no statistics: replay finds out. Whether the noise is
    right is for the attacks on it, which choose the sum. It is divided among so many clients that none is clipped.

    Args:
        release: Function from a list of clients to their noisy sum or average.
        clients: The clients of an ordinary round, or how many: each is then a float32 array of shape ``(dim,)``.
        dim: Number of coordinates of an update, if ``clients`` is a number.
        clip_norm: The claimed clip norm.
        noise_multiplier: The claimed noise multiplier. If it is None, replay compares movements with the clip norm
            alone, and leaves the noise to the attacks on it.
        norm: Which norm of an update the clip norm limits: ``"l2"`` or ``"l1"``.
        seed: Seed of the replay.

    Attributes:
        dim: Number of coordinates.
        replay: What the replay with the given clients found.

    Raises:
        InputError: If the clients do not fit, or the output does not depend on them.
    """

    def __init__(
        self, release: Callable[[list[Any]], object], clients: int | Sequence[Any], *, dim: int | None,
        clip_norm: float, noise_multiplier: float | None, norm: str, seed: int,
    ) -> None:  # fmt: skip
        # An average over few clients moves further, rightly if its noise grows as much.
        options = ReplayOptions(norm=norm, seed=seed, dropouts=noise_multiplier is not None)
        self._release, self._seed, self._clip = release, seed, check_positive("clip_norm", clip_norm)
        if isinstance(clients, int):
            blank = Template(np.zeros(check_count("dim", _DEFAULT_DIM[norm] if dim is None else dim), dtype=np.float32))
            clients = blank.random(check_count("clients", clients), norm=2 * self._clip, seed=seed)
        if not len(clients):
            raise InputError("clients must be a list of at least one client, got none")
        self._template = Template(clients[0])
        self.dim = self._template.dim
        if self.dim > _LARGEST[norm]:
            raise InputError(
                f"with clients, an update may have at most {_LARGEST[norm]:,} coordinates (norm {norm}), got "
                f"{self.dim:,}: test a smaller model"
            )
        self.replay: Replay = replay(
            release, clients, clip_norm=self._clip, noise_multiplier=noise_multiplier, options=options
        )
        # Canaries have a coordinate each, so their sum is no longer than √dim, or dim in ℓ₁.
        order = int(norm[1])
        self._carriers = max(len(clients) + 1, math.ceil(1.1 * self.dim ** (1 / order)) + 1)
        self._unit, single, shared = self._movements(order)
        if not 0 < self._unit < math.inf:
            raise InputError("the mechanism's output does not depend on its clients: there is nothing to test")
        moved = max((row.clip_norms for row in self.replay.moved if not row.hostile), default=0.0)
        most = max(self._unit, single, self._unit * moved)
        if self.replay.ok and shared > _LONGER * most:  # a refuted replay says more than this
            raise InputError(
                f"{self._carriers:,} clients that share an update of the clip norm move the output by "
                f"{shared / self._unit:.3g} times as much as one client that sends it, so short updates are made "
                "longer and the noise cannot be judged by sums: use assert_sensitivity"
            )

    def __call__(self, total: Vector) -> Floats:
        """Return the noisy sum, in clip norms, of clients whose updates add up to ``total`` clip norms."""
        released = self._release(self._sending(total))
        noisy = np.concatenate([numbers_of(leaf).ravel() for leaf in leaves(released).values()])
        if noisy.size != self.dim:
            raise InputError(
                f"the release has {noisy.size:,} numbers and an update has {self.dim:,}: pass a function that returns "
                "the noisy sum or average alone, and test the rest by assert_sensitivity"
            )
        return np.asarray(noisy / self._unit)

    def check_steady(self) -> None:
        """Raise `InputError` if what a client does has changed over the calls, as with adaptive clipping."""
        ratio = self._movements(2)[0] / self._unit
        if abs(ratio - 1) > _STEADY:
            raise InputError(
                f"one client now moves the output by {ratio:.3g} times as much as before the calls, so its noise "
                "cannot be judged: turn off what changes from round to round, such as adaptive clipping or a decaying "
                "learning rate, or use assert_sensitivity"
            )

    def _sending(self, total: Vector | Floats) -> list[Any]:
        """Return clients that share a sum equally; new ones, since an aggregation may add up in place."""
        client = self._template.build(np.asarray(total, dtype=np.float64) * (self._clip / self._carriers))
        return [copy.deepcopy(client) for _ in range(self._carriers)]

    def _movements(self, order: int) -> tuple[float, float, float]:
        """Return how far the output moves by one client of the clip norm, by one of one coordinate, and by its shares.

        All others send nothing. The first is measured by swapping the client for its negative.
        """
        runner = Runner(self._release, seed=self._seed)
        rng, one = default_rng(self._seed), np.eye(1, self.dim)[0]
        direction = rng.uniform(1.0, 1.2, self.dim) * rng.choice([-1.0, 1.0], self.dim)
        direction *= self._clip / np.linalg.norm(direction, order)
        silent = self._sending(np.zeros(self.dim))
        rounds = [[*silent[1:], self._template.build(update)] for update in (direction, -direction, one * self._clip)]
        with runner.isolated.leaves_no_trace():
            outputs = [runner.run([clients]).vector for clients in (*rounds, self._sending(one), silent)]
        if any(output.size != outputs[0].size for output in outputs):
            return 0.0, 0.0, 0.0
        plus, minus, single, shared, before = outputs
        norms = [np.linalg.norm(moved) for moved in ((plus - minus) / 2, single - before, shared - before)]
        return float(norms[0]), float(norms[1]), float(norms[2])
