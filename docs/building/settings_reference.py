"""``docs/config.md``, generated from the settings: every table and key with type, default and meaning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from coalmine.config.settings import Settings, accepted, toml_value
from coalmine.methods import registry
from coalmine.runs.settings import TRAINING, all_tables, table_settings
from coalmine.simulation.settings import TrainingSettings

_HEAD = """# Settings

`coalmine run FILE` reads these tables from a TOML file, `coalmine init` writes one to start from, and
`--set table.key=value` overrides one setting. A method runs if its table is present; a missing key has its default.
Unknown names and wrong values are reported with their line. `make docs` generates this page from the code.
"""


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
