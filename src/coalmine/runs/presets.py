"""Settings files to begin with, which ``coalmine init`` writes.

A preset is a TOML file in ``files/`` with the settings it changes; its first line says what it is for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from coalmine.config.settings import toml_table
from coalmine.errors import InputError
from coalmine.files import parse_toml
from coalmine.methods import registry
from coalmine.runs.settings import TRAINING, RunSettings, run_from_mapping, run_from_text, table_settings

PRESETS = ("digits", "text", "images", "local", "all")


def preset_text(name: str) -> str:
    """Return the settings file of a preset or a demo, as it ships with the package."""
    return (resources.files("coalmine.runs") / "files" / f"{name}.toml").read_text(encoding="utf-8")


def about(name: str) -> str:
    """Return what a preset is for, one line."""
    return preset_text(name).splitlines()[0].removeprefix("# ")


def from_preset(name: str) -> str:
    """Return the settings file of a preset, with all settings that it leaves at their defaults as comments."""
    return _written(parse_toml(preset_text(name), name), about(name))


def demo_settings(name: str, seed: int) -> RunSettings:
    """Return the settings of a demo.

    Args:
        name: ``"demo"`` for two small training runs on bundled data, audited by five methods in a minute;
            ``"demo-bug"`` for a training with a bug, audited by one.
        seed: Seed of everything that has one.
    """
    text = preset_text(name)
    seeded = [table for table in parse_toml(text, name) if "seed" in table_settings(table).model_fields]
    return run_from_text(text, f"the {name}", [f"{table}.seed={seed}" for table in seeded])


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
