"""One file, one training, several audits."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from pydantic import Field

from coalmine.config import toml
from coalmine.config.settings import SettingError, Settings, settings_from_mapping, texts_to_mapping
from coalmine.errors import InputError
from coalmine.methods.canife.settings import CanifeSettings
from coalmine.methods.exposure.settings import ExposureSettings
from coalmine.methods.ldp.settings import LDPSettings
from coalmine.methods.one_shot.settings import OneShotSettings
from coalmine.methods.secret_sharer.settings import SecretSharerSettings, TextTrainingSettings
from coalmine.simulation.settings import TrainingSettings


class RunOptions(Settings):
    """The run itself."""

    title: str = Field("", description="what the report is called")
    baseline: bool = Field(False, description="train without canaries too, to see what they cost in accuracy")
    checkpoint_every: int = Field(10, ge=1, description="rounds between checkpoints")


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """A training and the audits that share it. What is None is not done.

    ``text_training`` is a second training, of a language model, for the secret-sharer audit alone: where it is not
    given, that audit shares the first.
    """

    run: RunOptions = field(default_factory=RunOptions)
    training: TrainingSettings | None = None
    text_training: TextTrainingSettings | None = None
    one_shot: OneShotSettings | None = None
    canife: CanifeSettings | None = None
    secret_sharer: SecretSharerSettings | None = None
    ldp: LDPSettings | None = None
    exposure: ExposureSettings | None = None

    def __post_init__(self) -> None:
        if not self.audits:
            raise SettingError(f"there is nothing to audit: add one of the tables {_tables(AUDITS)}")
        if self.training is None and (self.one_shot or self.canife):
            raise SettingError(f"[{self.audits[0]}] audits a training: add a table [training]")
        if self.text_training is None and self.training is None and self.secret_sharer:
            raise SettingError("[secret-sharer] audits a training: add a table [training] or [text-training]")
        if self.text_training is not None and self.secret_sharer is None:
            raise SettingError("[text-training] is a training for [secret-sharer] alone: add that table")
        self._check_together()

    @property
    def audits(self) -> list[str]:
        """The names of the audits asked for."""
        return [name for name in AUDITS if self.table(name) is not None]

    def table(self, name: str) -> Any:
        """The settings of a table by its name, None where it is not there."""
        return getattr(self, _field(name))

    def to_toml(self) -> str:
        """All settings, as a file that gives the same run."""
        given = [(name, self.table(name)) for name in SECTIONS]
        return "\n\n".join(toml.table(name, found) for name, found in given if found is not None) + "\n"

    def _check_together(self) -> None:
        """Refuse audits that would disturb each other."""
        sharer, planted = self.secret_sharer, self.one_shot or self.canife
        if sharer is not None and sharer.regime == "central" and planted and self.text_training is None:
            name = "one-shot" if self.one_shot else "canife"
            raise SettingError(
                f"central training has no sum of clients for the canaries of [{name}]: set regime to federated, or "
                "give each a file of its own",
                ["secret-sharer", "regime"],
            )
        if self.exposure is not None and self.exposure.file is None and sharer is None:
            raise SettingError(
                "exposure needs a file of losses, or the phrases of a table [secret-sharer]", ["exposure", "file"]
            )
        noise = 0.0 if self.training is None else self.training.noise_multiplier
        if self.one_shot and self.canife and self.canife.mode == "running" and noise == 0:
            raise SettingError(
                "without noise the random canaries of [one-shot] would be what hides CANIFE's in a running training: "
                "set mode to frozen, whose rounds have none of them, or give each a file of its own",
                ["canife", "mode"],
            )


SECTIONS: dict[str, type[Settings]] = {
    "run": RunOptions,
    "training": TrainingSettings,
    "text-training": TextTrainingSettings,
    "one-shot": OneShotSettings,
    "canife": CanifeSettings,
    "secret-sharer": SecretSharerSettings,
    "ldp": LDPSettings,
    "exposure": ExposureSettings,
}
AUDITS = [name for name in SECTIONS if name not in ("run", "training", "text-training")]


def read_run(path: Path, overrides: Sequence[str] = ()) -> RunSettings:
    """The settings of a file, with ``table.key=value`` texts over them.

    What is wrong is refused with the file, the line and what was meant.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as text: {error}") from None
    return run_from_text(text, str(path), overrides)


def run_from_text(text: str, source: str, overrides: Sequence[str] = ()) -> RunSettings:
    """As :func:`read_run`, for a text that came from ``source``."""
    try:
        given = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{source} is not TOML: {error}") from None
    except RecursionError:
        raise InputError(f"{source} is not a file of settings: it is nested too deeply") from None
    changed = texts_to_mapping(overrides)
    for name in changed:
        if name not in SECTIONS:
            owner = next((s for s in SECTIONS if name in SECTIONS[s].model_fields), None)
            hint = f"did you mean {owner}.{name}?" if owner else f"it begins with one of {', '.join(SECTIONS)}"
            raise InputError(f"--set {name}: a setting of a file is named with its table; {hint}")
    try:
        return run_from_mapping(_merged(given, changed))
    except SettingError as error:
        set_by_hand = _given_at(changed, error.path)
        line = None if set_by_hand else toml.line_of(text, error.path)
        where = "--set" if set_by_hand else source if line is None else f"{source}, line {line}"
        raise SettingError(f"{where}: {error}", error.path) from None


def run_from_mapping(given: Mapping[str, Any]) -> RunSettings:
    """The settings of a mapping of tables."""
    found: dict[str, Any] = {}
    for name, content in given.items():
        if name not in SECTIONS:
            near = difflib.get_close_matches(name, SECTIONS, n=1, cutoff=0.6)
            hint = f"did you mean [{near[0]}]?" if near else f"there are {_tables(list(SECTIONS))}"
            raise SettingError(f"there is no table [{name}]; {hint}", [name])
        if not isinstance(content, Mapping):
            raise SettingError(f"{name} must be a table: [{name}] with settings below it", [name])
        shared = "secret-sharer" in given and "text-training" not in given
        group = TextTrainingSettings if name == "training" and shared else SECTIONS[name]
        try:
            (found[_field(name)],) = settings_from_mapping(content, group)
        except SettingError as error:
            raise SettingError(f"in [{name}] {error}", [name, *error.path]) from None
    return RunSettings(**found)


def _merged(given: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(given)
    for name, content in over.items():
        before = merged.get(name)
        both = isinstance(before, Mapping) and isinstance(content, Mapping)
        merged[name] = _merged(before, content) if both else content  # type: ignore[arg-type]
    return merged


def _given_at(content: object, path: Sequence[str]) -> bool:
    for name in path:
        if not isinstance(content, Mapping):
            return True
        if name not in content:
            return False
        content = content[name]
    return bool(path)


def _field(name: str) -> str:
    return name.replace("-", "_")


def _tables(names: Sequence[str]) -> str:
    return ", ".join(f"[{name}]" for name in names)


assert {_field(name) for name in SECTIONS} == {field.name for field in fields(RunSettings)}
