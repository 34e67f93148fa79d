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
from coalmine.fl.mechanisms import (
    AdaptiveClipping,
    EqualWeights,
    FixedClipping,
    Mechanism,
    NoClipping,
    WeightsBySize,
)
from coalmine.fl.optimisers import SGD, Adam
from coalmine.fl.training import Training

__all__ = [
    "SGD",
    "Adam",
    "AdaptiveClipping",
    "CentralTraining",
    "Cohorts",
    "EqualWeights",
    "FixedClipping",
    "FixedSizeCohorts",
    "LocalTraining",
    "Mechanism",
    "NoClipping",
    "PoissonCohorts",
    "ScheduledCohorts",
    "ShuffledCohorts",
    "Training",
    "WeightsBySize",
    "WithReplacementCohorts",
    "evaluate",
]
