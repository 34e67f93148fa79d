"""Mechanisms with a bug planted into them, to see whether an audit finds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from coalmine.errors import InputError, check_count, check_positive
from coalmine.layers import Layers
from coalmine.parsing import parse_kind
from coalmine.protocol import Vector
from coalmine.simulation.mechanisms.central import Mechanism

BUGS = "noise:SHARE (only this share of the noise), bare:TENSOR (no noise on one tensor) or repeat:N (the same noise \
again after N rounds)"


@dataclass(frozen=True, kw_only=True)
class BuggyMechanism(Mechanism):
    """A Gaussian mechanism with a bug; the claimed guarantee is that of the correct one.

    Args:
        share: Share of the noise that is really added.
        bare: Coordinates without noise, from and to.
        period: Number of rounds after which the noise repeats itself; never if None.

    Example:
        >>> from coalmine.simulation import FixedClipping
        >>> mechanism = BuggyMechanism(clipping=FixedClipping(1.0), noise_multiplier=2.0, bare=(3, 5))
        >>> (mechanism.noise(6, seed=0, clip_norm=1.0, expected_clients=10, round=0) == 0).tolist()
        [False, False, False, True, True, False]
    """

    share: float = 1.0
    bare: tuple[int, int] = (0, 0)
    period: int | None = None

    def noise(
        self, dim: int, seed: int, clip_norm: float, expected_clients: float, round: int, trial: int = 0
    ) -> Vector:
        """Draw the noise, with the bug."""
        repeated = round if self.period is None else round % self.period
        noise = super().noise(dim, seed, clip_norm, expected_clients, repeated, trial)
        noise *= self.share
        noise[slice(*self.bare)] = 0
        return noise


def with_bug(mechanism: Mechanism, bug: str, layers: Mapping[str, Sequence[int]]) -> Mechanism:
    """Return the mechanism with a bug planted into it.

    Args:
        mechanism: A correct mechanism.
        bug: ``"noise:0.5"``, ``"bare:2.bias"`` or ``"repeat:3"``.
        layers: Shapes of the model's tensors by name, in the order of the flat model.

    Raises:
        InputError: If there is no such bug or tensor, or no noise to spoil.

    Example:
        >>> from coalmine.simulation import FixedClipping
        >>> correct = Mechanism(clipping=FixedClipping(1.0), noise_multiplier=2.0)
        >>> with_bug(correct, "bare:bias", {"weight": (3, 2), "bias": (3,)}).bare
        (6, 9)
    """
    if not mechanism.private:
        raise InputError(f"the bug {bug} needs noise: set noise_multiplier")
    settings = {f.name: getattr(mechanism, f.name) for f in fields(Mechanism)}

    def bare(tensor: str) -> Mechanism:
        place = Layers.of(layers).slice_of(tensor)
        return BuggyMechanism(**settings, bare=(place.start, place.stop))

    return parse_kind(
        bug,
        {
            "noise:": lambda share: BuggyMechanism(**settings, share=check_positive("share", float(share))),
            "bare:": bare,
            "repeat:": lambda rounds: BuggyMechanism(**settings, period=check_count("rounds", int(rounds))),
        },
        f"bug must be {BUGS}, got {bug!r}",
    )
