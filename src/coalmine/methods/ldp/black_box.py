"""Black-box trials of the LDP audit: the distinguisher sees the model before and after the report was applied to it.

There are two ways to play them: `WithVectors` makes every report and every model, for any mechanism and any number of
clients; `OnLines` needs neither where reports are multiples of shared random directions. Their results are the same,
except where steps are smaller than the rounding of the weights to float32: `OnLines` has no model to round.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np
import torch

from coalmine.arrays import Bools, Floats
from coalmine.methods.ldp.crafters import Rule
from coalmine.methods.ldp.lines import LineLosses
from coalmine.methods.ldp.many_models import ManyModels
from coalmine.methods.ldp.trials import Crafted, Plane, Trials, is_memoryless, tossed
from coalmine.progress import track
from coalmine.protocol import Vector
from coalmine.simulation.flat import parameter_vector
from coalmine.simulation.mechanisms.local import LDPSGD, UNIFORMS, LocalMechanism, Normals, Reports, Server

VIEWS = ("black-box", "parameter-change")

_CHUNK = 1 << 20  # numbers in the reports that are worked on together: some megabytes, near the processor


class BlackBox:
    """Trials of a distinguisher who sees the model before and after the report.

    ``black-box`` is the paper's test for the crafter; ``parameter-change`` undoes the server's step and takes the
    likelihood ratio of what it finds, for which the distinguisher must compute g₁ and g₂ as the white-box one does.
    """

    def __init__(
        self,
        crafted: Crafted,
        mechanism: LocalMechanism,
        server: Server,
        rng: np.random.Generator,
        views: Collection[str] = VIEWS,
    ) -> None:
        self.crafted, self.mechanism, self.server = crafted, mechanism, server
        self.views = [view for view in VIEWS if view in views]
        self.plane = Plane.of(crafted)
        self.step = server.step(mechanism, crafted.dim)
        self._rng = rng
        self._scores: dict[str, list[Floats]] = {view: [] for view in self.views}
        self._members: list[Bools] = []

    def coins(self, count: int) -> tuple[Bools, Floats]:
        """Which trials send g₁, and uniform numbers (clients, 3, count)."""
        members = tossed(self.mechanism, count, self._rng)
        return members, self._rng.random((self.crafted.clients, UNIFORMS, count))

    def note(self, members: Bools, paper: Floats | None, total: Floats) -> None:
        """Keep trials: the scores of the paper's test, and the sums of reports (k, r) that the parameters betray."""
        if paper is not None:
            self._scores["black-box"].append(paper)
        if "parameter-change" in self.views:
            ratio = self.plane.log_ratio(total, self.mechanism, self.crafted.dim, self.crafted.clients)
            self._scores["parameter-change"].append(ratio)
        self._members.append(members)

    def trials(self) -> dict[str, Trials]:
        """All that were played."""
        members = np.concatenate(self._members)
        accuse, clear = self.plane.thresholds(self.mechanism, self.crafted.dim, self.crafted.clients)
        thresholds = {"black-box": (0.0, 0.0), "parameter-change": (accuse, clear)}
        return {
            view: Trials(np.concatenate(scores), members, *thresholds[view]) for view, scores in self._scores.items()
        }


