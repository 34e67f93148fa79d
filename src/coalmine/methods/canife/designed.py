"""Canaries designed for the current model against a pool of mock clients: the adversary of CANIFE."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from coalmine.arrays import Floats
from coalmine.errors import InputError, check_kind, check_number, check_positive
from coalmine.methods.canife.crafted import Crafted, check_clipped, looked_at_apart
from coalmine.methods.canife.design import Design, DesignSettings, checked_settings, clients_of, step_of
from coalmine.methods.canife.design_samples import Target, design_samples, valid_range
from coalmine.methods.canife.design_tokens import design_texts
from coalmine.methods.canife.pool import ClientUpdates, Pool, check_apart
from coalmine.methods.canife.score_direction import likelihood_ratio_direction, plain_direction
from coalmine.protocol import Vector
from coalmine.seeds import generator
from coalmine.simulation import flat
from coalmine.simulation.client import LocalTraining
from coalmine.simulation.data.federated import Array, Examples, FederatedData
from coalmine.simulation.mechanisms.central import EqualWeights, Weighting, WeightsBySize
from coalmine.simulation.models.tasks import check_fits

# A canary whose update is shorter than this share of the clip norm shows less than it could.
_FADED = 0.9

ScoreName = Literal["likelihood-ratio", "plain"]
Start = Literal["random", "pool", "last"]


class DesignedCanaries:
    """``count`` samples or texts, designed for ``model`` as it is released, against mock clients with ``pool``'s data.

    ``model`` is the module at its first parameters; it is copied. ``client`` is what clients do. ``clients``, where
    given, are those under audit: a pool that shares examples with them is refused. ``noise_multiplier`` and ``cohort``
    (clients expected in a round) make the direction ``likelihood-ratio``; ``plain`` is the canary's own, as in the
    paper. ``start`` is from random numbers (tokens), from examples of the pool, or from the last canaries, which begin
    as random ones, with classes drawn anew: what a model has learnt of them helps it with others. ``valid`` is the
    range of the samples' numbers: that of the pool's, another one, or None, which leaves them free as in the paper.
    ``weighting`` is how the mechanism weighs clients: mock clients are weighed alike, a canary's client counts fully.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        pool: FederatedData | None,
        client: LocalTraining,
        noise_multiplier: float,
        cohort: float,
        clients: FederatedData | None = None,
        count: int = 1,
        score: ScoreName = "likelihood-ratio",
        settings: DesignSettings | None = None,
        start: Start = "random",
        target: Target = "random",
        valid: tuple[float, float] | Literal["data"] | None = "data",
        weighting: Weighting | None = None,
        seed: int = 0,
    ) -> None:
        check_kind("model", model, nn.Module, "a torch.nn.Module, as models.build(name, task) gives")
        if pool is None:
            raise InputError(
                "the design pool is empty: a canary needs mock clients to differ from; set users aside for it, with "
                "pool_fraction for one"
            )
        check_kind("pool", pool, FederatedData, "FederatedData, such as pool of what load gives")
        check_kind("client", client, LocalTraining, "LocalTraining(...)")
        self.settings, self.count, self.seed = checked_settings(settings, count, seed), count, seed
        if not check_number("noise_multiplier", noise_multiplier) >= 0:
            raise InputError(f"noise_multiplier must be at least 0, got {noise_multiplier}")
        self.noise_multiplier, self.cohort = float(noise_multiplier), check_positive("cohort", cohort)
        if score not in get_args(ScoreName):
            raise InputError(f"score must be likelihood-ratio or plain, got {score!r}")
        if start not in get_args(Start):
            raise InputError(f"start must be random, pool or last, got {start!r}")
        if clients is not None:
            check_apart(pool, clients)
        step_of(client)
        flat.check_module(model, private=True)
        check_fits(model, pool.task, name=type(model).__name__)
        self.data, self.client, self.score, self.start, self.target = pool, client, score, start, target
        self.weighting = weighting or EqualWeights()
        if self.weighting == WeightsBySize(None):
            raise InputError("weights by size need a cap: what the largest client counts by is not known to the pool")
        self.valid: tuple[float, float] | None = None
        if pool.task.tokens is None:
            self.valid = valid_range(pool) if valid == "data" else valid
        self._flat = flat.FlatModel(model)
        self._first = flat.parameter_vector(model)
        self._sent = ClientUpdates(model, pool.task, client, mock=pool)
        self._inputs: Array | None = None
        self._targets: Array | None = None
        self._pool: Pool | None = None
        self._designed_for, self._clip_norm = self._first.numpy(), 0.0
        self.last: Design | None = None

    def design(self, model: Vector | None, *, clip_norm: float, round: int) -> Floats:
        """Design canaries for ``model``. NaN stops a design: what is planted is the best until then."""
        check_clipped(clip_norm)
        weights = self._weights(model)
        self._designed_for, self._clip_norm = weights.numpy(), float(clip_norm)
        self._pool = self._mock(weights)
        self._flat.load(weights)
        seed = int(generator(self.seed, "design", round).integers(2**31))
        make: Callable[..., Design] = design_texts
        if self.data.task.tokens is None:
            make = partial(design_samples, valid=self.valid)
        found = make(
            self._flat.module,
            self._pool,
            task=self.data.task,
            client=self.client,
            count=self.count,
            settings=self.settings,
            start=self._start(seed),
            target=self.target,
            way=None if self.last is None else self.last.way,
            seed=seed,
        )
        if found.not_finite is not None and not all(np.isfinite(c.loss) for c in found.canaries):
            raise InputError(
                f"the design for round {round} is not finite in iteration {found.not_finite}, and there is no canary "
                "before it: lower the clients' learning rate or look at the model"
            )
        self.last = found
        self._inputs, self._targets = found.clients.inputs, found.clients.targets
        stopped = float(found.not_finite or 0)
        return np.array([[c.health, c.norm, np.nan, found.iterations, stopped] for c in found.canaries])

    def crafted(self, model: Vector | None, *, clip_norm: float) -> Crafted:
        """What the canaries' clients send from ``model``, and where to look for it."""
        check_clipped(clip_norm)
        if self._inputs is None or self._targets is None:
            raise InputError("no canary has been designed yet: call design first")
        if self._pool is None:  # restored: the same model gives the same mock updates
            self._pool = self._mock(self._weights(self._designed_for))
        weights = self._weights(model)
        rows = self._rows(weights, self._targets, clip_norm)
        if not self.data.task.per_position and not np.array_equal(weights.numpy(), self._designed_for):
            rows = self._with_what_is_new(rows, weights, clip_norm)
        direction = likelihood_ratio_direction if self.score == "likelihood-ratio" else plain_direction
        # A clip norm that has moved since moves noise and clients alike: in clip norms, mock updates stay as they are.
        since = self._pool.clip_norm / clip_norm
        found = [
            direction(row * since, self._pool, noise_multiplier=self.noise_multiplier, cohort=self.cohort)
            for row in rows
        ]
        vectors = np.stack([one.vector for one in found]).astype(np.float64)
        return looked_at_apart(rows, vectors, np.array([one.effective_sigma for one in found]))

    def _rows(self, weights: torch.Tensor, targets: Array, clip_norm: float) -> npt.NDArray[np.float32]:
        """(k, d): what the canaries' clients send."""
        assert self._inputs is not None
        clients = clients_of(self._inputs, targets, self.data.task)
        return np.stack([u.numpy() for u in self._sent.of(weights, clients, clip_norm, seed=self.seed)])

    def _with_what_is_new(
        self, rows: npt.NDArray[np.float32], weights: torch.Tensor, clip_norm: float
    ) -> npt.NDArray[np.float32]:
        """``rows``, but a canary that the model has learnt since its design gets the next class, if that shows more.

        A model that knows a canary moves little for it; that it has another class is news.
        """
        assert self._targets is not None
        lengths = np.linalg.norm(rows, axis=1)
        if not np.any(lengths < _FADED * clip_norm):
            return rows
        others = ((self._targets + 1) % self.data.task.classes).astype(self._targets.dtype)
        renewed = self._rows(weights, others, clip_norm)
        better = (lengths < _FADED * clip_norm) & (np.linalg.norm(renewed, axis=1) > lengths)
        self._targets = np.where(better, others, self._targets)
        return np.where(better[:, None], renewed, rows)

    def state(self) -> Mapping[str, npt.NDArray[Any]]:
        """The canaries, and the model and clip norm that they were designed for."""
        if self._inputs is None or self._targets is None:
            return {}
        return {
            "inputs": self._inputs,
            "targets": self._targets,
            "designed_for": self._designed_for,
            "clip_norm": np.array(self._clip_norm),
        }

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Go back to what ``state`` gave."""
        self._pool, self.last = None, None
        self._inputs, self._targets = state.get("inputs"), state.get("targets")
        if self._inputs is not None:
            self._designed_for, self._clip_norm = state["designed_for"], float(state["clip_norm"])

    def described(self) -> list[dict[str, Any]]:
        """The canaries as last designed, JSON-ready: texts as they read, of numbers the shape and the valid range."""
        if self._inputs is None or self._targets is None:
            return []
        task, found = self.data.task, []
        for inputs, target in zip(self._inputs, self._targets, strict=True):
            one: dict[str, Any] = {"kind": "numbers" if task.tokens is None else "text", "shape": list(inputs.shape)}
            if task.tokens is None:
                one["range"] = None if self.valid is None else [float(end) for end in self.valid]
            else:
                tokens = [*inputs.tolist(), *([int(target[-1])] if task.per_position else [])]
                known = self.data.vocabulary
                one["text"] = " ".join(map(str, tokens)) if known is None else known.decode(tokens)
            found.append(one | {"target": None if task.per_position else int(target)})
        return found

    @property
    def samples(self) -> tuple[Array, Array]:
        """Inputs and targets of the canaries as last designed."""
        if self._inputs is None or self._targets is None:
            raise InputError("no canary has been designed yet")
        return self._inputs, self._targets

    def __repr__(self) -> str:
        names = (
            "count",
            "score",
            "settings",
            "client",
            "noise_multiplier",
            "cohort",
            "start",
            "target",
            "valid",
            "weighting",
            "seed",
        )
        own = {name: getattr(self, name) for name in names}
        made_of = hashlib.blake2b(self._first.numpy().tobytes(), digest_size=6)
        made_of.update(np.ascontiguousarray(self.data.indices).tobytes())
        made_of.update(np.ascontiguousarray(self.data.bounds).tobytes())
        return f"DesignedCanaries({own}, {len(self.data)} mock clients, {made_of.hexdigest()})"

    def _weights(self, model: Vector | None) -> torch.Tensor:
        vector = self._first if model is None else torch.from_numpy(np.array(model, dtype=np.float32))
        if vector.shape != self._first.shape:
            raise InputError(
                f"a released model of {vector.numel()} numbers does not fit the module, which trains "
                f"{self._first.numel()}"
            )
        return vector

    def _mock(self, weights: torch.Tensor) -> Pool:
        return self._sent.pool(weights, self.data, self._clip_norm, weighting=self.weighting, seed=self.seed)

    def _start(self, seed: int) -> FederatedData | Examples | None:
        if self.start == "pool":
            return self.data
        if self.start == "random" or self._inputs is None or self._targets is None:
            return None
        if self.data.task.per_position:  # each token is the target of those before it
            return Examples(self._inputs, self._targets)
        drawn = np.random.default_rng(seed).integers(self.data.task.classes, size=self.count)
        return Examples(self._inputs, drawn)
