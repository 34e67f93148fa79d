"""The base class of methods: what the command line, runs and reports need to know about each.

An instance is a method's part in one run. `coalmine.runs.running` calls it in this order: ``insert`` puts canaries into
the data, ``audits`` returns what takes part in the training, ``results`` computes what was found. The gate and reports
work on the class alone: they read stored results and never build an instance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from coalmine.config import Settings
from coalmine.errors import InputError
from coalmine.methods.estimates import recomputed_from_canaries
from coalmine.protocol import Audit
from coalmine.results.result import MethodResults, Result
from coalmine.results.tables import Table, score_counts
from coalmine.results.verdict import Finding, Unit
from coalmine.simulation.settings import TrainingSettings

if TYPE_CHECKING:
    from torch import nn

    from coalmine.simulation.data import Splits
    from coalmine.simulation.rounds import Rounds


class Method:
    """One method in one run; subclass it, and list the subclass in the registry or as an entry point.

    Args:
        settings: The method's own settings.
        training: Settings of the training it audits, or None if it needs none.
        directory: The run directory, or None outside a run.
        earlier: The run's earlier methods, by name.

    Attributes:
        name: Name in the command line, in ``audit.toml`` and in results.
        title: A few words for headings, such as "Random updates as canaries".
        question: The question it answers, one sentence; the help text of ``coalmine audit NAME``.
        description: What was done and how to read it, a short paragraph that opens its section of the report.
        reference: The paper, such as "Andrew et al. 2023".
        settings_type: Its settings, or None if it runs only inside an integration.
        training_type: Settings of the training it audits, or None if it needs none.
        training_table: Table of the training in ``audit.toml``. One that names its own shares ``training`` if that
            is missing.
        options: Settings with an option of their own in ``coalmine audit NAME``; all others are set by ``--set``.
        init: Settings that ``coalmine init`` writes for it.
        caveats: What its own estimators are worth, by name; those of `coalmine.stats` are known.
        extras: Names of the JSON documents it saves next to its results.
        template: Its section of the report, a template that calls the macros of coalmine's ``ui.html.j2``; by default
            every result with its figures.
        unit: The unit of privacy of all its results, or None if that depends on the result (`unit_of`).
        pool_fraction: Share of the users to set aside from the training, as a pool.
        config: Settings of training and method, as results record them.
        needs_training: Whether the training has to be run; False where a finished model is audited.
        reads: Names of earlier methods of the run that this one reads from.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    question: ClassVar[str] = ""
    description: ClassVar[str] = ""
    reference: ClassVar[str] = ""
    settings_type: ClassVar[type[Settings] | None] = None
    training_type: ClassVar[type[TrainingSettings] | None] = None
    training_table: ClassVar[str] = "training"
    options: ClassVar[Sequence[str]] = ()
    init: ClassVar[Mapping[str, Any]] = {}
    caveats: ClassVar[Mapping[str, str]] = {}
    extras: ClassVar[Sequence[str]] = ()
    template: ClassVar[Path | None] = None
    unit: ClassVar[Unit | None] = None

    pool_fraction: float = 0.0
    needs_training: bool = True
    reads: Sequence[str] = ()

    def __init__(
        self,
        settings: Any,
        *,
        training: TrainingSettings | None = None,
        directory: Path | None = None,
        earlier: Mapping[str, Method] | None = None,
    ) -> None:
        self.settings = settings
        self.training = training
        self.directory = directory
        self.earlier = earlier or {}
        self.config: dict[str, Any] = self.settings.model_dump(mode="json")
        if training is not None:
            self.config = training.model_dump(mode="json") | self.config
        self.prepare()

    def prepare(self) -> None:
        """Read files and refuse impossible settings: a run prepares all methods before it trains anything."""

    @classmethod
    def check(cls, run: Any) -> None:
        """Refuse settings that do not go together with the rest of a run, with a `SettingError`."""

    @classmethod
    def labels(cls, settings: Any) -> Sequence[str]:
        """Return the labels of the results that these settings ask for, in which ``*`` stands for any text.

        The gate fails if one has no result.
        """
        return ()

    def insert(self, splits: Splits) -> Splits:
        """Return the data with the canaries that live in it."""
        return splits

    def audits(self, splits: Splits, module: nn.Module) -> Sequence[Audit]:
        """Return the audits that take part in the training."""
        return ()

    def build_training(self, splits: Splits, module: nn.Module, audits: Sequence[Audit] = ()) -> Rounds | None:
        """Return the training, if the method needs one that differs from what the training's settings describe."""
        return None

    def results(self, trained: Rounds | None, metrics: Mapping[str, float]) -> MethodResults:
        """Return the results after the training, with files of its own written to ``directory`` if there is one.

        Args:
            trained: The finished training, or None if the method needs none.
            metrics: Quality of the final model, to be kept with the results.
        """
        raise NotImplementedError

    @classmethod
    def recompute(cls, result: Result, siblings: Sequence[Result]) -> Result:
        """Return a stored result with everything computed again from its scores, arrays and ``recipe``.

        The default is for results of `coalmine.methods.estimates.canary_evidence`.

        Args:
            result: The stored result.
            siblings: All stored results of the method.
        """
        terms = dict(result.recipe)
        checks, findings = cls.judged(result, terms.pop("checks", None))
        if not terms:
            raise InputError("what it takes to compute it again is not stored")
        again = recomputed_from_canaries(replace(result, recipe=terms))
        return replace(again, checks=checks, findings=findings)

    @classmethod
    def judged(cls, result: Result, statistics: Any) -> tuple[Sequence[str], Sequence[Finding]]:
        """Return the checks of a stored result and what they found; by default as stored.

        Args:
            result: The stored result.
            statistics: What its checks counted and measured: ``"checks"`` of its ``recipe``, or None.
        """
        return result.checks, result.findings

    @classmethod
    def unit_of(cls, result: Result) -> Unit:
        """Return the unit of privacy that the view and settings of a stored result decide; by default `unit`."""
        return result.unit if cls.unit is None else cls.unit

    @classmethod
    def section(cls, found: MethodResults) -> Mapping[str, Any]:
        """Return what its `template` shows besides the results, by the names used there.

        ``highlights`` are sentences for the first page that matter as much as ε, such as extracted phrases.
        """
        return {}

    @classmethod
    def objections(cls, found: MethodResults) -> Mapping[str, str]:
        """Return what must stop the gate whatever ε is, by its name in `coalmine.results.gate.ALLOWABLE`."""
        return {}

    @classmethod
    def tables(cls, found: MethodResults) -> list[Table]:
        """Return the tables that the terminal shows before the sentences. By default, the estimates of each result."""
        tables = []
        for result in found.results:
            counts = score_counts(result) or result.unit.name
            title = f"{result.method}, {result.label} ({result.score_name}): {counts}"
            tables.append(Table.of_estimates(result.estimates, title))
        return tables
