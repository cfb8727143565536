"""What an inference plan takes from a framework's config, and how that is changed there.

The configs are those of training, and of what serves with the same arguments (Megatron-LM's inference server). The
model, the GPUs and the degrees that cut a model are the same for both; everything else is one or the other's.
"""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.configs.accelerate_keys import MACHINES, PROCESSES
from memcheck.configs.editors import Editor
from memcheck.configs.types import KeyRow, ReadConfig
from memcheck.job.types import Layout

BOTH = ("model", "hardware")
CUTS = frozenset({"tensor", "pipeline", "expert", "expert_tensor"})
"""Keys of ``parallelism`` that a served model has."""
SERVING = "inference"


def taken(key: str, format: str, *, serving: bool) -> bool:
    """Whether a plan of one kind takes a key from a config.

    Megatron-LM's arguments describe its own GPT, of which serving has no model here: such a plan names its model.
    """
    section, _, name = key.partition(".")
    if not serving:
        return section != SERVING
    if section == "model" and format == "megatron":
        return False
    return section in (*BOTH, SERVING) or (section == "parallelism" and name in CUTS)


def reading_for(reading: ReadConfig, *, serving: bool) -> ReadConfig:
    """A config as one kind of plan reads it: without what is the other's. What is not carried over stays said."""

    def own(key: str) -> bool:
        return taken(key, reading.format, serving=serving)

    settings = {key: setting for key, setting in reading.settings.items() if own(key)}
    problems = tuple(each for each in reading.problems if not each.keys or any(map(own, each.keys)))
    return reading._replace(settings=settings, problems=problems)


def served_values(
    editor: Editor, values: Mapping[str, object], fields: Mapping[str, object], layout: Layout
) -> dict[str, object]:
    """New values of the keys that a config has, for changed keys of an inference plan."""
    found: dict[str, object] = {}
    for row in editor.rows:
        name = next((each for each in editor.names(row.path) if each in values), "")
        if name and row.key in fields:
            found[name] = _word(row, fields[row.key])
    if PROCESSES in values:
        found[PROCESSES] = layout.world_size
    if MACHINES in values:
        found[MACHINES] = layout.nodes
    return {name: value for name, value in found.items() if str(values[name]) != str(value)}


def _word(row: KeyRow, value: object) -> object:
    return next((word for word, meant in row.words.items() if meant == value), value)
