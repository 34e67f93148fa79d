"""Settings with names and types: wrong ones are refused with what was meant."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo, field_validator

from coalmine.errors import InputError

Value = TypeVar("Value")


class SettingError(InputError):
    """A setting that is wrong: ``path`` names it, part by part."""

    def __init__(self, message: str, path: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.path = tuple(path)


def _parts(value: object) -> object:
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    return value if isinstance(value, list | tuple) else [value]


Several = Annotated[tuple[Value, ...], BeforeValidator(_parts)]
"""One value or several: a list, or on the command line values separated by commas."""


class Settings(BaseModel):
    """A group of settings. Every field has a default and a description; there are no others."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        protected_namespaces=(),
        arbitrary_types_allowed=True,
        coerce_numbers_to_str=True,  # clip = 1.0 in a file
    )

    @field_validator("*", mode="before")
    @classmethod
    def _whole_numbers(cls, value: object, info: ValidationInfo) -> object:
        """Let 1e4 be a whole number as well, where one is wanted."""
        if info.field_name is None or not _wants_whole_numbers(cls.model_fields[info.field_name].annotation):
            return value
        parts = _parts(value)
        return _whole(value) if not isinstance(parts, list) or len(parts) == 1 else [_whole(part) for part in parts]

    @classmethod
    def described(cls) -> Iterator[tuple[str, Any, str]]:
        """The path, the default and the description of each setting."""
        defaults = cls()
        for path in _paths(cls):
            value, group = defaults, cls
            *parts, name = path.split(".")
            for part in parts:
                value, group = getattr(value, part), type(getattr(value, part))
            yield path, getattr(value, name), group.model_fields[name].description or ""

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return self.model_dump(mode="json")


_DIGITS = 19


def _wants_whole_numbers(annotation: Any) -> bool:
    """Whether a type is int, or a union or tuple with it."""
    return annotation is int or any(_wants_whole_numbers(part) for part in get_args(annotation))


def _whole(value: object) -> object:
    """A text such as 1e4 as the whole number it is; anything else as it was."""
    if not isinstance(value, str):
        return value
    try:
        read = Decimal(value)
    except InvalidOperation:
        return value
    if not read.is_finite():
        return value
    if read.adjusted() >= _DIGITS:  # far larger than any count: 1e999999999 would take all memory
        raise InputError(f"a whole number of at most {_DIGITS} digits is needed, got {value:.40}")
    return int(read) if read == read.to_integral_value() else value


Group = TypeVar("Group", bound=Settings)


def settings_from_texts(texts: Sequence[str], *groups: type[Settings]) -> list[Any]:
    """One object of each group, from ``key=value`` texts; ``part.key=value`` sets a key of a part.

    The groups share one name space: each key goes to the group that has it.
    """
    return settings_from_mapping(texts_to_mapping(texts), *groups)


def texts_to_mapping(texts: Sequence[str]) -> dict[str, Any]:
    """``key=value`` texts as a mapping; ``part.key=value`` sets a key of a part."""
    given: dict[str, Any] = {}
    for text in texts:
        path, equals, value = text.partition("=")
        if not equals or not path.strip():
            raise InputError(f"a setting is key=value, such as rounds=100, got {text!r}")
        place, *names = given, *path.strip().split(".")
        for name in names[:-1]:
            place = place.setdefault(name, {})
            if not isinstance(place, dict):
                raise InputError(f"{path}: {name} is given a value of its own already")
        if names[-1] in place:
            raise InputError(f"the setting {path.strip()} is given twice")
        place[names[-1]] = value.strip()
    return given


def settings_from_mapping(given: Mapping[str, Any], *groups: type[Settings]) -> list[Any]:
    """One object of each group, from a mapping of all their keys."""
    known = [name for group in groups for name in _paths(group)]
    for name in given:
        if not any(name in group.model_fields for group in groups):
            raise SettingError(_unknown(name, known), [name])
    found = []
    for group in groups:
        own = {name: value for name, value in given.items() if name in group.model_fields}
        try:
            found.append(group.model_validate(own))
        except ValidationError as error:
            place = [str(part) for part in error.errors()[0]["loc"]]
            raise SettingError(_sentence(error, group, known), place) from error
    return found


def _paths(group: type[BaseModel], before: str = "") -> Iterator[str]:
    for name, field in group.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from _paths(inner, f"{before}{name}.")
        else:
            yield before + name


def _setting(loc: Sequence[int | str], group: type[BaseModel]) -> str:
    """The setting that a place in pydantic's words belongs to: without places in lists and names of types."""
    names: list[str] = []
    inner: Any = group
    for part in map(str, loc):
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            inner = inner.model_fields[part].annotation if part in inner.model_fields else None
        elif getattr(inner, "__origin__", None) is not dict or part == "[key]":
            break
        names.append(part)
    return ".".join(names)


def _sentence(error: ValidationError, group: type[BaseModel], known: Sequence[str]) -> str:
    first = error.errors()[0]
    path = _setting(first["loc"], group)
    if first["type"] == "extra_forbidden":
        return _unknown(path, known)
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        return f"the setting {path}: {cause}"
    if first["type"] == "dict_type":
        return f"the setting {path} has parts: give {path}.name=value"
    given = f"the setting {path} = {first['input']!r:.60} is wrong"
    limits = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    broken = [f"{words} {first['ctx'][name]:g}" for name, words in limits.items() if name in first.get("ctx", {})]
    takes = accepted(_annotation(path, group))
    article = "a " if takes.startswith(("whole", "number", "text")) else ""
    return f"{given}: it must be {broken[0]}" if broken else f"{given}: it takes {article}{takes}"


def _annotation(path: str, group: type[BaseModel]) -> Any:
    """The type of a setting by its path."""
    inner: Any = group
    for name in path.split("."):
        inner = inner.model_fields[name].annotation if hasattr(inner, "model_fields") else get_args(inner)[-1]
    return inner


def accepted(kind: Any) -> str:
    """What a setting of this type takes, in words."""
    simple = {int: "whole number", float: "number", str: "text", bool: "true or false", type(None): ""}
    if kind in simple:
        return simple[kind]
    origin, inside = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return accepted(inside[0])
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in inside)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(word for part in inside if (word := accepted(part)))
    if origin is tuple:
        return f"one or several: {accepted(inside[0])}"
    if origin is dict:
        return "names with numbers"
    return str(kind)


def _unknown(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=2, cutoff=0.6)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(known)}"
    return f"there is no setting {name!r}; {hint}"
