"""From a configuration in Hugging Face's key names, or a plan's ``model``, to an architecture."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from memcheck.catalog.config_file import ConfigFileError
from memcheck.errors import MemcheckError
from memcheck.families.registry import FAMILIES, read_family
from memcheck.models.errors import ArchitectureError
from memcheck.models.types import Architecture, Rough
from memcheck.plan.types import ModelSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers")
LAYER_LISTS = ("layer_types", "no_rope_layers")


def architecture_of(model: ModelSpec, base_dir: str = ".") -> Architecture | Rough:
    """Resolve ``model.name``, ``model.config`` (relative to ``base_dir``), ``model.architecture`` or ``model.rough``.

    Raises:
        UnknownNameError: the catalog has no such model.
        ConfigFileError: the ``config.json`` cannot be read.
        ArchitectureError: the configuration, or an override, cannot be used.
    """
    if model.rough is not None:
        return Rough(*model.rough)
    if model.architecture is not None:
        return read_architecture(
            part_of(merged_config(model.architecture, model.overrides or {}), model.part), strict=True
        )
    if model.config is not None:
        from memcheck.catalog.config_file import read_config_bytes

        data, path = read_config_bytes(model.config, base_dir)
        read = _read_config_bytes(data, path, model.part, _Overrides(model.overrides or {}))
        if isinstance(read, MemcheckError):
            raise read.with_traceback(None)
        return read
    if model.name is None:
        raise ArchitectureError("the plan names no model", "write `model: llama-3.1-8b`")
    if not model.overrides:
        return catalog_architecture(model.name, model.part or "whole")
    from memcheck.catalog.names import find_model

    entry = find_model(model.name)
    return _with_note(_read_with_overrides(part_of(entry.config, model.part), model.overrides), entry.read_as)


class _Overrides:
    """Overrides by what they say, which tells 1 from 1.0 and from true."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self._said = repr(values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Overrides) and self._said == other._said

    def __hash__(self) -> int:
        return hash(self._said)


@lru_cache(maxsize=8)
def _read_config_bytes(data: bytes, path: str, part: str | None, overrides: _Overrides) -> Architecture | MemcheckError:
    """Read the bytes of a ``config.json``; return its architecture, or the error that it has.

    The result is kept, since many plans name the same file. ``part``: ``language`` for the language model alone.
    """
    from memcheck.catalog.config_file import parse_config

    try:
        return _read_with_overrides(part_of(parse_config(data, path), part), overrides.values)
    except (ConfigFileError, ArchitectureError) as error:
        return error


@lru_cache(maxsize=512)
def catalog_architecture(name: str, part: str = "whole") -> Architecture:
    """Return the architecture of a model in the catalog, read once. ``part``: ``whole``, or ``language`` for that
    alone.

    Raises:
        UnknownNameError: the catalog has no such model.
    """
    from memcheck.catalog.names import find_model

    entry = find_model(name)
    return _with_note(read_architecture(part_of(entry.config, part)), entry.read_as)


def part_of(config: Mapping[str, Any], part: str | None) -> Mapping[str, Any]:
    """Return the configuration of a part of the model: ``language`` switches the towers of a multimodal model off.

    Any other ``part`` is the whole model.
    """
    if part != "language":
        return config
    from memcheck.families.multimodal import thinker_of
    from memcheck.families.wrappers import WRAPPERS

    config = thinker_of(config)
    if str(config.get("model_type")) not in WRAPPERS:
        return config
    from memcheck.families.multimodal import text_of

    return text_of(config)[0]


def merged_config(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Merge ``overrides`` into ``config``: nested mappings are merged, all other values replaced, null included."""
    merged = dict(config)
    for key, value in overrides.items():
        below = merged.get(key)
        nested = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = merged_config(below, value) if nested else value  # type: ignore[arg-type]
    return merged


def with_overrides(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merged configuration.

    If the overrides state fewer layers than a list has entries, the list keeps the first ones.
    """
    merged = merged_config(config, overrides)
    count = next((overrides[k] for k in LAYER_COUNTS if k in overrides), None)
    if isinstance(count, int):
        # a list with one entry per layer describes the model as it was
        for key in LAYER_LISTS:
            if key not in overrides and isinstance(merged.get(key), list):
                merged[key] = merged[key][:count]
    return merged


def _read_with_overrides(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> Architecture:
    """Read with overrides, whose every key must be one that is read: ``config.json`` may carry others, a person not."""
    return read_architecture(with_overrides(config, overrides), written=frozenset(overrides))


def _with_note(architecture: Architecture, note: str) -> Architecture:
    return architecture._replace(notes=(note, *architecture.notes)) if note else architecture


def read_architecture(
    config: Mapping[str, Any], *, strict: bool = False, written: frozenset[str] = frozenset()
) -> Architecture:
    """Read a configuration.

    ``strict``: every key has to be known (a mapping that a person wrote); ``written`` names such keys among others.
    Elsewhere an unknown key is refused only when it could carry a size or looks like a misspelt key, and is mentioned
    in ``Architecture.notes`` when it could not: a ``config.json`` carries whatever its authors' tools wrote.

    Raises:
        ArchitectureError: an unknown ``model_type``, a missing key, a wrong type, an unread key.
    """
    if str(config.get("model_type")) not in FAMILIES:
        from memcheck.families.wrappers import MUTE, THINKERS, TOWERS, WRAPPERS

        if str(config.get("model_type")) in THINKERS:
            from memcheck.families.multimodal import thinker_of

            inner = thinker_of(config)
            architecture = read_architecture(inner, strict=strict, written=written & frozenset(inner))
            return architecture._replace(notes=(MUTE, *architecture.notes))
        if str(config.get("model_type")) in WRAPPERS:
            from memcheck.families.multimodal import language_model, read

            off = "vision_config" in config and config["vision_config"] is None
            if str(config["model_type"]) in TOWERS and not off:
                return read(config, strict=strict, written=written)
            config = language_model(config)
    return read_family(config, strict=strict, written=written)
