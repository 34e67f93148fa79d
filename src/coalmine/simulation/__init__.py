"""The training under audit: a small, exact federated simulator on one machine.

`Training` is federated, `CentralTraining` its central counterpart, and `train_locally_private` trains from locally
randomized gradients. Trainings give the same bits for the same seed, save checkpoints, and talk to audits through
`coalmine.protocol`.

| looking for | where |
|---|---|
| one round, from cohort to noisy mean | ``Training._noisy_mean`` in `training` |
| where updates are clipped | `kernels.partial_sum.clip_factors` |
| where noise is added | `mechanisms.central.Mechanism.noise` |
| local mechanisms (LDP-SGD, Gaussian, PrivUnit) | `mechanisms` |
| who takes part in a round, and how that is accounted for | `cohorts` |
| what a client does | `client`, `optimizers` |
| how updates are computed fast | `kernels`, `workers` |
| rounds, releases to audits, checkpoints | `rounds`, `checkpoint` |
| data sets and models | `data`, `models` |
| all of it as settings of a run | `settings` |

See ``docs/training.md`` for a guide.
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
