"""The options of one ``check`` run, which both readers of the command line fill in."""

from __future__ import annotations

from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.cli.nothing import Share


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
