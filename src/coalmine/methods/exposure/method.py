"""The exposure method in a run: ranks of a file, or of the phrases inserted by secret-sharer (Jagielski 2023)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from coalmine.config import SettingError, Settings
from coalmine.files import ScoreTable, read_table
from coalmine.methods.method import Method
from coalmine.results.result import MethodResults, Result
from coalmine.results.tables import Table, fixed
from coalmine.results.verdict import PHRASE, SCORES, Unit

if TYPE_CHECKING:
    from coalmine.simulation.rounds import Rounds

# Method whose phrases are ranked if there is no file.
SOURCE = "secret-sharer"


class ExposureSettings(Settings):
    """Losses or ranks of canaries from a file, or the losses of the phrases inserted in this run."""

    file: str | None = Field(
        None,
        examples=["losses.csv"],
        description="a .csv or .npz file with losses or ranks; the phrases of [secret-sharer] if not given",
    )
    references: int | None = Field(
        None, examples=[10_000], ge=1, description="number of references, if the file has ranks"
    )
    calibrate: bool = Field(False, description="subtract the file's column reference_loss")
    copies: int = Field(1, ge=1, description="number of times that each canary was inserted")
    delta: float = Field(0.0, ge=0, lt=1, description="the δ at which the lower bound is stated")
    confidence: float = Field(0.95, ge=0.5, lt=1, description="confidence of the lower bound")


class ExposureMethod(Method):
    """Ranks canaries among references, and returns one result."""

    name = "exposure"
    title = "Ranks among references"
    question = "What do canaries' losses or ranks say about ε? Compares their exposure with random guessing."
    template = Path(__file__).with_name("section.html.j2")
    description = (
        "Canaries are ranked by the model's loss among references that were never inserted. Exposure is "
        "log2(references / rank), in bits; random guessing has a median of one bit. Scores are minus the rank, so that "
        "higher means more exposed, and \u22120.5 is ahead of all references. ε is stated at δ = 0 unless set "
        "otherwise."
    )
    reference = "Jagielski 2023"
    settings_type = ExposureSettings
    options = ("file", "references", "calibrate", "copies", "delta", "confidence")
    init: ClassVar[Mapping[str, Any]] = {"delta": 0.0}
    caveats: ClassVar[Mapping[str, str]] = {
        "median-exposure": "ε from the median rank of the canaries among the references (Jagielski 2023). A point "
        "estimate without an interval.",
        "low-fpr": "Log-ratio of TPR and FPR where few references are flagged. A point estimate without an interval.",
    }
    needs_training = False

    settings: ExposureSettings
    _table: ScoreTable | None = None

    def prepare(self) -> None:
        """Read the file, if there is one."""
        # A file that cannot be read is refused before other methods of the run train.
        if self.settings.file is None:
            self.reads = (SOURCE,)
        else:
            self._table = read_table(Path(self.settings.file))

    @classmethod
    def check(cls, run: Any) -> None:
        """Raise a `SettingError` if there is nothing to rank."""
        settings: ExposureSettings = run.methods["exposure"]
        sharer = run.methods.get(SOURCE)
        if settings.file is not None:
            return
        if sharer is None:
            raise SettingError(
                f"exposure needs a file of losses, or a table [{SOURCE}]: set file", ["exposure", "file"]
            )
        if sharer.twins == 0 and sharer.model_weights is None:
            raise SettingError("twins = 0 holds out no phrases to rank among: set it to 1 or more", [SOURCE, "twins"])
        # Phrases of a run come with their own references, and without losses of another model.
        if settings.references or settings.calibrate:
            raise SettingError("references and calibrate apply to a file of losses: set file", ["exposure", "file"])

    def results(self, trained: Rounds | None, metrics: Mapping[str, float]) -> MethodResults:
        """Return one result."""
        from coalmine.methods.exposure.audit import Exposure

        settings = self.settings
        if self._table is None:
            sharer: Any = self.earlier[SOURCE]  # which `check` asks for
            unit = PHRASE
            exposure = Exposure(*sharer.losses(), copies=settings.copies, source="the phrases of this run")
        else:
            unit = SCORES
            exposure = Exposure.from_table(
                self._table, references=settings.references, calibrate=settings.calibrate, copies=settings.copies
            )
        result = exposure.result(delta=settings.delta, confidence=settings.confidence, unit=unit)
        return MethodResults(method=self.name, results=[replace(result, config={**result.config, **self.config})])

    @classmethod
    def recompute(cls, result: Result, siblings: Sequence[Result]) -> Result:
        """Return a result with its estimates computed again from its scores and ranks."""
        from coalmine.methods.exposure.audit import evidence

        assert result.scores is not None
        estimates, top = evidence(result.scores, result.arrays["ranks"], result.recipe)
        return replace(result, estimates=estimates, ceiling=top)

    @classmethod
    def unit_of(cls, result: Result) -> Unit:
        """Return whose ε it is: that of a file's canaries, or of the phrases of a run; in Python, the caller says."""
        if "file" not in result.config:
            return result.unit
        return PHRASE if result.config["file"] is None else SCORES

    @classmethod
    def tables(cls, found: MethodResults) -> list[Table]:
        """Return the summary of the exposures compared with random guessing, then the estimates, of each result."""
        tables = []
        for result in found.results:
            bound = result.estimates[0]
            title = f"ε: lower bound at δ = {bound.delta:g} with {_confidence(result)} confidence"
            estimates = Table.of_estimates(result.estimates, f"{title}, estimates at δ = 0; thresholds are ranks")
            tables += [_summary_table(result), estimates]
        return tables

    @classmethod
    def section(cls, found: MethodResults) -> Mapping[str, Any]:
        """Return the function of a result that the template calls."""
        return {"summary_table": _summary_table}


def _summary_table(result: Result) -> Table:
    """Return the summary of the exposures compared with random guessing."""
    rows = []
    for row in result.details["rows"]:
        interval = "-" if row["low"] is None else f"{fixed(row['low'], 3)} to {fixed(row['high'], 3)}"
        rows.append([row["summary"], fixed(row["canaries"], 3), fixed(row["random_guessing"], 3), interval])
    counts = f"{result.details['canaries']:,} canaries among {result.details['references']:,} references"
    columns = ["summary", "canaries", "random guessing", f"{_confidence(result)} of random guesses"]
    return Table(f"exposure in bits, log2(references / rank): {counts}", columns, rows)


def _confidence(result: Result) -> str:
    return f"{100 * result.recipe['confidence']:g}%"
