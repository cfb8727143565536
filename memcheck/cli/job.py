"""A job without a file: a model's name and a few options, or the command that launches it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from memcheck.catalog.names import ConfigFileError, UnknownNameError, find_gpu, find_model, read_config
from memcheck.cli.options import USUAL_GPUS_PER_NODE, CheckOptions, launch_file
from memcheck.config.find import STDIN, PlanFile
from memcheck.configs.detect import describes_model
from memcheck.configs.plan_text import plan_text
from memcheck.configs.types import ReadSetting
from memcheck.errors import MemcheckError, UsageError
from memcheck.families.registry import read_architecture
from memcheck.record import Record

_Command = TypeVar("_Command", bound=Callable[..., Any])

USUAL_SEQUENCE = 4096
METHODS = ("full", "lora", "qlora")
SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".sh", ".bash", ".txt")
_OPTIONS = (
    click.option("--method", type=click.Choice(METHODS), help="How the model is trained [default: full]."),
    click.option("--zero-stage", type=click.IntRange(0, 3), help="How the states are sharded: 0 not at all, 3 fully."),
)
_KEYS = {"method": "training.method", "zero_stage": "parallelism.zero_stage"}
"""Options for a model's name alone, and the key that a plan has for each."""


class Told(Record):
    """A job that no file holds."""

    file: PlanFile
    plan: str = ""
    """The plan that was assumed; empty for a command line."""


class NamedModel(Record):
    """A model that an argument names, and where a plan of it would lie."""

    key: str
    """The plan's key: ``model`` or ``model.config``."""
    value: str
    plan: str
    positions: int

    @property
    def is_file(self) -> bool:
        """Whether a file describes it."""
        return self.key != "model"


def JOB(command: _Command) -> _Command:  # noqa: N802  # a decorator like CONFIG and COLOR
    """The options that say what a plan would."""
    decorated: Any = command
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def job_of(
    paths: tuple[str, ...],
    said: CheckOptions,
    method: str | None,
    zero_stage: int | None,
    launch: tuple[str, ...] = (),
) -> Told | None:
    """The job that the arguments tell; None where they name plans, or configs of jobs.

    Raises:
        UsageError: an unknown model, a model without a GPU, or options for a model together with files.
    """
    if launch and launch != paths:
        raise UsageError(f"{paths[0]} and a command after --", "name one of them")
    if launch or any(each.startswith("-") and each != "-" for each in paths):
        return Told(launch_file(paths))
    for_a_name = {"method": method, "zero_stage": zero_stage}
    job = {**said._asdict(), **for_a_name}
    stated = [key for key, value in for_a_name.items() if value is not None]
    named = _named(paths[0]) if len(paths) == 1 and paths[0] != STDIN else None
    if named is not None:
        gpus = said.gpus or (said.gpus_per_node or 1) * (said.nodes or 1)
        if said.gpu is None:
            what = f"{paths[0]} is a model's config" if named.is_file else f"{paths[0]} is no file"
            raise UsageError(f"{what}: a model needs a GPU", f"memcheck estimate {paths[0]} --gpu h100-80gb --gpus 8")
        text = plan_text(assumed(named, said.gpu, gpus, said.gpus_per_node, job))
        return Told(PlanFile(named.plan, text.encode()), text)
    if stated:
        flag = "--" + stated[0].replace("_", "-")
        help = f"of a plan or a config, state it so: --set {_KEYS[stated[0]]}={for_a_name[stated[0]]}"
        raise UsageError(f"{flag} is for a model's name", help)
    return None


def _named(path: str) -> NamedModel | None:
    """The model that an argument names: one of the catalog, or the ``config.json`` of one; None for other files.

    Raises:
        UsageError: no model has this name.
    """
    if os.path.exists(path):
        return _model_file(path)
    return None if path.lower().endswith(SUFFIXES) else catalog_model(path)


