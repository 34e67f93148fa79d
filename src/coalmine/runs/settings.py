"""Settings of a run: what is trained, and the methods that audit it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from pydantic import Field

from coalmine.config import SettingError, Settings, line_of, settings_from_mapping, texts_to_mapping, toml_table
from coalmine.errors import InputError, did_you_mean
from coalmine.files import parse_toml
from coalmine.methods import registry
from coalmine.methods.method import Method
from coalmine.simulation.settings import TrainingSettings

# The table of the training that methods share.
TRAINING = "training"


class RunOptions(Settings):
    """The run itself."""

    title: str = Field("", description="title of the report")
    auditor: str | None = Field(None, examples=["Ann Lee"], description="who makes the audit, for the report")
    baseline: bool = Field(False, description="also train without canaries, to see what they cost in accuracy")
    checkpoint_every: int = Field(10, ge=1, description="rounds between checkpoints")


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a run trains, and the methods that audit it.

    Args:
        run: Options of the run itself.
        trainings: Settings of each training, by table. Most methods share ``"training"``; one may have its own.
        methods: Settings of each method, by name.

    Raises:
        SettingError: If tables are missing or do not go together.

    Example:
        >>> from coalmine.methods.ldp.settings import LDPSettings
        >>> RunSettings(methods={"ldp": LDPSettings(trials=1000)}).to_toml().splitlines()[0]
        '[run]'
    """

    run: RunOptions = field(default_factory=RunOptions)
    trainings: Mapping[str, TrainingSettings] = field(default_factory=dict)
    methods: Mapping[str, Settings] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.methods:
            raise SettingError(
                f"nothing to audit: add one of the tables {_tables([method.name for method in registry.runnable()])}"
            )
        # A table that nothing reads is most likely a mistake, such as a method's table left out.
        used = {self.table_of(registry.get(name)) for name in self.methods}
        for table in self.trainings:
            if table not in used:
                users = [method.name for method in registry.runnable() if method.training_table == table]
                raise SettingError(
                    f"no method of this run audits [{table}]: add {_tables(users)}, or remove it", [table]
                )
        for name in self.methods:
            registry.get(name).check(self)

    def table_of(self, method: type[Method]) -> str:
        """Return the table of the training that a method audits; empty if it needs none.

        Raises:
            SettingError: If it needs one and there is none.
        """
        if method.training_type is None:
            return ""
        # Its own kind of training comes first; otherwise it shares the one of the others.
        for table in (method.training_table, TRAINING):
            if table in self.trainings:
                return table
        tables = " or ".join(f"[{table}]" for table in dict.fromkeys((TRAINING, method.training_table)))
        raise SettingError(f"[{method.name}] audits a training: add a table {tables}", [method.name])

    def to_toml(self) -> str:
        """Return all settings as a file that gives the same run."""
        tables = {"run": self.run, **self.trainings, **self.methods}
        return "\n\n".join(toml_table(name, settings) for name, settings in tables.items()) + "\n"


def table_types(present: Collection[str] = ()) -> dict[str, type[Settings]]:
    """Return the settings class of each table, in the order they are written.

    A method with a training table of its own brings its own defaults. They apply to [training] where it shares that.

    Args:
        present: The tables of a file.
    """
    trainings: dict[str, type[Settings]] = {TRAINING: TrainingSettings}
    methods: dict[str, type[Settings]] = {}
    for method in registry.runnable():
        assert method.settings_type is not None
        methods[method.name] = method.settings_type
        if method.training_type is not None and method.training_table != TRAINING:
            trainings[method.training_table] = method.training_type
            if method.name in present and method.training_table not in present:
                trainings[TRAINING] = method.training_type
    return {"run": RunOptions, **trainings, **methods}


def run_from_text(text: str, source: str, overrides: Sequence[str] = ()) -> RunSettings:
    """Read the settings of a run from TOML text.

    Args:
        text: The text of the file.
        source: Where it came from, for error messages.
        overrides: Texts ``table.key=value`` that replace settings of the file.

    Raises:
        InputError: If something is wrong, with the file and line.
    """
    content = parse_toml(text, source)
    changes = texts_to_mapping(overrides)
    types = table_types()
    for name in changes:
        if name not in types:
            hint = did_you_mean(name, types)
            for table, kind in reversed(types.items()):  # of several tables, the first one
                if name in kind.model_fields:
                    hint = f"Did you mean {table}.{name}?"
            raise InputError(f"--set {name}: settings of a file are named table.key. {hint}")
    try:
        return run_from_mapping(_merged(content, changes))
    except SettingError as error:
        # The setting is wrong where it was set last: by an option, or in a line of the file.
        place: object = changes
        for name in error.path:
            place = place.get(name) if isinstance(place, Mapping) else place
        where, line = source, line_of(text, error.path)
        if error.path and place is not None:
            where = "--set"
        elif line is not None:
            where = f"{source}, line {line}"
        raise SettingError(f"{where}: {error}", error.path) from None


