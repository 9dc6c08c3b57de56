"""Plain values: what TOML and a command line hold, checked and made into records."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from typing import Any

from adfs.errors import InputError, unknown_name

__all__ = [
    "check_kinds",
    "frozen",
    "is_count",
    "is_number",
    "read_record",
    "read_word",
    "shortened",
    "thawed",
    "to_toml",
]


def is_number(value: Any) -> bool:
    """Whether a value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    """Whether a value is a whole number of at least 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def check_kinds(record: Any, what: str = "") -> None:
    """Raise unless every field of a record is of the kind that its annotation says."""
    hints = typing.get_type_hints(type(record))
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if not _fits(value, hints[field.name]):
            raise InputError(f"{what}{field.name} must be {_words(hints[field.name])}, got {thawed(value)!r}")


def _fits(value: Any, hint: Any) -> bool:
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, one) for one in inside)
    if origin is tuple:
        repeated = inside[1:] == (Ellipsis,)
        kinds = [inside[0]] * len(value) if repeated and isinstance(value, tuple) else inside
        return (
            isinstance(value, tuple)
            and len(value) == len(kinds)
            and all(_fits(entry, kind) for entry, kind in zip(value, kinds, strict=True))
        )
    if hint is float:
        return is_number(value)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return hint is Any or isinstance(value, hint)


def _words(hint: Any) -> str:
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_words(one) for one in inside if one is not types.NoneType)
    if origin is tuple:
        return f"a list of entries that are each {_words(inside[0])}"
    names = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}
    return names.get(hint, "as documented")


def read_word(text: str) -> Any:
    """Return a number, a truth value or text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "false": False}.get(text, text)


def read_record(cls: type[Any], what: str, main: str, value: Any) -> Any:
    """Build a record from a table of its fields, or from the value of its main field."""
    if isinstance(value, cls):
        return value
    table = {main: value} if isinstance(value, str) else value
    known = [field.name for field in dataclasses.fields(cls)]
    if not isinstance(table, Mapping):
        raise InputError(f"{what} must be one word or a table with some of {', '.join(known)}, got {value!r}")
    for key in table:
        if key not in known:
            raise unknown_name(f"key of {what}", key, known)
    return cls(**{key: frozen(entry) for key, entry in table.items()})


def frozen(value: Any) -> Any:
    """Return lists as tuples, all the way down."""
    return tuple(frozen(entry) for entry in value) if isinstance(value, list | tuple) else value


def thawed(value: Any) -> Any:
    """Return tuples as lists, all the way down."""
    return [thawed(entry) for entry in value] if isinstance(value, tuple) else value


def shortened(record: Any) -> dict[str, Any]:
    """Return a record's fields that are not its defaults, its first field always."""
    out = {}
    for number, field in enumerate(dataclasses.fields(record)):
        value = getattr(record, field.name)
        if field.name != "options" and (number == 0 or value != field.default):
            out[field.name] = thawed(value)
    return out


def to_toml(value: Any) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {to_toml(entry)}" for key, entry in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(to_toml(entry) for entry in value) + "]"
    # TOML writes text, numbers and truth values as JSON does, and keeps letters of all languages.
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
