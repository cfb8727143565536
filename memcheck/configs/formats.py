"""Every framework format that memcheck reads, and those that it writes, too.

Adding one: a table of keys, a reader, a line here. CONTRIBUTING.md has the whole list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from memcheck.configs import (
    automodel_launch,
    deepspeed_keys,
    launch_lines,
    litgpt_keys,
    litgpt_launch,
    llamafactory_keys,
    megatron_keys,
    megatron_swift_keys,
    nanotron_keys,
    swift_keys,
    torchtune_keys,
    trl_keys,
)
from memcheck.configs.arguments import NO_DEFINES
from memcheck.configs.config_file import ConfigFile
from memcheck.configs.evidence import Recognise, all_keys, any_key
from memcheck.configs.installers import without_installers
from memcheck.configs.key_table import key_table
from memcheck.configs.read_accelerate import read_accelerate
from memcheck.configs.read_automodel import read_automodel
from memcheck.configs.read_axolotl import read_axolotl
from memcheck.configs.read_deepspeed import read_deepspeed
from memcheck.configs.read_litgpt import read_litgpt
from memcheck.configs.read_llamafactory import read_llamafactory
from memcheck.configs.read_megatron import read_megatron
from memcheck.configs.read_megatron_swift import read_megatron_swift
from memcheck.configs.read_nanotron import read_nanotron
from memcheck.configs.read_swift import read_swift
from memcheck.configs.read_torchtitan import read_torchtitan
from memcheck.configs.read_torchtune import read_torchtune
from memcheck.configs.read_trl import read_transformers, read_trl
from memcheck.configs.recipe_launch import evidence
from memcheck.configs.request import Export
from memcheck.configs.swift_commands import training_alone
from memcheck.configs.syntax import ARGUMENTS, JSON, TOML, YAML, load_config, syntax_of
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
    syntaxes: tuple[str, ...]
    """Syntaxes of the format's files (YAML, JSON, TOML, a script); the first one is the usual one."""
    recognise: Recognise
    """The key that proves a config to be of this kind; empty when nothing does. No key, no config."""
    read: Callable[[ConfigFile, int | None], ReadConfig]
    """The config in the plan's words; the number is that of the GPUs, where it is known."""
    write: Callable[[Export], Written] | None = None
    """None: the format is only read."""
    frameworks: tuple[str, ...] = ()
    """The plan's frameworks that run from it as they are."""
    lists: frozenset[str] = frozenset()
    """Arguments of a command line that take several words."""
    trains: Callable[[str], str] | None = None
    """A script without the commands that train nothing; None: it has one command."""

    def load(self, path: str, text: str, defines: Mapping[str, str] = NO_DEFINES) -> ConfigFile:
        """The flat keys of a config with their places; ``defines``: variables that a script leaves to its caller.

        Raises:
            ConfigError: the text is not of the syntax of such configs.
        """
        syntax = syntax_of(path, text)
        usable = syntax if syntax in self.syntaxes else self.syntaxes[0]
        if usable == ARGUMENTS:
            text = without_installers(text if self.trains is None else self.trains(text))
        return load_config(path, text, usable, self.lists, defines)


FORMATS = {
    each.name: each
    for each in (
        Format(
            name="axolotl",
            title="Axolotl YAML",
            syntaxes=(YAML, JSON, ARGUMENTS),
            recognise=evidence("axolotl", all_keys(*key_table("axolotl").evidence)),
            read=read_axolotl,
            trains=launch_lines.training_alone,
        ),
        Format(
            name="automodel",
            title="NeMo AutoModel YAML",
            syntaxes=(YAML, JSON, ARGUMENTS),
            recognise=automodel_launch.recognise,
            read=read_automodel,
        ),
        Format(
            name="llamafactory",
            title="LLaMA-Factory YAML",
            syntaxes=(YAML, JSON, ARGUMENTS),
            recognise=evidence("llamafactory", llamafactory_keys.recognise),
            read=read_llamafactory,
            lists=key_table("transformers").as_set("lists"),
            trains=launch_lines.training_alone,
        ),
        Format(
            name="megatron-swift",
            title="Megatron-SWIFT arguments",
            syntaxes=(ARGUMENTS, YAML, JSON),
            recognise=megatron_swift_keys.recognise,
            read=read_megatron_swift,
            lists=megatron_swift_keys.LISTS,
            trains=training_alone,
        ),
        Format(
            name="ms-swift",
            title="ms-swift arguments",
            syntaxes=(ARGUMENTS, YAML, JSON),
            recognise=swift_keys.recognise,
            read=read_swift,
            lists=swift_keys.LISTS,
            trains=training_alone,
        ),
        Format(
            name="trl",
            title="TRL YAML",
            syntaxes=(YAML, JSON, ARGUMENTS),
            recognise=trl_keys.recognise,
            read=read_trl,
            lists=key_table("transformers").as_set("lists"),
            trains=launch_lines.training_alone,
        ),
        Format(
            name="transformers",
            title="TrainingArguments",
            syntaxes=(YAML, JSON, ARGUMENTS),
            recognise=trl_keys.recognise_arguments,
            read=read_transformers,
            lists=key_table("transformers").as_set("lists"),
            trains=launch_lines.training_alone,
        ),
        Format(
            name="torchtune",
            title="torchtune YAML",
            syntaxes=(YAML, ARGUMENTS),
            recognise=torchtune_keys.recognise,
            read=read_torchtune,
        ),
        Format(
            name="litgpt",
            title="LitGPT YAML",
            syntaxes=(YAML, ARGUMENTS),
            recognise=litgpt_keys.recognise,
            read=read_litgpt,
            trains=litgpt_launch.training_alone,
        ),
        Format(
            name="nanotron",
            title="nanotron YAML",
            syntaxes=(YAML, ARGUMENTS),
            recognise=evidence("nanotron", nanotron_keys.recognise),
            read=read_nanotron,
        ),
        Format(
            name="deepspeed",
            title="DeepSpeed JSON",
            syntaxes=(JSON,),
            recognise=deepspeed_keys.recognise,
            read=read_deepspeed,
            write=write_deepspeed,
            frameworks=("deepspeed",),
        ),
        Format(
            name="accelerate",
            title="Accelerate YAML",
            syntaxes=(YAML, JSON),
            recognise=any_key("distributed_type"),
            read=read_accelerate,
            write=write_accelerate,
            frameworks=("huggingface", "deepspeed"),
        ),
        Format(
            name="torchtitan",
            title="torchtitan TOML",
            syntaxes=(TOML,),
            recognise=all_keys(key_table("torchtitan").evidence[0], ("model.flavor",)),
            read=read_torchtitan,
            write=write_torchtitan,
            frameworks=("torchtitan",),
        ),
        Format(
            name="megatron",
            title="Megatron-LM arguments",
            syntaxes=(ARGUMENTS,),
            recognise=megatron_keys.recognise,
            read=read_megatron,
            write=write_megatron,
            frameworks=("megatron",),
            lists=megatron_keys.LISTS,
        ),
    )
}
WRITTEN = {name: each for name, each in FORMATS.items() if each.write is not None}
"""The formats of ``export``."""
