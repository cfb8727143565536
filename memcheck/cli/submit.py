"""``memcheck submit``: check what a job launches, and hand it to its platform only if nothing is found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import click

from memcheck.cli.check_options import ANSWERS, HARDWARE_ANSWERS, HARDWARE_HEADING, JOB_ANSWERS, JOB_HEADING
from memcheck.cli.gate import check_paths
from memcheck.cli.judging import CLEAN, FINDINGS, Gates, configurations_of
from memcheck.cli.options import CheckOptions
from memcheck.cli.parameters import AFTER_DASHES, CONFIG, LaunchCommand, options
from memcheck.cli.submitted import Submission, submission_of
from memcheck.cli.tell import complain, tell, write_bug_report
from memcheck.config.discover import Candidate
from memcheck.configs.launch_devices import catalog_gpu
from memcheck.edge.screen import Screen
from memcheck.errors import DEFECT, UsageError
from memcheck.report.full import render

SECTIONS = {
    HARDWARE_HEADING: tuple(option.key for option in HARDWARE_ANSWERS),
    JOB_HEADING: tuple(option.key for option in JOB_ANSWERS),
    "Submission": ("check_only", "unread", "config"),
}
REFUSE, SUBMIT = "refuse", "submit"
SINFO_S = 5
"""Seconds that Slurm may take to say which GPUs a partition has."""


@click.command("submit", cls=LaunchCommand, sections=SECTIONS)
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND...")
@click.option("--check-only", is_flag=True, help="Check and submit nothing.")
@click.option(
    "--unread",
    type=click.Choice((REFUSE, SUBMIT)),
    default=REFUSE,
    show_default=True,
    help="What becomes of a job that memcheck cannot estimate.",
)
@options(ANSWERS)
@CONFIG
def command(words: tuple[str, ...], check_only: bool, unread: str, config: str | None, **answers: object) -> int:
    """Check the job that COMMAND submits, such as `sbatch job.sh`, and then run COMMAND.

    The script or manifest is checked on the GPUs that the command line, the file, or the partition says. If there is
    a finding, nothing is submitted, and the exit code is 1. Otherwise the exit code is that of COMMAND. The report is
    written to stderr.
    """
    line = tuple(click.get_current_context().meta.get(AFTER_DASHES, words))
    if not line:
        raise UsageError("no command after --", "memcheck submit -- sbatch job.sh")
    code = checked(submission_of(line), CheckOptions(config=config, **answers), unread)  # type: ignore[arg-type]
    if code != CLEAN:
        tell("memcheck: nothing was submitted\n")
        return code
    if check_only:
        return code
    sys.stderr.flush()
    try:
        os.execvp(line[0], line)  # noqa: S606  # the user's own command, as it was given
    except OSError as error:
        raise UsageError(f"cannot run {line[0]}: {error.strerror or error}") from error


def checked(job: Submission, said: CheckOptions, unread: str) -> int:
    """Check a job, write the report to stderr, and return the exit code of ``check``."""
    stated = {key: value for key, value in job.hardware.items() if getattr(said, key) is None}
    gpu = stated.pop("gpu", None)
    if said.gpu is None:
        named = exact(str(gpu)) if gpu else "" if job.typed else partition_gpu(job.partition)
        stated.update({"gpu": named} if named else {})
    given = CheckOptions(**{**said._asdict(), **stated, "defines": (*job.defines.items(), *said.defines)})
    configurations = configurations_of(given)
    gates = Gates(given, configurations)
    found = check_paths(given, configurations, gates, None, iter((Candidate(job.file, must_be_marked=False),)))
    report = found.report
    if report.defects:
        write_bug_report(["submit"], report.defects)
        return DEFECT
    tell(render(report, Screen(width=100)))
    if unread == SUBMIT and any(plan.estimate is None for plan in report.plans):
        complain("the job was not estimated, and is submitted all the same: --unread submit")
        return CLEAN
    return FINDINGS if found.fails else CLEAN


def partition_gpu(partition: str) -> str:
    """The GPU of a partition of Slurm, as ``sinfo`` names it; empty where there is none, or it has several kinds.

    ``partition``: its name; empty: the default one, which has a ``*``.
    """
    program = shutil.which("sinfo")
    if program is None:
        return ""
    try:
        answer = subprocess.run(  # noqa: S603  # Slurm's own program, and no shell
            [program, "--noheader", "--format=%P|%G"], capture_output=True, check=False, timeout=SINFO_S, text=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    rows = [line.strip().partition("|") for line in answer.stdout.splitlines()[:1000]]
    wanted = [gres for name, _, gres in rows if (name in (f"{partition}*", partition) if partition else "*" in name)]
    kinds = {each.split(":")[1] for gres in wanted for each in gres.split(",") if each.count(":") > 1}
    named = {exact(kind) for kind in kinds}
    return named.pop() if len(named) == 1 else ""


def exact(kind: str) -> str:
    """The catalog's GPU of Slurm's name for it; empty for a name that stands for several: the check asks which."""
    found = catalog_gpu(kind)
    return found if isinstance(found, str) else ""
