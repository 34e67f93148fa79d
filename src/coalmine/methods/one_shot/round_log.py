"""The log of a one-shot audit: in which rounds ``plant`` and ``observe`` were called, and checks of their order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from coalmine.errors import InputError, check_count
from coalmine.protocol import Release, View
from coalmine.results.summary import list_rounds

_ARRAYS = ("planted", "observed", "aborted", "norms", "clip_norms")


class RoundLog:
    """In which of ``rounds`` rounds ``plant`` and ``observe`` were called, and the norm of the canaries in each."""

    def __init__(self, rounds: int) -> None:
        self.planted, self.observed = np.zeros(rounds, dtype=bool), np.zeros(rounds, dtype=bool)
        self.norms, self.clip_norms = np.full(rounds, np.nan), np.full(rounds, np.nan)
        self.aborted = np.zeros(rounds, dtype=bool)

    @property
    def rounds(self) -> int:
        """Number of rounds of the training."""
        return len(self.planted)

    def clipping(self) -> dict[str, str]:
        """Return the setting ``clip_norm`` that `plant` was told: one number, the range of several, or ``none``."""
        norms = self.clip_norms[~np.isnan(self.clip_norms)]
        if not norms.size:
            return {}
        ends = list(dict.fromkeys([float(norms.min()), float(norms.max())]))
        return {"clip_norm": "none" if ends[-1] == np.inf else " to ".join(f"{norm:g}" for norm in ends)}

    def awaits_release(self, round: int) -> bool:
        """Return whether canaries were inserted into a round that was not observed yet."""
        return round < self.rounds and bool(self.planted[round] and not self.observed[round])

    def check_plant(self, round: int) -> None:
        """Raise if a round does not exist or plant was already called for it."""
        self._check_round(check_count("round", round, least=0))
        if self.planted[round]:
            raise InputError(f"plant was already called for round {round}: call it once per round")
        if not self.planted[:round].all():
            missing = np.flatnonzero(~self.planted[:round])
            raise InputError(
                f"plant was called for round {round} before {list_rounds(missing)}: call it in the order of rounds, "
                "and skip for rounds that were aborted"
            )

    def check_release(self, release: Release, view: View, view_name: str) -> None:
        """Raise if a view cannot see a release, or not at this time."""
        round = release.round
        if release.kind != view.kind:
            raise InputError(f'the view {view_name} takes releases of kind "{view.kind}", got "{release.kind}"')
        self._check_round(round)
        if not view.shows(round, self.rounds):
            raise InputError(f"the view {view_name} does not see round {round}")
        if self.observed[round]:
            raise InputError(f"round {round} was already observed: call observe once per release")
        if not self.planted[round]:
            raise InputError(f"plant was not called for round {round}: call it before observe")

    def check_complete(self, view: View, view_name: str) -> None:
        """Raise if a release is missing. Rounds are planted in order, so none is missing before an observed one."""
        missing = [t for t in range(self.rounds) if view.shows(t, self.rounds) and not self.observed[t]]
        if missing:
            raise InputError(
                f"the view {view_name} has not observed {list_rounds(missing)} of {self.rounds}: call observe with "
                "what each released"
            )

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return what a checkpoint keeps."""
        return {name: np.array(getattr(self, name)) for name in _ARRAYS}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore a saved state."""
        for name in _ARRAYS:
            setattr(self, name, np.array(state[name]))

    def _check_round(self, round: int) -> None:
        if not 0 <= round < self.rounds:
            raise InputError(f"round {round} is not one of the audit's {self.rounds} rounds, counted from 0")
