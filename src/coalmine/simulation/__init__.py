"""The training under audit: a small, exact federated simulator on one machine.

``Training`` is federated, ``CentralTraining`` its central counterpart. Both give the same bits for the same seed, save
checkpoints, and talk to audits through ``coalmine.protocol``.
"""

from coalmine.simulation.central import CentralTraining
from coalmine.simulation.client import LocalTraining
from coalmine.simulation.cohorts import (
    Cohorts,
    FixedSizeCohorts,
    PoissonCohorts,
    ScheduledCohorts,
    ShuffledCohorts,
    WithReplacementCohorts,
)
from coalmine.simulation.evaluation import evaluate
from coalmine.simulation.local_training import train_locally_private
from coalmine.simulation.mechanisms.central import (
    AdaptiveClipping,
    EqualWeights,
    FixedClipping,
    Mechanism,
    NoClipping,
    WeightsBySize,
)
from coalmine.simulation.mechanisms.local import LDPSGD, LocalGaussian, LocalMechanism
from coalmine.simulation.mechanisms.privunit import PrivUnit2
from coalmine.simulation.optimizers import SGD, Adam
from coalmine.simulation.training import Training

__all__ = [
    "LDPSGD",
    "SGD",
    "Adam",
    "AdaptiveClipping",
    "CentralTraining",
    "Cohorts",
    "EqualWeights",
    "FixedClipping",
    "FixedSizeCohorts",
    "LocalGaussian",
    "LocalMechanism",
    "LocalTraining",
    "Mechanism",
    "NoClipping",
    "PoissonCohorts",
    "PrivUnit2",
    "ScheduledCohorts",
    "ShuffledCohorts",
    "Training",
    "WeightsBySize",
    "WithReplacementCohorts",
    "evaluate",
    "train_locally_private",
]