def run_from_mapping(content: Mapping[str, Any]) -> RunSettings:
    """Read the settings of a run from a mapping of tables.

    Raises:
        SettingError: If a table or setting is unknown or wrong.
    """
    types, tables = table_types(content), dict[str, Any]()
    for name, values in content.items():
        if name not in types:
            raise SettingError(f"unknown table [{name}]. {did_you_mean(name, types)}", [name])
        if not isinstance(values, Mapping):
            raise SettingError(f"{name} must be a table: [{name}] with settings below it", [name])
        try:
            (tables[name],) = settings_from_mapping(values, types[name])
        except SettingError as error:
            raise SettingError(f"in [{name}] {error}", [name, *error.path]) from None
    options = tables.pop("run", RunOptions())
    trainings: dict[str, TrainingSettings] = {}
    methods: dict[str, Settings] = {}
    for name in sorted(tables, key=list(types).index):
        if isinstance(tables[name], TrainingSettings):
            trainings[name] = tables[name]
        else:
            methods[name] = tables[name]
    return RunSettings(run=options, trainings=trainings, methods=methods)


def _merged(content: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(content)
    for name, change in changes.items():
        before = merged.get(name)
        both = isinstance(before, Mapping) and isinstance(change, Mapping)
        merged[name] = _merged(before, change) if both else change  # type: ignore[arg-type]
    return merged


def _tables(names: Sequence[str]) -> str:
    return ", ".join(f"[{name}]" for name in names)


# Presets, which ``coalmine init`` writes: TOML files in ``files/`` with the settings that each changes.

PRESETS = ("digits", "text", "images", "local", "all")


def preset_text(name: str) -> str:
    """Return the settings file of a preset or of the demo, as it ships with the package."""
    return (resources.files("coalmine.runs") / "files" / f"{name}.toml").read_text(encoding="utf-8")


def about(name: str) -> str:
    """Return what a preset is for, one line."""
    return preset_text(name).splitlines()[0].removeprefix("# ")


def from_preset(name: str) -> str:
    """Return the settings file of a preset, with all settings that it leaves at their defaults as comments."""
    return _written(parse_toml(preset_text(name), name), about(name))


def demo_settings(seed: int, *, bug: bool = False) -> RunSettings:
    """Return the settings of the demo: a small training on bundled data, audited in three ways.

    Args:
        seed: Seed of everything that has one.
        bug: Whether its mechanism forgets to add noise to one tensor.
    """
    text, types = preset_text("demo"), table_types()
    changes = [f"{table}.seed={seed}" for table in parse_toml(text, "demo") if "seed" in types[table].model_fields]
    if bug:
        changes += ["training.bug=bare:1.bias", "run.title=coalmine demo: the same training with a bug"]
    return run_from_text(text, "the demo", changes)


def for_methods(names: Sequence[str]) -> str:
    """Return a settings file of these methods with the settings each suggests, and a training if any needs one.

    Raises:
        InputError: If a method is unknown.
    """
    tables: dict[str, Any] = {"run": {"title": ", ".join(names)}}
    methods = [registry.get(name) for name in names]
    for method in methods:
        if method.settings_type is None:
            raise InputError(f"{method.name} runs only inside an integration, not in a run of its own")
        if method.training_type is not None and method.training_table == TRAINING:
            tables[TRAINING] = parse_toml(preset_text("digits"), "digits")[TRAINING]
        elif method.training_type is not None:
            tables[method.training_table] = {"seed": 0}
    return _written(tables | {method.name: method.init for method in methods}, f"methods: {', '.join(names)}")


def _written(content: Mapping[str, Mapping[str, Any]], title: str) -> str:
    """Return a settings file: what is set with its meaning, all other settings as comments with their defaults."""
    settings = run_from_mapping(content)
    tables = {"run": settings.run, **settings.trainings, **settings.methods}
    parts = [toml_table(name, tables[name], explained=True) for name in content]
    head = f"# {title}\n# Run it with `coalmine run`; docs/config.md lists every setting.\n"
    return "\n".join([head, "\n\n".join(parts), ""])
