"""Reads a configuration key by key, and remembers which keys were read.

A key that was not read is as important as one that was: a size that goes unnoticed makes the whole estimate wrong, so
:meth:`ConfigReader.unread` is checked after every family.
"""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.models.errors import ArchitectureError
from memcheck.models.keys import ACTIVATIONS, IRRELEVANT, synonyms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final, NoReturn

MAX_LAYERS: Final = 10_000
MAX_SIZE: Final = 2**40


class Required:
    """The type of :data:`REQUIRED`."""


REQUIRED: Final = Required()
"""No default: the key must be given."""


class ConfigReader:
    """A configuration (or a nested section of one) with checked access."""

    def __init__(self, config: Mapping[str, Any], model_type: str, prefix: str = "") -> None:
        """Read ``config``, a family's config.json as a mapping.

        ``prefix``: path of a nested section, such as ``text_config.``, which error messages put before its keys.
        """
        self.config = config
        self.model_type = model_type
        self.prefix = prefix
        self.notes: list[str] = []
        self._read: set[str] = set()
        self._sections: list[ConfigReader] = []

    def fail(self, key: str, message: str, help: str = "") -> NoReturn:
        """Raise an :class:`ArchitectureError` about ``key``."""
        raise ArchitectureError(f"{self.model_type}: {message}", help, self.prefix + key)

    def has(self, key: str) -> bool:
        """Whether the key is present and not null."""
        return self.config.get(key) is not None

    def ignore(self, *keys: str) -> None:
        """Keys that this family knows and that change no tensor."""
        self._read.update(keys)

    def note(self, text: str) -> None:
        """Something a reader of the estimate should know."""
        self.notes.append(text)

    def raw(self, key: str, *aliases: str) -> Any:
        """Return the value of the first of these keys that is not null, or None.

        Raises:
            ArchitectureError: two of the keys state different values.
        """
        self._read.update((key, *aliases))
        value = self.config.get(key)
        for alias in aliases:
            alias_value = self.config.get(alias)
            if alias_value is None:
                continue
            if value is not None and value != alias_value:
                self.fail(alias, f"{alias} = {alias_value!r} contradicts {key} = {value!r}", f"remove {alias}")
            value = alias_value
        return value

    def integer(
        self,
        key: str,
        *aliases: str,
        default: int | Required = REQUIRED,
        null: int | Required = REQUIRED,
        minimum: int = 1,
        maximum: int = MAX_SIZE,
    ) -> int:
        """Read a whole number from ``minimum`` to ``maximum``, and refuse any other value.

        ``aliases``: further keys, read if ``key`` is absent. ``default``: result if all are absent. ``null``: result if
        the value is null.
        """
        value = self.raw(key, *aliases)
        if value is None:
            stated = any(k in self.config for k in (key, *aliases))
            fallback = null if stated and not isinstance(null, Required) else default
            if isinstance(fallback, Required):
                self._missing(key)
            return fallback
        if isinstance(value, bool) or not isinstance(value, int):
            self.fail(key, f"{key} must be a whole number, not {shown(value)}")
        if not minimum <= value <= maximum:
            self.fail(key, f"{key} = {value} is outside {minimum} ... {maximum}")
        return value

    def optional_integer(self, key: str, *aliases: str, minimum: int = 1) -> int | None:
        """Read a whole number of at least ``minimum``; None if the key is absent or null."""
        return self.integer(key, *aliases, minimum=minimum) if self.raw(key, *aliases) is not None else None

    def window(self, key: str = "sliding_window") -> int | None:
        """Read a sliding window in tokens; None if it is null, absent or 0."""
        return self.integer(key, minimum=0) or None if self.has(key) else self.raw(key)

    def flag(self, key: str, *aliases: str, default: bool = False) -> bool:
        """Read a boolean: ``default`` if the key and its ``aliases`` are absent or null."""
        value = self.raw(key, *aliases)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fail(key, f"{key} must be true or false, not {shown(value)}")
        return value

    def number(self, key: str, *aliases: str, default: float) -> float:
        """Read a number, as a float: ``default`` if the key and its ``aliases`` are absent or null."""
        value = self.raw(key, *aliases)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.fail(key, f"{key} must be a number, not {shown(value)}")
        return float(value)

    def dropout(self, key: str, *aliases: str, default: float = 0.0) -> float:
        """Read a dropout probability, from 0 to below 1: ``default`` if it is absent or null."""
        value = self.number(key, *aliases, default=default)
        if not 0.0 <= value < 1.0:
            self.fail(key, f"{key} = {value} is not a probability below 1")
        return value

    def text(self, key: str, *aliases: str, default: str) -> str:
        """Read a string: ``default`` if the key and its ``aliases`` are absent or null."""
        value = self.raw(key, *aliases)
        if value is None:
            return default
        if not isinstance(value, str):
            self.fail(key, f"{key} must be a string, not {shown(value)}")
        return value

    def activation(self, key: str = "hidden_act", *aliases: str, default: str = "silu") -> str:
        """Read the name of an activation function, as transformers spells it, and refuse an unknown one."""
        value = self.text(key, *aliases, default=default)
        if value not in ACTIVATIONS:
            self.fail(key, f"unknown activation function {key} = {value!r}", _did_you_mean(value, ACTIVATIONS))
        return value

    def texts(self, key: str, *aliases: str) -> tuple[str, ...] | None:
        """Read a list of strings; None if the key and its ``aliases`` are absent or null."""
        value = self.raw(key, *aliases)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)) or not all(isinstance(v, str) for v in value):
            self.fail(key, f"{key} must be a list of strings, not {shown(value)}")
        return tuple(value)

    def integers(self, key: str) -> tuple[int, ...] | None:
        """Read a list of whole numbers; None if the key is absent or null."""
        value = self.raw(key)
        if value is None:
            return None
        is_valid = isinstance(value, (list, tuple)) and all(isinstance(v, int) for v in value)
        if not is_valid:
            self.fail(key, f"{key} must be a list of whole numbers, not {shown(value)}")
        return tuple(int(v) for v in value)

    def section(self, key: str) -> ConfigReader:
        """Return a reader of a nested mapping; of an empty one if the key is absent or null."""
        value = self.raw(key)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            self.fail(key, f"{key} must be a mapping, not {shown(value)}")
        nested = ConfigReader(value, self.model_type, f"{self.prefix}{key}.")
        self._sections.append(nested)
        return nested

    def rotary_fraction(self, default: float = 1.0, *aliases: str) -> float:
        """Read which share of a head's dimensions the rotary embedding rotates, from 0 to 1.

        transformers 5 nests it in ``rope_parameters``, earlier files have ``partial_rotary_factor`` at the top.
        """
        nested = self.raw("rope_parameters")
        scaling = self.raw("rope_scaling")
        value: float | None = None
        for holder in (nested, scaling):
            if isinstance(holder, Mapping) and isinstance(holder.get("partial_rotary_factor"), (int, float)):
                value = float(holder["partial_rotary_factor"])
        stated = self.number("partial_rotary_factor", *aliases, default=default if value is None else value)
        if not 0.0 <= stated <= 1.0:
            self.fail("partial_rotary_factor", f"partial_rotary_factor = {stated} is not a share of 1")
        return stated

    def unread(self) -> list[tuple[str, Any]]:
        """List the keys that have not been read, with their values; keys of nested sections with their path."""
        rest = [
            (self.prefix + key, value)
            for key, value in self.config.items()
            if key not in self._read and key not in IRRELEVANT and not key.startswith("_")
        ]
        for section in self._sections:
            rest += section.unread()
        return rest

    def known_keys(self) -> frozenset[str]:
        """Every key that was asked for."""
        return frozenset(self._read)

    def _missing(self, key: str) -> NoReturn:
        """Refuse a configuration without ``key``, and name the key that it probably has in its place.

        Raises:
            ArchitectureError: always.
        """
        other_families_keys = sorted(k for k in synonyms(key) if self.has(k))
        if other_families_keys:
            self.fail(
                key,
                f"{key} is missing: {other_families_keys[0]} is another family's name",
                f"write {key} instead of {other_families_keys[0]}",
            )
        close = "" if key in self.config else _did_you_mean(key, [k for k in self.config if k not in self._read])
        self.fail(key, f"{key} is missing", close or f"state {key}: it decides sizes, so there is no default")


def _did_you_mean(word: str, known: Any) -> str:
    """Return a question that names the closest of the ``known`` words; an empty text if none is close."""
    from memcheck.edge.closest import closest

    close = closest(word, known, 1, 0.75)
    return f"did you mean {close[0]!r}?" if close else ""


def shown(value: Any) -> str:
    """Return a value as messages show it: its ``repr``, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
