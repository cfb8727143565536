"""``memcheck run``: run one's own script up to its trainer, and check what the trainer was given."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import click

from memcheck import guard
from memcheck.cli.check_options import ANSWERS, HARDWARE_ANSWERS, HARDWARE_HEADING, JOB_ANSWERS, JOB_HEADING
from memcheck.cli.judging import CLEAN, FINDINGS
from memcheck.cli.options import CheckOptions, stated_changes
from memcheck.cli.parameters import AFTER_DASHES, LaunchCommand, options
from memcheck.cli.write import complain, tell, write_document, write_stdout
from memcheck.configs.wrapper_command import counts
from memcheck.edge.opener import read_whole
from memcheck.edge.screen import Screen
from memcheck.errors import UsageError
from memcheck.guard.callback import check_plan, plan_of_job, write_plan
from memcheck.guard.live_job import LiveGpu, LiveJob, UnreadJobError
from memcheck.report.full import render
from memcheck.rules.result import Report

SECTIONS = {
    HARDWARE_HEADING: tuple(option.key for option in HARDWARE_ANSWERS),
    JOB_HEADING: tuple(option.key for option in JOB_ANSWERS),
    "Output": ("write",),
}
LARGEST_JOB = 16 * 2**20
"""Bytes of what the script's process writes about its job."""
PROGRAM = "script.py"
"""The file of ``memcheck.guard`` that runs in the script's own Python."""
LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
"""Programs in place of which one Python process is started."""


@click.command("run", cls=LaunchCommand, sections=SECTIONS)
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND...")
@click.option("--write", metavar="FILE", help="Write the plan there, and the model's configuration next to it.")
@options(ANSWERS)
def command(words: tuple[str, ...], write: str | None, **answers: object) -> int:
    """Run your own script up to its trainer, and check the job that it makes.

    This runs the code of the script, with your rights. Models are built without their weights, and data sets are
    empty. The script ends where it makes a trainer of transformers or TRL. The plan and the verdict are printed. The
    exit codes are those of check, and 2 if no trainer was reached. Use it on your machine, and not in CI.
    """
    line = tuple(click.get_current_context().meta.get(AFTER_DASHES, words))
    said = CheckOptions(**answers)  # type: ignore[arg-type]
    if said.gpu is None:
        raise UsageError("the GPU is not stated", "name it: memcheck run --gpu h100-80gb -- python train.py")
    python, script = of_line(line)
    tell(f"memcheck: runs {script[0] if script[0] != '-m' else script[1]} up to its trainer, with your rights\n")
    found = reached(python, script)
    if "why" in found:
        raise UsageError(
            f"no trainer was reached: {found['why']}", "`memcheck check` reads a script without running it"
        )
    if "unread" in found:
        complain(f"{found['trainer']} was reached, and memcheck has no plan of its job: {found['unread']}")
        return FINDINGS
    job = LiveJob(**{**found["job"], "notes": tuple(found["job"]["notes"]), "above": tuple(found["job"]["above"])})
    asked = {"max_length": said.sequence_length, "per_device_train_batch_size": said.micro_batch_size}
    job = job._replace(arguments={**job.arguments, **{key: each for key, each in asked.items() if each is not None}})
    machine = counts(line)
    hardware = {"hardware.gpus_per_node": machine.gpus_per_node or 1, "hardware.nodes": machine.nodes}
    settings = {**hardware, **{key: each for key, each in stated_changes(said).items() if key != "hardware.gpu"}}
    try:
        imported = plan_of_job(job, LiveGpu(name=said.gpu, total_bytes=0), settings)
        result = check_plan(imported, job, said.fail_above)
    except UnreadJobError as error:
        complain(f"{found['trainer']} was reached, and memcheck has no plan of its job: {in_options(str(error))}")
        return FINDINGS
    for note in (*(each.message for each in imported.notes), *job.notes, *job.above):
        tell(f"memcheck: note: {note}\n")
    write_document(imported.text)
    shown = next((each for each in script if each != "-m"), "")
    result = result._replace(path=shown, name=os.path.splitext(os.path.basename(shown))[0])
    write_stdout("\n" + render(Report(version="", plans=(result,)), Screen(width=100)))
    if write is not None:
        write_plan(write, imported, job)
    return CLEAN if result.status == "passed" else FINDINGS


def in_options(help: str) -> str:
    """A remedy in the keywords of ``before_training`` as options of the command line."""
    help = re.sub(r'settings=\{"([\w.]+)": "([^"]*)"\}', r"--set \1=\2", help)
    return help.replace("sequence_length=", "--sequence-length ").replace("micro_batch_size=", "--micro-batch-size ")


def of_line(words: Sequence[str]) -> tuple[str, list[str]]:
    """The Python that runs the script, and the script or ``-m MODULE`` with its arguments.

    A launcher gives its place to one process: only the trainer's arguments are wanted.

    Raises:
        UsageError: no script is in the command.
    """
    program = os.path.basename(words[0])
    python = words[0] if program.startswith("python") else shutil.which("python") or sys.executable
    if not program.startswith(("python", *LAUNCHERS)):
        raise UsageError(f"{program} starts no Python script", "memcheck run --gpu NAME -- python train.py")
    for number, word in enumerate(words[1:], 1):
        if word.endswith(".py"):
            return python, list(words[number:])
        if word in ("-m", "--module") and number + 1 < len(words):
            return python, ["-m", *words[number + 1 :]]
    raise UsageError("the command names no script", "memcheck run --gpu NAME -- python train.py")


def reached(python: str, script: list[str]) -> dict[str, Any]:
    """What the trainer was given, or why none was reached. What the script prints goes to stderr.

    Raises:
        UsageError: there is no such Python.
    """
    program = os.path.join(os.path.dirname(str(guard.__file__)), PROGRAM)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_DISABLE_TELEMETRY": "1", "WANDB_MODE": "disabled"}
    with tempfile.TemporaryDirectory(prefix="memcheck-") as folder:
        out = os.path.join(folder, "job.json")
        try:
            ended = subprocess.run(  # noqa: S603  # the user's own script, as the command asks for
                [python, program, out, *script], check=False, stdout=sys.stderr.fileno(), env=environment
            )
        except OSError as error:
            raise UsageError(f"cannot run {python}: {error.strerror or error}") from error
        try:
            found: dict[str, Any] = json.loads(read_whole(out, LARGEST_JOB))
        except (OSError, ValueError):
            return {"why": f"Python ended with exit code {ended.returncode}"}
    return found
