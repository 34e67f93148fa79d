"""``docs/config.md``, generated from the settings: every table and key with type, default and meaning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import BaseModel

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
        parts += _section(f"[{name}]", table_settings(name))
    for method in registry.runnable():
        if method.training is not None and method.training_table != TRAINING:
            parts += _changed_defaults(method.name)
    return "\n".join(parts)


def _changed_defaults(method: str) -> Iterator[str]:
    """Yield the defaults of [training] that differ where a method with its own kind of training shares it."""
    yield f"## [training] with [{method}]\n\nDefaults that differ where {method} shares the training:\n"
    changed = list(_differences(TrainingSettings(), table_settings(TRAINING, [method])(), ""))
    yield _table(("key", "default"), [(f"`{key}`", default) for key, default in changed])


def _section(title: str, group: type[Settings]) -> Iterator[str]:
    yield f"## {title}\n\n{(group.__doc__ or '').strip()}\n"
    defaults, rows, inner = group(), [], []
    for key, field in group.model_fields.items():
        content = getattr(defaults, key)
        if isinstance(content, Settings):
            inner.append((key, type(content), content))
            continue
        rows.append((f"`{key}`", accepted(field.annotation), _default(content), field.description or ""))
    yield _table(("key", "type", "default", "meaning"), rows)
    for key, kind, content in inner:
        fields = [
            (f"`{name}`", accepted(field.annotation), _default(getattr(content, name)), field.description or "")
            for name, field in kind.model_fields.items()
        ]
        yield f"### {title[:-1]}.{key}]\n\n{(kind.__doc__ or '').strip()}\n"
        yield _table(("key", "type", "default", "meaning"), fields)


def _default(content: object) -> str:
    if content is None:
        return "–"
    if isinstance(content, tuple) and len(content) == 1:
        content = content[0]
    return f"`{toml.value(content)}`"


def _differences(plain: BaseModel, other: BaseModel, before: str) -> Iterator[tuple[str, str]]:
    for key in type(plain).model_fields:
        first, second = getattr(plain, key), getattr(other, key)
        if isinstance(first, BaseModel):
            yield from _differences(first, second, f"{before}{key}.")
        elif first != second:
            yield before + key, _default(second)


def _table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [columns, tuple("---" for _ in columns), *rows]
    cells = [" | ".join(cell.replace("|", "\\|") for cell in line) for line in lines]
    return "\n".join(f"| {line} |" for line in cells) + "\n"


if __name__ == "__main__":
    print(reference(), end="")
