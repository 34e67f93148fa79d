"""Distinguishers: which of two gradients was randomized? (Matsumoto et al. 2022, Section 3.3)

White-box trials see the report itself (Algorithm 4), black-box trials the model before and after it was applied
(Algorithm 3). Either view has the paper's test and a likelihood ratio of ours.

Black-box trials are played in two ways with the same results. `_play_plainly`, the reference, makes every report and
every model, for any mechanism and any number of clients. `_play_on_lines` serves speed: reports of LDP-SGD are
multiples of random directions that all games share, so it makes neither and is several times as fast. The two differ
only where steps are smaller than the rounding of the weights to float32, since the latter has no model to round.
``tests/methods/ldp/test_black_box.py`` compares them, and ``benchmarks/ldp.py`` measures both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from coalmine.arrays import Bools, Floats
from coalmine.errors import InputError
from coalmine.methods.ldp.crafters import Pair, Rule
from coalmine.progress import track
from coalmine.protocol import Vector
from coalmine.simulation.flat import parameter_vector, trainable
from coalmine.simulation.mechanisms.local import (
    LDPSGD,
    UNIFORMS,
    LDPServer,
    LocalGaussian,
    LocalMechanism,
    Normals,
    PrivUnit2,
    Reports,
)
from coalmine.stats import Counts, Guesses
from coalmine.usercode import errors_of


@dataclass(frozen=True, eq=False)
class Trials:
    """Scores of trials, what each one really sent, and where to guess.

    Args:
        scores: One score per trial; higher means rather g₁.
        sent_first: Whether each trial sent g₁.
        upper: Guess g₁ at this score and above. Fixed before the scores were seen.
        lower: Guess g₂ below this score. There is no guess between the two.
    """

    scores: Floats
    sent_first: Bools
    upper: float = 0.0
    lower: float = 0.0

    def __post_init__(self) -> None:
        if self.sent_first.all() or not self.sent_first.any():
            raise InputError(f"all {self.sent_first.size} trials sent the same gradient by chance: use more trials")

    @property
    def counts(self) -> Counts:
        """Right and wrong guesses of g₁; every trial below ``upper`` counts as a guess of g₂."""
        guessed_first = self.scores >= self.upper
        tp, fp = int(np.sum(guessed_first & self.sent_first)), int(np.sum(guessed_first & ~self.sent_first))
        return Counts(tp, int(self.sent_first.sum()) - tp, fp, int((~self.sent_first).sum()) - fp)

    @property
    def guesses(self) -> Guesses:
        """The number of guesses, of g₁ or of g₂, and how many of them are right."""
        guessed_first, guessed_second = self.scores >= self.upper, self.scores < self.lower
        right = int(np.sum(guessed_first & self.sent_first) + np.sum(guessed_second & ~self.sent_first))
        return Guesses(self.scores.size, int(np.sum(guessed_first) + np.sum(guessed_second)), right)


@dataclass(frozen=True, eq=False)
class Crafted:
    """What a crafter made, and what its distinguisher knows.

    Reports depend on the gradient only through their coordinates in the plane of g₁ and g₂, so r ≤ 2 numbers per report
    are all that a distinguisher needs.

    Args:
        first: g₁, ``(d,)``.
        second: g₂, ``(d,)``.
        model: The model that the server sent.
        pair: The examples x₁ and x₂.
        rule: The paper's black-box test for this crafter.
        others: Gradients of further clients whose reports are averaged with this one's, ``(n - 1, d)``.
    """

    first: Vector
    second: Vector
    model: nn.Module
    pair: Pair
    rule: Rule
    others: Reports

    @property
    def dim(self) -> int:
        """The length of a gradient."""
        return int(self.first.size)

    @property
    def clients(self) -> int:
        """The number of reports that are averaged."""
        return 1 + len(self.others)

    @cached_property
    def plane(self) -> tuple[Floats, Floats, Floats]:
        """An orthonormal basis ``(d, r)`` of the plane, and the coordinates ``(r,)`` of g₁ and of g₂ in it."""
        # r = 1 only in one dimension. If g₂ = −g₁, any second direction will do.
        basis, triangle = np.linalg.qr(np.stack([self.first, self.second], axis=1).astype(np.float64))
        return basis, triangle[:, 0], triangle[:, 1]

    @property
    def contrast(self) -> Floats:
        """g₁/‖g₁‖ − g₂/‖g₂‖: its product with a report is positive if the cosine with g₁ is the larger (Eq. 5)."""
        _, first, second = self.plane
        return first / np.linalg.norm(first) - second / np.linalg.norm(second)

    def log_ratio(self, total: Floats, mechanism: LocalMechanism, clients: int) -> Floats:
        """Return the log-likelihood ratio of g₁ to g₂ for sums ``(k, r)`` of the reports of so many clients."""
        _, first, second = self.plane
        log_first = mechanism.log_density(total, first, self.dim, clients)
        return log_first - mechanism.log_density(total, second, self.dim, clients)

    def thresholds(self, mechanism: LocalMechanism, clients: int) -> tuple[float, float]:
        """Return where the likelihood ratio guesses g₁ and g₂: at half of the strongest possible evidence, up to ε."""
        length = float(np.linalg.norm(self.contrast))
        # Among several clients strong evidence hardly ever occurs, and an unknown density makes the ratio a mere score:
        # then guess every trial.
        if clients > 1 or length < 1e-12 or not mechanism.density_is_known:
            return 0.0, 0.0
        strongest = self.contrast / length  # the report on the sphere that points most clearly to g₁
        most, least = self.log_ratio(np.stack([strongest, -strongest]), mechanism, clients)
        return max(min(most, mechanism.epsilon) / 2, 1e-9), min(max(least, -mechanism.epsilon) / 2, -1e-9)


# A gradient, and the trials that send it in one call of the mechanism.
Batch = tuple[Vector, slice]


def toss_coins(
    crafted: Crafted, mechanism: LocalMechanism, trials: int, rng: np.random.Generator
) -> tuple[Bools, list[Batch]]:
    """Return which trials send g₁, by one fair coin per trial, and what to randomize in which order."""
    # Reports are independent for certain only if our own code draws them. A subclass does not count: it may keep state
    # wherever it likes, even in ``chance`` or ``clipped``.
    if type(mechanism) in (LDPSGD, LocalGaussian, PrivUnit2):
        # Independent trials may come in any order: all of g₁ first, so that each gradient is randomized in one call.
        boundary = int(rng.binomial(trials, 0.5))
        batches = [(crafted.first, slice(0, boundary)), (crafted.second, slice(boundary, trials))]
        return np.arange(trials) < boundary, batches
    # Other code may change from call to call. If g₁ always came first, such a drift would look like a leak.
    sent_first = rng.random(trials) < 0.5
    batches = []
    for i, first in enumerate(sent_first):
        batches.append((crafted.first if first else crafted.second, slice(i, i + 1)))
    return sent_first, batches


def white_box(crafted: Crafted, mechanism: LocalMechanism, trials: int, rng: np.random.Generator) -> dict[str, Trials]:
    """Return trials of a distinguisher who sees the report itself, for both white-box views (Algorithm 4).

    ``white-box`` compares cosines (Eq. 5). ``likelihood-ratio`` compares likelihoods, and guesses only where the
    evidence is strong. Only the report's coordinates in the plane are drawn where the mechanism allows it.
    """
    basis, _, _ = crafted.plane
    sent_first, batches = toss_coins(crafted, mechanism, trials, rng)
    reports = np.empty((trials, basis.shape[1]))
    for gradient, rows in batches:
        reports[rows] = mechanism.coordinates(gradient, basis, rng, rows.stop - rows.start)
    upper, lower = crafted.thresholds(mechanism, 1)
    return {
        "white-box": Trials(reports @ crafted.contrast, sent_first),
        "likelihood-ratio": Trials(crafted.log_ratio(reports, mechanism, 1), sent_first, upper, lower),
    }


# The examples whose losses the paper's tests compare.
_COMPARED: Mapping[Rule | None, Sequence[int]] = {"loss-falls": (0,), "larger-change": (0, 1)}

# The paper's tests, which guess g₁ at 0 and above.
_TESTS: Mapping[Rule, Callable[..., Floats]] = {
    "loss-falls": lambda change: -change,  # Eq. 4
    "larger-change": lambda first, second: np.abs(first) - np.abs(second),  # Eq. 6
    # Eq. 7 is printed for θₜ₊₁ − θₜ, but the server subtracts the gradient: θₜ − θₜ₊₁ has g₁'s sign.
    "signs": lambda signs: signs,
}

_CHUNK = 1 << 20  # numbers in the reports that are processed together: a few megabytes, to stay in the cache
_POINTS = 400  # on lines, evaluated together: the memory of larger activations is returned and faulted in every time


class LossChange:
    """How much the loss of one example changes when the model's parameters θ are replaced by others.

    `at` evaluates any parameter vectors, by `torch.func.vmap` where it can take the module. `along` evaluates points of
    lines θ + t·v, and is faster where all parameters belong to linear layers and convolutions.

    Args:
        crafted: The model, and the pair of examples.
        example: Index of the example.
        plain: Call the module once per parameter vector, and use no faster way.

    Raises:
        InputError: If the module's loss is random or depends on the batch.
    """

    def __init__(self, crafted: Crafted, example: int, *, plain: bool = False) -> None:
        self._module, self._task = crafted.model, crafted.pair.task
        for part in self._module.modules():
            unsteady = isinstance(part, nn.modules.dropout._DropoutNd | nn.modules.batchnorm._BatchNorm)
            if unsteady and part.training and getattr(part, "p", 1.0) > 0:  # dropout with p = 0 drops nothing
                raise InputError(
                    "black-box views need a loss that depends only on the parameters and the example, and this model "
                    f"has {type(part).__name__} in training mode: call model.eval(), or use a model without it"
                )
        self._inputs = crafted.pair.inputs[example : example + 1]
        self._targets = crafted.pair.targets[example : example + 1]
        self._theta = parameter_vector(self._module)
        self._shapes = {name: value.shape for name, value in trainable(self._module).items()}
        self._layers = {
            name: layer for name, layer in self._module.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)
        }
        self._vmapped = self._has_lines = False
        if not plain:
            # A fast way is used if it agrees with the plain one at two random points near this very module: vmap cannot
            # take every module, and parameters may belong to other layers or be used without calling the layer.
            direction = torch.randn(self._theta.shape, generator=torch.Generator().manual_seed(0))
            direction *= self._theta.square().mean().sqrt().clamp(min=0.1)
            steps = torch.tensor([[-1.0, 1.0]])
            points = self._theta + steps.T * direction
            self._vmapped = _agrees(lambda: vmap(self._loss)(points), lambda: self._one_by_one(points))
            self._has_lines = _agrees(
                lambda: self._on_lines(direction[None], steps)[0], lambda: self._one_by_one(points)
            )
        # Each way has its own rounding, and so its own loss at θ.
        self._at_theta = self._along_zero = 0.0
        self._at_theta = float(self.at(self._theta[None])[0])
        self._along_zero = float(self.along(self._theta[None], np.zeros((1, 1)))[0, 0])

    def at(self, vectors: Tensor) -> Floats:
        """Return the changes ``(k,)`` at parameter vectors ``(k, d)`` in the order of ``module.parameters()``."""
        failure = (
            "the model cannot be evaluated at other parameters than its own, which only the views white-box and "
            "likelihood-ratio can do without"
        )
        with errors_of(failure), torch.no_grad():
            losses = vmap(self._loss)(vectors) if self._vmapped else self._one_by_one(vectors)
        changes: Floats = losses.double().numpy() - self._at_theta
        return changes

    def along(self, directions: Tensor, steps: Floats) -> Floats:
        """Return the changes ``(k, c)`` at points θ + t·v, for directions v ``(k, d)`` and steps t ``(k, c)``."""
        t = torch.from_numpy(np.ascontiguousarray(steps, dtype=np.float32))
        if not self._has_lines:
            return np.stack([self.at(self._theta + column[:, None] * directions) for column in t.T], axis=1)
        rows = max(1, _POINTS // t.shape[1])
        blocks = zip(directions.split(rows), t.split(rows), strict=True)
        with torch.no_grad():
            losses = torch.cat([self._on_lines(*block) for block in blocks])
        changes: Floats = losses.double().numpy() - self._along_zero
        return changes

    def _one_by_one(self, vectors: Tensor) -> Tensor:
        return torch.stack([self._loss(vector) for vector in vectors])

    def _loss(self, vector: Tensor) -> Tensor:
        """Return the loss at one parameter vector."""
        return self._cross_entropy(functional_call(self._module, self._named(vector), (self._inputs,)))

    def _on_lines(self, directions: Tensor, steps: Tensor) -> Tensor:
        return vmap(vmap(self._on_line, (None, 0)))(directions, steps)

    def _on_line(self, direction: Tensor, t: Tensor) -> Tensor:
        """Return the loss at one point θ + t·v.

        A linear layer or convolution is linear in its parameters: its output at θ + t·v is that at θ plus t times that
        at v. Under vmap, products of v with the input are then computed once per direction instead of once per step,
        and no vector θ + t·v is ever made.
        """
        moves = self._named(direction)
        handles = []
        for name, layer in self._layers.items():
            prefix = f"{name}." if name else ""
            hook = partial(_moved, t, moves[f"{prefix}weight"], moves.get(f"{prefix}bias"))
            handles.append(layer.register_forward_hook(hook))
        try:
            return self._cross_entropy(self._module(self._inputs))
        finally:
            for handle in handles:
                handle.remove()

    def _named(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the pieces of a vector by the names of the parameters."""
        named, start = {}, 0
        for name, shape in self._shapes.items():
            named[name] = vector[start : start + shape.numel()].view(shape)
            start += shape.numel()
        return named

    def _cross_entropy(self, logits: Tensor) -> Tensor:
        """Return the example's loss, for a language model the mean over its positions."""
        return F.cross_entropy(logits.flatten(0, -2), self._targets.flatten(), ignore_index=self._task.ignored)


