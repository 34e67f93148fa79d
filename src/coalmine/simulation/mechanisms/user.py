"""User-defined local mechanisms: any function from a gradient to a report, with the guarantee it claims."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from coalmine.arrays import Floats
from coalmine.claims import Claim
from coalmine.errors import InputError, check_delta
from coalmine.simulation.mechanisms.local_base import LocalMechanism, Normals, Reports, seeded
from coalmine.usercode import errors_of


@dataclass(frozen=True, kw_only=True)
class OwnMechanism(LocalMechanism):
    """A user's function as a local mechanism, with the (ε, δ) that it claims.

    Nothing else is known about it, so reports are made whole, one at a time. Its "log-likelihood" is the inner product
    of report and clipped gradient, which is optimal for Gaussian noise and merely a score for anything else.

    Args:
        function: What a client runs: ``function(gradient, rng)`` returns the report, shape (d,).
        epsilon: The claimed ε of one report.
        norm: The clip norm that the function uses.
        delta: The claimed δ, in [0, 1).
        factor: What the server multiplies the mean report by.

    Raises:
        InputError: If the function does not take two arguments; when it is called, if it fails or its report is not a
            finite vector of the gradient's length.

    Example:
        >>> def noisy(gradient, rng):
        ...     return gradient + rng.normal(0, 10, gradient.size)
        >>> OwnMechanism(function=noisy, epsilon=1.0, delta=1e-5).randomize([1.0, 0.0], np.random.default_rng(0)).shape
        (1, 2)
    """

    density_is_known: ClassVar[bool] = False
    function: Callable[[Any, np.random.Generator], Any]
    delta: float = 0.0
    factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_delta(self.delta)
        try:
            signature = inspect.signature(self.function, follow_wrapped=False)
        except (TypeError, ValueError):  # some functions written in C have none
            return
        try:
            signature.bind(None, None)
        except TypeError:
            raise InputError(
                f"the mechanism {self.name}{signature} must take two arguments, a gradient (a flat array) and a "
                "numpy.random.Generator, and return the report"
            ) from None

    @property
    def name(self) -> str:  # type: ignore[override]
        """The function's name."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    def claim(self) -> Claim:
        """The guarantee as claimed."""
        # A report with δ > 0 has no pure ε by itself, of which the curve of the claim would be made.
        local_epsilon = self.epsilon if self.delta == 0 else None
        return Claim(
            epsilon=self.epsilon,
            delta=self.delta,
            rounds=1,
            accountant="as claimed",
            local_epsilon=local_epsilon,
            adjacency="replace-one",
        )

    def reports(self, gradient: npt.ArrayLike, normals: Normals, uniforms: Floats, *, out: Reports) -> Reports:
        """The function's reports, each drawn with a generator that is seeded by its uniform numbers."""
        vector = np.asarray(gradient, dtype=np.float32)
        for row, row_uniforms in zip(out, uniforms.T, strict=True):
            with errors_of(f"the mechanism {self.name} failed"):
                report = np.asarray(self.function(vector.copy(), seeded(row_uniforms)))
            if report.dtype.kind not in "fiub":
                raise InputError(f"the mechanism {self.name} must return real numbers, got {report.dtype}")
            if report.shape != vector.shape or not np.isfinite(report).all():
                got = "one that is not finite" if report.shape == vector.shape else f"shape {report.shape}"
                raise InputError(
                    f"the mechanism {self.name} must return a finite report of shape {vector.shape}, got {got}"
                )
            row[:] = report
        return out

    def log_density(self, total: Floats, gradient: npt.ArrayLike, dim: int, clients: int = 1) -> Floats:
        """A score: the inner product with the clipped gradient."""
        scores: Floats = total @ self.clipped(gradient)
        return scores

    def server_factor(self, dim: int) -> float:
        """The factor as given."""
        return self.factor
