"""``docs/config.md``, made of the settings themselves: every table, key, what it takes, default and meaning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import BaseModel

from coalmine.config import toml
from coalmine.config.settings import Settings, accepted
from coalmine.methods.secret_sharer.settings import TextTrainingSettings
from coalmine.runs.settings import SECTIONS

_HEAD = """# Settings

`coalmine run FILE` reads a file of these tables, `coalmine init` writes one to begin with, and
`--set table.key=value` sets one over the file's. A table that is not there is not done; a key that is not there has
its default. Wrong names and values are refused with the line they stand in. This page is written by `make docs` from
the settings themselves.
"""


def reference() -> str:
    """The whole page."""
    parts = [_HEAD]
    for name, group in SECTIONS.items():
        parts += _section(f"[{name}]", group)
    changed = list(_differences(SECTIONS["training"](), TextTrainingSettings(), ""))
    parts.append("## [training] beside [secret-sharer]\n\nDefaults that are others where phrases are planted:\n")
    parts.append(_table(("key", "default"), [(f"`{key}`", default) for key, default in changed]))
    return "\n".join(parts)


def _section(title: str, group: type[Settings]) -> Iterator[str]:
    yield f"## {title}\n\n{(group.__doc__ or '').strip()}\n"
    defaults, rows, inner = group(), [], []
    for key, field in group.model_fields.items():
        content = getattr(defaults, key)
        if isinstance(content, Settings):
            inner.append((key, type(content), content))
            continue
        rows.append((f"`{key}`", accepted(field.annotation), _default(content), field.description or ""))
    yield _table(("key", "takes", "default", "what it is"), rows)
    for key, kind, content in inner:
        own = [
            (f"`{name}`", accepted(field.annotation), _default(getattr(content, name)), field.description or "")
            for name, field in kind.model_fields.items()
        ]
        yield f"### {title[:-1]}.{key}]\n\n{(kind.__doc__ or '').strip()}\n"
        yield _table(("key", "takes", "default", "what it is"), own)


def _default(content: object) -> str:
    if content is None:
        return "–"
    if isinstance(content, tuple) and len(content) == 1:
        content = content[0]
    return f"`{toml.value(content)}`"


def _differences(plain: BaseModel, other: BaseModel, before: str) -> Iterator[tuple[str, str]]:
    for key in type(plain).model_fields:
        one, two = getattr(plain, key), getattr(other, key)
        if isinstance(one, BaseModel):
            yield from _differences(one, two, f"{before}{key}.")
        elif one != two:
            yield before + key, _default(two)


def _table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [columns, tuple("---" for _ in columns), *rows]
    cells = [" | ".join(cell.replace("|", "\\|") for cell in line) for line in lines]
    return "\n".join(f"| {line} |" for line in cells) + "\n"


if __name__ == "__main__":
    print(reference(), end="")
