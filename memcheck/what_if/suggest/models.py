"""What `memcheck suggest` found as pydantic models: ``suggest: 1``.

``schemas/suggest.schema.json`` is generated from these models (``python -m docs.generate``).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from memcheck.report.models import Count, Data, DiagnosticData, Positive, RemedyData, Share

Price = Annotated[float, Field(gt=0)]
"""An amount of money, above 0."""


class AsWrittenData(Data):
    """The plan before any change."""

    status: Literal["passed", "failed", "error"]
    """The verdict of `check`."""
    verdict: Literal["fits", "uncertain", "does_not_fit"]
    """What the figures say, without regard to the findings."""
    gpus: Positive
    """GPUs of the plan."""
    device_bytes: Count
    """With context, communicators and workspaces, and with the allocator's cache: what is seen in nvidia-smi."""
    needed_bytes: Count
    """The floor below which the job dies: live tensors, what the allocator cannot return, context, communicators and
    workspaces. Verdicts and limits go by it.
    """
    capacity_bytes: Count
    """What the driver gives a process on this GPU."""
    utilization: Share
    """needed_bytes / capacity_bytes."""
    host_bytes_per_node: Count
    """Host memory that the processes of a node need."""
    host_capacity_bytes: Count | None
    """Host memory that the plan says a node has; null where the plan does not state it; host memory is not checked
    then.
    """
    best: bool
    """For this goal no change is better than the plan as it is."""


class SuggestionData(RemedyData):
    """A change of the plan, what it leads to and what it costs."""

    numerics: Literal["none", "equivalent", "changes results"]
    """What it does to the numbers of the training: nothing; the same sums in another order; other results."""
    serves: str | None
    """What an inference plan can serve otherwise than it says: sequences at a time, tokens of a context; null where
    that stays.
    """
    gpus: Positive
    """GPUs of the changed plan."""
    tokens_per_second_per_gpu: Share | None
    """The rate of the roofline model, for ranking; null where there is no model."""
    price_per_gpu_hour: Price | None
    """What an hour of one GPU costs, as the configuration states it; null where it states nothing."""
    price_per_million_tokens: Price | None
    """That price times the GPUs times the modelled time of a million tokens; null without price or time."""


class CardData(Data):
    """The plan as it is written on one GPU that has a price."""

    gpu: str
    """The GPU's name in the catalog."""
    fits: bool
    """Whether the predicted need is within the limit."""
    sure: bool
    """Whether the whole interval of the need is within the limit."""
    utilization: float
    """The need over the capacity."""
    slowdown: float | None
    """Relative time per token against the plan's own GPU; null where it is not known."""
    price_per_hour: float
    """Price of an hour of all GPUs, from the configuration."""
    price_per_million_tokens: float | None
    """Price of a million tokens, from the modelled speed; null where it is not known."""


class SpaceData(Data):
    """What was searched, and what became of it."""

    keys: dict[str, list[Any]]
    """Dotted keys that were varied, and the values that were tried in addition to the plan's own."""
    kept: list[str]
    """Keys and sections that had to stay: `--keep`."""
    considered: Count
    """Plans looked at; the sum of the counts below."""
    illegal: Count
    """Plans that break a rule, cannot keep the global batch, or touch what is kept."""
    repeated: Count
    """Plans that are another one, written differently."""
    below_floor: Count
    """Plans whose states alone exceed the limit."""
    slower: Count
    """Plans slower than as many as were asked for that fit; their memory was not priced."""
    too_large: Count
    """Plans that were priced and exceed the limit."""
    fitting: Count
    """Plans that fit."""
    exhausted: bool
    """Every plan of the space was judged."""
    unsearched: Count
    """Plans that were not looked at, because the time was up."""
    budget_seconds: float | None
    """The seconds after which the search was cut short; null where it was not."""
    timed_as: str | None
    """The GPU whose rates stand in for those of the plan's own; null when it has its own."""


class SuggestionsData(Data):
    """What `memcheck suggest --format json` prints. Fields may be added; within `suggest: 1` none is renamed or
    removed.
    """

    suggest: Literal[1]
    """Version of this format."""
    memcheck: str
    """Version of memcheck."""
    path: str
    """The plan's file as named on the command line, with forward slashes."""
    document: Count
    """Number of the YAML document in the file, from 0."""
    name: str
    """The plan's `name`, or the file's stem."""
    goal: Literal["fit", "throughput", "gpus", "cheapest", "max-batch", "max-sequence"]
    """What was looked for."""
    status: Literal["fits", "uncertain", "suggested", "nothing-fits", "error"]
    """fits: nothing to do. uncertain: nothing to do, but the interval crosses the limit or the capacity. suggested:
    there is a suggestion, or the plan as written is the best. nothing-fits: no plan of the space fits. error: the
    plan cannot be checked.
    """
    as_written: AsWrittenData | None
    """The plan as written; null if it could not be estimated."""
    remedies: list[SuggestionData]
    """Suggestions, best first; `--apply N` writes the N-th, counted from 1."""
    cards: list[CardData]
    """With the goal `cheapest`: the plan as it is written on every GPU that has a price, the cheapest that fits
    first. Empty with other goals.
    """
    space: SpaceData
    smallest_cluster: SuggestionData | None
    """When nothing fits: the same training on the smallest cluster of the same GPU on which it would; null
    otherwise, or when none does.
    """
    diagnostics: list[DiagnosticData]
    """Why the plan cannot be judged; empty when it was."""
