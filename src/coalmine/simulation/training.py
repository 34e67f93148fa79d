"""Federated training: cohorts of clients, a privacy mechanism, a server.

``Training._noisy_mean`` is one round's release: the kernel clips and sums the updates (`coalmine.simulation.kernels`),
audits add their canaries, and the mechanism's noise is added to the sum (`coalmine.simulation.mechanisms.central`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from coalmine.arrays import Floats, Ints
from coalmine.claims import Claim
from coalmine.claims.sampling import AtMost, EveryRound, FixedSize, Sampling
from coalmine.errors import InputError, check_count, check_kind
from coalmine.progress import track
from coalmine.protocol import Audit, Contribution, Release, checked_contribution
from coalmine.simulation import flat
from coalmine.simulation.checkpoint import Metrics, TrainingState
from coalmine.simulation.client import LocalTraining
from coalmine.simulation.data.federated import FederatedData
from coalmine.simulation.frozen_clients import FrozenClients, pays
from coalmine.simulation.kernels.choice import choose_kernel
from coalmine.simulation.kernels.partial_sum import PartialSum
from coalmine.simulation.mechanisms.central import Mechanism
from coalmine.simulation.optimizers import SGD, Optimizer, OptimizerState, check_optimizer
from coalmine.simulation.rounds import Rounds, shown
from coalmine.simulation.workers import ClientWork, Workers, one_thread
from coalmine.vector_kind import VectorKind
from coalmine.vectors import flat as flat_vector


class Training(Rounds):
    """DP-FedAvg on one machine (McMahan et al., 2018).

    In each round a cohort of clients trains from the global model. Their updates are clipped, weighted and summed; the
    mechanism adds noise to the sum and divides it; the server's optimizer moves the model along the result. The same
    arguments give the same bits: with any number of workers, with or without audits that only observe, and from any
    checkpoint.

    Args:
        model: The model to start from; it is not changed.
        data: The clients and their examples.
        rounds: Number of rounds.
        sampling: Which clients take part in each round, for instance ``Poisson(0.1)``.
        client: What a client does with the global model; by default one full-batch step of SGD.
        mechanism: Clipping, weights and noise; by default none of them.
        server: The server's optimizer; by default SGD with learning rate 1, which is federated averaging.
        test: Test data, evaluated after the last round.
        evaluate_every: Evaluate after every this many rounds as well.
        audits: Audits that insert canaries and observe releases (`coalmine.protocol.Audit`).
        seed: Seed for cohorts, batches and noise.
        workers: Number of worker processes; more than one only on the CPU.
        device: Device to train on, such as ``"cuda"``; by default where the model is.

    Raises:
        InputError: If the arguments do not fit each other, or the model cannot be trained privately.

    Example:
        >>> from coalmine import Poisson
        >>> from coalmine.simulation import FixedClipping, models
        >>> from coalmine.simulation.data import load
        >>> splits = load("digits")
        >>> training = Training(
        ...     model=models.build("logistic", splits.train.task), data=splits.train, test=splits.test, rounds=2,
        ...     sampling=Poisson(0.1), mechanism=Mechanism(clipping=FixedClipping(1.0), noise_multiplier=1.0),
        ... )
        >>> history = training.run()
        >>> round(training.claim(delta=1e-5).epsilon, 2)
        1.92
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        data: FederatedData,
        rounds: int,
        sampling: Sampling,
        client: LocalTraining | None = None,
        mechanism: Mechanism | None = None,
        server: Optimizer | None = None,
        test: FederatedData | None = None,
        evaluate_every: int | None = None,
        audits: Sequence[Audit] = (),
        seed: int = 0,
        workers: int = 1,
        device: torch.device | str | None = None,
    ) -> None:
        check_kind("model", model, nn.Module, "a torch.nn.Module, such as models.build(name, task)")
        model = flat.moved(model, device)
        if client is not None:
            check_kind("client", client, LocalTraining, "LocalTraining(...)")
        if mechanism is not None:
            check_kind("mechanism", mechanism, Mechanism, "Mechanism(...)")
        if server is not None:
            check_optimizer("server", server)
        check_kind("sampling", sampling, Sampling, "a sampling such as Poisson(0.1)")
        self.sampling, self.client = sampling, client or LocalTraining()
        self.mechanism, self.server = mechanism or Mechanism(), server or SGD(learning_rate=1.0)
        super().__init__(
            model=model,
            data=data,
            rounds=rounds,
            test=test,
            evaluate_every=evaluate_every,
            audits=audits,
            seed=seed,
            private=self.mechanism.private,
        )
        sampling.check(len(data), rounds)
        if rounds:  # raises if the noise on counts uses up the whole noise multiplier
            expected = self.expected_clients(0)
            noise_multiplier = self.mechanism.update_noise(expected)
            layers = dict(zip(self._model.names, self._model.shapes, strict=True))
            for audit in self.audits:
                audit.joins(clients=expected, noise_multiplier=noise_multiplier)
                audit.describe(layers=layers, sampling=self._claimed_sampling(), even_noise=True)
        if workers != 1 and self._model.device.type != "cpu":
            raise InputError(f"workers must be 1 on the device {self._model.device}, got {workers}: they share the CPU")
        self._weights = self.mechanism.weighting.weights(data.sizes)
        with one_thread():
            kernel = choose_kernel(model, data, self.client)
        self._work = ClientWork(data, kernel, self.seed)
        self._workers = Workers(self._work, workers)
        self.state.clip_norm = self.mechanism.clipping.start()

    @property
    def kernel(self) -> str:
        """The name of the kernel that computes the clients' updates (`coalmine.simulation.kernels`)."""
        return type(self._work.kernel).__name__

    def claim(self, delta: float, *, sampling: Sampling | None = None, accountant: str | None = None) -> Claim:
        """The claimed guarantee for all rounds of this configuration; ε is infinite without noise.

        With cohorts of fixed size, adjacent data sets differ in one client being replaced by another. That moves the
        sum by up to two clip norms, which is accounted for as half the noise multiplier.

        Args:
            delta: The δ at which to state ε.
            sampling: How to account for sampling; by default as the cohorts draw. Anything else must be an upper bound:
                ``EveryRound()``, or ``AtMost`` with the rounds of the most frequent client.
            accountant: Name of the accountant; None takes the tightest available.

        Raises:
            InputError: If ``sampling`` is not an upper bound.
        """
        if sampling is not None:
            self._check_bound(sampling)
        elif self.mechanism.private:
            sampling = self.sampling.accounted(len(self.data), self.rounds)
        else:
            sampling = EveryRound()
        noise = self.mechanism.noise_multiplier / (2 if isinstance(sampling, FixedSize) else 1)
        # A client drawn m times in one round counts as m² rounds, which can exceed the number of rounds.
        rounds = max(self.rounds, sampling.times) if isinstance(sampling, AtMost) else self.rounds
        return Claim(noise_multiplier=noise, sampling=sampling, rounds=rounds, delta=delta, accountant=accountant)

    def expected_clients(self, round: int) -> float:
        """The expected number of clients in a round."""
        return self.sampling.expected(len(self.data), self.rounds, round)

    def _claimed_sampling(self) -> Sampling | None:
        """The sampling that the claim assumes; None without a claim."""
        return self.sampling.accounted(len(self.data), self.rounds) if self.mechanism.private else None

    def _check_bound(self, sampling: Sampling) -> None:
        """Raise `InputError` for a sampling that claims less participation than the cohorts have."""
        exposures = self.sampling.exposures(len(self.data), self.rounds)
        match sampling:
            case AtMost():
                holds = sampling.times >= exposures
            case EveryRound():
                holds = exposures <= self.rounds
            case _:
                holds = sampling == self.sampling.accounted(len(self.data), self.rounds)
        if not holds:
            raise InputError(f"{sampling} is not an upper bound for {self.sampling}: use AtMost(times={exposures})")

    def _settings(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in ("sampling", "client", "mechanism", "server")}

    def _release_resources(self) -> None:
        self._workers.close()

    def _before_round(self) -> None:
        """Run the frozen rounds that audits ask for: they release updates and leave the model as it is."""
        for index, audit in enumerate(self.audits):
            frozen = check_count("the number of frozen rounds", audit.frozen_rounds(self.state.round), least=0)
            # Each audit has its own range of trial numbers for its random streams; 0 is the training's round.
            first = (index << 32) + 1
            clients = self._frozen_clients(frozen, first)
            for trial in track(range(frozen), f"frozen rounds before round {self.state.round}", words=audit.live):
                if trial >= audit.frozen_rounds(self.state.round):
                    break  # the audit has seen enough
                planted = audit.plant(self.state.round, clip_norm=self.state.clip_norm, trial=trial)
                contributions = [] if planted is None else [planted]
                update, divisor, _, _ = self._noisy_mean(contributions, trial=first + trial, frozen=clients)
                vector = shown(update)
                audit.observe(
                    Release(round=self.state.round, kind="update", vector=vector, trial=trial, divisor=divisor)
                )

    def _frozen_clients(self, rounds: int, trial: int) -> FrozenClients | None:
        """Clients whose updates are kept for so many frozen rounds; None if that does not pay."""
        number, population = self.state.round, len(self.data)
        if not pays(population, self.dim, needed=rounds * self.expected_clients(number)):
            return None
        return FrozenClients(
            self._work,
            self._workers,
            self.state.model,
            round=number,
            trial=trial,
            clip_norm=self.state.clip_norm,
        )

    def _round(self) -> tuple[TrainingState, Tensor, float]:
        state, number = self.state, self.state.round
        planted = [audit.plant(number, clip_norm=state.clip_norm) for audit in self.audits]
        contributions = [contribution for contribution in planted if contribution is not None]
        update, divisor, norms, losses = self._noisy_mean(contributions)
        cohort = np.unique(self.sampling.draw(len(self.data), self.rounds, seed=self.seed, round=number))
        for audit in self.audits:
            audit.cohort(number, cohort.tolist(), len(self.data))
        model, optimizer_state = _server_step(self.server, state, update)
        metrics: Metrics = {"round": number, "clients": len(norms)}
        if len(norms):
            metrics |= {"train_loss": float(losses.mean()), "median_norm": float(np.median(norms))}
        if math.isfinite(state.clip_norm):
            metrics["clip_norm"] = state.clip_norm
        expected = self.expected_clients(number)
        after = TrainingState(
            model=model,
            optimizer=optimizer_state,
            clip_norm=self.mechanism.next_clip_norm(state.clip_norm, norms, expected, self.seed, number),
            round=number + 1,
            history=[*state.history, metrics],
        )
        return after, update, divisor

    def _noisy_mean(
        self, planted: Sequence[Contribution], trial: int = 0, frozen: FrozenClients | None = None
    ) -> tuple[Tensor, float, Floats, Floats]:
        """One round's release: the noisy mean update, its divisor, and the clients' norms and losses (not released)."""
        number, clip_norm, population = self.state.round, self.state.clip_norm, len(self.data)
        cohort = self.sampling.draw(population, self.rounds, seed=self.seed, round=number, trial=trial)
        weights = self._weights[cohort]
        if frozen is None:
            items = self._work.items(number, trial, cohort, weights, clip_norm)
            clients = self._workers.sum(self.state.model, items)
            self._check_finite(np.concatenate([np.arange(0), *(item.clients for item in items)]), clients)
        else:
            clients = frozen.sum(cohort, weights)
            self._check_finite(cohort, clients)
        total = clients.total
        for contribution in planted:
            checked_contribution(contribution, dim=self.dim, clip_norm=clip_norm, round=number)
            total += VectorKind.of(total).give(flat_vector(contribution.total))
        divisor = sum(contribution.clients for contribution in planted)
        if self.mechanism.private:
            expected = self.expected_clients(number)
            noise = self.mechanism.noise(self.dim, self.seed, clip_norm, expected, number, trial)
            total += torch.from_numpy(noise).to(total.device)
            # The number of clients that took part is private; the expected number is not.
            divisor += expected
        else:
            divisor += float(weights.sum())
        divisor = divisor or 1.0
        total /= divisor
        return total, divisor, clients.norms, clients.losses

    def _check_finite(self, cohort: Ints, clients: PartialSum) -> None:
        """Raise `InputError` that names the first client whose loss or update is not finite."""
        bad = np.flatnonzero(~(np.isfinite(clients.norms) & np.isfinite(clients.losses)))
        if len(bad):
            first = int(bad[0])
            name = self.data.names[int(cohort[first])]
            loss, norm, number = clients.losses[first], clients.norms[first], self.state.round
            raise InputError(
                f"client {name!r} has a loss of {loss:.4g} and an update of norm {norm:.4g} in round {number}, which "
                "was aborted: lower the clients' learning rate, check this client's examples, or, if the global model "
                "has diverged, lower the server's learning rate or the noise"
            )


def _server_step(server: Optimizer, state: TrainingState, update: Tensor) -> tuple[Tensor, OptimizerState]:
    """The new model and optimizer state after a server step along ``update``; ``state`` is not changed."""
    model = state.model.clone()
    optimizer_state = {key: [tensor.clone() for tensor in tensors] for key, tensors in state.optimizer.items()}
    # Optimizers descend along gradients; the update already points downhill.
    server.step([model], [-update], optimizer_state)
    return model, optimizer_state
