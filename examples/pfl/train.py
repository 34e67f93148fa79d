"""Audit a training simulated by Apple's pfl, with two postprocessors around its privacy mechanism.

    python examples/pfl/train.py                      # a correct mechanism: its claim is not refuted
    python examples/pfl/train.py --noise-factor 0.5   # half of the claimed noise: refuted

pfl pins an older dp-accounting than coalmine needs, and does not need it here:
pip install --no-deps pfl==0.6.0 multiprocess dill prv-accountant
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.postprocessor.base import Postprocessor
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism
from pfl.stats import MappedVectorStatistics
from torch import Tensor, nn
from torch.nn import functional as F

from coalmine import OneShot, Result
from coalmine.claims import Claim
from coalmine.simulation.data import load

USERS, ROUNDS, CLIP, NOISE, LENGTH = 40, 10, 0.5, 3.0, 5.0


class InsertCanaries(Postprocessor):
    """Adds canaries, which the mechanism clips like any user's update.

    The server applies postprocessors in reverse order: listed after the mechanism, this one runs before its noise.
    """

    def __init__(self, audit: OneShot, mechanism: GaussianMechanism) -> None:
        self.audit, self.mechanism = audit, mechanism

    def postprocess_server(self, *, stats, central_context, aggregate_metrics):
        """Add the canaries of this round, and count them as users."""
        planted = self.audit.plant(central_context.current_central_iteration, clip_norm=CLIP)
        for update in planted.each(norm=LENGTH * CLIP):
            statistics = MappedVectorStatistics(dict(shaped(update, stats)))
            clipped, _ = self.mechanism.constrain_sensitivity(statistics=statistics)
            for name in stats.keys():
                stats[name] = stats[name] + clipped[name]
        stats.weight += planted.clients
        return stats, Metrics()


class ShowRelease(Postprocessor):
    """Shows the audit the noisy average. Listed before the mechanism, it runs after its noise."""

    def __init__(self, audit: OneShot) -> None:
        self.audit = audit

    def postprocess_server(self, *, stats, central_context, aggregate_metrics):
        """Show the noisy average to the audit."""
        average = np.concatenate([stats[name].numpy().ravel() for name in stats.keys()]) / stats.weight
        round = central_context.current_central_iteration
        self.audit.observe(round, update=average.astype(np.float32), divisor=float(stats.weight))
        return stats, Metrics()


def shaped(update: np.ndarray, stats: MappedVectorStatistics) -> Iterator[tuple[str, Tensor]]:
    """Yield the pieces of a flat vector with the names and shapes of the statistics."""
    sizes = [value.numel() for value in stats.values()]
    for (name, value), piece in zip(stats.items(), torch.from_numpy(update).split(sizes), strict=True):
        yield name, piece.reshape(value.shape)


class Network(nn.Module):
    """A module with the two methods that pfl needs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy."""
        return F.cross_entropy(self.layers(inputs), targets)

    def metrics(self, inputs: Tensor, targets: Tensor) -> dict[str, Weighted]:
        """Return the accuracy."""
        return {"accuracy": Weighted(int((self.layers(inputs).argmax(1) == targets).sum()), len(inputs))}


def audited_training(*, noise_factor: float = 1.0, canaries: int = 500, seed: int = 0) -> Result:
    """Train with pfl as usual, except for two more postprocessors."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    module = Network()
    users = [PyTorchTensorDataset(pair) for pair in partitions()]
    federation = FederatedDataset(users.__getitem__, MinimizeReuseUserSampler(list(range(USERS))))
    mechanism = GaussianMechanism(CLIP, noise_factor * NOISE)
    audit = OneShot(
        sum(p.numel() for p in module.parameters()), rounds=ROUNDS, canaries=canaries, view="updates",
        participation="every-round", seed=seed,
    )  # fmt: skip
    backend = SimulatedBackend(
        training_data=federation,
        val_data=federation,
        postprocessors=[
            WeightByUser(), ShowRelease(audit), CentrallyAppliedPrivacyMechanism(mechanism),
            InsertCanaries(audit, mechanism),
        ],
    )  # fmt: skip
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=ROUNDS, evaluation_frequency=1 << 30, train_cohort_size=USERS, val_cohort_size=None
        ),
        backend,
        PyTorchModel(
            module,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        ),
        NNTrainHyperParams(local_batch_size=None, local_num_epochs=1, local_learning_rate=0.5),
        send_metrics_to_platform=False,
    )
    return audit.result(claim=Claim(noise_multiplier=NOISE, delta=1e-5))


def partitions() -> list[tuple[Tensor, Tensor]]:
    """Return the digits, split at random among users."""
    digits = load("digits", partition=f"iid:{USERS}").train
    return [
        (torch.from_numpy(user.inputs.astype(np.float32) / digits.inputs.max()).flatten(1), torch.tensor(user.targets))
        for user in digits
    ]


def main() -> None:
    """Train and print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise-factor", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    asyncio.set_event_loop(asyncio.new_event_loop())  # pfl needs one
    result = audited_training(noise_factor=arguments.noise_factor, seed=arguments.seed)
    for e in result.estimates:
        print(f"{e.method:<22} {e.epsilon:8.3f}  {'lower bound' if e.valid else 'estimate'}")
    print(f"\n{result.summary}")


if __name__ == "__main__":
    main()
