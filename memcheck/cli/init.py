"""``memcheck init``: a first plan, with comments, and the schema that editors complete it from."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import click

from memcheck.cli.job import METHODS, assumed, catalog_model
from memcheck.cli.parameters import gpus, models, one_of
from memcheck.cli.write import screen_of, write_stdout
from memcheck.edge.opener import refuse_way_out
from memcheck.errors import UsageError
from memcheck.judge import Gate, check_file
from memcheck.plan.schema import schema_path
from memcheck.report.full import alone
from memcheck.what_if import with_remedies

SCHEMA = "plan.schema.json"

PLAN = """\
# yaml-language-server: $schema={schema}
memcheck: 1
name: {name}

model: {model}                  # `memcheck list models`, or {{config: FILE}}

hardware:
  gpu: {gpu}                    # `memcheck list gpus`
  gpus_per_node: {gpus_per_node}
  nodes: {nodes}

parallelism:
  zero_stage: {zero_stage}                 # 0 replicated (DDP), 3 fully sharded (FSDP)
  # tensor: 1                   # 1 unless stated; data takes the GPUs left over
  # pipeline: 1

training:
  framework: huggingface        # whose code: `memcheck list frameworks`
{adapters}  micro_batch_size: {micro_batch_size}           # sequences per GPU per forward pass
  sequence_length: {sequence_length}
  gradient_accumulation_steps: 1
  precision: bf16-mixed
  optimizer: adamw
  activation_checkpointing: full
"""
ADAPTERS = """\
  method: {method}
  lora: {{rank: 16, target_modules: all-linear}}
"""


@click.command("init")
@click.argument("path", default="plan.yaml", type=click.Path())
@click.option(
    "--model",
    default="llama-3.1-8b",
    show_default=True,
    shell_complete=one_of(models),
    help="A model of the catalog.",
)
@click.option(
    "--gpu", default="h100-80gb", show_default=True, shell_complete=one_of(gpus), help="A GPU of the catalog."
)
@click.option("--gpus", default=8, show_default=True, type=click.IntRange(1), help="How many of them.")
@click.option("--gpus-per-node", type=click.IntRange(1), help="How many of them a node has.")
@click.option("--method", type=click.Choice(METHODS), help="How it is trained [default: full].")
@click.option("--sequence-length", type=click.IntRange(1), help="Tokens per sequence.")
@click.option("--micro-batch-size", type=click.IntRange(1), help="Sequences per GPU per forward pass.")
@click.option("--zero-stage", type=click.IntRange(0, 3), help="How its state is sharded: 0 not at all, 3 fully.")
def command(path: str, model: str, gpu: str, gpus: int, **job: object) -> int:
    """Write a first plan to PATH (default: plan.yaml), ready to edit, and show what memcheck says of it."""
    if os.path.lexists(path):
        raise UsageError(f"{path} exists", "name another file: init never overwrites one")
    text = plan_text(os.path.splitext(os.path.basename(path))[0], model, gpu, gpus, job)
    write_new(path, text)
    schema = os.path.join(os.path.dirname(path), SCHEMA)
    if not os.path.lexists(schema):
        with open(schema_path(), encoding="utf-8") as file:
            write_new(schema, file.read())
    write_stdout(f"wrote {path}, and {SCHEMA} for your editor\n\n{verdict(path, text)}\n")
    return 0


def plan_text(name: str, model: str, gpu: str, gpus: int, job: Mapping[str, object]) -> str:
    """The plan's text.

    Raises:
        UsageError: an unknown model or GPU, or a number of GPUs that does not fill whole nodes.
    """
    per_node = job.get("gpus_per_node")
    found = assumed(catalog_model(model), gpu, gpus, per_node if isinstance(per_node, int) else None, job)
    values = {key: setting.value for key, setting in found.items()}
    method = values["training.method"]
    adapters = "" if method == "full" else ADAPTERS.format(method=method)
    text = PLAN.format(
        schema=SCHEMA,
        name=name,
        model=values["model"],
        gpu=values["hardware.gpu"],
        gpus_per_node=values["hardware.gpus_per_node"],
        nodes=values["hardware.nodes"],
        zero_stage=values["parallelism.zero_stage"],
        adapters=adapters,
        micro_batch_size=values["training.micro_batch_size"],
        sequence_length=values["training.sequence_length"],
    )
    return "".join(aligned(line) for line in text.splitlines(keepends=True))


def aligned(line: str) -> str:
    """The line with its comment moved to a common column, for values of any length."""
    value, marker, comment = line.partition("  #")
    if not marker or not value.strip():
        return line
    return f"{value.rstrip().ljust(31)} #{comment}"


def write_new(path: str, text: str) -> None:
    """Write a file that must not exist yet; what cannot be written to its end is taken away again."""
    try:
        refuse_way_out(path)
        with open(path, "x", encoding="utf-8", newline="\n") as file:
            try:
                file.write(text)
                file.flush()
            except OSError:
                os.unlink(path)
                raise
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror or error}") from error


def verdict(path: str, text: str) -> str:
    """What ``check`` says of the new plan."""
    results, _ = check_file(path.replace(os.sep, "/"), text.encode(), Gate(remedies=with_remedies))
    return "\n\n".join(alone(result, screen_of(sys.stdout)) for result in results)
