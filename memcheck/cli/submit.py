"""``memcheck submit``: check what a job launches, and hand it to its platform only if nothing is found.

What a submitting command hands to its platform: the file or the line that is checked, and what it runs on.

``sbatch`` is read as Slurm 22.05 to 25.05 take it (``src/common/slurm_opt.c``): its options come before those of the
script's ``#SBATCH`` lines, which are blanked where the command line says the same.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

import click

from memcheck.cli.check_options import ANSWERS, HARDWARE_ANSWERS, HARDWARE_HEADING, JOB_ANSWERS, JOB_HEADING
from memcheck.cli.gate import check_paths
from memcheck.cli.judging import CLEAN, FINDINGS, Gates, configurations_of
from memcheck.cli.options import CheckOptions, launch_file
from memcheck.cli.parameters import AFTER_DASHES, CONFIG, LaunchCommand, options
from memcheck.cli.write import complain, tell, write_bug_report
from memcheck.config.find import Candidate, PlanFile
from memcheck.configs.launch_devices import asked, catalog_gpu, hinted_gpu, per_node
from memcheck.configs.syntax import load_config, syntax_of
from memcheck.configs.types import COMMAND, ConfigError
from memcheck.edge.screen import Screen
from memcheck.errors import DEFECT, UsageError
from memcheck.plan.text import decode, read_bytes
from memcheck.record import Record
from memcheck.report.full import render

SHORT = {"N": "nodes", "n": "ntasks", "G": "gpus", "p": "partition", "C": "constraint"}
"""Short options of ``sbatch`` that say what a job runs on."""
SAYS = frozenset({*SHORT.values(), "gres", "gpus-per-node", "gpus-per-task", "ntasks-per-node", "wrap"})
ALONE = frozenset(
    """
    H hold Q quiet v verbose W wait O overcommit s oversubscribe h help usage version V I immediate k no-kill
    contiguous requeue no-requeue parsable test-only reboot spread-job use-min-nodes ignore-pbs exclusive get-user-env
    nice propagate
    """.split()  # noqa: SIM905  # a list of thirty quoted names is harder to read
)
"""Options of ``sbatch`` without a value, or whose value needs a ``=``."""
FILES = (".yaml", ".yml", ".py", ".ipynb", ".toml", ".json", ".sh", ".slurm", ".sbatch", ".cfg")
"""Suffixes of files that hold a job."""
LINES = frozenset({"srun", "ray", "python", "python3", "torchrun", "accelerate", "deepspeed", "uv", "tune"})
"""Programs whose own command line says the job."""
_GPUS = re.compile(r"(?:^|,|:)gpu(?::([A-Za-z][\w.-]*))?:(\d{1,4})(?=\(|,|$)|^([A-Za-z][\w.-]*)?:?(\d{1,4})$")


class Submission(Record):
    """A job that is about to be submitted."""

    file: PlanFile
    """The script, the manifest, or the command line itself."""
    hardware: Mapping[str, object]
    """What the command line says of GPUs and nodes, by the options of ``check``."""
    defines: Mapping[str, str] = {}
    """What Slurm sets for the script because of the command line."""
    partition: str = ""
    """The partition of Slurm; empty: the default one, or no Slurm."""
    typed: bool = True
    """Whether the command line or the script names a kind of GPU."""


def submission_of(words: Sequence[str]) -> Submission:
    """The job of a command.

    Raises:
        UsageError: the command names no job, or its file cannot be read.
    """
    program = os.path.basename(words[0])
    if program == "sbatch":
        return _of_sbatch(words[1:])
    if program not in LINES:
        named = next((each for each in words[1:] if each.lower().endswith(FILES) and os.path.isfile(each)), "")
        if named:
            return Submission(file=_read(named), hardware={})
    return Submission(file=launch_file(words), hardware={})


def _of_sbatch(words: Sequence[str]) -> Submission:
    """``sbatch [OPTIONS] SCRIPT [ARGUMENTS]``, or ``--wrap COMMAND``."""
    said, script = parsed(words)
    if "wrap" in said:
        file = PlanFile(COMMAND, f"{said['wrap']}\n".encode())
    elif script:
        file = _read(script)
    else:
        raise UsageError("sbatch has no script here", "name the script: what sbatch reads from stdin is not checked")
    text, finding = decode(file.path, file.data)
    if finding is not None:
        raise UsageError(f"{file.path}: {finding.message}", finding.help)
    data = _without(text, said).encode() if script else file.data
    gpu, per = _counts(said)
    hardware: dict[str, object] = {"gpus_per_node": per} if per else {}
    nodes = _first(said.get("nodes", ""))
    hardware.update({"nodes": nodes} if nodes else {})
    hardware.update({"gpu": gpu} if gpu else {})
    defines = dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), str(nodes)) if nodes else {}
    defines.update(dict.fromkeys(("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"), str(per)) if per else {})
    defines = {name: value for name, value in defines.items() if name in text}
    try:
        config = load_config(file.path, text, syntax_of(file.path, text))
        typed = bool(gpu or hinted_gpu(config)) or any(each.type for each in asked(config))
        counted = per_node(config)
    except ConfigError:
        typed, counted = bool(gpu), None
    if counted is not None and not per and nodes:
        hardware["gpus_per_node"] = counted[0]
    partition = said.get("partition", "") or next(iter(_PARTITION.findall(text[:20_000])), "")
    return Submission(
        file=PlanFile(file.path, data), hardware=hardware, defines=defines, partition=partition, typed=typed
    )


_PARTITION = re.compile(r"^#SBATCH\s+(?:--partition[=\s]+|-p\s*)([\w,.-]+)", re.MULTILINE)


def parsed(words: Sequence[str]) -> tuple[dict[str, str], str]:
    """The options of ``sbatch`` that bear on GPUs, and its script; empty where it has none."""
    said: dict[str, str] = {}
    number = 0
    while number < len(words):
        word = words[number]
        number += 1
        if word == "--":
            return said, "".join(words[number : number + 1])
        if not word.startswith("-") or word == "-":
            return said, word
        long = word.startswith("--")
        name, equals, value = word[2:].partition("=") if long else (word[1:2], "", word[2:])
        if not (equals or (not long and value)) and name not in ALONE:
            value = "".join(words[number : number + 1])
            number += 1
        name = SHORT.get(name, name) if not long else name
        if name in SAYS:
            said[name] = value.lstrip("=") if not long else value
    return said, ""


def _counts(said: Mapping[str, str]) -> tuple[str, int]:
    """The kind of GPU and the number per node; empty and 0 where the command line does not say it."""
    for name in ("gres", "gpus-per-node", "gpus", "gpus-per-task"):
        found = _GPUS.search(said.get(name, ""))
        if found is None:
            continue
        gpu, count = found[1] or found[3] or "", int(found[2] or found[4])
        nodes = _first(said.get("nodes", "")) or 1
        if name == "gpus":
            count = count // nodes if count % nodes == 0 else 0
        elif name == "gpus-per-task":
            tasks = _first(said.get("ntasks-per-node", "")) or max(1, (_first(said.get("ntasks", "")) or 1) // nodes)
            count *= tasks
        return gpu, count
    return "", 0


def _first(text: str) -> int:
    """The first number of ``2`` or ``2-4``."""
    found = re.match(r"\d{1,5}", text)
    return int(found[0]) if found is not None else 0


_COMMENTS = {
    "nodes": r"--nodes|-N",
    "gres": r"--gres|--gpus(?:-per-node|-per-task)?|-G",
    "partition": r"--partition|-p",
    "constraint": r"--constraint|-C",
    "ntasks": r"--ntasks|-n",
    "ntasks-per-node": r"--ntasks-per-node",
}


def _without(text: str, said: Mapping[str, str]) -> str:
    """The script without the ``#SBATCH`` lines whose options the command line states; every line keeps its number."""
    gpus = {"gres", "gpus", "gpus-per-node", "gpus-per-task"}
    names = {"gres" if name in gpus else name for name in said}
    patterns = [pattern for name, pattern in _COMMENTS.items() if name in names]
    if not patterns:
        return text
    stated = re.compile(rf"^#SBATCH\s+(?:{'|'.join(patterns)})(?=[=\s\d]).*$", re.MULTILINE)
    return stated.sub("#", text)


def _read(path: str) -> PlanFile:
    try:
        return PlanFile(os.path.normpath(path).replace(os.sep, "/"), read_bytes(path))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error


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