def _moved(
    t: Tensor, weight: Tensor, bias: Tensor | None, layer: nn.Module, inputs: tuple[Tensor], output: Tensor
) -> Tensor:
    """Return a layer's output after a step t along its part of a direction."""
    if isinstance(layer, nn.Conv2d):
        slope = layer._conv_forward(inputs[0], weight, bias)
    else:
        slope = F.linear(inputs[0], weight, bias)
    return torch.addcmul(output, slope, t)


def _agrees(fast: Callable[[], Tensor], plain: Callable[[], Tensor]) -> bool:
    """Return whether a fast way works and gives the same losses."""
    try:
        with torch.no_grad():
            return torch.allclose(fast(), plain(), rtol=1e-3, atol=1e-4)
    except (RuntimeError, KeyError):
        return False


class BlackBox:
    """One game: a crafter and a mechanism, and the trials played so far.

    Args:
        crafted: The gradients, the model, and what the distinguisher knows.
        mechanism: Randomizes the gradient that is sent.
        server: Applies the mean report to the model.
        rng: Decides which gradient is sent, and the mechanism's signs.
        views: Whether ``"black-box"``, the paper's test, is scored: it costs most. The likelihood ratio always is.
    """

    def __init__(
        self,
        crafted: Crafted,
        mechanism: LocalMechanism,
        server: LDPServer,
        rng: np.random.Generator,
        views: Collection[str] = ("black-box",),
    ) -> None:
        self.crafted, self.mechanism, self.server = crafted, mechanism, server
        self.step = server.step(mechanism, crafted.dim)
        self.rule = crafted.rule if "black-box" in views else None
        self.compared = _COMPARED.get(self.rule, ())
        self._rng = rng
        self._scores: dict[str, list[Floats]] = {"parameter-change": []}
        self._sent_first: list[Bools] = []

    def toss(self, count: int) -> tuple[Bools, list[Batch], Floats]:
        """Return which trials send g₁, what to randomize, and uniform numbers ``(clients, 3, count)``."""
        sent_first, batches = toss_coins(self.crafted, self.mechanism, count, self._rng)
        return sent_first, batches, self._rng.random((self.crafted.clients, UNIFORMS, count))

    def record(self, sent_first: Bools, measured: Sequence[Floats], total: Floats) -> None:
        """Add trials.

        Args:
            sent_first: Whether each of k trials sent g₁.
            measured: What the paper's test looks at, ``(k,)`` each: the change of the loss of every compared example,
                or the sum of the signs of θₜ − θₜ₊₁.
            total: The sums of reports in the plane, ``(k, r)``, recovered from the parameters.
        """
        self._sent_first.append(sent_first)
        if self.rule is not None:
            self._scores.setdefault("black-box", []).append(_TESTS[self.rule](*measured))
        self._scores["parameter-change"].append(self.crafted.log_ratio(total, self.mechanism, self.crafted.clients))

    def trials(self) -> dict[str, Trials]:
        """Return all trials so far, by view."""
        sent_first = np.concatenate(self._sent_first)
        thresholds = {"parameter-change": self.crafted.thresholds(self.mechanism, self.crafted.clients)}
        trials = {}
        for view, scores in self._scores.items():
            trials[view] = Trials(np.concatenate(scores), sent_first, *thresholds.get(view, (0.0, 0.0)))
        return trials


