"""The report of `memcheck check` and `memcheck estimate` as pydantic models: ``report: 1``.

``schemas/report.schema.json`` is generated from these models (``python -m docs.generate``). Fields may be added; within
``report: 1`` none is renamed or removed. Bytes are whole numbers, shares are fractions of the capacity, lines and
columns count from 1.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]
"""A whole number of things or bytes, at least 0."""
Positive = Annotated[int, Field(ge=1)]
"""A whole number, at least 1."""
Share = Annotated[float, Field(ge=0)]
"""A fraction or a rate, at least 0."""
Interval = Annotated[list[Count], Field(min_length=2, max_length=2)]
"""Lower and upper end, in bytes."""
Code = Annotated[str, Field(pattern="^MEM[0-9]{3}$")]
"""The code of a rule."""


class Data(BaseModel):
    """A part of an answer. It cannot be changed; a field of a later version is ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class SummaryData(Data):
    """Counts over all plans."""

    plans: Count
    """Plans checked; passed plus failed."""
    passed: Count
    """Plans with the status `passed`."""
    accepted: Count = 0
    """Plans with the status `passed` that would fail if nothing hid their errors."""
    failed: Count
    """Plans with the status `failed` or `error`."""
    uncertain: Count = 0
    """Plans whose verdict is uncertain. Each is also among passed or failed."""
    errors: Count
    """Diagnostics of severity `error`."""
    warnings: Count
    """Diagnostics of severity `warning`."""
    unchanged: Count = 0
    """Plan files left out by `--from-ref`, because nothing that decides them changed."""
    infos: Count = 0
    """Findings of severity info."""
    suppressed: Count = 0
    """Findings that a comment in a plan accepts. They are not among the diagnostics."""
    baselined: Count = 0
    """Findings that the baseline accepts. They are not among the diagnostics."""
    deselected: Count = 0
    """Findings of rules that the selection leaves out. They are not among the diagnostics."""


class AcceptedErrorData(Data):
    """An error that something hides."""

    code: str
    """The rule."""
    by: Literal["comment", "baseline", "selection"]
    """What hides it: `comment`, `baseline` or `selection`."""
    why: str
    """The comment's reason, or the baseline file."""


class FitsData(Data):
    """Whether the needed memory is there. Accepted and ignored findings do not change it."""

    gpu: Literal["fits", "uncertain", "above-limit", "does-not-fit"]
    """What the predicted need says about a GPU. fits. uncertain: within the limit, the interval is not (MEM104).
    above-limit: more than fail_above (MEM102). does-not-fit: more than the capacity (MEM101).
    """
    host: bool
    """Whether a node has the host memory that its processes need (MEM106); true where the plan does not state what
    it has.
    """


class ComponentsData(Data):
    """What holds the memory at the peak; the values sum to device_bytes."""

    parameters: Count
    """Model weights as they rest between steps, with gathered copies."""
    gradients: Count
    """Gradients that rest until the optimizer step."""
    master_weights: Count
    """Full-precision copies of weights that are kept in a smaller format."""
    optimizer_states: Count
    """Moments and other state of the optimizer."""
    activations: Count
    """Tensors saved for backward, and working tensors of the layers."""
    logits_and_loss: Count
    """Logits, their copies and what the loss keeps."""
    communication_buffers: Count
    """Buckets and gather or reduce buffers."""
    temporaries: Count
    """Short-lived tensors at the peak, for example of the optimizer step."""
    kv_cache: Count
    """Keys and values of inference."""
    adapters: Count
    """LoRA weights."""
    context_and_nccl: Count
    """CUDA or ROCm context, communicators and library workspaces."""
    fragmentation: Count
    """What the caching allocator holds on top of live tensors."""


class RankData(Data):
    """One pipeline rank."""

    pipeline_rank: Count
    """The number of the rank, from 0."""
    allocated_bytes: Count
    """The peak of the rank."""
    parameters: Count = 0
    """Parameters that rest on it."""
    instants_bytes: dict[str, Count]
    """Highest live bytes at each instant of the step, by the instant's name."""


class TensorsData(Data):
    """Equal live tensors."""

    name: str
    """What they are."""
    shape: str
    """Shape of one of them with its dtype."""
    count: Count
    """How many."""
    bytes: Count
    """All of them together."""
    component: Literal[
        "parameters",
        "gradients",
        "master_weights",
        "optimizer_states",
        "activations",
        "logits_and_loss",
        "communication_buffers",
        "temporaries",
        "kv_cache",
        "adapters",
        "context_and_nccl",
        "fragmentation",
    ]
    """The component they belong to."""


