"""Does this code do what it claims? Three ways to find out; docs/checks.md explains them, and has the proofs.

- `replay` runs an aggregation with one client more, with the same randomness, and compares what is released.
  `sensitivity` tries all the clients and rounds that `clients` makes up; `release` is one run of the aggregation;
  `comparison` compares two runs and measures the noise that covers the difference; `findings` says it in sentences.
- `check_noise` calls a mechanism many times (`transcript`) and attacks its noise: is there enough of it, everywhere,
  fresh, independent, and of a shape that protects (`noise_attacks`)?
- `TrainingChecks` watches a training while it runs (``training``): who takes part, and the noise of each update
  (`update_record`), of which it asks the same questions (`update_noise`), without calling anything.

Each keeps what it counted and measured, from which findings follow whenever they are asked for, by the gate as well.
`coalmine.check_mechanism`, `coalmine.testing`, the integrations' replays and the one-shot audit call these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coalmine import lazy_names

if TYPE_CHECKING:
    from coalmine.checks.clients import Client as Client
    from coalmine.checks.findings import Replay as Replay
    from coalmine.checks.noise_attacks import check_noise as check_noise
    from coalmine.checks.sensitivity import ReplayOptions as ReplayOptions
    from coalmine.checks.sensitivity import replay as replay

# Lazy, because the tests of noise need no torch, which replay imports.
__getattr__, __all__ = lazy_names(
    __name__,
    {
        "coalmine.checks.clients": ("Client",),
        "coalmine.checks.findings": ("Replay",),
        "coalmine.checks.noise_attacks": ("check_noise",),
        "coalmine.checks.sensitivity": ("ReplayOptions", "replay"),
    },
)
