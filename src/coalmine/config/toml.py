"""Settings as TOML: written with their meaning, and located by line when one is wrong."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coalmine.config.settings import Settings

_HEADER = re.compile(r"^\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")


def table(name: str, settings: Settings, *, explained: bool = False) -> str:
    """Return a table of all settings that have a value.

    Args:
        name: Name of the table.
        settings: The settings.
        explained: Whether to write the meaning above each setting, and to comment out those that keep their defaults.
    """
    return "\n".join(_lines(name, settings, explained))


def line_of(text: str, path: Sequence[str]) -> int | None:
    """Return the line of a TOML text, from 1, where a setting or its nearest table is."""
    best: tuple[int, int] | None = None
    prefix: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        header, key = _HEADER.match(line), _KEY.match(line)
        if header:
            prefix = _parts(header.group(1))
            names = prefix
        elif key:
            names = (*prefix, *_parts(key.group(1)))
        else:
            continue
        if names and tuple(path[: len(names)]) == names and (best is None or len(names) > best[0]):
            best = len(names), number
    return None if best is None else best[1]


def value(content: object) -> str:
    """Return a value as TOML writes it."""
    if isinstance(content, bool):
        return "true" if content else "false"
    if isinstance(content, float):
        return {math.inf: "inf", -math.inf: "-inf"}.get(content, repr(content))
    if isinstance(content, int):
        return str(content)
    if isinstance(content, list | tuple):
        return f"[{', '.join(value(part) for part in content)}]"
    if isinstance(content, Mapping):
        return f"{{{', '.join(f'{_key(k)} = {value(v)}' for k, v in content.items())}}}"
    return _quoted(str(content))


def flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the settings of nested tables as texts, by their path."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _lines(name: str, settings: Settings, explained: bool) -> Iterator[str]:
    yield f"[{name}]"
    parts = []
    for key, field in type(settings).model_fields.items():
        content = getattr(settings, key)
        changed, assignment = key in settings.model_fields_set, f"{_key(key)} = {value(content)}"
        if isinstance(content, Settings):
            parts += [(key, content)] if changed or not explained else []
        elif not explained:
            if content is not None:
                yield assignment
        elif changed and content is not None:
            yield from _comment(field.description or "")
            yield assignment
        else:
            # Uncommenting a line must give valid TOML, so a setting without a default shows an example.
            example = (field.examples or [None])[0] if content is None else None
            yield from _comment(f"{field.description}{'' if example is None else ' (not set; this is an example)'}")
            yield f"# {_key(key)} = {value(content if example is None else example)}"
    for key, content in parts:
        yield ""
        yield from _lines(f"{name}.{_key(key)}", content, explained)


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, 108, break_on_hyphens=False)]


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in text.split("."))


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quoted(name)


def _quoted(text: str) -> str:
    # JSON strings are TOML strings, except for the one control character that JSON does not escape.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
