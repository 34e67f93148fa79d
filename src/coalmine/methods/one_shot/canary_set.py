"""All canaries of a one-shot audit: dense ones first, then those that lie in single tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coalmine.arrays import Bools, Ints
from coalmine.layers import Layers
from coalmine.methods.one_shot.planted import PlantedCanaries, energy
from coalmine.methods.one_shot.scaled import ScaledCanaries
from coalmine.methods.one_shot.strata import StratifiedCanaries, Stratum, draw_strata
from coalmine.methods.one_shot.updates import UpdateCanaries, draw_members, update_canaries
from coalmine.protocol import Vector
from coalmine.stats.rank_tests import Design
from coalmine.vector_kind import VectorKind
from coalmine.vectors import zeros

_MOST_KEPT = 1 << 20  # numbers of a sum that is kept for the next round (4 MB)


@dataclass(frozen=True, kw_only=True)
class CanarySet:
    """The canaries of an audit, inserted and held out.

    Args:
        dim: Number of parameters.
        canaries: Expected number of inserted canaries; as many are held out.
        family: Family of the dense ones.
        design: How many are inserted: about half by coin flips, or exactly half.
        layers: The model's tensors, or None if they are unknown and all canaries are dense.
        seed: Seed of the canaries and for which of them are inserted.
        scale: What each parameter is multiplied by when canaries are inserted, (dim,), or None.
    """

    dim: int
    canaries: int
    family: str
    design: Design
    layers: Layers | None
    seed: int
    scale: Vector | None = None

    @property
    def count(self) -> int:
        """Number of canaries, inserted and held out."""
        return 2 * self.canaries

    @cached_property
    def members(self) -> Bools:
        """Which canaries are inserted, (count,)."""
        return draw_members(self.canaries, design=self.design, seed=self.seed)

    @cached_property
    def strata(self) -> list[Stratum]:
        """Canaries in single tensors."""
        return [] if self.layers is None else draw_strata(self.layers, count=self.count, seed=self.seed)

    @cached_property
    def dense(self) -> UpdateCanaries:
        """Canaries that use all coordinates: the first ones."""
        count = self.strata[0].first if self.strata else self.count
        return update_canaries(self.family, dim=self.dim, count=count, seed=self.seed)

    @cached_property
    def updates(self) -> UpdateCanaries:
        """All canaries as updates."""
        updates = StratifiedCanaries(self.dense, self.strata) if self.strata else self.dense
        return updates if self.scale is None else ScaledCanaries(updates, self.scale)

    def planted(self, present: Ints, norm: float, clients: float, kind: VectorKind) -> PlantedCanaries:
        """Return the sum of the inserted ones among the canaries of a round, each of length ``norm``."""
        kind.check_holds(norm / self.dim**0.5, f"canaries of norm {norm:g} in {self.dim:,} dimensions")
        members, device = tuple(present[self.members[present]].tolist()), kind.work_device
        # Canaries of every round have the same sum each time.
        unit = self._sums.get(members)
        if unit is None:
            weights = np.zeros(self.count)
            weights[list(members)] = 1.0
            unit = self.updates.total(weights, device) if members else zeros(self.dim, device)
            self._sums.clear()
            if self.dim <= _MOST_KEPT:
                self._sums[members] = unit
        total = kind.give(unit * float(norm) if norm != 1 or self._sums else unit)
        return PlantedCanaries(
            total,
            clients,
            len(members),
            canaries=self.updates,
            members=members,
            norm=norm,
            kind=kind,
            energy=energy(total, kind),
        )

    @cached_property
    def _sums(self) -> dict[tuple[int, ...], Vector]:
        """The last sum of canaries of length 1, by who they were."""
        return {}
