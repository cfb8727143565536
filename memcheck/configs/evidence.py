"""Positive evidence that a config is of one framework: a key that no other kind of file has."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from memcheck.configs.config_file import ConfigFile

Recognise = Callable[[ConfigFile], str]
"""The key that proves it; empty when nothing does."""


def any_key(*names: str) -> Recognise:
    """A recogniser for the first key of a config that is in ``names``, or below a name that ends with a dot."""
    exact = frozenset(name for name in names if not name.endswith("."))
    below = tuple(name for name in names if name.endswith("."))

    def found(config: ConfigFile) -> str:
        return next((key for key in config.values if key in exact or key.startswith(below)), "")

    return found


def all_keys(*groups: Iterable[str]) -> Recognise:
    """One key of each group; the evidence is that of the first."""
    tests = [any_key(*group) for group in groups]

    def found(config: ConfigFile) -> str:
        keys = [test(config) for test in tests]
        return keys[0] if all(keys) else ""

    return found