class MovingAssumptionData(Data):
    """An assumption that moves what is needed, and the figures with another value."""

    key: str
    """The dotted plan key."""
    value: bool | float | str | list[Any]
    """What was assumed."""
    other: bool | float | str
    """The other value."""
    needed_bytes: Count
    """What the plan would need with the other value."""
    utilization: Share
    """That over the capacity."""


class AssumptionData(Data):
    """A value that was used and that the plan does not state."""

    key: str = Field(examples=["training.attention"])
    """The plan's key, dotted."""
    value: Any
    """The value that was used."""
    why: str = Field(examples=["default"])
    """Where it comes from."""


class CacheGroupData(Data):
    """Layers whose KV blocks are allocated together, as the engine names them."""

    kind: str = Field(examples=["FullAttentionSpec", "SlidingWindowSpec", "MambaSpec"])
    """The engine's class of their cache."""
    layers: Count
    """Layers of the first pipeline rank."""
    block: Positive
    """Tokens of a block."""
    page_bytes: Count
    """Bytes of a block of one layer, or of all of them where their pages differ."""


class TermData(Data):
    """One part of a rank's memory next to the KV cache."""

    name: str = Field(examples=["weights", "buffers", "towers", "profile", "outside", "graphs"])
    """What it is."""
    bytes: Count
    """Expected bytes."""
    low_bytes: Count
    """Lower end of its interval."""
    high_bytes: Count | None
    """Upper end of its interval; null: unknown above the lower end."""
    source: str
    """Where the figures come from."""


class EngineData(Data):
    """A serving engine's own arithmetic. Lists have one entry for each pipeline rank."""

    name: str = Field(examples=["vllm"])
    """The engine."""
    version: str = Field(examples=["0.33.0"])
    """The version of the engine."""
    answer: Literal["boots", "does_not_boot", "depends"]
    """Whether it boots. With a stated pool this is what the engine's planner says; whether pool and weights fit the GPU
    is MEM101's question.
    """
    error: str | None
    """The engine's own words; null if it boots at both ends of the terms' intervals."""
    depends_on: list[str]
    """Terms on which the answer depends, the widest first; `version` where known versions differ."""
    kv_bytes: Count
    """Expected bytes for the KV cache on the rank with least."""
    kv_interval_bytes: Interval
    """Lower and upper end; what is unknown above a floor counts as its floor."""
    blocks: Count
    """Blocks of the pool; 0 if it does not boot."""
    tokens: Count
    """Tokens that the engine logs."""
    concurrency: Share
    """Requests of the longest length at once."""
    max_model_len: Count
    """Tokens of a request at most."""
    longest: Count
    """Tokens of the longest request for which the expected pool has room."""
    request_bytes: Count
    """Bytes that one request of the longest length takes, with what the engine holds back."""
    groups: list[CacheGroupData]
    """Groups of layers on the first pipeline rank."""
    weights_bytes: list[Count]
    """Weights of the language model."""
    buffers_bytes: list[Count]
    """Rotary tables and scales."""
    towers_bytes: list[Count]
    """Vision and audio towers."""
    terms: list[list[TermData]]
    """Every term next to the cache."""
    share_needed: float | None
    """Smallest share of the GPU with which the expected terms leave room for one request; null: none below 1."""
    demand_held: bool | None
    """Whether the demanded requests have room at once; null where the plan states no demand."""
    enclosing: list[list[str]]
    """Known versions around one that memcheck does not know, each with its answer."""
    defaults: dict[str, Any]
    """Settings with which the engine starts, defaults included."""


