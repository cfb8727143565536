"""Every framework format that memcheck reads and writes.

Adding one: a table of keys, a reader, a writer, a line here.
"""

from __future__ import annotations

from collections.abc import Callable

from memcheck.configs.arguments import load_arguments
from memcheck.configs.config_file import ConfigFile, load_json, load_toml, load_yaml
from memcheck.configs.read_accelerate import read_accelerate
from memcheck.configs.read_deepspeed import read_deepspeed
from memcheck.configs.read_megatron import read_megatron
from memcheck.configs.read_torchtitan import read_torchtitan
from memcheck.configs.request import Export
from memcheck.configs.types import ReadConfig, Written
from memcheck.configs.write_accelerate import write_accelerate
from memcheck.configs.write_deepspeed import write_deepspeed
from memcheck.configs.write_megatron import write_megatron
from memcheck.configs.write_torchtitan import write_torchtitan
from memcheck.record import Record


class Format(Record):
    """One kind of config."""

    name: str
    title: str
    load: Callable[[str, str], ConfigFile]
    read: Callable[[ConfigFile, int | None], ReadConfig]
    write: Callable[[Export], Written]
    frameworks: tuple[str, ...]
    """The plan's frameworks that run from it as they are."""


FORMATS = {
    each.name: each
    for each in (
        Format(
            name="deepspeed",
            title="DeepSpeed JSON",
            load=load_json,
            read=read_deepspeed,
            write=write_deepspeed,
            frameworks=("deepspeed",),
        ),
        Format(
            name="accelerate",
            title="Accelerate YAML",
            load=load_yaml,
            read=read_accelerate,
            write=write_accelerate,
            frameworks=("huggingface", "deepspeed"),
        ),
        Format(
            name="torchtitan",
            title="torchtitan TOML",
            load=load_toml,
            read=read_torchtitan,
            write=write_torchtitan,
            frameworks=("torchtitan",),
        ),
        Format(
            name="megatron",
            title="Megatron-LM arguments",
            load=load_arguments,
            read=read_megatron,
            write=write_megatron,
            frameworks=("megatron",),
        ),
    )
}
