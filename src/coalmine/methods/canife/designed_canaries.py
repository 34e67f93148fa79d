"""`DesignedCanaries`: the paper's rogue client, who designs samples for the current model against mock clients.

Also the direction along which a round's noisy sum is scored: the canary's own, or that of the likelihood ratio.
A round's sum is Gaussian noise, the canary's update if it takes part, and the other clients' updates. If each of these
has the second moment Σ, the sum of n of them under Poisson sampling has covariance n Σ (up to a term that vanishes with
the sampling rate). The most powerful linear score is then along (n Σ + σ² I)⁻¹ u, where u is the canary's update
(appendix A of Maddock et al. 2023, which takes u itself because the inverse seems infeasible). With the m updates U of
the pool, Σ ≈ Uᵀ U / m, and by Woodbury's identity the direction is, up to a factor,

    w = u − Uᵀ (λ I + U Uᵀ)⁻¹ U u,    λ = m σ² / n :

an m × m system instead of a d × d inverse. λ weighs the noise: without noise, w is orthogonal to the pool's span.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from coalmine.arrays import Floats
from coalmine.errors import InputError, check_count, check_nonnegative, check_positive
from coalmine.methods.canife.canaries import CraftedUpdates, orthogonalize_directions
from coalmine.methods.canife.design import DesignSettings, step_size
from coalmine.methods.canife.pool import MockClients, Pool, client_updates
from coalmine.methods.canife.sample_gradients import SampleGradients
from coalmine.methods.canife.samples import StartExamples, Target, clients_of, design_samples, valid_range
from coalmine.parallel import single_thread
from coalmine.protocol import Vector
from coalmine.seeds import default_rng, generator
from coalmine.simulation import flat
from coalmine.simulation.client import LocalTraining
from coalmine.simulation.data.federated import Examples, FederatedData
from coalmine.simulation.kernels.kernel import LeanLoop
from coalmine.simulation.models import check_fits

# A canary whose update is shorter than this share of the clip norm has been learned by the model.
_LEARNED = 0.9

# Relative to the largest eigenvalue: anything smaller is rounding error.
_ROUNDING = 1e-12

# A smaller share of an update outside the pool's span is rounding error, too.
_SPAN_TOLERANCE = 1e-9

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
        self._pool = None  # gives back its memory first
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
                drawn = default_rng(seed).integers(self.data.task.classes, size=self.count)
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


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreDirection:
    """A direction to score rounds along, and how well it shows the canary.

    Args:
        vector: Unit vector (d,).
        signal: ⟨vector, u⟩: by how much the canary's presence shifts ⟨sum, vector⟩, in the unit of u.
        effective_sigma: Expected standard deviation of a round's score without the canary, over ``signal``. Detecting
            the canary is then like telling N(0, σ²) from N(1, σ²). The value is for clients outside the pool, by
            leave-one-out; it is too optimistic for a canary that was designed on this pool.
    """

    vector: Vector
    signal: float
    effective_sigma: float


def plain_direction(update: Vector, pool: Pool, *, noise_multiplier: float, cohort: float) -> ScoreDirection:
    """Return the direction of the canary's update itself, as in the paper (λ = ∞).

    Args:
        update: The canary's update (d,).
        pool: Updates of mock clients, from which ``effective_sigma`` is computed.
        noise_multiplier: Noise on the sum, in clip norms.
        cohort: Number of clients expected in a round.

    Returns:
        The unit vector with its signal and expected noise.

    Raises:
        InputError: If the update is zero or not finite.
    """
    values, length = _measured(update)
    dots = pool.dots(values[None]) / length
    variance = float(dots.square().mean()) * cohort + (noise_multiplier * pool.clip_norm) ** 2
    return ScoreDirection(
        vector=(values / length).float().numpy(),
        signal=length,
        effective_sigma=math.sqrt(variance) / length,
    )


def likelihood_ratio_direction(update: Vector, pool: Pool, *, noise_multiplier: float, cohort: float) -> ScoreDirection:
    """Return the direction of the likelihood ratio between rounds with and without the canary.

    Args:
        update: The canary's update (d,).
        pool: Updates of mock clients.
        noise_multiplier: Noise on the sum, in clip norms.
        cohort: Number of clients expected in a round.

    Returns:
        The unit vector with its signal and expected noise.

    Raises:
        InputError: If the update is zero or not finite, or if it lies in the span of the pool's, so that no score
            tells them apart.

    Example:
        >>> import torch
        >>> pool = Pool(rows=torch.eye(3)[:2], clip_norm=1.0)
        >>> update = np.array([0.6, 0.0, 0.8], dtype=np.float32)
        >>> direction = likelihood_ratio_direction(update, pool, noise_multiplier=0.1, cohort=2)
        >>> direction.vector.round(3).tolist(), round(direction.signal, 3)
        ([0.007000000216066837, 0.0, 1.0], 0.804)
    """
    values, length = _measured(update)
    eigenvalues, eigenvectors = pool.spectrum
    ridge = max(
        len(pool) * noise_multiplier**2 / cohort, _ROUNDING * float(eigenvalues[-1])
    )  # λ, in squared clip norms
    inverse = (eigenvectors / (eigenvalues + ridge)) @ eigenvectors.T
    dots = pool.dots(values[None])[0] / (length * pool.clip_norm)
    weights = inverse @ dots
    along = 1 - float(dots @ weights)  # ⟨w, û⟩
    if along <= _SPAN_TOLERANCE:
        raise InputError(
            "the canary's update lies in the span of the pool's updates, so no score tells it from theirs: use fewer "
            "mock clients, or another canary"
        )
    # ⟨w₋ᵢ, uᵢ⟩ for each mock client i, with w₋ᵢ computed without it: as in ridge regression, leave-one-out is free.
    left_out = weights / inverse.diagonal()
    square = along - ridge * float(weights @ weights)  # ‖w‖²
    variance = cohort * float(left_out.square().mean()) + noise_multiplier**2 * square
    whole = values - pool.combined(weights[None])[0] * (length / pool.clip_norm)
    size = float(whole.norm())
    signal = float(whole @ values) / size
    return ScoreDirection(
        vector=(whole / size).float().numpy(),
        signal=signal,
        effective_sigma=math.sqrt(variance) / along * pool.clip_norm / length,
    )


def _measured(update: Vector) -> tuple[Tensor, float]:
    """Return the canary's update in float64, and its norm."""
    vector = np.asarray(update)
    values = torch.from_numpy(np.ascontiguousarray(vector)).double()
    length = float(values.norm())
    if not (math.isfinite(length) and length > 0):
        raise InputError(f"the canary's update must be finite and not zero, got norm {length}")
    return values, length
