"""Two ways to train: federated with central privacy, and central without privacy.

``Training._noisy_mean`` is one round's release: the kernel clips and sums the updates (`coalmine.simulation.kernels`),
audits add their canaries, and the mechanism's noise is added to the sum (`coalmine.simulation.mechanisms.central`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from coalmine.arrays import Floats, Ints
from coalmine.claims import Claim
from coalmine.claims.sampling import SENSITIVITY, EveryRound, Sampling
from coalmine.errors import InputError, check_count, check_kind
from coalmine.parallel import single_thread
from coalmine.progress import track
from coalmine.protocol import Audit, Contribution, checked_contribution, words_for
from coalmine.seeds import generator
from coalmine.simulation import flat
from coalmine.simulation.client import SGD, LocalTraining, Optimizer, loss_of, seed_dropout, tensors
from coalmine.simulation.data.federated import Examples
from coalmine.simulation.kernels import ClientWork, choose_kernel
from coalmine.simulation.kernels.kernel import PartialSum
from coalmine.simulation.mechanisms.central import Mechanism
from coalmine.simulation.rounds import Metrics, Rounds, TrainingState, shown
from coalmine.vectors import VectorKind
from coalmine.vectors import flat as flat_vector

# Frozen rounds keep the updates of all clients if they fit into this many bytes.
_MOST_BYTES = 1 << 29


@dataclass(kw_only=True, eq=False, repr=False)
class Training(Rounds):
    """DP-FedAvg on one machine (McMahan et al., 2018).

    In each round a cohort of clients trains from the global model. Their updates are clipped and summed; the
    mechanism adds noise to the sum and divides it; the server's optimizer moves the model along the result. The same
    arguments give the same bits: with any number of workers, with or without audits that only observe, and from any
    checkpoint.

    Args:
        model: The model to start from; it is not changed.
        data: The clients and their examples.
        rounds: Number of rounds.
        sampling: Which clients take part in each round, for instance ``Poisson(0.1)``.
        client: What a client does with the global model; by default one full-batch step of SGD.
        mechanism: Clipping and noise; by default neither.
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
        >>> from coalmine.simulation import models
        >>> from coalmine.simulation.data import load
        >>> splits = load("digits")
        >>> training = Training(
        ...     model=models.build("logistic", splits.train.task), data=splits.train, test=splits.test, rounds=2,
        ...     sampling=Poisson(0.1), mechanism=Mechanism(clip_norm=1.0, noise_multiplier=1.0),
        ... )
        >>> history = training.run()
        >>> round(training.claim(delta=1e-5).epsilon, 2)
        1.92
    """

    _determining: ClassVar[Sequence[str]] = ("sampling", "client", "mechanism", "server")

    sampling: Sampling
    client: LocalTraining = field(default_factory=LocalTraining)
    mechanism: Mechanism = field(default_factory=Mechanism)
    server: Optimizer = field(default_factory=lambda: SGD(learning_rate=1.0))
    workers: int = 1

    def __post_init__(self, model: nn.Module, device: torch.device | str | None) -> None:
        check_kind("sampling", self.sampling, Sampling, "a sampling such as Poisson(0.1)")
        self.private = self.mechanism.private
        super().__post_init__(model, device)
        data, rounds, workers = self.data, self.rounds, self.workers
        if workers != 1 and self._model.device.type != "cpu":
            raise InputError(f"workers must be 1 on the device {self._model.device}, got {workers}: they share the CPU")
        self.sampling.check(len(data), rounds)
        # Audits learn before the first round what they join. Noise that the count of clipped updates would use up
        # altogether raises here, and not after hours.
        if rounds:
            expected = self.expected_clients(0)
            noise_multiplier = self.mechanism.update_noise(expected)
            layers = dict(zip(self._model.names, self._model.shapes, strict=True))
            for audit in self.audits:
                audit.joins(clients=expected, noise_multiplier=noise_multiplier)
                audit.describe(layers=layers, even_noise=True)
        # The kernel is tried on a few clients, whose last bits must not depend on the number of threads.
        with single_thread():
            kernel = choose_kernel(self._model.module, data, self.client)
        self.kernel = type(kernel).__name__
        self._work = ClientWork(data, kernel, seed=self.seed, workers=workers)
        self._release = self._work.close
        self.state.clip_norm = float(self.mechanism.clip_norm)

    def claim(self, delta: float) -> Claim:
        """The claimed guarantee for all rounds of this configuration; ε is infinite without noise.

        With cohorts of fixed size, adjacent data sets differ in one client being replaced by another. That moves the
        sum by up to two clip norms, which is accounted for as half the noise multiplier.

        Args:
            delta: The δ at which to state ε.
        """
        sampling = self.sampling.accounted(len(self.data), self.rounds) if self.private else EveryRound()
        noise = self.mechanism.noise_multiplier / SENSITIVITY[sampling.adjacency]
        return Claim(noise_multiplier=noise, sampling=sampling, rounds=self.rounds, delta=delta)

    def expected_clients(self, round: int) -> float:
        """The expected number of clients in a round."""
        return self.sampling.expected(len(self.data), self.rounds, round)

    def _before_round(self) -> None:
        """Run the frozen rounds that audits ask for: they release updates and leave the model as it is."""
        number = self.state.round
        for index, audit in enumerate(self.audits):
            frozen = audit.frozen_rounds(number)
            if not frozen:
                continue
            # Each audit has its own range of trial numbers for its random streams; 0 is the training's round.
            first = (index << 32) + 1
            updates = self._frozen_updates(frozen, first)

            def words(audit: Audit = audit) -> str:
                return words_for(audit.figures())

            for trial in track(range(frozen), f"frozen rounds before round {number}", words=words):
                if trial >= audit.frozen_rounds(number):
                    break  # the audit has seen enough
                planted = audit.plant(number, clip_norm=self.state.clip_norm, trial=trial)
                contributions = [] if planted is None else [planted]
                update, divisor, _, _ = self._noisy_mean(contributions, trial=first + trial, frozen=updates)
                audit.observe(number, update=shown(update), trial=trial, divisor=divisor)

    def _frozen_updates(self, rounds: int, trial: int) -> PartialSum | None:
        """Every client's clipped update (clients, d) on the frozen model; None to train clients anew.

        Frozen rounds draw fresh cohorts and fresh noise. Only the order of a client's batches is then drawn once, and
        is part of what the other clients send: bounds on ε hold whatever that is.
        """
        state, population = self.state, len(self.data)
        # Training everybody once pays if the frozen rounds draw at least as many clients together.
        needed = rounds * self.expected_clients(state.round)
        if needed < population or 4 * population * self.dim > _MOST_BYTES:
            return None
        rows = torch.empty(population, self.dim, device=state.model.device)
        norms, losses = np.empty(population), np.empty(population)
        everyone, number = np.arange(population), state.round
        parts = self._work.parts(state.model, everyone, state.clip_norm, round=number, trial=trial, one_by_one=True)
        for clients, part in parts:
            rows[torch.from_numpy(clients).to(rows.device)] = part.total
            norms[clients], losses[clients] = part.norms, part.losses
        self._check_finite(everyone, norms, losses)
        return PartialSum(rows, norms, losses)

    def _round(self) -> tuple[TrainingState, Tensor, float]:
        state, number = self.state, self.state.round
        # Canaries are asked for before the clients train: nothing an audit does can depend on this round's updates.
        planted = [audit.plant(number, clip_norm=state.clip_norm) for audit in self.audits]
        contributions = [contribution for contribution in planted if contribution is not None]
        update, divisor, norms, losses = self._noisy_mean(contributions)
        cohort = self.sampling.draw(len(self.data), self.rounds, seed=self.seed, round=number)
        for audit in self.audits:
            audit.cohort(number, cohort.tolist(), len(self.data))
        # For the person who runs the simulation only: exact counts and losses are not private.
        metrics: Metrics = {"round": number, "clients": len(norms)}
        if len(norms):
            metrics |= {"train_loss": float(losses.mean()), "median_norm": float(np.median(norms))}
        if math.isfinite(state.clip_norm):
            metrics["clip_norm"] = state.clip_norm
        model, optimizer_state = state.model.clone(), copy.deepcopy(state.optimizer)
        # Optimizers descend along gradients; the update already points downhill.
        self.server.step([model], [-update], optimizer_state)
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
        self, planted: Sequence[Contribution], trial: int = 0, frozen: PartialSum | None = None
    ) -> tuple[Tensor, float, Floats, Floats]:
        """One round's release: the noisy mean update, its divisor, and the clients' norms and losses (not released)."""
        number, clip_norm, population = self.state.round, self.state.clip_norm, len(self.data)
        cohort = self.sampling.draw(population, self.rounds, seed=self.seed, round=number, trial=trial)
        if frozen is None:
            norms, losses, total = [np.empty(0)], [np.empty(0)], torch.zeros_like(self.state.model)
            # Float addition is not associative: parts are added in their order, whichever worker finished first.
            for clients, part in self._work.parts(self.state.model, cohort, clip_norm, round=number, trial=trial):
                self._check_finite(clients, part.norms, part.losses)
                total += part.total
                norms.append(part.norms)
                losses.append(part.losses)
            summed = PartialSum(total, np.concatenate(norms), np.concatenate(losses))
        else:
            takes_part = torch.from_numpy(np.bincount(cohort, minlength=population)).to(frozen.total)
            summed = PartialSum(takes_part @ frozen.total, frozen.norms[cohort], frozen.losses[cohort])
        total = summed.total
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
            divisor += len(cohort)
        # An empty cohort without noise: the update is zero, and any divisor will do.
        divisor = divisor or 1.0
        total /= divisor
        return total, divisor, summed.norms, summed.losses

    def _check_finite(self, clients: Ints, norms: Floats, losses: Floats) -> None:
        """Raise `InputError` that names the first client whose loss or update is not finite."""
        # Clipping would turn an infinite update into NaN, which one client would then give to everybody.
        for i in np.flatnonzero(~np.isfinite(norms + losses)):
            name, number = self.data.names[int(clients[i])], self.state.round
            raise InputError(
                f"client {name!r} has a loss of {losses[i]:.4g} and an update of norm {norms[i]:.4g} in round "
                f"{number}, which was aborted: lower the clients' learning rate, check this client's examples, or, if "
                "the global model has diverged, lower the server's learning rate or the noise"
            )


@dataclass(kw_only=True, eq=False, repr=False)
class CentralTraining(Rounds):
    """Central (not federated) training on batches of records, without privacy.

    Audits observe it as they observe a federated training; the update of a round is the change of the model. There is
    no sum of clients' updates, so canaries must be part of the data.

    Args:
        model: The model to start from; it is not changed.
        data: The records, grouped by user.
        rounds: Number of rounds, each of ``steps`` optimizer steps.
        steps: Steps per round.
        batch_size: Records per step.
        optimizer: `SGD` or `Adam`; by default SGD with learning rate 0.1.
        order: ``"shuffled"`` draws records in random order (the IID setting of Thakkar et al., 2020); ``"by-user"``
            goes through one user's records after the other's, in a new order of users per epoch (their non-IID one).
        test: Test data, evaluated after the last round.
        evaluate_every: Evaluate after every this many rounds as well.
        audits: Audits that observe the training.
        seed: Seed for the order of the records, and for dropout.
        device: Device to train on, such as ``"cuda"``; by default where the model is.

    Raises:
        InputError: If the arguments do not fit each other, or an audit wants to insert updates.

    Example:
        >>> from coalmine.simulation import models
        >>> from coalmine.simulation.data import load
        >>> data = load("digits").train
        >>> central = CentralTraining(model=models.build("logistic", data.task), data=data, rounds=2, steps=5)
        >>> len(central.run())
        2
    """

    _determining: ClassVar[Sequence[str]] = ("steps", "batch_size", "optimizer", "order")

    steps: int = 100
    batch_size: int = 32
    optimizer: Optimizer = field(default_factory=lambda: SGD(learning_rate=0.1))
    order: Literal["shuffled", "by-user"] = "shuffled"

    def __post_init__(self, model: nn.Module, device: torch.device | str | None) -> None:
        if self.order not in ("shuffled", "by-user"):
            raise InputError(f"order must be shuffled or by-user, got {self.order!r}")
        super().__post_init__(model, device)
        self.steps, self.batch_size = check_count("steps", self.steps), check_count("batch_size", self.batch_size)
        # The last epoch that was ordered, and its order of records.
        self._epoch, self._order = -1, self.data.indices

    def claim(self, delta: float) -> Claim:
        """An infinite ε: there is no noise."""
        return Claim(noise_multiplier=0.0, sampling=EveryRound(), rounds=self.rounds, delta=delta)

    def _before_round(self) -> None:
        """Raise `InputError` if an audit expects a sum of clients' updates."""
        number = self.state.round
        for audit in self.audits:
            if audit.frozen_rounds(number) or audit.plant(number, clip_norm=math.inf) is not None:
                raise InputError(
                    f"{type(audit).__name__} inserts updates or asks for frozen rounds, but central training has no "
                    "sum of clients' updates: insert canaries into the data instead"
                )

    def _round(self) -> tuple[TrainingState, Tensor, None]:
        number, state, device = self.state.round, self.state, self._model.device
        # Buffers such as those of a spectral norm are no parameters: they start over, as they do for clients.
        self._model.load(state.model)
        optimizer_state, losses = copy.deepcopy(state.optimizer), []
        rng_state = torch.get_rng_state()
        records = self.data.indices
        for step in range(number * self.steps, (number + 1) * self.steps):
            # Steps are counted from the start of the training, and every epoch has an order of its own.
            epoch, part = divmod(step, math.ceil(len(records) / self.batch_size))
            if epoch != self._epoch:
                draw = generator(self.seed, "central", epoch + 1)
                if self.order == "shuffled":
                    self._order = records[draw.permutation(len(records))]
                else:
                    users = np.split(records, np.cumsum(self.data.sizes)[:-1])
                    self._order = np.concatenate([users[user] for user in draw.permutation(len(users))])
                self._epoch = epoch
            rows = self._order[part * self.batch_size : (part + 1) * self.batch_size]
            batch = Examples(self.data.inputs[rows], self.data.targets[rows])
            inputs, targets = tensors(batch, self.data.task, device=device)
            seed_dropout(int(generator(self.seed, "central", 0, step + 1).integers(2**32)), device)
            loss = loss_of(self._model.module, self.data.task, inputs, targets)
            losses.append(loss.item())
            if not math.isfinite(losses[-1]):
                raise InputError(
                    f"the loss is {losses[-1]} in step {step} of round {number}, which was aborted: lower the learning "
                    "rate"
                )
            gradients = torch.autograd.grad(loss, self._model.parameters, materialize_grads=True)
            with torch.no_grad():
                self.optimizer.step(self._model.parameters, list(gradients), optimizer_state)
        torch.set_rng_state(rng_state)
        model = flat.flatten(self._model.parameters)
        metrics: Metrics = {"round": number, "train_loss": float(np.mean(losses))}
        after = TrainingState(
            model=model, optimizer=optimizer_state, round=number + 1, history=[*state.history, metrics]
        )
        return after, model - state.model, None
