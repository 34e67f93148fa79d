"""Settings files to begin with (``coalmine init``), and ``docs/config.md``: all settings with their meaning.

A preset is a TOML file in ``files/`` with the settings it changes; its first line says what it is for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

from coalmine.config.settings import Settings, accepted, toml_table, toml_value
from coalmine.errors import InputError
from coalmine.methods import registry
from coalmine.reading import parse_toml
from coalmine.runs.settings import TRAINING, RunSettings, all_tables, run_from_mapping, run_from_text, table_settings
from coalmine.simulation.settings import TrainingSettings

PRESETS = ("digits", "text", "images", "local", "all")

_HEAD = """# Settings

`coalmine run FILE` reads these tables from a TOML file, `coalmine init` writes one to start from, and
`--set table.key=value` overrides one setting. A method runs if its table is present; a missing key has its default.
Unknown names and wrong values are reported with their line. `make docs` generates this page from the code.
"""


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


def reference() -> str:
    """Return ``docs/config.md``: every table and key with type, default and meaning."""
    parts = [_HEAD]
    for name in all_tables():
        parts += _section("##", name, table_settings(name)())
    plain = {path: value for path, _, value in TrainingSettings().walk()}
    for method in registry.runnable():
        # A method with its own kind of training has other defaults, also where it shares [training].
        if method.training_type is not None and method.training_table != TRAINING:
            special = table_settings(TRAINING, [method.name])().walk()
            changed = [(path, value) for path, _, value in special if path in plain and value != plain[path]]
            parts.append(f"## [training] with [{method.name}]\n")
            parts.append(f"Defaults that differ where {method.name} shares the training:\n")
            parts.append(_table(("key", "default"), [(f"`{path}`", _default(value)) for path, value in changed]))
    return "\n".join(parts)


def _section(level: str, name: str, defaults: Settings) -> Iterator[str]:
    """Yield a table of settings, then its inner tables."""
    yield f"{level} [{name}]\n\n{(type(defaults).__doc__ or '').strip()}\n"
    rows, inner = [], []
    for key, field in type(defaults).model_fields.items():
        value = getattr(defaults, key)
        if isinstance(value, Settings):
            inner.append((key, value))
        else:
            rows.append((f"`{key}`", accepted(field.annotation), _default(value), field.description or ""))
    yield _table(("key", "type", "default", "meaning"), rows)
    for key, value in inner:
        yield from _section(f"{level}#", f"{name}.{key}", value)


def _default(content: object) -> str:
    if content is None:
        return "–"
    if isinstance(content, tuple) and len(content) == 1:
        content = content[0]
    return f"`{toml_value(content)}`"


def _table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [columns, tuple("---" for _ in columns), *rows]
    cells = [" | ".join(cell.replace("|", "\\|") for cell in line) for line in lines]
    return "\n".join(f"| {line} |" for line in cells) + "\n"


if __name__ == "__main__":
    print(reference(), end="")
