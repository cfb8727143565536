"""Every format of configs that memcheck reads, and those that it writes, too: one row each.

The reader of a row is ``READER`` in ``read_NAME.py``, and the writer is ``write`` in ``write_NAME.py``. Both are loaded
when they are asked for. CONTRIBUTING.md has the whole list of what belongs to a format.
"""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.catalog.names import UnknownNameError, find_model
from memcheck.configs.config_file import ConfigFile
from memcheck.configs.config_writer import Export
from memcheck.configs.draft import Reader
from memcheck.configs.launch_lines import without_installers
from memcheck.configs.syntax import ARGUMENTS, JSON, PYTHON, TOML, YAML, load_config, syntax_of
from memcheck.configs.types import NO_DEFINES, Notice, ReadConfig, Written
from memcheck.edge.imports import import_module
from memcheck.job.resolve import Resolved
from memcheck.job.types import TrainingJob
from memcheck.plan.types import Plan
from memcheck.record import Record


class Format(Record):
    """One kind of config."""

    name: str
    title: str
    syntaxes: tuple[str, ...]
    """Syntaxes of the format's files: YAML, JSON, TOML or a script. The first one is the usual one."""
    stated: bool = False
    """Whether a file is read so only where the user says it: its keys prove nothing."""
    frameworks: tuple[str, ...] = ()
    """The plan's frameworks that run from a config as memcheck writes it; empty for a format that is only read."""

    @property
    def reader(self) -> Reader:
        """How configs of this format are recognised and read."""
        found: Reader = import_module(f"memcheck.configs.read_{self.name.replace('-', '_')}").READER
        return found

    def recognise(self, config: ConfigFile) -> str:
        """The key that proves a config to be of this format; empty where none does."""
        return self.reader.recognise(config)

    def read(self, config: ConfigFile, world: int | None) -> ReadConfig:
        """The config in the plan's words. ``world``: the number of GPUs, where it is known."""
        return self.reader.read(config, world)

    def load(self, path: str, text: str, defines: Mapping[str, str] = NO_DEFINES) -> ConfigFile:
        """The flat keys of a config with their places. ``defines``: variables that a script leaves to its caller.

        Raises:
            ConfigError: the text is not of the syntax of such configs.
        """
        syntax, reader = syntax_of(path, text), self.reader
        usable = syntax if syntax in self.syntaxes else self.syntaxes[0]
        if usable == ARGUMENTS:
            text = without_installers(text if reader.trains is None else reader.trains(text))
        return load_config(path, text, usable, reader.lists, defines, reader.short)

    def write(self, export: Export) -> Written:
        """The config that says what a plan says. Only formats with ``frameworks`` have a writer."""
        written: Written = import_module(f"memcheck.configs.write_{self.name.replace('-', '_')}").write(export)
        return written


FORMATS = {
    each.name: each
    for each in (
        Format("python", "Python files and notebooks", (PYTHON, ARGUMENTS)),
        Format("axolotl", "Axolotl YAML", (YAML, JSON, ARGUMENTS)),
        Format("automodel", "NeMo AutoModel YAML", (YAML, JSON, ARGUMENTS)),
        Format("llamafactory", "LLaMA-Factory YAML", (YAML, JSON, ARGUMENTS)),
        Format("megatron-swift", "Megatron-SWIFT arguments", (ARGUMENTS, YAML, JSON)),
        Format("ms-swift", "ms-swift arguments", (ARGUMENTS, YAML, JSON)),
        Format("trl", "TRL YAML", (YAML, JSON, ARGUMENTS)),
        Format("transformers", "TrainingArguments", (YAML, JSON, ARGUMENTS)),
        Format("torchtune", "torchtune YAML", (YAML, ARGUMENTS)),
        Format("litgpt", "LitGPT YAML", (YAML, ARGUMENTS)),
        Format("nanotron", "nanotron YAML", (YAML, ARGUMENTS)),
        Format("deepspeed", "DeepSpeed JSON", (JSON,), frameworks=("deepspeed",)),
        Format("accelerate", "Accelerate YAML", (YAML, JSON), frameworks=("huggingface", "deepspeed")),
        Format("torchtitan", "torchtitan TOML", (TOML,), frameworks=("torchtitan",)),
        Format("megatron", "Megatron-LM arguments", (ARGUMENTS,), frameworks=("megatron",)),
        Format("vllm", "vLLM arguments", (ARGUMENTS,)),
        Format("keys", "files of your own with the usual names", (YAML, JSON, TOML), stated=True),
    )
}
"""By name, in the order in which a config is offered to them: the first format that finds its evidence reads it."""
WRITTEN = {name: each for name, each in FORMATS.items() if each.frameworks}
"""The formats of ``export``."""


def export_plan(plan: Plan, resolved: Resolved, format: str, path: str) -> Written:
    """The config of one format.

    Raises:
        TypeError: a plan for inference, which no framework here trains, or a format that is only read.
    """
    job = resolved.job
    if not isinstance(job, TrainingJob) or format not in WRITTEN:
        raise TypeError
    kind = FORMATS[format]
    return kind.write(Export(job=job, plan=path, model=_catalogued(plan), notices=_foreign(job, kind)))


def _foreign(job: TrainingJob, kind: Format) -> tuple[Notice, ...]:
    """A notice for a plan of another framework than the one that runs the written config."""
    if job.framework.name in kind.frameworks:
        return ()
    title = job.framework.title
    message = f"the plan is estimated for {title}; run from {kind.title} it takes another amount of memory"
    help = f"check it with training.framework: {kind.frameworks[0]}"
    return (Notice("lost", "training.framework", f"{message}: {help}"),)


def _catalogued(plan: Plan) -> str:
    """The catalog's own name of the plan's model; empty for anything that differs from the catalog."""
    if plan.model.name is None or plan.model.overrides:
        return ""
    try:
        return find_model(plan.model.name).name
    except UnknownNameError:
        return ""
