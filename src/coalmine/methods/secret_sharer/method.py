"""The secret-sharer method in a run (Thakkar et al. 2020).

It trains on data with inserted phrases and probes the model, or probes a trained model for the phrases of a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from coalmine.config import SettingError, Settings, Several
from coalmine.errors import InputError
from coalmine.methods.method import Method
from coalmine.progress import reporting
from coalmine.protocol import Audit
from coalmine.results.gate import EXTRACTED
from coalmine.results.result import MethodResults, Result
from coalmine.results.tables import Table, fixed
from coalmine.results.verdict import PHRASE, USER, Unit
from coalmine.simulation.settings import ClientSettings, ServerSettings, TrainingSettings

if TYPE_CHECKING:
    from torch import nn

    from coalmine.arrays import Floats
    from coalmine.methods.secret_sharer.audit import PrivacyUnit, SecretSharer
    from coalmine.methods.secret_sharer.phrases import Insertion
    from coalmine.simulation.data import FederatedData, Splits
    from coalmine.simulation.rounds import Rounds

NAME = "secret-sharer"
TABLE = "text-training"
SHOWN_VIEWS = ("exposure:user", "exposure:phrase")
"""Views whose estimates the terminal prints as tables."""

# Settings that apply to a stored model; all others describe what is inserted into a training's data.
_OF_STORED_MODEL = {
    *("model_weights", "canaries", "reference_weights"),
    *("prefix", "references", "limit", "width", "delta", "confidence"),
}

_SHOWN_PHRASES = 12  # in the report; `memorization.json` has all

_NOTHING_HELD_OUT = (
    "The phrases give no ε: all of them were inserted, and without held-out ones (twins) there is no telling how "
    "likely the model finds such phrases anyway."
)


def _default(name: str, default: Any) -> Any:
    """Return a setting of every training with another default."""
    field = copy(TrainingSettings.model_fields[name])
    field.default = default
    field.default_factory = None
    return field


class TextTrainingSettings(TrainingSettings):
    """A federated training of a language model, without clipping and noise by default."""

    data: str = _default("data", "generated-text")
    model: str | None = _default("model", "word-lstm")
    vocabulary_size: int | None = _default("vocabulary_size", 500)
    positions: int | None = _default("positions", 12)
    model_settings: dict[str, float] = _default("model_settings", {"embedding": 32.0, "units": 96.0})
    cohort: str = _default("cohort", "poisson:0.2")
    client: ClientSettings = _default("client", ClientSettings(learning_rate=0.5, epochs=1, batch_size=10))
    server: ServerSettings = _default("server", ServerSettings(learning_rate=1.0, momentum=0.0))
    clip_norm: str = _default("clip_norm", "none")
    noise_multiplier: float = _default("noise_multiplier", 0.0)


class SecretSharerSettings(Settings):
    """Random phrases inserted into users' data, and queries to the final model."""

    p_u: Several[float] = Field((0.01, 0.03), description="probability that a user shares a canary; one or several")
    p_e: Several[float] = Field(
        (0.1, 1.0), description="probability that an example of a sharer is replaced by the canary; one or several"
    )
    each: int = Field(5, ge=1, description="inserted canaries per configuration (p_u, p_e)")
    twins: int = Field(1, ge=0, description="held-out canaries per inserted canary")
    length: int = Field(5, ge=1, description="words per phrase")
    design: Literal["coin-flips", "fixed"] = Field(
        "coin-flips",
        description="coin-flips (each canary is inserted with probability 1/2) or fixed (exactly `each` are)",
    )
    prefix: int = Field(1, ge=0, description="words of a phrase that the adversary knows")
    # More references, or a wider search, would take several gigabytes.
    references: int = Field(
        100_000, ge=1, le=100_000_000, description="random phrases to rank a canary among; the paper has 2,000,000"
    )
    limit: int = Field(
        20,
        ge=0,
        description="a canary is ranked among more references only while at most this many come before it; 0 to rank "
        "every canary among all",
    )
    width: int = Field(5, ge=1, le=10_000, description="width of the beam search")
    regime: Literal["federated", "central"] = Field("federated", description="how the model is trained")
    users: Literal["natural", "shuffled"] = Field(
        "natural", description="shuffled: deal all examples to synthetic users (IID); in central training, shuffle them"
    )
    steps: int = Field(100, ge=1, description="steps per round of central training")
    batch_size: int = Field(32, ge=1, description="records per step of central training")
    reference_share: float = Field(
        0.0, ge=0, lt=1, description="share of the users set aside to train a reference model on"
    )
    model_weights: str | None = Field(
        None,
        examples=["weights.safetensors"],
        description="audit a trained model instead of training one: its weights, a safetensors file",
    )
    canaries: str | None = Field(
        None, examples=["canaries.json"], description="with model_weights: the phrases inserted into its training data"
    )
    reference_weights: str | None = Field(
        None,
        examples=["reference.safetensors"],
        description="with model_weights: weights of a model that saw none of the canaries, to calibrate losses",
    )
    delta: float = Field(1e-5, ge=0, lt=1, description="the δ at which ε is stated")
    confidence: float = Field(0.95, ge=0.5, lt=1, description="confidence of bounds and intervals")


