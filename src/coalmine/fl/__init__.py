"""The training under audit: a small, exact federated simulator on one machine.

``Training`` is federated, ``CentralTraining`` its central counterpart. Both give the same bits for the same seed, save
checkpoints, and talk to audits through ``coalmine.seam``.
"""

from coalmine.fl.central import CentralTraining
from coalmine.fl.client import LocalTraining
from coalmine.fl.cohorts import (
    Cohorts,
    FixedSizeCohorts,
    PoissonCohorts,
    ScheduledCohorts,
    ShuffledCohorts,
    WithReplacementCohorts,
)
from coalmine.fl.evaluation import evaluate
from coalmine.fl.local_mechanisms import LDPSGD, LocalGaussian, LocalMechanism
from coalmine.fl.local_training import train_locally_private
from coalmine.fl.mechanisms import (
    AdaptiveClipping,
    EqualWeights,
    FixedClipping,
    Mechanism,
    NoClipping,
    WeightsBySize,
)
from coalmine.fl.optimisers import SGD, Adam
from coalmine.fl.privunit import PrivUnit2
from coalmine.fl.training import Training

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
