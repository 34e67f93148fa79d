"""coalmine audits the privacy of federated learning.

Canaries are inserted into a training, an adversary's view of it gives each canary a score, and the scores of inserted
and held-out canaries become evidence about ε, shown beside the claimed value. Names are imported on first use, so that
``import coalmine`` costs next to nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coalmine.checks import replay as replay
    from coalmine.claims import Claim as Claim
    from coalmine.claims import EveryRound as EveryRound
    from coalmine.claims import Poisson as Poisson
    from coalmine.claims import noise_for as noise_for
    from coalmine.claims.sampling import AtMost as AtMost
    from coalmine.claims.sampling import Epochs as Epochs
    from coalmine.claims.sampling import FixedSize as FixedSize
    from coalmine.claims.sampling import Scheduled as Scheduled
    from coalmine.errors import InputError as InputError
    from coalmine.methods.canife.audit import Canife as Canife
    from coalmine.methods.exposure.audit import Exposure as Exposure
    from coalmine.methods.ldp.audit import Ldp as Ldp
    from coalmine.methods.mechanism.audit import check_mechanism as check_mechanism
    from coalmine.methods.one_shot.audit import OneShot as OneShot
    from coalmine.methods.one_shot.planning import plan as plan
    from coalmine.methods.samples.audit import Samples as Samples
    from coalmine.methods.secret_sharer.audit import SecretSharer as SecretSharer
    from coalmine.protocol import Audit as Audit
    from coalmine.results.claim_test import check_claim as check_claim
    from coalmine.results.io import load as load
    from coalmine.results.result import Result as Result
    from coalmine.results.verdict import Finding as Finding
    from coalmine.results.verdict import Verdict as Verdict
    from coalmine.runs.comparison import compare as compare
    from coalmine.runs.running import run as run
    from coalmine.stats import estimate as estimate
    from coalmine.testing import assert_locally_private as assert_locally_private
    from coalmine.testing import assert_private as assert_private
    from coalmine.testing import assert_sensitivity as assert_sensitivity

__version__ = "0.1.0"


def lazy_names(
    package: str, homes: Mapping[str, Sequence[str]], modules: Sequence[str] = ()
) -> tuple[Callable[[str], Any], list[str]]:
    """Return a package's ``__getattr__``, which imports a name on first use, and its ``__all__``.

    Args:
        package: Name of the package that exports the names.
        homes: The names by the module that defines them.
        modules: Names of submodules that are exported themselves.

    Example:
        >>> getattr_, names = lazy_names("math_names", {"math": ("pi", "tau")})
        >>> names
        ['pi', 'tau']
        >>> round(getattr_("tau") / getattr_("pi"))
        2
    """
    # Importing torch or SciPy takes seconds, and most users of one name need neither.
    home_of = {name: module for module, names in homes.items() for name in names}

    def getattr_(name: str) -> Any:
        if name in modules:
            return importlib.import_module(f"{package}.{name}")
        if name in home_of:
            return getattr(importlib.import_module(home_of[name]), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return getattr_, sorted([*modules, *home_of])


__getattr__, __all__ = lazy_names(
    __name__,
    {
        "coalmine.checks": ("replay",),
        "coalmine.claims": ("Claim", "noise_for"),
        "coalmine.claims.sampling": ("AtMost", "Epochs", "EveryRound", "FixedSize", "Poisson", "Scheduled"),
        "coalmine.errors": ("InputError",),
        "coalmine.methods.canife.audit": ("Canife",),
        "coalmine.methods.exposure.audit": ("Exposure",),
        "coalmine.methods.ldp.audit": ("Ldp",),
        "coalmine.methods.mechanism.audit": ("check_mechanism",),
        "coalmine.methods.one_shot.audit": ("OneShot",),
        "coalmine.methods.one_shot.planning": ("plan",),
        "coalmine.methods.samples.audit": ("Samples",),
        "coalmine.methods.secret_sharer.audit": ("SecretSharer",),
        "coalmine.protocol": ("Audit",),
        "coalmine.results.claim_test": ("check_claim",),
        "coalmine.results.io": ("load",),
        "coalmine.results.result": ("Result",),
        "coalmine.results.verdict": ("Finding", "Verdict"),
        "coalmine.runs.comparison": ("compare",),
        "coalmine.runs.running": ("run",),
        "coalmine.stats": ("estimate",),
        "coalmine.testing": ("assert_locally_private", "assert_private", "assert_sensitivity"),
    },
    ("checks", "claims", "methods", "protocol", "results", "runs", "simulation", "stats", "testing"),
)


def __dir__() -> list[str]:
    """The public names, imported or not."""
    return [*__all__, "__version__"]
