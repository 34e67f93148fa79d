"""Audits of NVFLARE trainings: an aggregator around yours adds canaries and looks at what comes out.

    FedAvg(num_clients=20, num_rounds=20, aggregator=CanaryAggregator(MyAggregator(...), rounds=20, ...))

docs/integrations.md explains it, and examples/nvflare is a complete job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

try:
    from nvflare.apis.fl_context import FLContext
    from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
    from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
except ImportError:
    raise ImportError(
        "this integration needs NVFLARE, which is not installed: pip install 'coalmine[nvflare]'"
    ) from None

from coalmine.claims import Claim
from coalmine.errors import InputError, check_kind, check_positive
from coalmine.integrations import finite_part
from coalmine.layers import Layers
from coalmine.methods.one_shot.audit import OneShot


class CanaryAggregator(ModelAggregator):
    """Aggregates by another aggregator, which receives the canaries of a one-shot audit like models of clients.

    In every round, exactly ``canaries`` random updates are accepted after those of the clients. What the aggregator
    returns is the release. After the last round, the result is saved to ``out`` and its summary is logged. Clients must
    send differences to the global model (``ParamsType.DIFF``).

    All arguments are plain values, since NVFLARE writes a job to a file and builds its components from that.

    Args:
        aggregator: Your aggregator, which clips, averages and adds noise. Canaries count as clients: if it divides by a
            fixed number, that number must include them.
        rounds: Number of rounds, as in FedAvg's ``num_rounds``.
        clip_norm: Clip norm of client updates.
        noise_multiplier: The claimed noise standard deviation on the sum over the clip norm.
        canaries: Number of inserted canaries. The same number is held out and never sent.
        length: Norm of canaries before clipping, in clip norms. More than 1 tests whether updates are clipped.
        delta: The δ to state ε at.
        out: Directory of the result, for ``coalmine report``; a relative one is in the server's working directory.
        seed: Seed for the canaries and for which of them are inserted.

    Example:
        >>> from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
        >>> class NoisyMean(ModelAggregator):
        ...     def reset_stats(self): self.sum, self.count = 0.0, 0
        ...     def accept_model(self, model):
        ...         update = model.params["weight"]
        ...         self.sum, self.count = self.sum + update / max(1.0, np.linalg.norm(update)), self.count + 1
        ...     def aggregate_model(self):
        ...         noisy = self.sum + np.random.default_rng().normal(0, 2.0, self.sum.shape)
        ...         return FLModel(params={"weight": noisy / self.count}, params_type=ParamsType.DIFF)
        >>> audited = CanaryAggregator(NoisyMean(), rounds=2, clip_norm=1.0, noise_multiplier=2.0, out="runs/nvflare")
        >>> audited.reset_stats()
        >>> audited.accept_model(FLModel(params={"weight": np.ones(5_000)}, params_type=ParamsType.DIFF))
        >>> audited.aggregate_model().params["weight"].shape
        (5000,)
    """

    def __init__(
        self,
        aggregator: ModelAggregator,
        *,
        rounds: int,
        clip_norm: float,
        noise_multiplier: float,
        canaries: int = 20,
        length: float = 5.0,
        delta: float = 1e-5,
        out: str = "coalmine-run",
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_kind("aggregator", aggregator, ModelAggregator, "a ModelAggregator")
        # NVFLARE reads the arguments back from attributes of the same names.
        self.aggregator, self.rounds, self.canaries, self.delta = aggregator, rounds, canaries, delta
        self.clip_norm, self.length = check_positive("clip_norm", clip_norm), check_positive("length", length)
        self.noise_multiplier, self.out, self.seed = noise_multiplier, out, seed
        self._audit: OneShot | None = None  # made when the first model shows the number of parameters
        self._shapes: Mapping[str, tuple[int, ...]] = {}
        self._round, self._clients, self._meta = 0, 0, dict[str, Any]()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Pass an event on."""
        super().handle_event(event_type, fl_ctx)
        self.aggregator.handle_event(event_type, fl_ctx)

    def reset_stats(self) -> None:
        """Begin a round."""
        self._clients = 0
        self.aggregator.reset_stats()

    def accept_model(self, model: FLModel) -> None:
        """Accept the update of a client."""
        if model.params_type != ParamsType.DIFF:
            raise InputError(
                f"clients must send the difference to the global model, ParamsType.DIFF, got {model.params_type}"
            )
        if self._audit is None:
            # Counters of batches and the like are no parameters, and left alone.
            layers = Layers.of({name: np.asarray(value) for name, value in model.params.items()})
            self._shapes = layers.shapes
            self._audit = OneShot(
                layers,
                rounds=self.rounds,
                canaries=self.canaries,
                view="updates",
                participation="every-round",
                design="fixed",  # so that the number of models reveals nothing
                seed=self.seed,
            )
        self._clients, self._meta = self._clients + 1, dict(model.meta or {})
        self.aggregator.accept_model(model)

    def aggregate_model(self) -> FLModel:
        """Add the canaries, aggregate, show the outcome to the audit, and save the result after the last round."""
        audit = self._audit
        # No client has sent anything yet, or the training has more rounds than were announced.
        if audit is None or self._round >= self.rounds:
            return self.aggregator.aggregate_model()
        if self._round == 0:
            audit.joins(clients=self._clients, noise_multiplier=self.noise_multiplier)
        planted = audit.plant(self._round, clip_norm=self.clip_norm)
        assert planted is not None
        edges = np.cumsum([np.prod(shape, dtype=int) for shape in self._shapes.values()])[:-1]
        for number, update in zip(planted.members, planted.each(norm=self.length * self.clip_norm), strict=True):
            parts = zip(self._shapes.items(), np.split(update, edges), strict=True)
            # Canaries have the weight of the last client, if the aggregator weights by the number of steps.
            model = FLModel(
                params={name: part.reshape(shape) for (name, shape), part in parts},
                params_type=ParamsType.DIFF,
                meta={**self._meta, "client_name": f"canary-{number}"},
            )
            model.current_round = self._round
            self.aggregator.accept_model(model)
        aggregated = self.aggregator.aggregate_model()
        flat = np.concatenate([np.asarray(aggregated.params[name], dtype=np.float32).ravel() for name in self._shapes])
        # One client with a NaN spoils a sum; the audit goes on without those coordinates.
        vector, lost = finite_part(flat)
        if lost:
            audit.note(f"round {self._round}: {lost} of {len(vector)} numbers are not finite and count as 0")
        clients = float(self._clients + len(planted.members))
        audit.observe(self._round, update=vector, divisor=clients, rounding=float("inf") if lost else 0.0)
        self._round += 1
        if self._round == self.rounds:
            result = audit.result(claim=Claim(noise_multiplier=self.noise_multiplier, delta=self.delta))
            result.save(self.out, overwrite=True)
            self.info(f"coalmine: {result.summary} The result is in {self.out}.")
        return aggregated
