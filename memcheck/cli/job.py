"""A job without a file: a model's name and a few options, or the command that launches it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from memcheck.catalog.gpus import find_gpu
from memcheck.catalog.models import find_model
from memcheck.catalog.names import UnknownNameError
from memcheck.cli import values
from memcheck.cli.parameters import typed
from memcheck.config.discover import STDIN, PlanFile
from memcheck.configs.plan_text import plan_text
from memcheck.configs.types import ReadSetting
from memcheck.errors import UsageError
from memcheck.models.registry import read_architecture
from memcheck.record import Record

_Command = TypeVar("_Command", bound=Callable[..., Any])

USUAL_GPUS_PER_NODE = 8
USUAL_SEQUENCE = 4096
METHODS = ("full", "lora", "qlora")
COMMAND = "<command>"
"""What messages call a command line that was given instead of a file."""
SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".sh", ".bash", ".txt")
_OPTIONS = (
    click.option("--gpus", type=click.IntRange(1), help="How many GPUs, for a model's name."),
    click.option("--method", type=click.Choice(METHODS), help="How a model that is named is trained [default: full]."),
    click.option(
        "--sequence-length",
        type=click.IntRange(1),
        help="Tokens per sequence, for a model's name or a config that does not say.",
    ),
    click.option(
        "--images",
        type=typed(values.images),
        metavar="MAPPING",
        help="The pictures of a sample: per_sample: 2, width: 1280, height: 720.",
    ),
    click.option("--micro-batch-size", type=click.IntRange(1), help="Sequences per GPU, for a model's name."),
    click.option("--zero-stage", type=click.IntRange(0, 3), help="How its state is sharded: 0 not at all, 3 fully."),
)
DATA = ("sequence_length", "images")
"""What is said of a config's data, too."""
KEYS = ("gpus", "method", "sequence_length", "micro_batch_size", "zero_stage", "images")


class Told(Record):
    """A job that no file holds."""

    file: PlanFile
    plan: str = ""
    """The plan that was assumed; empty for a command line."""


def JOB(command: _Command) -> _Command:  # noqa: N802  # a decorator beside CONFIG and COLOR
    """The options that say what a plan would."""
    decorated: Any = command
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def job_of(paths: tuple[str, ...], job: Mapping[str, object]) -> Told | None:
    """The job that the arguments tell; None where they name files.

    Raises:
        UsageError: a model that is unknown, or options for a model beside files.
    """
    if any(each.startswith("-") and each != "-" for each in paths):
        return Told(PlanFile(COMMAND, f"{shlex.join(paths)}\n".encode()))
    stated = [key for key in KEYS if job.get(key) is not None and key not in DATA]
    is_name = len(paths) == 1 and paths[0] != STDIN and not paths[0].lower().endswith(SUFFIXES)
    if is_name and not os.path.exists(paths[0]):
        gpu, count, per_node, nodes = (job.get(key) for key in ("gpu", "gpus", "gpus_per_node", "nodes"))
        each, times = per_node if isinstance(per_node, int) else None, nodes if isinstance(nodes, int) else 1
        gpus = count if isinstance(count, int) else (each or 1) * times
        if not isinstance(gpu, str):
            message = f"{paths[0]} is no file: a model needs a GPU"
            raise UsageError(message, f"memcheck estimate {paths[0]} --gpu h100-80gb --gpus 8")
        settings = assumed(paths[0], gpu, gpus, each, job)
        text = plan_text(settings)
        return Told(PlanFile(f"{settings['model'].value}.yaml", text.encode()), text)
    if stated:
        flag = "--" + stated[0].replace("_", "-")
        raise UsageError(f"{flag} is for a model's name", "change a plan with --set training.sequence_length=8192")
    return None


def assumed(model: str, gpu: str, gpus: int, per_node: int | None, job: Mapping[str, object]) -> dict[str, ReadSetting]:
    """The plan of a model on so many GPUs: what was stated, and the usual otherwise.

    Raises:
        UsageError: an unknown model or GPU, or a number of GPUs that does not fill whole nodes.
    """
    try:
        known_model, known_gpu = find_model(model), find_gpu(gpu)
    except UnknownNameError as error:
        raise UsageError(error.message, error.help) from error
    each = per_node or min(gpus, known_gpu.gpus_per_node or USUAL_GPUS_PER_NODE)
    if gpus % each:
        raise UsageError(f"{gpus} GPUs do not fill nodes of {each}", f"use a multiple of {each}")
    positions = read_architecture(known_model.config).max_position_embeddings  # 0: unbounded
    method = job.get("method") or "full"

    def take(key: str, usual: object, reason: str) -> ReadSetting:
        value = job.get(key)
        return ReadSetting(usual, reason) if value is None else ReadSetting(value, "--" + key.replace("_", "-"))

    if gpus == 1:
        world, usual_stage, why = "one GPU", 0, "assumed: one GPU has nothing to share"
    elif method == "full":
        world, usual_stage, why = f"{gpus} GPUs", 3, "assumed: FSDP where everything is trained"
    else:
        world, usual_stage, why = f"{gpus} GPUs", 0, "assumed: DDP where adapters alone are trained"
    settings = {
        "model": ReadSetting(known_model.name, "the command line"),
        "hardware.gpu": ReadSetting(known_gpu.name, "--gpu"),
        "hardware.gpus_per_node": ReadSetting(each, world),
        "hardware.nodes": ReadSetting(gpus // each, world),
        "parallelism.zero_stage": take("zero_stage", usual_stage, why),
        "training.framework": ReadSetting("huggingface", "assumed"),
        "training.method": ReadSetting(method, "--method" if job.get("method") else "assumed"),
        "training.micro_batch_size": take("micro_batch_size", 1, "assumed"),
        "training.sequence_length": take(
            "sequence_length", min(USUAL_SEQUENCE, positions or USUAL_SEQUENCE), "assumed"
        ),
        "training.gradient_accumulation_steps": ReadSetting(1, "assumed"),
        "training.precision": ReadSetting("bf16-mixed", "assumed"),
        "training.optimizer": ReadSetting("adamw", "assumed"),
        "training.activation_checkpointing": ReadSetting("full", "assumed"),
    }
    if job.get("images") is not None:
        settings["training.images"] = ReadSetting(job["images"], "--images")
    if method != "full":
        settings["training.lora.rank"] = ReadSetting(16, "assumed")
        settings["training.lora.target_modules"] = ReadSetting("all-linear", "assumed")
    return settings