# By the model's identity and the index of the example.
Losses = Mapping[tuple[int, int], LossChange]


def play(games: Sequence[BlackBox], trials: int, seed: int, *, plain: bool = False) -> None:
    """Play the trials of all games on the same random directions.

    Directions are shared between games, never between the trials of one game, so each game by itself is as if it had
    directions of its own.

    Args:
        games: Games with the same dimension and number of clients.
        trials: Trials per game.
        seed: Seed of the directions.
        plain: Play all games in the plain way, as a reference.
    """
    losses: dict[tuple[int, int], LossChange] = {}
    for game in games:
        for example in game.compared:
            key = (id(game.crafted.model), example)
            if key not in losses:
                losses[key] = LossChange(game.crafted, example, plain=plain)
    dim, clients = games[0].crafted.dim, games[0].crafted.clients
    on_lines, others = list[BlackBox](), list[BlackBox]()
    for game in games:
        # A subclass may report anything, so only LDPSGD itself qualifies; the mean of several reports leaves the lines.
        lines = type(game.mechanism) is LDPSGD and clients == 1 and not plain
        (on_lines if lines else others).append(game)
    generator = torch.Generator().manual_seed(seed % 2**32)
    # The number of rows is part of the random stream: another one gives other directions.
    rows = max(1, min(trials, _CHUNK // dim))
    buffer = torch.empty((clients, rows, dim))
    for start in track(range(0, trials, rows), "trials that see the model"):
        buffer.normal_(generator=generator)
        normals = [Normals(array[: min(rows, trials - start)].numpy()) for array in buffer]
        if on_lines:
            _play_on_lines(on_lines, normals[0], losses)
        for game in others:
            _play_plainly(game, normals, losses)


def _play_plainly(game: BlackBox, normals: Sequence[Normals], losses: Losses) -> None:
    """Play one trial per row of the normal vectors, one array ``(k, d)`` per client: randomize, average, update."""
    crafted, mechanism = game.crafted, game.mechanism
    sent_first, batches, uniforms = game.toss(len(normals[0].values))
    means, buffer = np.empty_like(normals[0].values), np.empty_like(normals[0].values)
    for gradient, rows in batches:
        own = normals[0].rows(rows.start, rows.stop)
        mechanism.sent(gradient, own, uniforms[0][:, rows], out=means[rows])
    for gradient, theirs, numbers in zip(crafted.others, normals[1:], uniforms[1:], strict=True):
        means += mechanism.sent(gradient, theirs, numbers, out=buffer)
    means /= np.float32(crafted.clients)  # Algorithm 2, line 4; the factor is the server's
    theta = parameter_vector(crafted.model).numpy()
    # Overwrites the means, so that no third array of this size is needed.
    models = game.server.move(theta, means, mechanism)
    measured = [losses[id(crafted.model), example].at(torch.from_numpy(models)) for example in game.compared]
    moves = np.subtract(theta, models, out=buffer)
    if game.rule == "signs":
        measured.append(np.sign(moves).sum(axis=1, dtype=np.float64))
    projected = (moves @ crafted.plane[0].astype(np.float32)).astype(np.float64)
    game.record(sent_first, measured, projected * crafted.clients / game.step)


@dataclass(eq=False)
class _OnLines:
    """The trials of one game of LDP-SGD: each report is its direction times a scale."""

    game: BlackBox
    sent_first: Bools
    projected: Floats
    scales: Floats
    measured: list[Floats] = field(default_factory=list)


def _play_on_lines(games: Sequence[BlackBox], drawn: Normals, losses: Losses) -> None:
    """Play one trial of each game per normal vector, whose multiples are the reports of LDP-SGD."""
    projected: dict[int, Floats] = {}  # by the identity of what was crafted, which all mechanisms share
    played = []
    for game in games:
        assert isinstance(game.mechanism, LDPSGD)
        basis, *gradients = game.crafted.plane
        # The plane of g₁ and g₂ is the same for all mechanisms.
        if id(game.crafted) not in projected:
            products = drawn.values @ basis.astype(np.float32)
            projected[id(game.crafted)] = products.astype(np.float64)
        coordinates = projected[id(game.crafted)]
        sent_first, batches, (uniforms,) = game.toss(len(coordinates))
        scales = np.empty(len(coordinates))
        for gradient, (_, rows) in zip(gradients, batches, strict=True):
            scales[rows] = game.mechanism.scales(gradient, coordinates[rows], drawn.lengths[rows], uniforms[:, rows])
        played.append(_OnLines(game, sent_first, coordinates, scales))
    for (model, example), loss in losses.items():
        sharing = [one for one in played if id(one.game.crafted.model) == model and example in one.game.compared]
        _add_changes(sharing, loss, torch.from_numpy(drawn.values))
    for one in played:
        if one.game.rule == "signs":
            one.measured.append(np.sign(one.scales) * drawn.sign_sums)
        one.game.record(one.sent_first, one.measured, one.projected * one.scales[:, None])


def _add_changes(played: Sequence[_OnLines], loss: LossChange, directions: Tensor) -> None:
    """Add the change of an example's loss to all games at the same model."""
    by_step: dict[float, list[_OnLines]] = {}
    for one in played:
        by_step.setdefault(one.game.step, []).append(one)
    points = []
    for step, same_step in by_step.items():
        points.append(-step * same_step[0].scales)
        # Reports are unit vectors up to their sign, so games with the same ε meet at two points of each line.
        if len(same_step) > 1:
            points.append(step * same_step[0].scales)
    if not points:
        return
    changes = iter(loss.along(directions, np.stack(points, axis=1)).T)
    for same_step in by_step.values():
        change = next(changes)
        opposite = next(changes) if len(same_step) > 1 else change
        for one in same_step:
            one.measured.append(np.where(one.scales == same_step[0].scales, change, opposite))
