"""The options of one ``check`` run, which both readers of the command line fill in, and what they say of a job."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from memcheck.config.find import STDIN, PlanFile
from memcheck.configs.types import COMMAND
from memcheck.errors import UsageError
from memcheck.record import Record

HARDWARE = ("gpu", "gpus_per_node", "nodes", "host_memory")
"""What a job runs on: of a plan, too, where it takes the place of the plan's own."""
DATA = ("model", "micro_batch_size", "sequence_length", "images", "framework", "framework_version")
"""What a command line may say of a config that leaves it out."""
STATED = (*HARDWARE, *DATA, "gpus", "format", "defines", "settings")
"""All that a command line may say of a job."""


class Output(Record):
    """One ``--format``: a format's name and the file it goes to (None: stdout)."""

    format: str
    file: str | None = None


class Share(Record):
    """One of several shares of the plan files."""

    number: int
    """The number of this share, from 1."""
    shares: int
    """How many shares there are."""

    def __str__(self) -> str:
        return f"{self.number}/{self.shares}"

    def takes(self, path: str) -> bool:
        """Whether a file, by its shown path, belongs to this share.

        The path alone decides: a file that comes or goes moves no other file to another machine.
        """
        import hashlib

        digest = hashlib.sha256(os.fsencode(path)).digest()
        return int.from_bytes(digest[:8], "big") % self.shares == self.number - 1


class CheckOptions(Record):
    """The options of ``check``; None means that the configuration decides."""

    paths: tuple[str, ...] = ()
    launch: tuple[str, ...] = ()
    """The words of a command that launches a job, given in place of paths."""
    outputs: tuple[Output, ...] = (Output("full"),)
    fail_on: str | None = None
    fail_above: float | None = None
    warn_above: float | None = None
    uncertain: str | None = None
    unpacked: str | None = None
    profile: str | None = None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    extend_select: tuple[str, ...] = ()
    gpu: str | None = None
    gpus_per_node: int | None = None
    gpus: int | None = None
    """All GPUs, of all nodes."""
    nodes: int | None = None
    host_memory: float | None = None
    """GiB of a node."""
    model: str | None = None
    micro_batch_size: int | None = None
    sequence_length: int | None = None
    images: dict[str, int] | None = None
    framework: str | None = None
    framework_version: str | None = None
    format: str | None = None
    """The format of configs that do not prove it."""
    defines: tuple[tuple[str, str], ...] = ()
    settings: tuple[tuple[str, object], ...] = ()
    config: str | None = None
    config_from_ref: str | None = None
    """Read configurations and baselines from this git ref instead of the working tree."""
    baseline: str | None = None
    """The baseline file; None for the configured one, empty for no baseline."""
    fix: bool = False
    unsafe_fixes: bool = False
    diff: bool = False
    no_suppressions: bool = False
    skip_unmarked: bool = False
    brief: bool = False
    """Whether the format is ``brief`` unless one was asked for."""
    allow_empty: bool = False
    exit_zero: bool = False
    quiet: bool = False
    verbose: bool = False
    """Whether a finding comes with the budget, the largest tensors, the assumptions and every remedy."""
    statistics: bool = False
    color: str = "auto"
    stdin_filename: str | None = None
    from_ref: str | None = None
    """Judge only plans that changed against this git ref."""
    no_cache: bool = False
    """Whether no verdict is kept, or taken from an earlier run."""
    jobs: int | None = 1
    """Processes that judge, where there are plans enough; None: one for each core."""
    shard: Share | None = None
    """Judge only this share of the plan files."""
    show_settings: str | None = None
    """The file whose settings to print instead of checking anything."""
    arguments: tuple[str, ...] = ()
    """The command line as typed, for the report of a defect."""


USUAL_GPUS_PER_NODE = 8
HOST_MEMORY = "host_memory"


def stated_hardware(options: CheckOptions) -> dict[str, object]:
    """The hardware by option, with ``--gpus`` as nodes and GPUs of each.

    Raises:
        UsageError: the GPUs do not fill whole nodes.
    """
    values = {name: getattr(options, name) for name in HARDWARE}
    if options.gpus is not None:
        values.update(spread(options.gpus, options.gpu, options.gpus_per_node, options.nodes))
    return {key: value for key, value in values.items() if value is not None}


