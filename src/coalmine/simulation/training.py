"""Federated training: cohorts of clients, a mechanism, a server."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from coalmine import accounting
from coalmine.accounting import Theory
from coalmine.accounting.sampling import AtMost, EveryRound, FixedSize, Sampling
from coalmine.arrays import Floats
from coalmine.errors import InputError, check_count, check_kind
from coalmine.progress import track
from coalmine.protocol import Audit, Contribution, Release, checked_contribution
from coalmine.simulation.checkpoint import Metrics, TrainingState
from coalmine.simulation.client import LocalTraining
from coalmine.simulation.cohorts import Cohorts
from coalmine.simulation.data.federated import FederatedData
from coalmine.simulation.kernels.choice import choose_kernel
from coalmine.simulation.kernels.partial_sum import PartialSum
from coalmine.simulation.mechanisms.central import Mechanism
from coalmine.simulation.optimizers import SGD, Adam, Optimizer
from coalmine.simulation.rounds import Rounds, optimized, read_only
from coalmine.simulation.workers import ClientWork, Job, Workers, one_thread


class Training(Rounds):
    """DP-FedAvg and its relatives on one machine (McMahan et al. 2018).

    In each round a cohort of clients trains from the global model; their updates are clipped, weighed, summed and
    noised by ``mechanism``, divided, and given to the server's optimizer ``server`` as the direction to go. The same
    arguments give the same bits: with any number of ``workers``, with or without ``audits`` that only look, and from
    any checkpoint.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        data: FederatedData,
        rounds: int,
        cohorts: Cohorts,
        client: LocalTraining | None = None,
        mechanism: Mechanism | None = None,
        server: Optimizer | None = None,
        test: FederatedData | None = None,
        evaluate_every: int | None = None,
        audits: Sequence[Audit] = (),
        seed: int = 0,
        workers: int = 1,
    ) -> None:
        if client is not None:
            check_kind("client", client, LocalTraining, "LocalTraining(...)")
        if mechanism is not None:
            check_kind("mechanism", mechanism, Mechanism, "Mechanism(...)")
        if server is not None:
            check_kind("server", server, (SGD, Adam), "SGD(...) or Adam(...) of coalmine.simulation")
        check_kind("cohorts", cohorts, Cohorts, "such as PoissonCohorts(0.1)")
        self.cohorts, self.client = cohorts, client or LocalTraining()
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
        cohorts.check(len(data), rounds)
        if rounds:
            self.mechanism.check(cohorts.expected(len(data), 0))
        self._weights = self.mechanism.weighting.weights(data.sizes)
        with one_thread():
            kernel = choose_kernel(model, data, self.client)
        self._work = ClientWork(data, kernel, self.seed)
        self._workers = Workers(self._work, workers)
        self.state.clip_norm = self.mechanism.clipping.start()

    @property
    def kernel(self) -> str:
        """How the clients' updates are computed: it is chosen by the shape of the work."""
        return type(self._work.kernel).__name__

    def theory(self, delta: float, *, sampling: Sampling | None = None, accountant: str | None = None) -> Theory:
        """What the accountant promises for all ``rounds`` of this configuration; ε is infinite without noise.

        ``sampling`` is that of the cohorts if not given, and must otherwise be an upper bound on it: ``EveryRound()``,
        or ``AtMost`` as often as anybody comes. Cohorts that have no known analysis are refused; the message says which
        sampling gives an upper bound. A cohort of fixed size is accounted for replacing one client, which moves the sum
        by two clip norms: half the noise multiplier.
        """
        if sampling is not None:
            self._check_bound(sampling)
        elif self.mechanism.private:
            sampling = self.cohorts.sampling(len(self.data), self.rounds, self.seed)
        else:
            sampling = EveryRound()
        noise = self.mechanism.noise_multiplier / (2 if isinstance(sampling, FixedSize) else 1)
        # Coming m times in one round counts as m² rounds, which may be more than there are.
        rounds = max(self.rounds, sampling.times) if isinstance(sampling, AtMost) else self.rounds
        found = accounting.theory(
            noise_multiplier=noise, sampling=sampling, rounds=rounds, delta=delta, accountant=accountant
        )
        return replace(found, rounds=self.rounds)

    def _check_bound(self, sampling: Sampling) -> None:
        """Refuse a sampling that promises more than these cohorts keep."""
        most = self.cohorts.exposures(len(self.data), self.rounds, self.seed)
        match sampling:
            case AtMost():
                holds = sampling.times >= most
            case EveryRound():
                holds = most <= self.rounds
            case _:
                holds = sampling == self.cohorts.sampling(len(self.data), self.rounds, self.seed)
        if not holds:
            raise InputError(f"{sampling} is no upper bound for {self.cohorts}: AtMost(times={most}) is")

    def _settings(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in ("cohorts", "client", "mechanism", "server")}

    def _rest(self) -> None:
        self._workers.close()

    def _before_round(self) -> None:
        for index, audit in enumerate(self.audits):
            frozen = check_count("the number of frozen rounds", audit.frozen_rounds(self.state.round), least=0)
            for trial in track(range(frozen), f"frozen rounds before round {self.state.round}"):
                planted = audit.plant(self.state.round, clip_norm=self.state.clip_norm, trial=trial)
                own = (index << 32) + trial + 1  # each audit's are numbered apart; 0 is the training's own round
                update, divisor, _, _ = self._noisy_mean([] if planted is None else [planted], trial=own)
                shown = read_only(update)
                audit.observe(
                    Release(round=self.state.round, kind="update", vector=shown, trial=trial, divisor=divisor)
                )

    def _round(self) -> tuple[TrainingState, Tensor, float]:
        state, number = self.state, self.state.round
        planted = [audit.plant(number, clip_norm=state.clip_norm) for audit in self.audits]
        update, divisor, norms, losses = self._noisy_mean([found for found in planted if found is not None])
        model, memory = optimized(self.server, state, update, self._workers.threads)
        metrics: Metrics = {"round": number, "clients": len(norms)}
        if len(norms):
            metrics |= {"train_loss": float(losses.mean()), "median_norm": float(np.median(norms))}
        if math.isfinite(state.clip_norm):
            metrics["clip_norm"] = state.clip_norm
        expected = self.cohorts.expected(len(self.data), number)
        after = TrainingState(
            model=model,
            optimizer=memory,
            clip_norm=self.mechanism.next_clip_norm(state.clip_norm, norms, expected, self.seed, number),
            round=number + 1,
            history=[*state.history, metrics],
        )
        return after, update, divisor

    def _noisy_mean(self, planted: Sequence[Contribution], trial: int = 0) -> tuple[Tensor, float, Floats, Floats]:
        """What the mechanism makes of a round, what the sum was divided by, the norms and losses of its clients."""
        number, clip_norm, population = self.state.round, self.state.clip_norm, len(self.data)
        threads = self._workers.threads
        cohort = self.cohorts.cohort(population, self.seed, number, trial)
        weights = self._weights[cohort]
        jobs = self._work.jobs(number, trial, cohort, weights, clip_norm)
        found = self._workers.sum(self.state.model, jobs)
        self._check_finite(jobs, found)
        total = found.total
        for contribution in planted:
            checked_contribution(contribution, dim=self.dim, clip_norm=clip_norm, round=number)
            total += torch.from_numpy(np.array(contribution.total, dtype=np.float32))
        divisor = sum(contribution.clients for contribution in planted)
        if self.mechanism.private:
            expected = self.cohorts.expected(population, number)
            noise = self.mechanism.noise(self.dim, self.seed, clip_norm, expected, number, trial, threads=threads)
            threads.each(self.dim, lambda piece: total[piece].add_(torch.from_numpy(noise[piece])))
            divisor += expected
        else:
            divisor += float(weights.sum())
        divisor = divisor or 1.0
        threads.each(self.dim, lambda piece: total[piece].div_(divisor))
        return total, divisor, found.norms, found.losses

    def _check_finite(self, jobs: Sequence[Job], found: PartialSum) -> None:
        bad = np.flatnonzero(~(np.isfinite(found.norms) & np.isfinite(found.losses)))
        if len(bad):
            first = int(bad[0])
            name = self.data.names[int(np.concatenate([job.clients for job in jobs])[first])]
            loss, norm, number = found.losses[first], found.norms[first], self.state.round
            raise InputError(
                f"client {name!r} has a loss of {loss:.4g} and an update of norm {norm:.4g} in round {number}: "
                "the round does not count. Lower the clients' learning rate, look at this client's examples, or, if "
                "the model itself has diverged, lower the server's learning rate or the noise"
            )
