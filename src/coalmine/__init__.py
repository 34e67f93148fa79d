"""coalmine audits the privacy of federated learning.

Canaries are planted in a training, an adversary's view of it gives each a score, and an estimator turns the scores
into an empirical ε, reported beside the theoretical one. Heavy libraries are imported where they are used, so that
``import coalmine`` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coalmine.accounting import Theory as Theory
    from coalmine.accounting import noise_for as noise_for
    from coalmine.accounting import theory as theory
    from coalmine.errors import InputError as InputError
    from coalmine.runs.public import run as run
    from coalmine.sampling import AtMost as AtMost
    from coalmine.sampling import EveryRound as EveryRound
    from coalmine.sampling import FixedSize as FixedSize
    from coalmine.sampling import OncePerEpoch as OncePerEpoch
    from coalmine.sampling import Poisson as Poisson
    from coalmine.seam import Audit as Audit
    from coalmine.seam import Contribution as Contribution
    from coalmine.seam import Release as Release
    from coalmine.seam import View as View
    from coalmine.stats import CosineNull as CosineNull
    from coalmine.stats import Estimate as Estimate
    from coalmine.stats import NormalNull as NormalNull
    from coalmine.stats import Scores as Scores
    from coalmine.stats import estimate as estimate

__version__ = "0.1.0"

_HOME = {
    "coalmine.accounting": ("Theory", "noise_for", "theory"),
    "coalmine.errors": ("InputError",),
    "coalmine.runs.public": ("run",),
    "coalmine.sampling": ("AtMost", "EveryRound", "FixedSize", "OncePerEpoch", "Poisson"),
    "coalmine.seam": ("Audit", "Contribution", "Release", "View"),
    "coalmine.stats": ("CosineNull", "Estimate", "NormalNull", "Scores", "estimate"),
}
_MODULES = ("accounting", "audits", "data", "fl", "models", "runs", "sampling", "seam", "stats")

__all__ = sorted([*_MODULES, *(name for names in _HOME.values() for name in names)])  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name in _MODULES:
        return importlib.import_module(f"coalmine.{name}")
    for module, names in _HOME.items():
        if name in names:
            return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'coalmine' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return [*__all__, "__version__"]
