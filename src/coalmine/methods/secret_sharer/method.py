"""The secret-sharer method, as the registry knows it (Thakkar et al. 2020)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from coalmine.config import SettingError, Settings
from coalmine.methods import registry
from coalmine.methods.job import Job, JobContext
from coalmine.methods.registry import Method
from coalmine.methods.secret_sharer.settings import SecretSharerSettings, TextTrainingSettings
from coalmine.results.result import MethodResults, Result
from coalmine.results.tables import Table, fixed
from coalmine.results.units import PHRASE, USER

if TYPE_CHECKING:
    from coalmine.drawing.sections import Section

NAME = "secret-sharer"
TABLE = "text-training"
SHOWN_VIEWS = ("exposure:user", "exposure:phrase", "users")
"""Views whose estimates the terminal prints as tables."""

# Settings that apply to a stored model; all others describe a training and what is inserted into it.
_OF_STORED_MODEL = {
    *("model", "model_settings", "device", "model_weights", "canaries", "reference_weights"),
    *("prefix", "references", "limit", "width", "delta", "confidence"),
}


def _job(context: JobContext) -> Job:
    from coalmine.methods.secret_sharer.job import build_job

    return build_job(context)


def _section(method_results: MethodResults) -> Section:
    from coalmine.methods.secret_sharer.section import section

    return section(method_results)


def _charts(method_results: MethodResults) -> Mapping[str, Any]:
    from coalmine.methods.secret_sharer.figures import charts

    return charts(method_results)


def check(run: Any) -> None:
    """Raise a `SettingError` for settings that do not go together with the rest of a run."""
    settings: SecretSharerSettings = run.methods[NAME]
    if settings.model_weights is not None:
        _check_stored_model(run, settings)
        return
    for key in ("canaries", "reference_weights"):
        if getattr(settings, key) is not None:
            raise SettingError(f"{key} belongs to a trained model: set model_weights as well", [NAME, key])
    inserting = next((name for name in ("one-shot", "canife") if name in run.methods), None)
    if settings.regime == "central" and inserting is not None and TABLE not in run.trainings:
        raise SettingError(
            f"central training has no sum of client updates to insert the canaries of [{inserting}] into: set regime "
            f"to federated, or add a table [{TABLE}]",
            [NAME, "regime"],
        )


def _check_stored_model(run: Any, settings: SecretSharerSettings) -> None:
    """Refuse settings of a training and of the insertion, which a trained model would ignore."""
    if settings.canaries is None:
        raise SettingError(
            "model_weights needs canaries, the file of phrases inserted into the model's training data (canaries.json "
            "of an earlier run)",
            [NAME, "canaries"],
        )
    ignored = [(NAME, key) for key in _changed(settings)]
    others = [name for name in run.methods if name != NAME and registry.get(name).training is not None]
    table = TABLE if TABLE in run.trainings else "training"
    # A [training] that other methods audit keeps its settings.
    if table in run.trainings and (table == TABLE or not others):
        ignored += [(table, key) for key in _changed(run.trainings[table])]
    if ignored:
        raise SettingError(
            f"{', '.join(key for _, key in ignored)}: a trained model is only queried, so settings of a training and "
            f"of the insertion do not apply. Remove them; {', '.join(sorted(_OF_STORED_MODEL))} apply.",
            ignored[0],
        )


def _changed(settings: Settings) -> list[str]:
    """Return the settings that were changed from their defaults but do not apply to a stored model."""
    defaults = type(settings)()
    return sorted(
        key for key in settings.model_fields_set - _OF_STORED_MODEL if getattr(settings, key) != getattr(defaults, key)
    )


def tables(method_results: MethodResults) -> list[Table]:
    """Return what was memorized by configuration, then the estimates of the main views."""
    shown = [result for result in method_results.results if result.view in SHOWN_VIEWS]
    memorization = method_results.extras.get("memorization")
    lead = [_memorization_table(memorization)] if memorization else []
    return [*lead, *registry.estimate_tables(replace(method_results, results=shown))]


def _memorization_table(memorization: Mapping[str, Any]) -> Table:
    rows = [
        [
            f"{row['p_u']:.4g}",
            f"{row['p_e']:.4g}",
            _span(row["users"]),
            _span(row["copies"]),
            f"{row['random_sampling']} of {row['canaries']}",
            f"{row['beam_search']} of {row['canaries']}",
            fixed(row["median_exposure"], 2),
        ]
        for row in memorization["configurations"]
    ]
    title = (
        f"{memorization['planted']} inserted phrases: {memorization['random_sampling']} memorized (likelier than all "
        f"{memorization['references']:,} random ones), {memorization['beam_search']} extracted (first result of a beam "
        "search)"
    )
    return Table(title, ["p_u", "p_e", "users", "copies", "memorized", "extracted", "median exposure"], rows)


def highlights(method_results: MethodResults) -> list[str]:
    """Return how many phrases the model has memorized and gives away, with examples of those."""
    memorization = method_results.extras.get("memorization")
    if not memorization or "planted" not in memorization:
        return []
    inserted, memorized, extracted = (memorization[key] for key in ("planted", "random_sampling", "beam_search"))
    text = (
        f"{memorized or 'None'} of {inserted} inserted phrases are memorized (likelier than all "
        f"{memorization['references']:,} random ones), and {extracted or 'none'} can be extracted from the model "
        "word for word"
    )
    examples = [f"“{c['phrase']}”" for c in memorization["canaries"] if c["planted"] and c["extracted"]]
    return [f"{text}, such as {examples[0]}." if examples else f"{text}."]


def _span(span: tuple[int, int] | None) -> str:
    return "-" if span is None else f"{span[0]:,} to {span[1]:,}"


def _recompute(result: Result, siblings: Sequence[Result]) -> Result:
    from coalmine.methods.secret_sharer.evidence import recomputed

    return recomputed(result, siblings)


METHOD = Method(
    name=NAME,
    title="Inserted phrases",
    question="Does the language model memorize what a few users wrote? Random phrases are inserted into users' data, "
    "and the final model is queried for them.",
    description=(
        "Random phrases were inserted into users' texts; others, drawn in the same way, were held out. The final model "
        "was queried for how likely it finds each. A phrase shared by several users is evidence about all of them "
        "together; the ε of one user follows from it by group privacy."
    ),
    reference="Thakkar et al. 2020",
    settings=SecretSharerSettings,
    job=_job,
    recompute=_recompute,
    unit=lambda result: PHRASE if result.view.endswith(":phrase") else USER,
    training=lambda: TextTrainingSettings,
    training_table=TABLE,
    options=("model_weights", "canaries", "reference_weights"),
    init={"p_u": [0.01, 0.03], "p_e": [0.1, 1.0], "twins": 3, "references": 100_000},
    check=check,
    section=_section,
    highlights=highlights,
    tables=tables,
    charts=_charts,
    extras=("memorization",),
    caveats={
        "median-exposure": "ε from the median rank of the inserted phrases among random ones (Jagielski 2023). A point "
        "estimate without an interval.",
    },
)
