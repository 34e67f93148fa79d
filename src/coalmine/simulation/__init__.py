"""The training under audit: a small, exact federated simulator on one machine.

`Training` is federated, `CentralTraining` its central counterpart. Trainings give the same bits for the same seed, save
checkpoints, and talk to audits through `coalmine.protocol`.

| looking for | where |
|---|---|
| one round, from cohort to noisy mean | ``Training._noisy_mean`` in `training` |
| where updates are clipped | `kernels.kernel.clip_factors` |
| where noise is added | `mechanisms.central.Mechanism.noise` |
| local mechanisms (LDP-SGD, Gaussian, PrivUnit) | `mechanisms` |
| what a client does | `client` |
| how updates are computed fast, and in several processes | `kernels` |
| rounds, releases to audits, checkpoints | `rounds` |
| data sets and models | `data`, `models` |
| all of it as settings of a run | `settings` |

See ``docs/simulation.md`` for a guide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coalmine import lazy_names

if TYPE_CHECKING:
    from coalmine.simulation.client import SGD as SGD
    from coalmine.simulation.client import Adam as Adam
    from coalmine.simulation.client import LocalTraining as LocalTraining
    from coalmine.simulation.client import evaluate as evaluate
    from coalmine.simulation.mechanisms.central import Mechanism as Mechanism
    from coalmine.simulation.mechanisms.local import LDPSGD as LDPSGD
    from coalmine.simulation.mechanisms.local import LocalGaussian as LocalGaussian
    from coalmine.simulation.mechanisms.local import LocalMechanism as LocalMechanism
    from coalmine.simulation.mechanisms.local import OwnMechanism as OwnMechanism
    from coalmine.simulation.mechanisms.local import PrivUnit2 as PrivUnit2
    from coalmine.simulation.training import CentralTraining as CentralTraining
    from coalmine.simulation.training import Training as Training

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "coalmine.simulation.client": ("SGD", "Adam", "LocalTraining", "evaluate"),
        "coalmine.simulation.mechanisms.central": ("Mechanism",),
        "coalmine.simulation.mechanisms.local": (
            "LDPSGD",
            "LocalGaussian",
            "LocalMechanism",
            "OwnMechanism",
            "PrivUnit2",
        ),
        "coalmine.simulation.training": ("CentralTraining", "Training"),
    },
)
