"""Canaries that are examples of the data, looked for in losses of the final model or in every step's gradient.

The ε is that of one example, from one training in which coins decided who is there (Steinke, Nasr & Jagielski 2023).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from coalmine.accounting import Theory
from coalmine.arrays import Floats
from coalmine.errors import InputError, check_count, check_kind, check_probability
from coalmine.methods.estimates import canary_estimates, normality, rough_epsilon
from coalmine.methods.one_shot.views import parse_view
from coalmine.methods.samples.planted import SampleCanaries
from coalmine.protocol import Audit, Contribution, Release, Vector, View
from coalmine.results.result import AuditResult, common_delta
from coalmine.simulation.flat import FlatModel, parameter_vector

Losses = Callable[[Tensor, Tensor], Tensor]
"""From a module's outputs and targets, of k examples each, to k losses."""

VIEWS = ("final", "final-change", "updates")

# Numbers of per-example gradients that are held together, and examples whose losses are computed together.
_GRADIENTS, _EXAMPLES = 1 << 24, 1024


class Samples(Audit):
    """``canaries``, planted in the data of a training of ``rounds`` rounds (steps) that begins with ``model``.

    ``view`` is what the adversary sees. ``final``: the final model; a canary's score is minus its loss.
    ``final-change``: the first model too; by how much its loss fell. ``updates``: every step's noisy average and the
    model before it; how much likelier all of them are with the canary's clipped gradient in some batches than without,
    as if all else were noise. ``rate`` is the probability that an example is in a batch, for that score.

    ``model`` is copied, and called without dropout. ``losses`` gives each example's loss, cross-entropy if not given.
    Whoever trains must have put ``canaries.planted(...)`` in place of the data; ``plant`` adds nothing.
    """

    def __init__(
        self,
        *,
        canaries: SampleCanaries,
        model: nn.Module,
        rounds: int,
        view: str = "final-change",
        rate: float | None = None,
        losses: Losses | None = None,
    ) -> None:
        check_kind("canaries", canaries, SampleCanaries, "SampleCanaries(...)")
        check_kind("model", model, nn.Module, "a torch.nn.Module")
        if view not in VIEWS:
            raise InputError(f"there is no view {view!r} of samples; there are {', '.join(VIEWS)}")
        self.canaries, self.rounds, self.view = canaries, check_count("rounds", rounds), view
        self.rate = None if rate is None or rate == 1 else check_probability("rate", rate)
        self.views = (parse_view(view),) if view != "updates" else (View("update"), View("model"))
        self._losses = losses or cross_entropies
        self._model = FlatModel(model)
        self._model.module.eval()
        self._weights: Vector = parameter_vector(model).cpu().numpy()
        self._scores: Floats = np.zeros(len(canaries))
        if view == "final-change":
            self._scores += self._loss_of(self._weights)
        self._clip_norm, self._seconds = np.inf, 0.0
        self._observed = np.zeros(self.rounds, dtype=bool)
        if view == "updates":
            self._tried()

    def plant(self, round: int, *, clip_norm: float, trial: int | None = None) -> Contribution | None:
        """Nothing: the canaries are in the data. The clip norm is that of their gradients."""
        if trial is None:
            self._clip_norm = float(clip_norm)
        return None

    def observe(self, release: Release) -> None:
        """Score all canaries, planted and held out."""
        if release.trial is not None:
            return
        start = time.perf_counter()
        if release.vector.shape != self._weights.shape:
            raise InputError(
                f"the release of round {release.round} has the shape {release.vector.shape}, the model trains "
                f"{self._weights.size} parameters"
            )
        if release.kind == "update":
            self._scores += self._ratios(release)
            self._observed[release.round] = True
        else:
            self._weights = np.array(release.vector, dtype=np.float32)
            if self.view != "updates":
                self._scores -= self._loss_of(self._weights)
                self._observed[release.round] = True
        self._seconds += time.perf_counter() - start

    def skip(self, round: int, trial: int | None = None) -> None:
        """A round that told nothing."""
        if trial is None and self.view == "updates":
            self._observed[round] = True

    def live(self) -> str | None:
        """ε̂ by what was seen until now."""
        found = rough_epsilon(*self.scores()) if self._observed.any() else None
        return None if found is None else f"ε̂ {found:.2f} (samples, {self.view})"

    def scores(self) -> tuple[Floats, Floats]:
        """Of the planted and of the held-out canaries."""
        return self._scores[self.canaries.members], self._scores[~self.canaries.members]

    def result(
        self,
        *,
        delta: float | None = None,
        confidence: float = 0.95,
        theory: Theory | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> AuditResult:
        """ε of one example once the training is over; ``delta`` is that of ``theory`` if not given."""
        delta = common_delta(delta, theory)
        seen = self._observed if self.view == "updates" else self._observed[-1:]
        if not seen.all():
            raise InputError(
                f"the view {self.view} of samples saw {int(seen.sum())} of the {len(seen)} releases it needs: call "
                "observe with what was released"
            )
        members, nonmembers = self.scores()
        estimates, scores, ceiling = canary_estimates(
            members, nonmembers, null=None, signs=False, design="coin-flips", delta=delta, confidence=confidence
        )
        test, warnings = normality(members, "planted")
        counts = {"planted": float(len(members)), "held_out": float(len(nonmembers))}
        return AuditResult(
            audit="samples",
            view=f"samples:{self.view}",
            seed=self.canaries.seed,
            estimates=estimates,
            scores=scores,
            theory=theory,
            ceiling=ceiling,
            warnings=[*warnings, *self.notes],
            metrics={**counts, **test, **(metrics or {})},
            timing={"audit_s": self._seconds},
            config={
                "canaries": len(self.canaries),
                "kind": self.canaries.kind,
                "view": self.view,
                "rounds": self.rounds,
                "rate": self.rate,
                "seed": self.canaries.seed,
            },
        )

    def state(self) -> Mapping[str, npt.NDArray[Any]]:
        """All that was seen."""
        own = {"scores": self._scores, "weights": self._weights, "observed": self._observed}
        return {name: np.array(value) for name, value in own.items()} | {"seconds": np.array(self._seconds)}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go back to what ``state`` gave."""
        self._scores, self._weights = np.array(state["scores"]), np.array(state["weights"])
        self._observed, self._seconds = np.array(state["observed"]), float(state["seconds"])

    def __repr__(self) -> str:
        return f"Samples({self.canaries!r}, view={self.view}, rounds={self.rounds}, rate={self.rate})"

    def _loss_of(self, weights: Vector) -> Floats:
        self._model.load(torch.from_numpy(weights))
        with torch.no_grad():
            found = [
                self._losses(self._model.module(inputs), targets)
                for inputs, targets in zip(
                    self.canaries.inputs.split(_EXAMPLES), self.canaries.targets.split(_EXAMPLES), strict=True
                )
            ]
        losses = torch.cat(found).double().numpy()
        if losses.shape != (len(self.canaries),):
            raise InputError(
                f"losses must give one number for each of {len(self.canaries)} examples, got {losses.shape}"
            )
        # A loss that is not a number is what a model that ran away gives: it tells nothing, and must not end a run.
        return np.asarray(np.nan_to_num(losses, nan=0.0, posinf=1e9, neginf=-1e9), dtype=np.float64)

    def _ratios(self, release: Release) -> Floats:
        """(k,): log-likelihood ratios of one step, by the clipped gradients at the model before it."""
        update = torch.from_numpy(np.array(release.vector, dtype=np.float32))
        dots, squares = self._products(torch.from_numpy(self._weights), update)
        lengths = np.sqrt(squares)
        factor = np.minimum(1.0, self._clip_norm / np.maximum(lengths, 1e-12))
        divisor = 1.0 if release.divisor is None else release.divisor
        spread = float(update.double().square().mean()) * divisor**2
        if spread == 0:
            return np.zeros(len(dots))
        # In a batch, the canary adds minus its clipped gradient to the sum.
        ratios = (-factor * dots * divisor - (factor * lengths) ** 2 / 2) / spread
        if self.rate is None:
            return np.asarray(ratios)
        return np.asarray(np.logaddexp(np.log1p(-self.rate), np.log(self.rate) + ratios))

    def _products(self, weights: Tensor, update: Tensor, count: int | None = None) -> tuple[Floats, Floats]:
        """Products of the canaries' gradients at ``weights`` with ``update``, and their squared lengths: (k,) each."""
        self._model.load(weights)
        module, buffers = self._model.module, dict(self._model.module.named_buffers())

        def loss(values: dict[str, Tensor], one: Tensor, target: Tensor) -> Tensor:
            return self._losses(functional_call(module, (values, buffers), (one[None],)), target[None])[0]

        values = {name: value.detach() for name, value in zip(self._model.names, self._model.parameters, strict=True)}
        pieces = update.split([value.numel() for value in self._model.parameters])
        gradients, step = vmap(grad(loss), in_dims=(None, 0, 0)), max(1, _GRADIENTS // self._model.dim)
        dots, squares = [], []
        for inputs, targets in zip(
            self.canaries.inputs[:count].split(step), self.canaries.targets[:count].split(step), strict=True
        ):
            rows = [found.flatten(1) for found in gradients(values, inputs, targets).values()]
            dots.append(sum(row @ piece for row, piece in zip(rows, pieces, strict=True)))
            squares.append(sum(row.square().sum(1) for row in rows))
        return torch.cat(dots).double().numpy(), torch.cat(squares).double().numpy()

    def _tried(self) -> None:
        """Refuse now, and not in the middle of a training, a module without per-example gradients."""
        weights = torch.from_numpy(self._weights)
        try:
            self._products(weights, weights, count=1)
        except (RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
            raise InputError(
                f"the view updates needs each canary's gradient, which torch.func cannot give for this model "
                f"({type(error).__name__}: {error!s:.200}): take final or final-change"
            ) from error


def cross_entropies(outputs: Tensor, targets: Tensor) -> Tensor:
    """Each example's cross-entropy, over its positions their mean."""
    if outputs.ndim == 2:
        return F.cross_entropy(outputs, targets, reduction="none")
    return F.cross_entropy(outputs.movedim(-1, 1), targets, reduction="none").flatten(1).mean(1)
