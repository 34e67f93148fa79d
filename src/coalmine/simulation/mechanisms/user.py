"""A local mechanism of one's own: any function from a gradient to a report."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from coalmine.accounting import Theory
from coalmine.accounting.sampling import EveryRound
from coalmine.arrays import Floats
from coalmine.errors import InputError, check_delta
from coalmine.simulation.mechanisms.local import LocalMechanism, Normals, Reports, seeded
from coalmine.usercode import said


@dataclass(frozen=True, kw_only=True)
class OwnMechanism(LocalMechanism):
    """What a client really runs, ``function(gradient, rng)`` → report (d,), and the (ε, δ) that it promises.

    Nothing else is known of it, so whole reports are made, one at a time, and its "likelihood ratio" is the product of
    the report with the difference of the clipped gradients: exact for Gaussian noise, a score for anything else.
    ``factor`` is what the server multiplies the mean of reports by.
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
        except (TypeError, ValueError):  # some that are written in C have none
            return
        try:
            signature.bind(None, None)
        except TypeError:
            raise InputError(
                f"the mechanism must be {self.name}(gradient, rng), a flat array and a numpy.random.Generator to draw "
                f"with, and give the report; it is {self.name}{signature}"
            ) from None

    @property
    def name(self) -> str:  # type: ignore[override]
        """The function's."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    def theory(self) -> Theory:
        """The promise as it was given."""
        return Theory(
            epsilon=self.epsilon,
            delta=self.delta,
            accountant="as claimed",
            noise_multiplier=None,
            sampling=str(EveryRound()),
            q=1.0,
            rounds=1,
            adjacency="replace-one",
        )

    def reports(self, gradient: npt.ArrayLike, normals: Normals, uniforms: Floats, *, out: Reports) -> Reports:
        """What the function gives, with a generator for each report that is seeded by its uniform numbers."""
        vector = np.asarray(gradient, dtype=np.float32)
        for row, own in zip(out, uniforms.T, strict=True):
            try:
                report = np.asarray(self.function(vector.copy(), seeded(own)))
            except InputError:
                raise
            except Exception as error:
                raise InputError(f"the mechanism {self.name} failed: {said(error)}") from error
            if report.dtype.kind not in "fiub":
                raise InputError(f"the mechanism {self.name} must report real numbers, got {report.dtype}")
            if report.shape != vector.shape or not np.isfinite(report).all():
                raise InputError(
                    f"the mechanism {self.name} must give a finite report of shape {vector.shape}, got "
                    f"{'one that is not finite' if report.shape == vector.shape else report.shape}"
                )
            row[:] = report
        return out

    def log_density(self, total: Floats, gradient: npt.ArrayLike, dim: int, clients: int = 1) -> Floats:
        """Up to what is common to all gradients of one length, and only for Gaussian noise: a score."""
        clipped = self.clipped(gradient)
        found: Floats = total @ clipped
        return found

    def server_factor(self, dim: int) -> float:
        """As given."""
        return self.factor