def spread(gpus: int, gpu: str | None, per_node: int | None, nodes: int | None) -> dict[str, int]:
    """GPUs of each node, and nodes, for a number of all GPUs: as few nodes as hold them, unless the line says more.

    Raises:
        UsageError: they do not fill whole nodes.
    """
    if per_node is None and nodes is not None:
        if gpus % nodes:
            raise UsageError(f"{gpus} GPUs do not divide over {nodes} nodes", f"use a multiple of {nodes}")
        per_node = gpus // nodes
    if per_node is None:
        per_node = min(gpus, _usual(gpu))
    if gpus % per_node or (nodes is not None and per_node * nodes != gpus):
        raise UsageError(f"{gpus} GPUs do not fill nodes of {per_node}", f"use a multiple of {per_node}")
    return {"gpus_per_node": per_node, "nodes": gpus // per_node}


def _usual(gpu: str | None) -> int:
    """GPUs of a node of this kind."""
    if gpu is None:
        return USUAL_GPUS_PER_NODE
    from memcheck.catalog.names import find_gpu  # reads YAML, which a verdict that was kept does without

    return find_gpu(gpu).gpus_per_node or USUAL_GPUS_PER_NODE


def stated_changes(options: CheckOptions) -> dict[str, object]:
    """Dotted keys of a plan, and what is judged in their place."""
    names = {HOST_MEMORY: "host_memory_gib"}
    found = {f"hardware.{names.get(key, key)}": value for key, value in stated_hardware(options).items()}
    model = {} if options.model is None else {"model": options.model}
    return {**found, **model, **dict(options.settings)}


def stated_answers(options: CheckOptions) -> dict[str, object]:
    """What a plan takes besides in the place of its own values, by option."""
    found = {name: getattr(options, name) for name in DATA if name != "model" and getattr(options, name) is not None}
    if options.defines:
        found["defines"] = dict(options.defines)
    return found


def stated_beside(options: CheckOptions) -> dict[str, object]:
    """Values that the command line states in addition to a framework's config, by the names that its reader takes."""
    job: Mapping[str, object] = {name: getattr(options, name) for name in (*DATA, "format")}
    found = {**stated_hardware(options), **{key: value for key, value in job.items() if value is not None}}
    if options.defines:
        found["defines"] = dict(options.defines)
    if options.settings:
        found["settings"] = dict(options.settings)
    return found


def repeated(options: CheckOptions) -> tuple[str, ...]:
    """The words of a command line that say what a job is: for a command that shows more of the same run."""
    words: list[str] = []
    for name in STATED:
        value = getattr(options, name)
        flag = "--from" if name == "format" else f"--{name.rstrip('s') if name in REPEATED else name}".replace("_", "-")
        if name == "defines":
            words += [word for key, text in options.defines for word in (flag, f"{key}={text}")]
        elif name == "settings":
            words += [word for key, each in options.settings for word in ("--set", f"{key}={_written(each)}")]
        elif name == "images" and value is not None:
            words += [flag, ", ".join(f"{key}: {each}" for key, each in value.items())]
        elif value is not None:
            words += [flag, str(value)]
    return (*words, "--", *options.launch) if options.launch else tuple(words)


REPEATED = ("defines",)
"""Options whose field has another number than their flag."""


def _written(value: object) -> str:
    """A value as YAML has it on one line: what ``--set`` takes."""
    return str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)


FILES = (".yaml", ".yml", ".json", ".toml")
"""Suffixes of files that are never started as programs."""
SUBMITTERS = frozenset({"sbatch", "srun", "sky", "dstack", "kubectl", "modal", "ray", "tune"})
"""Programs that hand a job to a platform, whatever follows them."""
STARTERS = ("python", "torchrun", "accelerate", "deepspeed")
"""Programs that start the script named after them."""
_WITHOUT = {
    "fix": "--fix",
    "unsafe_fixes": "--unsafe-fixes",
    "diff": "--diff",
    "from_ref": "--from-ref",
    "shard": "--shard",
    "stdin_filename": "--stdin-filename",
    "skip_unmarked": "--skip-unmarked",
}
"""Options that are about files, by their fields."""


def is_launch(words: Sequence[str]) -> bool:
    """Whether the words after ``--`` are a command; otherwise they are paths, some of which may start with a dash.

    A command starts with a program, which is no file of that name, and has an option or a ``key=value``, or starts a
    script. Paths that do not exist are therefore still reported as paths. ``vllm serve MODEL`` needs no option.
    """
    if len(words) < 2 or words[0] == STDIN or words[0].startswith("-") or words[0].lower().endswith(FILES):
        return False
    if os.path.exists(words[0]):
        return False
    if tuple(words[:2]) == ("vllm", "serve") or words[0].rpartition("/")[2] in SUBMITTERS:
        return True
    starts = words[0].rpartition("/")[2].startswith(STARTERS) and any(word.endswith(".py") for word in words)
    return starts or any(word.startswith("-") or "=" in word for word in words[1:])


def launch_file(words: Sequence[str]) -> PlanFile:
    """The command as a file under the name that messages have for it."""
    import shlex

    return PlanFile(COMMAND, f"{shlex.join(words)}\n".encode())


def refuse_beside_launch(options: CheckOptions) -> None:
    """Refuse what a command has no use for.

    Raises:
        UsageError: there are paths as well, or an option that is about files.
    """
    if options.paths:
        raise UsageError(f"{options.paths[0]} and a command after --", "name one of them")
    for field, flag in _WITHOUT.items():
        if getattr(options, field) not in (None, False):
            raise UsageError(f"{flag} works on files, and a command after -- is no file", f"leave out {flag}")