class EstimateData(Data):
    """Memory of the GPU that needs the most, at the moment when it needs the most."""

    allocated_bytes: Count
    """Live tensor bytes at the peak; compare with torch.cuda.max_memory_allocated()."""
    reserved_bytes: Count
    """With what the caching allocator holds on top; compare with torch.cuda.max_memory_reserved()."""
    device_bytes: Count
    """With context, communicators and workspaces, and with the allocator's cache: what is seen in nvidia-smi."""
    needed_bytes: Count
    """The floor below which the job dies: live tensors, what the allocator cannot return, context, communicators and
    workspaces. Verdicts and limits go by it.
    """
    capacity_bytes: Count
    """What the driver gives a process on this GPU; compare with torch.cuda.mem_get_info()."""
    utilization: Share = Field(examples=[0.714])
    """needed_bytes / capacity_bytes."""
    longest_row: Positive | None = None
    """Tokens of the longest row with which the plan fits (MEM108), if its rows are not packed and it does not fit at
    sequence_length. The figures are those at sequence_length, and the verdict is uncertain. null otherwise.
    """
    verdict: Literal["fits", "uncertain", "does_not_fit"]
    """Where the interval of the need lies. fits: its upper end is within fail_above and the capacity. uncertain: it
    crosses one of them. does_not_fit: its lower end is above one of them, or host memory is too small. Accepted
    and ignored findings do not change it. Whether the gate passes the plan is its status: an uncertain plan fails
    where its predicted need is above the limit, or under policy.uncertain: fail.
    """
    fits: FitsData
    """Whether the needed memory is there. Accepted and ignored findings do not change it."""
    interval_bytes: Interval
    """Lower and upper end of the 95% interval of device_bytes."""
    needed_interval_bytes: Interval
    """Lower and upper end of the 95% interval of needed_bytes."""
    cache_bytes: Count = 0
    """What of components_bytes.fragmentation is cache: free segments that the allocator returns before an allocation
    fails. It shrinks as a GPU fills; the rest grows with allocated_bytes.
    """
    instant: str = Field(examples=["forward", "loss", "backward", "optimizer", "init", "prefill"])
    """The instant of the step with the peak."""
    operation: str = ""
    """The operation during which the peak occurs, in words."""
    pipeline_rank: Count
    """The pipeline rank with the peak."""
    components_bytes: ComponentsData
    """What holds the memory at the peak; the values sum to device_bytes."""
    parameters: Count
    """Parameters of the whole model."""
    trainable_parameters: Count
    """Parameters that get a gradient."""
    host_bytes_per_node: Count
    """Host memory that the processes of a node need at its fullest: loading the model, offloading, saving a
    checkpoint.
    """
    host_capacity_bytes: Count | None
    """Host memory that the plan says a node has; null where the plan does not state it; host memory is not checked
    then.
    """
    host_components_bytes: dict[str, Count] = Field(default_factory=dict)
    """What the host memory holds then, by component."""
    host_instant: str = ""
    """When host memory is fullest: load, init, step or save; empty when it holds nothing."""
    host_instants_bytes: dict[str, Count] = Field(default_factory=dict)
    """Host memory per node at every instant at which it holds anything."""
    ranks: list[RankData]
    """Every pipeline rank (the worst of its peers in the other dimensions)."""
    largest_tensors: list[TensorsData] = Field(default_factory=list)
    """The largest groups of equal live tensors at the peak."""
    rests_on: list[MovingAssumptionData] = Field(default_factory=list)
    """The assumptions that move what is needed by more than 1 %, the largest first, each with what the plan would
    need with another value. `check` tries the first three that it knows another value for, `estimate` all of
    them. Empty where no report shows them.
    """
    settled_by: str | None = None
    """For an uncertain plan: the one fact that would settle whether it fits, or that only a run can tell. Else null."""
    assumptions: list[AssumptionData]
    """Every value that was used and that the plan does not state."""
    engine: EngineData | None = None
    """What the serving engine makes of the plan; null where the plan names none."""


class LocationData(Data):
    """A stretch of text."""

    path: str = ""
    """The file; another one than the plan's where `extends` brought the value in."""
    line: Positive
    """First line."""
    column: Positive
    """First column."""
    end_line: Positive
    """Last line."""
    end_column: Positive
    """Column after the last character."""
    note: str = ""
    """How the value came to be there, for example through a YAML merge key."""


class RelatedData(Data):
    """Another place that takes part."""

    label: str
    """The part of the place in the finding."""
    path: str
    """The file."""
    line: Positive
    """First line."""
    column: Positive
    """First column."""
    end_line: Positive
    """Last line."""
    end_column: Positive
    """Column after the last character."""
    note: str = ""
    """How the value came to be there."""


class PositionData(Data):
    """A place between two characters."""

    line: Positive
    """Line."""
    column: Positive
    """Column of the character after it."""


class EditData(Data):
    """Replace what is between start and end (nothing: insert) by text."""

    start: PositionData
    end: PositionData
    text: str
    """The new text."""


class FileEditsData(Data):
    """Edits of one file other than the plan's own."""

    path: str
    """The file."""
    edits: list[EditData]
    """Edits of its text."""


