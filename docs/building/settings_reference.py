"""``docs/config.md``, generated from the settings: every table and key with default and meaning."""

from __future__ import annotations

from collections.abc import Iterator

from coalmine.config import Settings, accepted, toml_value
from coalmine.runs.settings import TRAINING, table_types
from coalmine.simulation.settings import TrainingSettings

_HEAD = """# Settings

`coalmine run FILE` reads these tables from a TOML file, `coalmine init` writes one to start from, and
`--set table.key=value` overrides one setting. A method runs if its table is present; a missing key has the default
shown here. Unknown names and wrong values are reported with their line. `make docs` generates this page from the code.
"""


def reference() -> str:
    """Return ``docs/config.md``: every table and key with default and meaning."""
    parts = [_HEAD]
    plain = {path: value for path, _, value in TrainingSettings().walk()}
    for name, kind in table_types().items():
        defaults = kind()
        if name == TRAINING or not isinstance(defaults, TrainingSettings):
            parts += _section("##", name, defaults)
            continue
        # A second training has the keys of the first: only its defaults are worth a table.
        changed = [(path, value) for path, _, value in defaults.walk() if path in plain and value != plain[path]]
        parts.append(f"## [{name}]\n")
        parts.append(
            f"{(type(defaults).__doc__ or '').strip()} It has the keys of [{TRAINING}], with these defaults; they also "
            f"apply to [{TRAINING}] where its method shares that:\n"
        )
        parts.append("\n".join(f"- `{_assignment(path, value)}`" for path, value in changed) + "\n")
    return "\n".join(parts)


def _section(level: str, name: str, defaults: Settings) -> Iterator[str]:
    """Yield a table of settings, then its inner tables."""
    yield f"{level} [{name}]\n\n{(type(defaults).__doc__ or '').strip()}\n"
    lines, inner = [], []
    for key, field in type(defaults).model_fields.items():
        value = getattr(defaults, key)
        if isinstance(value, Settings):
            inner.append((key, value))
            continue
        lines.append(f"- `{_assignment(key, value)}`: {field.description or accepted(field.annotation)}")
    yield "\n".join(lines) + "\n"
    for key, value in inner:
        yield from _section(f"{level}#", f"{name}.{key}", value)


def _assignment(key: str, content: object) -> str:
    """Return a key with its default as in a settings file, or the key alone if it has none."""
    if content is None:
        return key
    if isinstance(content, tuple) and len(content) == 1:
        content = content[0]
    return f"{key} = {toml_value(content)}"


if __name__ == "__main__":
    print(reference(), end="")
