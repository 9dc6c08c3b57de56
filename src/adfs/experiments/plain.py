"""Plain values: what TOML and a command line hold, checked and made into records."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from adfs.errors import InputError, unknown_name

__all__ = ["frozen", "is_count", "is_number", "read_record", "read_word", "shortened", "thawed", "to_toml"]


def is_number(value: Any) -> bool:
    """Whether a value is a number."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_count(value: Any) -> bool:
    """Whether a value is a whole number of at least 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


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
