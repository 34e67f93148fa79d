"""CANIFE in a run: one `Canife` per adversary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from coalmine.config import SettingError
from coalmine.errors import InputError
from coalmine.methods.canife import section
from coalmine.methods.canife.settings import CanifeSettings
from coalmine.methods.method import Method
from coalmine.protocol import Audit
from coalmine.results.result import MethodResults, Result
from coalmine.results.tables import Table
from coalmine.results.verdict import ROUND, USER, Unit
from coalmine.simulation.settings import TrainingSettings

if TYPE_CHECKING:
    from torch import nn

    from coalmine.methods.canife.audit import Canife
    from coalmine.methods.canife.result import CanifeResult
    from coalmine.simulation.data import Splits
    from coalmine.simulation.rounds import Rounds

_COMPOSED = ", composed"


class CanifeMethod(Method):
    """Crafts samples, and returns two results per adversary: for a single round, and for the rounds composed."""

    name = "canife"
    title = "Crafted samples in single rounds"
    question = "How much does one round's noisy sum reveal about a client with worst-case data?"
    template = Path(__file__).with_name("section.html.j2")
    description = (
        "A sample was crafted whose update is unlike everyone else's, and coin flips decided in which rounds it took "
        "part. The score measures how much of it a round's noisy sum contains: about 1 with the canary, 0 without. ε "
        "is that of one round, for a client known to take part in it. Rounds composed give an estimate for the whole "
        "training, never a bound."
    )
    reference = "Maddock, Sablayrolles and Stock 2023"
    settings_type = CanifeSettings
    training_type = TrainingSettings
    init: ClassVar[Mapping[str, Any]] = {"every": 20, "trials": 100, "delta": 1e-5}
    caveats: ClassVar[Mapping[str, str]] = {
        "composed": (
            "Estimates of single rounds, composed to the whole training as if the mechanism were Gaussian. An "
            "estimate, even where a single round has a lower bound."
        ),
    }

    settings: CanifeSettings
    training: TrainingSettings
    _audits: Sequence[Canife] = ()

    def prepare(self) -> None:
        """Ask for the users whose data canaries are crafted from."""
        self.pool_fraction = self.settings.pool_fraction

    @classmethod
    def check(cls, run: Any) -> None:
        """Raise an error for settings that do not go together with the rest of a run."""
        training = run.trainings.get("training")
        if training is None:
            return
        if training.clip_norm == "none":
            raise SettingError(
                "CANIFE needs clipped updates, since its canaries have the clip norm: set clip_norm to a number",
                ["training", "clip_norm"],
            )
        if "one-shot" in run.methods and run.methods["canife"].mode == "running" and training.noise_multiplier == 0:
            raise SettingError(
                "without noise, the random canaries of [one-shot] would hide those of CANIFE in mode running: set mode "
                "to frozen, or audit with a separate file for each method",
                ["canife", "mode"],
            )

    def audits(self, splits: Splits, module: nn.Module) -> Sequence[Audit]:
        """Return one audit per adversary."""
        self._audits = self.settings.audits(self.training, splits, module)
        return self._audits

    def results(self, trained: Rounds | None, metrics: Mapping[str, float]) -> MethodResults:
        """Return two results per adversary: for a single round, and for the rounds composed."""
        from coalmine.simulation.training import Training

        assert isinstance(trained, Training)
        claim = trained.claim(self.settings.delta) if trained.mechanism.private else None
        results: list[Result] = []
        for audit in self._audits:
            result = audit.result(
                delta=self.settings.delta,
                confidence=self.settings.confidence,
                claim=claim,
                metrics=metrics,
            )
            resolved: dict[str, Any] = {"every": audit.every, "trials": audit.trials, "maker": repr(audit.canaries)}
            result = replace(result, config=self.config | resolved)
            composed = result.composed_result()
            results += [result] if composed is None else [result, composed]
        return MethodResults(method=self.name, results=results)

    @classmethod
    def recompute(cls, result: Result, siblings: Sequence[Result]) -> Result:
        """Return a result with its estimates, those of single rounds and the claim test computed again.

        Raises:
            InputError: If it is composed of rounds that are not among the ``siblings``.
        """
        if not result.view.endswith(_COMPOSED):
            again = _rounds(result)
            details = {**result.details, **{name: again.details[name] for name in ("rounds", "composed")}}
            return replace(
                result,
                estimates=again.estimates,
                claim_test=again.claim_test,
                ceiling=again.ceiling,
                details=details,
            )
        rounds = next((other for other in siblings if other.label + _COMPOSED == result.label), None)
        composed = None if rounds is None else _rounds(rounds).composed_result()
        if composed is None:
            raise InputError(f"the rounds that {result.label} is composed of are missing")
        return replace(result, estimates=composed.estimates, claim_test=None)

    @classmethod
    def unit_of(cls, result: Result) -> Unit:
        """Return one user, in a single round unless rounds are composed."""
        return USER if result.view.endswith(_COMPOSED) else ROUND

    @classmethod
    def section(cls, found: MethodResults) -> Mapping[str, Any]:
        """Return the functions of a result that the template calls."""
        return {"rounds": section.rounds, "composed": section.composed, "samples": section.samples}

    @classmethod
    def tables(cls, found: MethodResults) -> list[Table]:
        """Return the tables for the terminal."""
        return section.tables(found)


def _rounds(result: Result) -> CanifeResult:
    """Return the result of the stored trials."""
    from coalmine.claims import Claim
    from coalmine.claims.sampling import parse_sampling
    from coalmine.methods.canife.epsilon import Period
    from coalmine.methods.canife.result import canife_result

    terms, arrays = dict(result.recipe), result.arrays
    periods, start = [], 0
    for first, rounds, trials in terms.pop("periods"):
        part = slice(start, start + trials)
        periods.append(Period(first, rounds, *(arrays[name][part] for name in ("scores", "present", "sigma"))))
        start += trials
    sampling, training_claim = terms.pop("sampling"), result.details["training_claim"]
    return canife_result(
        periods,
        view=result.view,
        seed=result.seed,
        sampling=None if sampling is None else parse_sampling(sampling),
        training_claim=None if training_claim is None else Claim.from_dict(training_claim),
        designs={},
        canaries=(),
        **terms,
    )
