"""Black-box trials of the LDP audit: the distinguisher sees the model before and after the report was applied.

Trials can be played in two ways with the same results. `PlainTrials`, the reference, makes every report and every
model, for any mechanism and any number of clients. `LineTrials` serves speed: where reports are multiples of shared
random directions, it makes neither and is four to five times as fast. The two differ only where steps are smaller than
the rounding of the weights to float32, since `LineTrials` has no model to round.
``tests/methods/ldp/test_black_box.py`` compares them, and ``benchmarks/ldp.py`` measures both.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np
import torch

from coalmine.arrays import Bools, Floats
from coalmine.methods.ldp.crafters import Rule
from coalmine.methods.ldp.losses import ExampleLosses
from coalmine.methods.ldp.trials import Crafted, Plane, Trials, batches_of_one_gradient, is_memoryless, toss_coins
from coalmine.progress import track
from coalmine.protocol import Vector
from coalmine.simulation.flat import parameter_vector
from coalmine.simulation.mechanisms.local import LDPSGD, UNIFORMS, LDPServer, LocalMechanism, Normals, Reports

VIEWS = ("black-box", "parameter-change")
"""The paper's test, and the likelihood ratio of the report that the change of the parameters reveals."""

_CHUNK = 1 << 20  # numbers in the reports that are processed together: a few megabytes, to stay in the cache


class BlackBox:
    """One game: a crafter and a mechanism, and the trials played so far.

    Args:
        crafted: The gradients, the model, and what the distinguisher knows.
        mechanism: Randomizes the gradient that is sent.
        server: Applies the mean report to the model.
        rng: Decides which gradient is sent, and the mechanism's signs.
        views: Which of `VIEWS` to score.
    """

    def __init__(
        self,
        crafted: Crafted,
        mechanism: LocalMechanism,
        server: LDPServer,
        rng: np.random.Generator,
        views: Collection[str] = VIEWS,
    ) -> None:
        self.crafted, self.mechanism, self.server = crafted, mechanism, server
        self.views = [view for view in VIEWS if view in views]
        self.plane = Plane.of(crafted)
        self.step = server.step(mechanism, crafted.dim)
        self._rng = rng
        self._scores: dict[str, list[Floats]] = {view: [] for view in self.views}
        self._sent_first: list[Bools] = []

    def toss(self, count: int) -> tuple[Bools, Floats]:
        """Return which trials send g₁, and uniform numbers ``(clients, 3, count)``."""
        sent_first = toss_coins(self.mechanism, count, self._rng)
        return sent_first, self._rng.random((self.crafted.clients, UNIFORMS, count))

    @property
    def compared_examples(self) -> Sequence[int]:
        """The examples whose losses the paper's test compares."""
        if "black-box" not in self.views:
            return ()
        return {"loss-falls": (0,), "larger-change": (0, 1), "signs": ()}[self.crafted.rule]

    def record(self, sent_first: Bools, paper_scores: Floats | None, total: Floats) -> None:
        """Add trials: scores of the paper's test, and the sums of reports ``(k, r)`` recovered from the parameters."""
        if paper_scores is not None:
            self._scores["black-box"].append(paper_scores)
        if "parameter-change" in self.views:
            ratio = self.plane.log_ratio(total, self.mechanism, self.crafted.dim, self.crafted.clients)
            self._scores["parameter-change"].append(ratio)
        self._sent_first.append(sent_first)

    def trials(self) -> dict[str, Trials]:
        """Return all trials so far, by view."""
        sent_first = np.concatenate(self._sent_first)
        ratio_thresholds = self.plane.thresholds(self.mechanism, self.crafted.dim, self.crafted.clients)
        thresholds = {"black-box": (0.0, 0.0), "parameter-change": ratio_thresholds}
        return {
            view: Trials(np.concatenate(scores), sent_first, *thresholds[view]) for view, scores in self._scores.items()
        }


