"""Typed settings, the same for the command line and for TOML files.

Wrong ones are refused with a sentence that says what is accepted.
"""

from __future__ import annotations

import json
import re
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from coalmine.errors import InputError, did_you_mean

Value = TypeVar("Value")


class SettingError(InputError):
    """A wrong setting. ``path`` names it, part by part."""

    def __init__(self, message: str, path: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.path = tuple(path)


def _parts(value: object) -> object:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    return value if isinstance(value, list | tuple) else [value]


# One value or several: a list in a file, values separated by commas on the command line.
Several = Annotated[tuple[Value, ...], BeforeValidator(_parts)]


class Settings(BaseModel):
    """Base class of a table of settings: every field has a default and a description.

    Example:
        >>> from pydantic import Field
        >>> class MySettings(Settings):
        ...     trials: int = Field(100, ge=1, description="number of trials")
        >>> MySettings(trials=50)
        MySettings(trials=50)
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        protected_namespaces=(),
        arbitrary_types_allowed=True,
        coerce_numbers_to_str=True,  # clip_norm = 1.0 in a file
    )

    def walk(self, before: str = "") -> Iterator[tuple[str, FieldInfo, Any]]:
        """Yield the path, the field and the value of each setting, those of inner tables included."""
        for name, value in self:
            if isinstance(value, Settings):
                yield from value.walk(f"{before}{name}.")
            else:
                yield before + name, type(self).model_fields[name], value


def texts_to_mapping(texts: Sequence[str]) -> dict[str, Any]:
    """Return texts ``key=value`` as a mapping, nested for ``part.key=value``."""
    mapping: dict[str, Any] = {}
    for text in texts:
        path, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not path:
            raise InputError(f"a setting is key=value, such as rounds=100, got {text!r}")
        place, *names = mapping, *path.split(".")
        for name in names[:-1]:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                raise InputError(f"{path}: {name} already has a value")
        if names[-1] in place:
            raise InputError(f"the setting {path} is set twice")
        # Whole numbers may be written as 1e4. Beyond 2⁵³ floats skip some of them, so such a text stays as it is.
        numbers = {power: float(power) for power in re.findall(r"(?<![\w.])\d+(?:\.\d+)?[eE]\+?\d+(?![\w.])", value)}
        for power, number in numbers.items():
            if number.is_integer() and number < 2.0**53:
                value = value.replace(power, f"{number:.0f}")
        place[names[-1]] = value
    return mapping


def settings_from_mapping(mapping: Mapping[str, Any], *groups: type[Settings]) -> list[Any]:
    """Return one settings object per group from a mapping of all their keys."""
    for name, value in mapping.items():
        if not any(name in group.model_fields for group in groups):
            path, inner = name, value
            while isinstance(inner, Mapping) and inner:  # of a table, the first setting in it
                key, inner = next(iter(inner.items()))
                path = f"{path}.{key}"
            raise SettingError(_unknown(path, groups), [name])
    objects = []
    for group in groups:
        values = {name: value for name, value in mapping.items() if name in group.model_fields}
        try:
            objects.append(group.model_validate(values))
        except ValidationError as error:
            place = [str(part) for part in error.errors()[0]["loc"]]
            raise SettingError(_sentence(error, group, groups), place) from error
    return objects


def _located(loc: Sequence[int | str], group: type[BaseModel]) -> tuple[str, Any]:
    """Return the setting that a pydantic location belongs to, without list indices and type names, and its type."""
    # pydantic's location also has list indices and the members of a union, which nobody wrote.
    names: list[str] = []
    kind: Any = group
    for part in map(str, loc):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            kind = kind.model_fields[part].annotation if part in kind.model_fields else None
        elif get_origin(kind) is dict and part != "[key]":
            kind = get_args(kind)[-1]
        else:
            break
        names.append(part)
    return ".".join(names), kind


def _sentence(error: ValidationError, group: type[Settings], groups: Sequence[type[Settings]]) -> str:
    """Say what is wrong with a setting of a group, and what it accepts."""
    first = error.errors()[0]  # one error at a time: the next may follow from this one
    path, kind = _located(first["loc"], group)
    limits = first.get("ctx", {})
    if first["type"] == "extra_forbidden":
        return _unknown(path, groups)
    if isinstance(limits.get("error"), InputError):
        return f"the setting {path}: {limits['error']}"
    if first["type"] == "dict_type":
        return f"the setting {path} has parts: set {path}.name=value"
    takes = accepted(kind)
    if takes.startswith(("whole", "number", "text")):
        takes = f"a {takes}"
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    for name in words.keys() & limits.keys():
        takes = f"{words[name]} {limits[name]:g}"
    return f"the setting {path} = {first['input']!r:.60} is wrong: it must be {takes}"


# What types accept, in words: simple ones, and those with other types inside.
_SIMPLE = {int: "whole number", float: "number", str: "text", bool: "true or false", type(None): ""}
_COMPOSED: dict[Any, Callable[[Sequence[Any]], str]] = {
    Annotated: lambda inside: accepted(inside[0]),
    Literal: lambda inside: ", ".join(f"`{choice}`" for choice in inside),
    types.UnionType: lambda inside: " or ".join(filter(None, map(accepted, inside))),
    tuple: lambda inside: f"one or several: {accepted(inside[0])}",
    dict: lambda inside: f"names with {accepted(inside[1])}s",
}
_COMPOSED[Union] = _COMPOSED[types.UnionType]


def accepted(kind: Any) -> str:
    """Return the values that a type accepts, in words."""
    if get_origin(kind) in _COMPOSED:
        return _COMPOSED[get_origin(kind)](get_args(kind))
    return _SIMPLE.get(kind, str(kind))


def _unknown(path: str, groups: Sequence[type[Settings]]) -> str:
    """Say which setting of which group was meant."""
    known = [path for group in groups for path, _, _ in group().walk()]
    # A single method knows no tables but its own, and people write training.rounds.
    within = path.partition(".")[2]
    return f'unknown setting "{path}". {did_you_mean(within if within in known else path, known)}'


_HEADER = re.compile(r"^\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"""^\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")


def toml_table(name: str, settings: Settings, *, explained: bool = False) -> str:
    """Return a table of all settings that have a value.

    Args:
        name: Name of the table.
        settings: The settings.
        explained: Whether to write the meaning above each setting, and to comment out those that keep their defaults.
    """
    lines, parts = [f"[{name}]"], []
    for key, field in type(settings).model_fields.items():
        content, changed = getattr(settings, key), key in settings.model_fields_set
        if isinstance(content, Settings):
            # Tables inside this one come last: in TOML, a key after a header belongs to the header's table.
            if changed or not explained:
                parts.append(toml_table(f"{name}.{key}", content, explained=explained))
        elif explained:
            description, mark = field.description or "", "" if changed and content is not None else "# "
            # Uncommenting a line must give valid TOML, so a setting without a default shows an example.
            if content is None and field.examples:
                content = field.examples[0]
                description += " (not set; this is an example)"
            lines += [f"# {line}" for line in textwrap.wrap(description, 108, break_on_hyphens=False)]
            lines.append(f"{mark}{key} = {toml_value(content)}")
        elif content is not None:
            lines.append(f"{key} = {toml_value(content)}")
    return "\n\n".join(["\n".join(lines), *parts])


def line_of(text: str, path: Sequence[str]) -> int | None:
    """Return the line of a TOML text, from 1, where a setting or its nearest table is."""
    # tomllib keeps no line numbers, so headers and keys are looked for in the text.
    longest, found = 0, None
    prefix: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        header, key = _HEADER.match(line), _KEY.match(line)
        names: tuple[str, ...] = ()
        if header:
            names = prefix = _names(header.group(1))
        elif key:
            names = (*prefix, *_names(key.group(1)))
        if len(names) > longest and tuple(path[: len(names)]) == names:
            longest, found = len(names), number
    return found


def toml_value(content: object) -> str:
    """Return a value as TOML writes it."""
    if isinstance(content, bool | int | float):
        return str(content).lower()  # True is true, and infinity is inf in both
    if isinstance(content, list | tuple):
        return f"[{', '.join(map(toml_value, content))}]"
    if isinstance(content, Mapping):
        return f"{{{', '.join(f'{_key(k)} = {toml_value(v)}' for k, v in content.items())}}}"
    # JSON strings are TOML strings, except for the one control character that JSON does not escape.
    return json.dumps(str(content), ensure_ascii=False).replace("\x7f", "\\u007f")


def dotted(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the settings of nested tables as texts, by their path."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'") for part in text.split("."))


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)
