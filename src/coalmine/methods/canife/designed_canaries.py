"""`DesignedCanaries`: the paper's rogue client, who designs samples for the current model against mock clients."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from coalmine.arrays import Floats
from coalmine.errors import InputError, check_count, check_nonnegative, check_positive
from coalmine.methods.canife.canaries import CraftedUpdates, orthogonalize_directions
from coalmine.methods.canife.design import DesignSettings, step_size
from coalmine.methods.canife.pool import MockClients, Pool, client_updates
from coalmine.methods.canife.sample_gradients import SampleGradients
from coalmine.methods.canife.samples import StartExamples, Target, clients_of, design_samples, valid_range
from coalmine.methods.canife.score_direction import likelihood_ratio_direction, plain_direction
from coalmine.parallel import single_thread
from coalmine.protocol import Vector
from coalmine.seeds import generator
from coalmine.simulation import flat
from coalmine.simulation.client import LocalTraining
from coalmine.simulation.data.federated import Examples, FederatedData
from coalmine.simulation.kernels.kernel import LeanLoop
from coalmine.simulation.models import check_fits

# A canary whose update is shorter than this share of the clip norm has been learned by the model.
_LEARNED = 0.9

ScoreName = Literal["likelihood-ratio", "plain"]
Start = Literal["random", "pool", "last"]


class DesignedCanaries:
    """Samples or texts designed for the current model, so that their gradients are unlike mock clients' updates.

    Args:
        model: The module at its initial parameters; it is copied.
        pool: Data of the mock clients.
        client: What clients do with their data. They must train with SGD.
        noise_multiplier: Noise on the sum in clip norms, for the likelihood-ratio score.
        cohort: Number of clients expected in a round.
        clients: The clients under audit, if known. The pool must not share examples with them.
        count: Number of canaries.
        score: ``"likelihood-ratio"``, or ``"plain"`` to score along the canary's own update, as in the paper.
        settings: How samples are optimized.
        start: Start from ``"random"`` numbers or tokens, from examples of the ``"pool"``, or from the ``"last"``
            canaries (the first ones are random) with newly drawn classes: what the model has learned of them helps with
            the next ones.
        target: The canaries' class: a number, or ``"random"``.
        valid: Range of the samples' numbers: ``"data"`` for that of the pool, a pair, or None to leave them free as in
            the paper.
        device: Where mock clients train and samples are designed; where the module is if None.
        seed: Seed of the designs, which are the same on every device up to rounding.

    Raises:
        InputError: If the pool is empty or shares clients, the model does not fit, clients do not train with SGD, or
            there is no such device.

    Example:
        >>> from coalmine.simulation import SGD, LocalTraining, models
        >>> from coalmine.simulation.data import load
        >>> digits = load("digits", partition="iid:60", pool_fraction=0.3)
        >>> canaries = DesignedCanaries(
        ...     model=models.build("mlp", digits.train.task), pool=digits.pool, clients=digits.train,
        ...     client=LocalTraining(optimizer=SGD(learning_rate=0.5)), noise_multiplier=0.5, cohort=20,
        ...     settings=DesignSettings(iterations=20),
        ... )
        >>> facts = canaries.design(None, clip_norm=1.0, round=0)
        >>> canaries.samples.inputs.shape
        (1, 1, 8, 8)
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
        device: torch.device | str | None = None,
        seed: int = 0,
    ) -> None:
        if pool is None:
            raise InputError(
                "the design pool is empty: set users aside as mock clients, for example with pool_fraction"
            )
        if score not in get_args(ScoreName) or start not in get_args(Start):
            raise InputError(
                f"score must be likelihood-ratio or plain, and start random, pool or last, got {score!r} and {start!r}"
            )
        step_size(client)  # raises for clients that a canary cannot be designed for
        self.settings, self.seed = settings or DesignSettings(), check_count("seed", seed, least=0)
        self.count, self.cohort = check_count("count", count), check_positive("cohort", cohort)
        self.noise_multiplier = check_nonnegative("noise_multiplier", noise_multiplier)
        self.data, self.client, self.score, self.start, self.target = pool, client, score, start, target
        self.valid: tuple[float, float] | None = None
        if pool.task.tokens is None:
            self.valid = valid_range(pool) if valid == "data" else valid
        model = flat.moved(model, device)
        check_fits(model, pool.task, name=type(model).__name__)
        self._mock_clients = MockClients(model, pool, client, clients=clients, seed=self.seed)
        self._loop = LeanLoop(model, pool.task, client)  # a handful of canaries: the plain path is fast enough
        self._initial = flat.parameter_vector(model)
        self._samples: Examples | None = None
        self._pool: Pool | None = None
        self._designed_for, self._clip_norm = self._initial.cpu().numpy(), 0.0
        self._gradients: SampleGradients | None = None

    def design(self, model: Vector | None, *, clip_norm: float, round: int) -> Floats:
        """Design canaries for ``model`` and return their FACTS; a design that meets NaN stops at the best before it."""
        weights = self._parameters(model)
        self._designed_for, self._clip_norm = weights.cpu().numpy(), check_positive("the clip norm", clip_norm)
        self._pool = self._mock_clients.pool(self._clip_norm, weights)
        self._loop.model.load(weights)
        # By the round alone, so that a design is the same after a restart.
        seed = int(generator(self.seed, "design", round).integers(2**31))
        start: StartExamples = None
        if self.start == "pool":
            start = self.data
        elif self.start == "last":
            start = self._samples
            # In a language model each token is the target of those before it: there are no classes to draw anew.
            if start is not None and not self.data.task.per_position:
                drawn = np.random.default_rng(seed).integers(self.data.task.classes, size=self.count)
                start = Examples(start.inputs, drawn)
        outcome = design_samples(
            self._loop.model.module,
            self._pool,
            task=self.data.task,
            client=self.client,
            count=self.count,
            settings=self.settings,
            start=start,
            target=self.target,
            valid=self.valid,
            gradients=self._gradients,
            seed=seed,
        )
        losses = [canary.loss for canary in outcome.canaries]
        if outcome.not_finite is not None and not np.isfinite(losses).all():
            raise InputError(
                f"the design for round {round} is not finite in iteration {outcome.not_finite}, and no canary precedes "
                "it: lower the clients' learning rate or check the model"
            )
        # Which implementation of per-sample gradients is right depends on the module, not on its weights: keep it.
        self._gradients, self._samples = outcome.gradients, outcome.clients.pooled()
        stopped = float(outcome.not_finite or 0)
        return np.array([[c.health, c.norm, np.nan, outcome.iterations, stopped] for c in outcome.canaries])

    def crafted(self, model: Vector | None, *, clip_norm: float) -> CraftedUpdates:
        """Return what the canaries' clients send from ``model``, and the directions to look for it."""
        if self._pool is None:  # after restore: the same model gives the same mock updates
            self._pool = self._mock_clients.pool(self._clip_norm, self._parameters(self._designed_for))
        weights = self._parameters(model)
        rows = self._updates(weights, self.samples, clip_norm)
        lengths = np.linalg.norm(rows, axis=1)
        learned = lengths < _LEARNED * clip_norm
        moved_on = not np.array_equal(weights.cpu().numpy(), self._designed_for)
        if moved_on and learned.any() and not self.data.task.per_position:
            # A model that has learned a canary sends a short update for it; another class is new to it.
            inputs, targets = self.samples.inputs, self.samples.targets
            next_class = ((targets + 1) % self.data.task.classes).astype(targets.dtype)
            relabeled = self._updates(weights, Examples(inputs, next_class), clip_norm)
            better = learned & (np.linalg.norm(relabeled, axis=1) > lengths)
            self._samples = Examples(inputs, np.where(better, next_class, targets))
            rows = np.where(better[:, None], relabeled, rows)
        direction_of = likelihood_ratio_direction if self.score == "likelihood-ratio" else plain_direction
        # If the clip norm has moved since the design, noise and clients moved with it: relative to the clip norm, the
        # mock updates are unchanged.
        rescaled = rows * (self._pool.clip_norm / clip_norm)
        terms = {"noise_multiplier": self.noise_multiplier, "cohort": self.cohort}
        directions = [direction_of(row, self._pool, **terms) for row in rescaled]
        vectors = np.stack([direction.vector for direction in directions]).astype(np.float64)
        return orthogonalize_directions(rows, vectors, np.array([d.effective_sigma for d in directions]))

    def _updates(self, weights: torch.Tensor, samples: Examples, clip_norm: float) -> npt.NDArray[np.float32]:
        """Return what the canaries' clients send, (k, d)."""
        clients = clients_of(samples.inputs, samples.targets, self.data.task)
        with single_thread():
            rows = torch.cat(list(client_updates(self._loop, weights, clients, clip_norm, seed=self.seed)))
        return rows.cpu().numpy()

    def state(self) -> Mapping[str, npt.NDArray[Any]]:
        """Return the canaries, and the model and clip norm they were designed for."""
        if self._samples is None:
            return {}
        designed_for, clip_norm = self._designed_for, np.array(self._clip_norm)
        samples = {"inputs": self._samples.inputs, "targets": self._samples.targets}
        return {**samples, "designed_for": designed_for, "clip_norm": clip_norm}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore what `state` returned."""
        self._pool = self._samples = None
        if state:
            self._samples = Examples(state["inputs"], state["targets"])
            self._designed_for, self._clip_norm = state["designed_for"], float(state["clip_norm"])

    def described(self) -> list[dict[str, Any]]:
        """Describe the canaries of the last design, ready for JSON: texts in words, numbers by shape and range."""
        task, vocabulary, canaries = self.data.task, self.data.vocabulary, []
        samples = [] if self._samples is None else zip(self._samples.inputs, self._samples.targets, strict=True)
        for inputs, target in samples:
            canary: dict[str, Any] = {"kind": "numbers" if task.tokens is None else "text", "shape": list(inputs.shape)}
            if task.tokens is None:
                canary["range"] = None if self.valid is None else [float(end) for end in self.valid]
            else:
                tokens = [*inputs.tolist(), *([int(target[-1])] if task.per_position else [])]
                canary["text"] = " ".join(map(str, tokens)) if vocabulary is None else vocabulary.decode(tokens)
            canaries.append(canary | {"target": None if task.per_position else int(target)})
        return canaries

    @property
    def samples(self) -> Examples:
        """Inputs and targets of the canaries of the last design."""
        if self._samples is None:
            raise InputError("no canary has been designed yet: call design first")
        return self._samples

    def __repr__(self) -> str:
        names = ("count", "score", "settings", "client", "noise_multiplier", "cohort", "start", "target", "valid")
        settings = {name: getattr(self, name) for name in (*names, "seed")}
        # A checkpoint of other weights or other mock clients must not be resumed.
        digest = hashlib.blake2b(self._initial.cpu().numpy().tobytes(), digest_size=6)
        digest.update(np.ascontiguousarray(self.data.indices).tobytes())
        digest.update(np.ascontiguousarray(self.data.bounds).tobytes())
        return f"DesignedCanaries({settings}, {len(self.data)} mock clients, {digest.hexdigest()})"

    def _parameters(self, model: Vector | None) -> torch.Tensor:
        """Return a released model, or the initial one, as a tensor."""
        if model is None:
            return self._initial
        vector = torch.from_numpy(np.array(model, dtype=np.float32)).to(self._initial.device)
        if vector.shape != self._initial.shape:
            raise InputError(
                f"a released model of {vector.numel()} numbers does not fit the module, which trains "
                f"{self._initial.numel()}: pass the module that is trained"
            )
        return vector