def play(games: Sequence[BlackBox], trials: int, seed: int, *, plain: bool = False) -> None:
    """Play the trials of all games on the same random directions.

    Directions are shared between games, never between the trials of one game, so each game by itself is as if it had
    directions of its own.

    Args:
        games: Games with the same dimension and number of clients.
        trials: Trials per game.
        seed: Seed of the directions.
        plain: Use `PlainTrials` throughout, as a reference.
    """
    on_lines = [game for game in games if not plain and _moves_on_lines(game)]
    players: list[Player] = [LineTrials(on_lines)] if on_lines else []
    players += [PlainTrials(game) for game in games if game not in on_lines]
    dim, clients = games[0].crafted.dim, games[0].crafted.clients
    generator = torch.Generator().manual_seed(seed % 2**32)
    rows = max(1, min(trials, _CHUNK // dim))
    buffer = torch.empty((clients, rows, dim))
    for start in track(range(0, trials, rows), "trials that see the model"):
        buffer.normal_(generator=generator)
        normals = [Normals(array[: min(rows, trials - start)].numpy()) for array in buffer]
        for player in players:
            player.play(normals)


def _moves_on_lines(game: BlackBox) -> bool:
    """Return whether reports are multiples of the directions: LDP-SGD, a single client, no projection."""
    # A subclass may report anything, so only LDPSGD itself qualifies.
    ldp_sgd = isinstance(game.mechanism, LDPSGD) and is_memoryless(game.mechanism)
    return ldp_sgd and game.crafted.clients == 1 and game.server.radius is None


class Player(Protocol):
    """A way to play trials."""

    def play(self, normals: Sequence[Normals]) -> None:
        """Play one trial per row of the normal vectors, which are one array ``(k, d)`` per client."""
        ...


class PlainTrials:
    """The plain way: one game, with every report and every model in full (Algorithm 3)."""

    def __init__(self, game: BlackBox) -> None:
        self._game = game
        crafted, pair = game.crafted, game.crafted.pair
        self._theta: Vector = parameter_vector(crafted.model).numpy()
        self._losses: ExampleLosses | None = None
        if count := len(game.compared_examples):
            self._losses = ExampleLosses(crafted.model, pair.task, pair.inputs[:count], pair.targets[:count])
            self._before = self._losses.at(torch.from_numpy(self._theta[None]))

    def play(self, normals: Sequence[Normals]) -> None:
        """Randomize, average, update the model, and score it."""
        game, crafted, count = self._game, self._game.crafted, len(normals[0].values)
        sent_first, uniforms = game.toss(count)
        means, buffer = np.empty_like(normals[0].values), np.empty_like(normals[0].values)
        for gradient, start, stop in batches_of_one_gradient(crafted, game.mechanism, sent_first):
            rows = normals[0].rows(start, stop)
            game.mechanism.sent(gradient, rows, uniforms[0][:, start:stop], out=means[start:stop])
        for gradient, rows, numbers in zip(crafted.others, normals[1:], uniforms[1:], strict=True):
            means += game.mechanism.sent(gradient, rows, numbers, out=buffer)
        means /= np.float32(crafted.clients)
        models = game.server.move(self._theta, means, game.mechanism)
        changes = np.subtract(self._theta, models, out=buffer)
        projected = (changes @ game.plane.basis.astype(np.float32)).astype(np.float64)
        game.record(sent_first, self._paper_scores(models, changes), projected * crafted.clients / game.step)

    def _paper_scores(self, models: Reports, changes: Reports) -> Floats | None:
        """Return the scores of the paper's test, or None if the view is not wanted."""
        if "black-box" not in self._game.views:
            return None
        if self._losses is None:
            # Eq. 7 is printed for θₜ₊₁ − θₜ, but the server subtracts the gradient: θₜ − θₜ₊₁ has g₁'s sign.
            signs: Floats = np.sign(changes).sum(axis=1, dtype=np.float64)
            return signs
        loss_changes = self._losses.at(torch.from_numpy(models)) - self._before
        return paper_scores(self._game.crafted.rule, [*loss_changes.T])


class LineTrials:
    """The fast way: several games of LDP-SGD, whose reports are multiples of the normal vectors.

    No report and no model is ever made. Games at the same model share the evaluations of an example, one column per
    game.
    """

    def __init__(self, games: Sequence[BlackBox]) -> None:
        self._games = games
        self._losses: dict[tuple[int, int], tuple[ExampleLosses, float]] = {}
        for game in games:
            for example in game.compared_examples:
                key = (id(game.crafted.model), example)
                if key not in self._losses:
                    pair, rows = game.crafted.pair, slice(example, example + 1)
                    losses = ExampleLosses(game.crafted.model, pair.task, pair.inputs[rows], pair.targets[rows])
                    self._losses[key] = losses, losses.at_theta()

    def play(self, normals: Sequence[Normals]) -> None:
        """Compute the scales of all games' reports, then all losses together."""
        (drawn,) = normals
        projected: dict[int, Floats] = {}
        played = []
        for game in self._games:
            key = id(game.crafted)
            if key not in projected:
                products = drawn.values @ game.plane.basis.astype(np.float32)
                projected[key] = products.astype(np.float64)
            played.append((game, *_scales(game, projected[key], drawn.lengths)))
        loss_changes = self._loss_changes(drawn, played)
        for game, sent_first, scales in played:
            scores = None
            if "black-box" in game.views and game.crafted.rule == "signs":
                scores = np.sign(scales) * drawn.sign_sums
            elif "black-box" in game.views:
                changes = [loss_changes[id(game), example] for example in game.compared_examples]
                scores = paper_scores(game.crafted.rule, changes)
            game.record(sent_first, scores, projected[id(game.crafted)] * scales[:, None])

    def _loss_changes(
        self, drawn: Normals, played: Sequence[tuple[BlackBox, Bools, Floats]]
    ) -> dict[tuple[int, int], Floats]:
        """Return how much the loss of each example changed in each game, by game and example."""
        changes: dict[tuple[int, int], Floats] = {}
        directions = torch.from_numpy(drawn.values)
        for (model, example), (losses, before) in self._losses.items():
            games = [
                (game, scales)
                for game, _, scales in played
                if id(game.crafted.model) == model and example in game.compared_examples
            ]
            steps = np.stack([-game.step * scales for game, scales in games], axis=1)
            after = losses.along(directions, steps)
            changes |= {(id(game), example): after[:, i] - before for i, (game, _) in enumerate(games)}
        return changes


def _scales(game: BlackBox, projected: Floats, lengths: Floats) -> tuple[Bools, Floats]:
    """Return which trials send g₁, and the factors that turn their normal vectors into reports."""
    mechanism = game.mechanism
    assert isinstance(mechanism, LDPSGD)
    sent_first, (uniforms,) = game.toss(len(projected))
    boundary = int(sent_first.sum())  # LDP-SGD is memoryless, so the trials of g₁ come first
    parts = [
        mechanism.scales(gradient, projected[rows], lengths[rows], uniforms[:, rows])
        for gradient, rows in ((game.plane.first, slice(0, boundary)), (game.plane.second, slice(boundary, None)))
    ]
    return sent_first, np.concatenate(parts)


def paper_scores(rule: Rule, loss_changes: Sequence[Floats]) -> Floats:
    """Return the paper's tests as scores, from each example's change of loss: g₁ at 0 and above."""
    if rule == "larger-change":  # Eq. 6
        scores: Floats = np.abs(loss_changes[0]) - np.abs(loss_changes[1])
        return scores
    return -loss_changes[0]  # Eq. 4