class SecretSharerMethod(Method):
    """Inserts phrases into the data, or reads those inserted earlier, and returns a result per score and unit."""

    name = NAME
    title = "Inserted phrases"
    question = (
        "Does the language model memorize what a few users wrote? Random phrases are inserted into users' data, and "
        "the final model is queried for them."
    )
    template = Path(__file__).with_name("section.html.j2")
    description = (
        "Random phrases were inserted into users' texts; others, drawn in the same way, were held out. The final model "
        "was queried for how likely it finds each. A phrase shared by several users is evidence about all of them "
        "together; the ε of one user follows from it by group privacy."
    )
    reference = "Thakkar et al. 2020"
    settings_type = SecretSharerSettings
    training_type = TextTrainingSettings
    training_table = TABLE
    options = ("model_weights", "canaries", "reference_weights")
    init: ClassVar[Mapping[str, Any]] = {"p_u": [0.01, 0.03], "p_e": [0.1, 1.0], "twins": 3, "references": 100_000}
    caveats: ClassVar[Mapping[str, str]] = {
        "median-exposure": "ε from the median rank of the inserted phrases among random ones (Jagielski 2023). A point "
        "estimate without an interval.",
    }
    extras = ("memorization",)

    settings: SecretSharerSettings
    training: TrainingSettings

    def prepare(self) -> None:
        """Refuse an impossible prefix, and read the canaries of a stored model."""
        settings = self.settings
        self.training = self.training or TextTrainingSettings()
        self.audit: SecretSharer | None = None
        self.insertion: Insertion | None = None
        self._splits: Splits | None = None
        self._aside: FederatedData | None = None
        if settings.model_weights is not None:
            from coalmine.methods.secret_sharer.stored_model import read_canaries

            self.needs_training = False
            self._stored = read_canaries(Path(str(settings.canaries)))
        elif settings.prefix >= settings.length:
            raise InputError(
                f"prefix = {settings.prefix} must be shorter than the canaries, which have {settings.length} words"
            )

    @classmethod
    def check(cls, run: Any) -> None:
        """Raise a `SettingError` for settings that do not go together with the rest of a run."""
        settings: SecretSharerSettings = run.methods[NAME]
        if settings.model_weights is not None and settings.canaries is None:
            raise SettingError("model_weights needs canaries, such as canaries.json of a run", [NAME, "canaries"])
        defaults = SecretSharerSettings()
        changed = {key for key in settings.model_fields_set if getattr(settings, key) != getattr(defaults, key)}
        # What is inserted into a training's data does not apply to a model that is only queried.
        wrong, why = changed - _OF_STORED_MODEL, "is about a training, and a trained model is only queried"
        if settings.model_weights is None:
            wrong = changed & {"canaries", "reference_weights"}
            why = "belongs to a trained model: set model_weights as well"
        for key in sorted(wrong):
            raise SettingError(f"{key} {why}", [NAME, key])
        inserting = {"one-shot", "canife"}.intersection(run.methods)
        if settings.regime == "central" and inserting and TABLE not in run.trainings:
            raise SettingError(
                f"central training has no sum of client updates to insert the canaries of [{min(inserting)}] into: set "
                f"regime to federated, or add a table [{TABLE}]",
                [NAME, "regime"],
            )

    def insert(self, splits: Splits) -> Splits:
        """Set users aside for a reference model, and replace examples of the others by canaries."""
        from coalmine.methods.secret_sharer.evidence import set_aside
        from coalmine.methods.secret_sharer.phrases import Language, draw_phrases, grid, insert

        # Before the insertion, so that the reference model never sees a canary.
        settings, seed = self.settings, self.training.seed
        data, self._aside = set_aside(splits.train, settings.reference_share, seed=seed)
        phrases = draw_phrases(
            Language.of(data),
            configurations=grid(settings.p_u, settings.p_e),
            each=settings.each,
            twins=settings.twins,
            length=settings.length,
            design=settings.design,
            seed=seed,
        )
        if settings.design == "coin-flips" and phrases.inserted.mean() in (0, 1):
            every = "all" if phrases.inserted.all() else "none"
            raise InputError(
                f"the coin flips insert {every} of the {len(phrases)} phrases, so there is nothing to compare: use "
                "another seed, more phrases (each), or design = fixed"
            )
        insertion = insert(data, phrases)
        self.insertion = insertion.shuffled(seed) if settings.users == "shuffled" else insertion
        self._splits = replace(splits, train=self.insertion.data)
        return self._splits

    def build_training(self, splits: Splits, module: nn.Module, audits: Sequence[Audit] = ()) -> Rounds | None:
        """Return central training if the settings ask for it."""
        from coalmine.simulation import CentralTraining

        training = self.training
        if self.settings.regime == "federated":
            return None
        # The paper's central learning: SGD on records, shuffled or user by user (Section 4.2, regimes 1 and 3).
        if training.clip_norm != "none" or training.noise_multiplier:
            raise InputError(
                f"central training neither clips nor adds noise: remove clip_norm = {training.clip_norm} and "
                f"noise_multiplier = {training.noise_multiplier:g}, or set regime to federated"
            )
        return CentralTraining(
            model=module,
            data=splits.train,
            test=splits.test,
            rounds=training.rounds,
            steps=self.settings.steps,
            batch_size=self.settings.batch_size,
            optimizer=training.client.rule(),
            order="shuffled" if self.settings.users == "shuffled" else "by-user",
            evaluate_every=training.evaluate_every,
            audits=audits,
            seed=training.seed,
        )

    def results(self, trained: Rounds | None, metrics: Mapping[str, float]) -> MethodResults:
        """Return one result per score and unit."""
        from coalmine.methods.secret_sharer.audit import SecretSharer
        from coalmine.methods.secret_sharer.stored_model import load_model, save_weights, write_canaries
        from coalmine.simulation import Training
        from coalmine.simulation.flat import parameter_vector

        settings = self.settings
        reference, claim, copies = None, None, None
        if self.insertion is None or trained is None:
            canaries, users, most_users = self._stored
            module = load_model(self.training, canaries, Path(str(settings.model_weights)))
            if settings.reference_weights is not None:
                reference = load_model(self.training, canaries, Path(settings.reference_weights))
            stored = ("model_weights", "canaries", "reference_weights")
            config = {"model": self.training.model} | {name: getattr(settings, name) for name in stored}
        else:
            insertion, config = self.insertion, self.config
            canaries, users, most_users = insertion.phrases, insertion.users, insertion.most_users
            copies = insertion.copies
            reference = self._reference_model()
            module = trained.module()
            if self.directory is not None:  # which a later audit of the same model reads
                write_canaries(insertion, self.directory / "canaries.json")
                save_weights(module, self.directory / "weights.safetensors")
            # Central training, and one without noise, claim nothing.
            if isinstance(trained, Training) and trained.mechanism.private:
                claim = trained.claim(settings.delta)
        self.audit = SecretSharer(
            module,
            canaries=canaries,
            users=users,
            most_users=most_users,
            prefix=settings.prefix,
            references=settings.references,
            limit=settings.limit or None,
            width=settings.width,
            reference=reference,
        )
        # The audit needs nothing but the final model, so it does not have to take part in the training.
        self.audit.observe(0, model=parameter_vector(module))
        memorization = self.audit.memorization()
        terms: dict[str, Any] = {"delta": settings.delta, "confidence": settings.confidence, "claim": claim}
        units: tuple[PrivacyUnit, ...] = ("phrase",) if users is None else ("user", "phrase")
        results = []
        # Without held-out phrases there is nothing to compare with, only counts of memorized phrases.
        for score in () if canaries.inserted.all() else memorization.values:
            results += [self.audit.result(score=score, unit=unit, metrics=metrics, **terms) for unit in units]
        return MethodResults(
            method=self.name,
            results=[replace(result, config={**config, **result.config}) for result in results],
            summary=_NOTHING_HELD_OUT if canaries.inserted.all() else None,
            extras={"memorization": memorization.to_dict(users, copies)},
        )

    def losses(self) -> tuple[Floats, Floats]:
        """Return the log-perplexities of inserted and of held-out phrases in nats, for other methods of the run."""
        if self.audit is None:
            raise InputError("the phrases of secret-sharer were not scored in this run: run it before exposure")
        inserted, held_out = self.audit.memorization().scores("loss")
        return -inserted, -held_out

    def _reference_model(self) -> nn.Module | None:
        """Return a model trained on the users set aside, who hold no canaries; None if there are none."""
        if self._aside is None or self._splits is None:
            return None
        module, aside = self.training.module(self._splits), replace(self._splits, train=self._aside)
        training = self.build_training(aside, module) or self.training.training(aside, module)
        with reporting("reference model", training.rounds) as advance:
            training.run(
                checkpoints=None if self.directory is None else self.directory / "reference",
                progress=lambda measured: advance(int(measured["round"]) + 1, ""),
            )
        return training.module()

    @classmethod
    def labels(cls, settings: SecretSharerSettings) -> Sequence[str]:
        """Return each score for each unit, as far as the settings alone tell."""
        scores = ["exposure", "loss", *["calibrated"] * bool(settings.reference_share or settings.reference_weights)]
        units = ["phrase", *["user"] * (settings.model_weights is None)]  # a file of phrases may not say whose they are
        return [f"{score}:{unit}" for score in scores for unit in units if settings.twins]

    @classmethod
    def recompute(cls, result: Result, siblings: Sequence[Result]) -> Result:
        """Return a result with its estimates and claim test computed again from its scores."""
        from coalmine.methods.secret_sharer.evidence import recomputed

        return recomputed(result, siblings)

    @classmethod
    def unit_of(cls, result: Result) -> Unit:
        """Return one phrase or one user, by the view."""
        return PHRASE if result.view.endswith(":phrase") else USER

    @classmethod
    def section(cls, found: MethodResults) -> Mapping[str, Any]:
        """Return the cells of the heat map, the phrases with the highest exposure, and how many are memorized."""
        memorization = found.extras.get("memorization")
        if not memorization:
            return {"memorization": None}
        cells = []
        for row in sorted(memorization["configurations"], key=lambda row: (-row["p_e"], row["p_u"])):
            details = f"{row['beam_search']} extracted · {row['median_exposure']:.1f} bits"
            count = f"{row['random_sampling']} of {row['canaries']}"
            share = row["random_sampling"] / max(1, row["canaries"])
            place = {"x": f"{row['p_u']:g}", "y": f"{row['p_e']:g}"}
            cells.append({**place, "share": share, "text": count, "details": details})
        inserted = [canary for canary in memorization["canaries"] if canary["planted"]]
        inserted.sort(key=lambda canary: -canary["exposure"])
        phrases, words = [], {True: "yes", False: "no"}
        for canary in inserted[:_SHOWN_PHRASES]:
            memorized = (canary["rank"], canary["among"]) == (1, memorization["references"])
            configuration = [f"{canary['p_u']:g}", f"{canary['p_e']:g}"]
            counts = [str(canary.get("users", "–")), str(canary.get("copies", "–"))]
            shown = [f"{canary['exposure']:.1f}", words[memorized], words[canary["extracted"]]]
            phrases.append([canary["phrase"], *configuration, *counts, *shown])
        text = (
            f"{memorization['random_sampling'] or 'None'} of {memorization['planted']} inserted phrases are memorized "
            f"(likelier than all {memorization['references']:,} random ones), and "
            f"{memorization['beam_search'] or 'none'} can be extracted from the model word for word"
        )
        examples = [f", such as “{c['phrase']}”" for c in memorization["canaries"] if c["planted"] and c["extracted"]]
        return {
            "memorization": memorization,
            "cells": cells,
            "phrases": phrases,
            "inserted": len(inserted),
            "highlights": [f"{text}{''.join(examples[:1])}."],
        }

    @classmethod
    def objections(cls, found: MethodResults) -> Mapping[str, str]:
        """Return that inserted phrases can be extracted, if any can."""
        inserted = [canary for canary in found.extras.get("memorization", {}).get("canaries", ()) if canary["planted"]]
        extracted = sum(canary["extracted"] for canary in inserted)
        if not extracted:
            return {}
        text = f"{extracted} of {len(inserted)} inserted phrases can be extracted from the model word for word"
        return {EXTRACTED: text}

    @classmethod
    def tables(cls, found: MethodResults) -> list[Table]:
        """Return what was memorized by configuration, then the estimates of the main views."""
        # The other views (losses, calibrated losses) are in the report.
        shown = [result for result in found.results if result.view in SHOWN_VIEWS]
        estimates = super().tables(replace(found, results=shown))
        memorization = found.extras.get("memorization")
        if not memorization:
            return estimates
        rows = []
        for row in memorization["configurations"]:
            spans = [f"{row[key][0]:,} to {row[key][1]:,}" if row[key] else "-" for key in ("users", "copies")]
            counts = [f"{row[key]} of {row['canaries']}" for key in ("random_sampling", "beam_search")]
            median = fixed(row["median_exposure"], 2)
            rows.append([f"{row['p_u']:.4g}", f"{row['p_e']:.4g}", *spans, *counts, median])
        title = (
            f"{memorization['planted']} inserted phrases: {memorization['random_sampling']} memorized (likelier than "
            f"all {memorization['references']:,} random ones), {memorization['beam_search']} extracted (first result "
            "of a beam search)"
        )
        columns = ["p_u", "p_e", "users", "copies", "memorized", "extracted", "median exposure"]
        return [Table(title, columns, rows), *estimates]