def play_together(games: Sequence[BlackBox], trials: int, seed: int, *, on_lines: bool = True) -> None:
    """Let all games have their trials, on the same random directions.

    The directions are shared between games, not between the trials of one: each game by itself is as if it had its own.
    Where reports are multiples of these directions (LDP-SGD, one client, no projection) losses are computed
    ``on_lines``, which is faster and does not round models to float32.
    """
    fast = [game for game in games if on_lines and _moves_on_lines(game)]
    players: list[Players] = [OnLines(fast)] if fast else []
    players += [WithVectors(game) for game in games if game not in fast]
    dim, clients = games[0].crafted.dim, games[0].crafted.clients
    generator = torch.Generator().manual_seed(seed % 2**32)
    rows = max(1, min(trials, _CHUNK // dim))
    drawn = torch.empty((clients, rows, dim))
    for start in track(range(0, trials, rows), "trials that see the model"):
        drawn.normal_(generator=generator)
        normals = [Normals(array[: min(rows, trials - start)].numpy()) for array in drawn]
        for player in players:
            player.play(normals)


def _moves_on_lines(game: BlackBox) -> bool:
    # A subclass that makes other reports must be asked for them.
    own = isinstance(game.mechanism, LDPSGD) and is_memoryless(game.mechanism)
    return own and game.crafted.clients == 1 and game.server.radius is None


class Players(Protocol):
    """Something that plays a trial for each row of normal vectors, one array (k, d) a client."""

    def play(self, normals: Sequence[Normals]) -> None:
        """A trial a row."""
        ...


class WithVectors:
    """One game, played with every report and every model in full."""

    def __init__(self, game: BlackBox) -> None:
        self._game = game
        crafted, pair = game.crafted, game.crafted.pair
        self._model: Vector = parameter_vector(crafted.model).numpy()
        self._evaluated: ManyModels | None = None
        if needed := len(_looked_at(game)):
            self._evaluated = ManyModels(crafted.model, pair.task, pair.inputs[:needed], pair.targets[:needed])
            self._before = self._evaluated.losses(torch.from_numpy(self._model[None]))

    def play(self, normals: Sequence[Normals]) -> None:
        """Randomize, average, move the model, look at it."""
        game, crafted, count = self._game, self._game.crafted, len(normals[0].values)
        members, uniforms = game.coins(count)
        means, other = np.empty_like(normals[0].values), np.empty_like(normals[0].values)
        ones = int(members.sum())
        if is_memoryless(game.mechanism):
            sent = [(crafted.first, 0, ones), (crafted.second, ones, count)]
        else:
            sent = [(crafted.first if member else crafted.second, i, i + 1) for i, member in enumerate(members)]
        for gradient, start, stop in sent:
            drawn = normals[0].rows(start, stop)
            game.mechanism.sent(gradient, drawn, uniforms[0][:, start:stop], out=means[start:stop])
        for gradient, drawn, own in zip(crafted.others, normals[1:], uniforms[1:], strict=True):
            means += game.mechanism.sent(gradient, drawn, own, out=other)
        means /= np.float32(crafted.clients)
        models = game.server.move(self._model, means, game.mechanism)
        changes = np.subtract(self._model, models, out=other)
        along = (changes @ game.plane.basis.astype(np.float32)).astype(np.float64)
        game.note(members, self._paper_scores(models, changes), along * crafted.clients / game.step)

    def _paper_scores(self, models: Reports, changes: Reports) -> Floats | None:
        if "black-box" not in self._game.views:
            return None
        if self._evaluated is None:
            # Eq. 7 has the change's sign; under θ − η·g a positive gradient makes it negative.
            found: Floats = np.sign(changes).sum(axis=1, dtype=np.float64)
            return found
        moved = self._evaluated.losses(torch.from_numpy(models)) - self._before
        return paper_score(self._game.crafted.rule, [*moved.T])


class OnLines:
    """Several games whose reports are multiples of the normal vectors: no report and no model is ever made.

    Games at the same model share their evaluations of an example, a column a game.
    """

    def __init__(self, games: Sequence[BlackBox]) -> None:
        self._games = games
        self._lines: dict[tuple[int, int], tuple[LineLosses, float]] = {}
        for game in games:
            for which in _looked_at(game):
                pair, own = game.crafted.pair, slice(which, which + 1)
                if (id(game.crafted.model), which) not in self._lines:
                    line = LineLosses(game.crafted.model, pair.task, pair.inputs[own], pair.targets[own])
                    self._lines[id(game.crafted.model), which] = line, line.at_start()

    def play(self, normals: Sequence[Normals]) -> None:
        """The scales of all games' reports, then their losses together."""
        (drawn,) = normals
        played = []
        along: dict[int, Floats] = {}
        for game in self._games:
            if id(game.crafted) not in along:
                products = drawn.values @ game.plane.basis.astype(np.float32)
                along[id(game.crafted)] = products.astype(np.float64)
            played.append((game, *_scales(game, along[id(game.crafted)], drawn.lengths)))
        moved = self._moved(drawn, played)
        for game, members, scales in played:
            paper = None
            if "black-box" in game.views and game.crafted.rule == "signs":
                paper = np.sign(scales) * drawn.sign_sums
            elif "black-box" in game.views:
                paper = paper_score(game.crafted.rule, [moved[id(game), which] for which in _looked_at(game)])
            game.note(members, paper, along[id(game.crafted)] * scales[:, None])

    def _moved(self, drawn: Normals, played: Sequence[tuple[BlackBox, Bools, Floats]]) -> dict[tuple[int, int], Floats]:
        """By how much the loss of each example changed in each game."""
        found: dict[tuple[int, int], Floats] = {}
        directions = torch.from_numpy(drawn.values)
        for (model, which), (line, before) in self._lines.items():
            here = [(game, scales) for game, _, scales in played if _looks(game, model, which)]
            losses = line.losses(directions, np.stack([-game.step * scales for game, scales in here], axis=1))
            found |= {(id(game), which): losses[:, i] - before for i, (game, _) in enumerate(here)}
        return found


def _scales(game: BlackBox, along: Floats, lengths: Floats) -> tuple[Bools, Floats]:
    """Which trials send g₁, and what their directions are multiplied by."""
    mechanism = game.mechanism
    assert isinstance(mechanism, LDPSGD)
    members, (uniforms,) = game.coins(len(along))
    ones = int(members.sum())  # the first so many: LDP-SGD keeps no memory
    parts = [
        mechanism.scales(gradient, along[own], lengths[own], uniforms[:, own])
        for gradient, own in ((game.plane.first, slice(0, ones)), (game.plane.second, slice(ones, None)))
    ]
    return members, np.concatenate(parts)


def _looked_at(game: BlackBox) -> Sequence[int]:
    """The examples whose losses the paper's test compares."""
    if "black-box" not in game.views:
        return ()
    return {"loss-falls": (0,), "larger-change": (0, 1), "signs": ()}[game.crafted.rule]


def _looks(game: BlackBox, model: int, which: int) -> bool:
    return id(game.crafted.model) == model and which in _looked_at(game)


def paper_score(rule: Rule, moved: Sequence[Floats]) -> Floats:
    """Eqs. 4 and 6 as scores, g₁ at 0 and above, from the change of each example's loss."""
    if rule == "larger-change":
        found: Floats = np.abs(moved[0]) - np.abs(moved[1])
        return found
    return -moved[0]
