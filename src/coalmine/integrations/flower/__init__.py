"""Audits of Flower trainings: canaries are nodes of the grid, strategies stay as they are.

    audit = OneShot(
        9_610, rounds=20, canaries=10, view="updates", participation="every-round", design="fixed",
    )
    grid = CanaryGrid(grid, audit, clip_norm=0.5)
    strategy.start(grid=grid, evaluate_fn=grid.recorder(), ...)
    audit.result(claim=...)

`CanaryGrid` adds the nodes, `FrozenRounds` holds CANIFE's rounds on a frozen model, `canary_mod` lets nodes of a real
deployment send canaries, and `LocalGrid` runs a ClientApp in this process. docs/flower.md explains each.
`replay_strategy` needs no training: it replays rounds with and without one client (docs/checks.md).
"""

try:
    import flwr  # noqa: F401
except ImportError:
    raise ImportError("this integration needs Flower, which is not installed: pip install 'coalmine[flower]'") from None

from coalmine.integrations.flower.grid import CanaryGrid, FrozenRounds
from coalmine.integrations.flower.nodes import LocalGrid, canary_mod
from coalmine.integrations.flower.replay import replay_strategy

__all__ = ["CanaryGrid", "FrozenRounds", "LocalGrid", "canary_mod", "replay_strategy"]
