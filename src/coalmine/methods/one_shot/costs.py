"""What canaries cost the training that they join, and when that is too much.

A canary is an extra client whose update has the clip norm C and a random direction. Beside n clients, m canaries do two
things to a round's average:

- They enlarge its divisor from n to n + m, so clients and noise both move the model n / (n + m) times as far. A server
  learning rate that is (n + m) / n times as large undoes that.
- They add a vector of random direction and length C √m, like noise of standard deviation C √(m / d) per coordinate. The
  mechanism's own noise has z C, so together they are √(1 + m / (d z²)) times as large. Nothing undoes that, but it is
  small as long as m is far below d z².

docs/one-shot.md has the accuracy that was measured.
"""

from __future__ import annotations

import math
import warnings

from coalmine.errors import CanaryWarning


def step_left(canaries: float, clients: float) -> float:
    """Return how far a round moves the model beside canaries, relative to a round without them.

    Args:
        canaries: Expected number of canaries that a round's average counts.
        clients: Expected number of clients in a round, above 0.

    Example:
        >>> step_left(canaries=25, clients=75)
        0.75
    """
    return clients / (clients + canaries)


def extra_noise(canaries: float, *, dim: int, noise_multiplier: float) -> float:
    """Return by what factor canaries make the noise in a round larger, minus 1.

    Args:
        canaries: Expected number of inserted canaries in a round.
        dim: Number of parameters.
        noise_multiplier: The mechanism's noise multiplier; the answer is infinite if it is 0.

    Example:
        >>> round(extra_noise(canaries=50, dim=10_000, noise_multiplier=1.0), 4)
        0.0025
    """
    if noise_multiplier == 0:
        return math.inf if canaries else 0.0
    return math.sqrt(1 + canaries / (dim * noise_multiplier**2)) - 1


def warn_if_crowded(canaries: float, clients: float, *, advice: str | None = None) -> None:
    """Warn before a training if a round has more canaries than clients.

    Args:
        canaries: Expected number of canaries that a round's average counts.
        clients: Expected number of clients in a round.
        advice: What to do about it; fewer canaries, more clients or larger steps of the server if None.
    """
    if canaries <= clients:
        return
    if advice is None:
        advice = "use fewer canaries or more clients per round"
        if clients > 0:
            advice += f", or multiply the server's learning rate by {1 / step_left(canaries, clients):.2g}"
    share = step_left(canaries, clients) if clients > 0 else 0.0
    warnings.warn(
        f"{canaries:,.4g} canaries beside {clients:,.4g} clients in a round: it moves the model only {share:.2g} times "
        f"as far as without canaries, which costs accuracy; {advice}. `coalmine plan` shows how many canaries you need",
        CanaryWarning,
        stacklevel=3,
    )


def warn_if_loud(canaries: float, *, dim: int, noise_multiplier: float) -> None:
    """Warn before a training if its canaries add more noise than its mechanism does.

    Args:
        canaries: Expected number of inserted canaries in a round.
        dim: Number of parameters.
        noise_multiplier: The mechanism's noise multiplier. Without noise there is nothing to compare with.
    """
    if noise_multiplier == 0 or canaries <= dim * noise_multiplier**2:
        return
    factor = 1 + extra_noise(canaries, dim=dim, noise_multiplier=noise_multiplier)
    warnings.warn(
        f"{canaries:,.4g} canaries in {dim:,} dimensions make the noise of a round {factor:.2g} times as large, which "
        "costs accuracy: use fewer canaries. `coalmine plan` shows how many you need",
        CanaryWarning,
        stacklevel=3,
    )
