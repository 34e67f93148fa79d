"""``docs/config.md``, generated from the settings: every table and key with type, default and meaning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coalmine.config import toml
from coalmine.config.settings import Settings, accepted
from coalmine.methods import registry
from coalmine.runs.settings import TRAINING, all_tables, table_settings
from coalmine.simulation.settings import TrainingSettings

_HEAD = """# Settings

`coalmine run FILE` reads these tables from a TOML file, `coalmine init` writes one to start from, and
`--set table.key=value` overrides one setting. A method runs if its table is present; a missing key has its default.
Unknown names and wrong values are reported with their line. `make docs` generates this page from the code.
"""


def reference() -> str:
    """Return the whole page."""
    parts = [_HEAD]
    for name in all_tables():
        parts += _section("##", name, table_settings(name)())
    for method in registry.runnable():
        if method.training_type is not None and method.training_table != TRAINING:
            parts += _changed_defaults(method.name)
    return "\n".join(parts)


def _changed_defaults(method: str) -> Iterator[str]:
    """Yield the defaults of [training] that differ where a method with its own kind of training shares it."""
    yield f"## [training] with [{method}]\n\nDefaults that differ where {method} shares the training:\n"
    plain = {path: value for path, _, value in TrainingSettings().walk()}
    special = table_settings(TRAINING, [method])()
    changed = [(path, value) for path, _, value in special.walk() if path in plain and value != plain[path]]
    yield _table(("key", "default"), [(f"`{path}`", _default(value)) for path, value in changed])


def _section(level: str, name: str, defaults: Settings) -> Iterator[str]:
    """Yield a table of settings, then its inner tables."""
    fields = {key: getattr(defaults, key) for key in type(defaults).model_fields}
    yield f"{level} [{name}]\n\n{(type(defaults).__doc__ or '').strip()}\n"
    rows = [
        (f"`{path}`", accepted(field.annotation), _default(value), field.description or "")
        for path, field, value in defaults.walk()
        if path in fields
    ]
    yield _table(("key", "type", "default", "meaning"), rows)
    for key, value in fields.items():
        if isinstance(value, Settings):
            yield from _section(f"{level}#", f"{name}.{key}", value)


def _default(content: object) -> str:
    if content is None:
        return "–"
    if isinstance(content, tuple) and len(content) == 1:
        content = content[0]
    return f"`{toml.value(content)}`"


def _table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [columns, tuple("---" for _ in columns), *rows]
    cells = [" | ".join(cell.replace("|", "\\|") for cell in line) for line in lines]
    return "\n".join(f"| {line} |" for line in cells) + "\n"


if __name__ == "__main__":
    print(reference(), end="")