class RemedyData(Data):
    """A change of the plan and what it leads to."""

    title: str
    """The change in words."""
    set: dict[str, Any] = Field(examples=[{"parallelism.zero_stage": 3}])
    """Dotted plan keys and their new values."""
    device_bytes: Count
    """What is seen on the GPU of the changed plan, the allocator's cache included."""
    needed_bytes: Count
    """The floor below which the changed plan dies."""
    utilization: Share
    """needed_bytes / capacity_bytes of the changed plan."""
    interval_bytes: Interval
    """95% interval of the changed plan's device_bytes."""
    needed_interval_bytes: Interval
    """95% interval of the changed plan's needed_bytes."""
    group: Literal["same_hardware_same_result", "same_hardware_other_result", "other_hardware"]
    """What it asks for: same_hardware_same_result (nothing but time and host memory), same_hardware_other_result
    (another result of the training, or shorter requests of a server), other_hardware (other GPUs or more nodes).
    Remedies of a finding come in this order.
    """
    role: Literal["cheap", "roomy", "other hardware"] | None
    """Why it is offered. cheap: the fastest with the same results. roomy: the fastest with the same results that
    leaves room. other hardware: the least change of GPUs. null for the others.
    """
    slowdown: float | None
    """Relative time per token against the plan as written: 0.33 is a third slower. A model, not a measurement; null
    where there is none.
    """
    safe: bool
    """The training result does not change beyond rounding, and no hardware is added."""
    sure: bool
    """The changed plan fits with its whole 95% interval, within the limit and the capacity; else it is uncertain."""
    host_bytes_per_node: Count
    """Host memory that the processes of a node need with the change."""
    edits: list[EditData]
    """The change as edits of the text of the plan's file. They belong together with those of `elsewhere`: all or
    none.
    """
    elsewhere: list[FileEditsData]
    """Edits of the configs that the plan takes values from (`source`)."""
    written: dict[str, str] | None
    """By plan key, the line that the owner of a framework's config writes. A key without words is missing, and a line
    that another key says is empty. null for a plan."""


class DiagnosticData(Data):
    """One finding."""

    code: Code
    """Stable code of the rule."""
    name: str = Field(examples=["exceeds-capacity"])
    """Stable name of the rule."""
    severity: Literal["error", "warning", "info"]
    """How bad it is."""
    message: str
    """What is wrong, with the numbers involved."""
    help: str
    """What to do about it; may be empty."""
    location: LocationData
    pointer: str
    """JSON pointer of the responsible key in the merged plan; empty for the document."""
    related: list[RelatedData] = Field(default_factory=list)
    """Other places that take part."""
    fix: list[EditData] = Field(default_factory=list)
    """Text edits with exactly one right outcome."""
    fixable: bool = False
    """Whether `check --fix` makes these edits. It never makes a remedy: see `--unsafe-fixes`."""
    remedies: list[RemedyData]
    """Changes that were re-computed. They are ordered by `group`; within a group the one that takes least comes
    first.
    """


class PlanData(Data):
    """The verdict on one plan."""

    path: str
    """The file as named on the command line, with forward slashes."""
    document: Count
    """Number of the YAML document in the file, from 0."""
    name: str
    """The plan's `name`, or the file's stem."""
    status: Literal["passed", "failed", "error"]
    """`passed`: nothing that counts. `failed`: a diagnostic at or above --fail-on (with `never`: an error). `error`:
    the plan could not be estimated.
    """
    accepted: list[AcceptedErrorData] = Field(default_factory=list)
    """Errors that something hides, where the plan passes only because of that; empty otherwise."""
    model: str = ""
    """The model's name or config as the plan has it; empty for dimensions in the plan itself, and where the plan
    could not be resolved.
    """
    gpu: str = ""
    """The GPU's name in the catalog, or the plan's own; empty where the plan could not be resolved."""
    gpus: Count = 0
    """Number of GPUs; 0 where the plan could not be resolved."""
    framework: str = ""
    """The framework as plans name it, or `inference`; empty where the plan could not be resolved."""
    estimate: EstimateData | None
    """The predicted memory; null if the plan could not be estimated."""
    diagnostics: list[DiagnosticData] = Field(default_factory=list)
    """Findings, errors first. `memcheck estimate` gives them only for plans that could not be estimated."""


class UnreadableData(Data):
    """A path that could not be read."""

    path: str
    """The path as named on the command line."""
    message: str
    """Why, in the words of the operating system."""


class ReportData(Data):
    """What `memcheck check --format json` and `memcheck estimate --format json` print. Fields may be added; within
    `report: 1` none is renamed or removed. All bytes are integers, all shares are fractions of the capacity, all
    lines and columns count from 1.
    """

    report: Literal[1]
    """Version of this format."""
    memcheck: str = Field(examples=["0.1.0"])
    """Version of memcheck that wrote the report."""
    summary: SummaryData
    plans: list[PlanData]
    """One entry per plan, in the order of the paths."""
    unreadable: list[UnreadableData] = Field(default_factory=list)
    """Paths that could not be read; the exit code is 2 if there are any."""
