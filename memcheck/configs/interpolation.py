"""OmegaConf's references inside one config: ``${output_dir}/logs``, ``${.sibling}``, ``${model.lora_rank}``."""

from __future__ import annotations

import re

from memcheck.configs.config_file import ConfigFile

_REFERENCE = re.compile(r"\$\{([^${}]+)\}")
DEPTH = 16
"""References that lead to references; what goes on for longer goes in a circle."""
LONGEST = 10_000
"""The most characters that a value may have after its references are replaced."""


def interpolate(config: ConfigFile) -> dict[str, str]:
    """Put values in place of references to them. Returns what is left: key to the reference that nothing answers."""
    left: dict[str, str] = {}
    for key in list(config.values):
        _settle(config, key, left, DEPTH)
    return left


def _settle(config: ConfigFile, key: str, left: dict[str, str], depth: int) -> None:
    """Answer the references of one value, once."""
    value = config.values[key]
    if key in left or not isinstance(value, str) or "${" not in value:
        return
    found, missing = _resolved(config, key, value, left, depth) if depth else (value, value[:100])
    config.values[key] = found
    if missing:
        left[key] = missing


def _resolved(config: ConfigFile, key: str, value: str, left: dict[str, str], depth: int) -> tuple[object, str]:
    """A value with its references answered, and the first that cannot be."""
    whole = _REFERENCE.fullmatch(value)
    if whole is not None:
        return _answer(config, key, whole, left, depth)
    text, place = "", 0
    for found in _REFERENCE.finditer(value[:LONGEST]):
        answer, missing = _answer(config, key, found, left, depth)
        if missing or len(text) > LONGEST:
            return value, missing or value[:100]
        text += f"{value[place : found.start()]}{answer}"
        place = found.end()
    result = text + value[place:]
    return (result, "") if "${" not in result else (value, value[:100])


def _answer(config: ConfigFile, key: str, found: re.Match[str], left: dict[str, str], depth: int) -> tuple[object, str]:
    name = _absolute(key, found[1].strip())
    if ":" in name or name not in config.values or isinstance(config.values[name], (dict, list)):
        return found[0], found[0]
    _settle(config, name, left, depth - 1)
    return (found[0], left[name]) if name in left else (config.values[name], "")


def _absolute(key: str, name: str) -> str:
    """The absolute key for a relative ``name``. ``.name`` is in the section of ``key``, ``..name`` in the section
    above.
    """
    dots = len(name) - len(name.lstrip("."))
    if not dots:
        return name
    parents = key.split(".")[:-dots]
    return ".".join([*parents, name[dots:]])
