"""Does this code do what it claims? Replay with one client more, and a few tests of noise.

`replay` runs an aggregation with and without one client, with the same randomness, and compares what is released:
`sensitivity` goes through all clients and rounds to try, which `probe_clients` makes in the likeness of `clients`.
`release` runs the aggregation once, `isolation` repeats its randomness and leaves no trace. `comparison` compares two
runs, `noise_level` measures what covers their difference, and `findings` says it in sentences. docs/checks.md
explains it.

`check_noise` calls a mechanism many times (`transcript`), and attacks its noise: is there enough of it, everywhere,
fresh, independent, and of a shape that protects (`noise_attacks`)? docs/checks.md has the proofs.

`TrainingChecks` watches the updates of a training while it runs (``training``): the noise of each update
(`update_noise`) and who took part. docs/checks.md has the proofs.

`coalmine.check_mechanism`, the assertions of `coalmine.testing`, and the replays of the integrations call both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coalmine import lazy_names

if TYPE_CHECKING:
    from coalmine.checks.clients import Client as Client
    from coalmine.checks.findings import Moved as Moved
    from coalmine.checks.findings import Replay as Replay
    from coalmine.checks.noise_attacks import check_noise as check_noise
    from coalmine.checks.sensitivity import ReplayOptions as ReplayOptions
    from coalmine.checks.sensitivity import replay as replay

# Lazy, because the tests of noise need no torch, which replay imports.
__getattr__, __all__ = lazy_names(
    __name__,
    {
        "coalmine.checks.clients": ("Client",),
        "coalmine.checks.findings": ("Moved", "Replay"),
        "coalmine.checks.noise_attacks": ("check_noise",),
        "coalmine.checks.sensitivity": ("ReplayOptions", "replay"),
    },
)