def catalog_model(name: str) -> NamedModel:
    """A model of the catalog.

    Raises:
        UsageError: it has none of this name.
    """
    try:
        found = find_model(name)
    except UnknownNameError as error:
        raise UsageError(error.message, error.help) from error
    return NamedModel(key="model", value=found.name, plan=f"{found.name}.yaml", positions=_positions(found.config))


def _model_file(path: str) -> NamedModel | None:
    """A Hugging Face ``config.json``, whose plan is written into the same folder; None for any other file."""
    if not path.lower().endswith(".json") or not os.path.isfile(path):
        return None
    folder, name = os.path.split(path)
    try:
        config = read_config(name, folder)
    except ConfigFileError:
        return None  # the reader of plans and jobs says where
    if not describes_model(config):
        return None
    plan = os.path.join(folder, f"{os.path.splitext(name)[0]}.yaml")
    return NamedModel(key="model.config", value=name, plan=plan, positions=_positions(config))


def _positions(config: Mapping[str, Any]) -> int:
    """The longest sequence of a model; 0: unbounded, or a model that its plan is refused for."""
    try:
        return read_architecture(config).max_position_embeddings
    except MemcheckError:
        return 0


def assumed(
    model: NamedModel, gpu: str, gpus: int, per_node: int | None, job: Mapping[str, object]
) -> dict[str, ReadSetting]:
    """The settings of a plan for ``model`` on ``gpus`` GPUs: the stated ones, and usual values for the others.

    Raises:
        UsageError: an unknown GPU, or a number of GPUs that does not fill whole nodes.
    """
    try:
        known_gpu = find_gpu(gpu)
    except UnknownNameError as error:
        raise UsageError(error.message, error.help) from error
    each = per_node or min(gpus, known_gpu.gpus_per_node or USUAL_GPUS_PER_NODE)
    if gpus % each:
        raise UsageError(f"{gpus} GPUs do not fill nodes of {each}", f"use a multiple of {each}")
    method = job.get("method") or "full"

    def take(key: str, usual: object, reason: str) -> ReadSetting:
        value = job.get(key)
        return ReadSetting(usual, reason) if value is None else ReadSetting(value, "--" + key.replace("_", "-"))

    if gpus == 1:
        world, usual_stage, why = "one GPU", 0, "assumed: one GPU has nothing to share"
    elif method == "full":
        world, usual_stage, why = f"{gpus} GPUs", 3, "assumed: FSDP, as all is trained"
    else:
        world, usual_stage, why = f"{gpus} GPUs", 0, "assumed: DDP, as adapters are trained"
    settings = {
        model.key: ReadSetting(model.value, "the command line"),
        "hardware.gpu": ReadSetting(known_gpu.name, "--gpu"),
        "hardware.gpus_per_node": ReadSetting(each, world),
        "hardware.nodes": ReadSetting(gpus // each, world),
        "parallelism.zero_stage": take("zero_stage", usual_stage, why),
        "training.framework": take("framework", "huggingface", "assumed"),
        "training.method": ReadSetting(method, "--method" if job.get("method") else "assumed"),
        "training.micro_batch_size": take("micro_batch_size", 1, "assumed"),
        "training.sequence_length": take(
            "sequence_length", min(USUAL_SEQUENCE, model.positions or USUAL_SEQUENCE), "assumed"
        ),
        "training.gradient_accumulation_steps": ReadSetting(1, "assumed"),
        "training.precision": ReadSetting("bf16-mixed", "assumed"),
        "training.optimizer": ReadSetting("adamw", "assumed"),
        "training.activation_checkpointing": ReadSetting("full", "assumed"),
    }
    if job.get("framework_version") is not None:
        settings["training.framework_version"] = ReadSetting(job["framework_version"], "--framework-version")
    if job.get("host_memory") is not None:
        settings["hardware.host_memory_gib"] = ReadSetting(job["host_memory"], "--host-memory")
    if job.get("images") is not None:
        settings["training.images"] = ReadSetting(job["images"], "--images")
    if method != "full":
        settings["training.lora.rank"] = ReadSetting(16, "assumed")
        settings["training.lora.target_modules"] = ReadSetting("all-linear", "assumed")
    return settings
