"""Editors of the config formats: how the text of each format is changed, and which of its keys change together."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from memcheck.configs import accelerate_keys, deepspeed_keys, megatron_keys, torchtitan_keys
from memcheck.configs.argument_edits import edit_arguments
from memcheck.configs.key_table import key_table
from memcheck.configs.toml_edits import edit_toml
from memcheck.configs.tree_edits import edit_json, edit_yaml
from memcheck.configs.types import KeyRow
from memcheck.finding import Edit
from memcheck.record import Record


class Editor(Record):
    """One format as text that is changed."""

    edit: Callable[[str, str, Mapping[str, object]], tuple[Edit, ...]]
    """Path, text and new values by key; no edits where one of them has no certain place."""
    rows: tuple[KeyRow, ...]
    """Keys that stand for exactly one key of the plan."""
    same: tuple[tuple[str, ...], ...] = ()
    """Names of the same thing, the one that is written first."""
    together: tuple[tuple[str, ...], ...] = ()
    """Keys that say one thing only together: a new batch is stated whole, or its parts would follow from defaults."""

    def names(self, key: str) -> tuple[str, ...]:
        """Every name that a key has or had."""
        found = [key]
        for row in self.rows:
            if row.path == key:
                found += row.aliases
        for group in self.same:
            if key in group:
                found += [each for each in group if each != key]
        return tuple(found)

    def key_of(self, name: str) -> str:
        """The plan key that a key stands for alone; empty when there is none."""
        return next((row.key for row in self.rows if row.path == name), "")


EDITORS = {
    "deepspeed": Editor(
        edit=edit_json,
        rows=key_table("deepspeed").rows["rows"],
        same=(key_table("deepspeed").names["bf16"],),
        together=((deepspeed_keys.MICRO, deepspeed_keys.STEPS, deepspeed_keys.TOTAL),),
    ),
    "accelerate": Editor(
        edit_yaml,
        (*key_table("accelerate").rows["degrees"], *key_table("accelerate").rows["engine"]),
        ((accelerate_keys.BACKEND, accelerate_keys.OLD_BACKEND),),
    ),
    "torchtitan": Editor(
        edit=edit_toml,
        rows=(
            *key_table("torchtitan").rows["rows"],
            key_table("torchtitan").row("parallelism.pipeline_parallel_schedule"),
        ),
        same=(
            key_table("torchtitan").names["local_batch"],
            key_table("torchtitan").names["replicate"],
            key_table("torchtitan").names["shard"],
            key_table("torchtitan").names["compile"],
        ),
        together=(
            (
                key_table("torchtitan").names["local_batch"][0],
                torchtitan_keys.GLOBAL_BATCH,
                torchtitan_keys.PIPELINE_BATCH,
            ),
        ),
    ),
    "megatron": Editor(
        edit_arguments,
        (
            *key_table("megatron").rows["launcher"],
            *key_table("megatron").rows["layout"],
            *key_table("megatron").rows["serving"],
            key_table("megatron").row("expert-tensor-parallel-size"),
            key_table("megatron").row("optimizer"),
            *megatron_keys.OPTIONS,
        ),
        together=(("micro-batch-size", "global-batch-size"),),
    ),
}
