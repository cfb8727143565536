"""Maps blocks that were live in a snapshot to the tensors of a plan's ledger, those without a counterpart first.

A stack says which component a block belongs to: the optimizer, FSDP's gathers, the loss, a module's forward. Within a
component, blocks and tensors are paired by bytes. A block that no tensor of the ledger has the size of has no
counterpart: the plan does not know of it. A block of a known tensor that is there more often than the ledger says is
listed with the difference.

What is shown of a snapshot's devices: blocks by the code that made them, growth, peaks, and what is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memcheck.accounts.estimate import TensorGroup
from memcheck.edge.screen import gib, plural, words
from memcheck.record import Record
from memcheck.report.story import Prose
from memcheck.report.story.blocks import Fact, Facts, Section, Table
from memcheck.why.readings import size
from memcheck.why.snapshot_file import Frame
from memcheck.why.snapshots import DeviceMemory, LiveBlocks

PARAMETERS, GRADIENTS, STATES = "parameters", "gradients", "optimizer_states"
ACTIVATIONS, LOGITS, BUFFERS, OTHER = "activations", "logits_and_loss", "communication_buffers", "other"

FILES: tuple[tuple[str, str, str], ...] = (
    ("torch/optim/", "", STATES),
    ("optimizer", "", STATES),
    ("loss", "", LOGITS),
    ("nn/functional.py", "cross_entropy log_softmax nll_loss softmax_cross", LOGITS),
    ("fsdp/", "allocate all_gather _alloc unshard reduce_scatter foreach_all_gather foreach_reduce", BUFFERS),
    ("distributed/distributed_c10d.py", "", BUFFERS),
    ("deepspeed/", "all_gather fetch allreduce reduce_ipg buffered", BUFFERS),
    ("fsdp/", "_init_sharded_param _init_flat_param shard", PARAMETERS),
    ("safetensors", "", PARAMETERS),
    ("serialization.py", "", PARAMETERS),
    ("modeling_utils.py", "", PARAMETERS),
    ("nn/modules/module.py", "convert _apply to cuda", PARAMETERS),
    ("autograd/", "run_backward backward", GRADIENTS),
    ("modeling_", "", ACTIVATIONS),
    ("nn/modules/", "forward", ACTIVATIONS),
    ("nn/functional.py", "", ACTIVATIONS),
    ("/models/", "forward", ACTIVATIONS),
)
"""Part of a file's path, words in the name of its function (none: any), and the component."""
SETTINGS = ("_call_impl", "_wrapped_call_impl", "wrapper", "decorate_context", "inner", "_fn")
"""Functions that call others and say nothing of what they allocate."""
PREDICTED = {"adapters": PARAMETERS, "master_weights": PARAMETERS, "temporaries": ACTIVATIONS, "kv_cache": ACTIVATIONS}
"""Components of an estimate that a stack cannot tell from another one."""
FLAT = (PARAMETERS, STATES, GRADIENTS, BUFFERS)
"""Components that are held in flat blocks of many tensors."""
CLOSE = 1.02
LONGEST_PATH = 60
HEAD_WORDS = ("lm_head", "logits")


class MappedBlocks(Record):
    """Live blocks of one component and size, and the tensor of the ledger that they are."""

    component: str
    where: str
    """The innermost frame that says something, as ``function (file:line)``; empty: none was recorded."""
    count: int  # type: ignore[assignment]
    bytes: int
    """Sum over all of the blocks."""
    tensor: str
    """Name in the ledger; empty: the plan has no tensor of that size there."""
    expected: int
    """How many of them the ledger has."""
    steps: int

    @property
    def surplus_bytes(self) -> int:
        """Bytes beyond what the ledger has."""
        return self.bytes * max(0, self.count - self.expected) // self.count


class Mapped(Record):
    """The live blocks of a moment next to the ledger."""

    rows: tuple[MappedBlocks, ...]
    """Groups with most bytes beyond the ledger first."""
    observed_bytes: dict[str, int]
    """By component."""
    predicted_bytes: dict[str, int]
    """Bytes of the instant that they are compared with, by the same components."""

    @property
    def unknown_bytes(self) -> int:
        """Bytes of blocks that the ledger has no tensor for."""
        return sum(row.bytes for row in self.rows if not row.tensor)


def component_of(stack: Sequence[Frame]) -> str:
    """The component that a stack allocates for. Backward runs in threads without frames of Python."""
    if not stack:
        return GRADIENTS
    for frame in stack:
        if frame.name in SETTINGS or "::" in frame.name:
            continue
        for path, names, component in FILES:
            if path in frame.file and (not names or any(name in frame.name for name in names.split())):
                if component == ACTIVATIONS and _is_head(stack):
                    return LOGITS
                return component
    return OTHER


def _is_head(stack: Sequence[Frame]) -> bool:
    return any(word in frame.name for frame in stack[:4] for word in HEAD_WORDS)


def place_of(stack: Sequence[Frame]) -> str:
    """Where a stack allocates, in one line: the innermost frame that is no wrapper and no library of torch."""
    telling = [frame for frame in stack if frame.name not in SETTINGS and "::" not in frame.name and frame.file != "??"]
    own = next((frame for frame in telling if "/torch/" not in frame.file), None) or next(iter(telling), None)
    if own is None:
        return ""
    path = own.file.rpartition("site-packages/")[2]
    shown = path if len(path) <= LONGEST_PATH else "/".join(["...", *path.split("/")[-3:]])
    return f"{own.name} ({shown}:{own.line})"


def map_blocks(
    live: Sequence[LiveBlocks], ledger: Sequence[TensorGroup], predicted: Mapping[str, int] | None = None
) -> Mapped:
    """Pair live blocks with the tensors of a ledger.

    ``ledger``: of the rank that the snapshot is of. ``predicted``: bytes by component of the instant at which the
    blocks were live; those of the ledger if None.
    """
    known: dict[tuple[str, int], list[_Unpaired]] = {}
    expected: dict[str, int] = {}
    for group in ledger:
        component = PREDICTED.get(group.component, group.component)
        expected[component] = expected.get(component, 0) + group.bytes
        if group.copies:
            known.setdefault((component, group.bytes // group.copies), []).append(_Unpaired(group.name, group.copies))
    rows: list[MappedBlocks] = []
    observed: dict[str, int] = {}
    for blocks in live:
        component, each = component_of(blocks.stack), blocks.bytes // blocks.count
        where = next((c for c in _tried(component) if (c, each) in known), component)
        observed[where] = observed.get(where, 0) + blocks.bytes
        tensor, there = _taken(known.get((where, each), []), blocks.count)
        rows.append(
            MappedBlocks(
                component=where,
                where=place_of(blocks.stack),
                count=blocks.count,
                bytes=blocks.bytes,
                tensor=tensor,
                expected=there,
                steps=blocks.steps,
            )
        )
    rows = [_as_a_whole(row, observed, expected) for row in rows]
    rows.sort(key=lambda row: (bool(row.tensor) and not row.surplus_bytes, -(row.surplus_bytes or row.bytes)))
    if predicted is not None:
        expected = {}
        for name, count in predicted.items():
            component = PREDICTED.get(name, name)
            expected[component] = expected.get(component, 0) + count
    return Mapped(tuple(rows), observed, expected)


def _as_a_whole(row: MappedBlocks, observed: Mapping[str, int], expected: Mapping[str, int]) -> MappedBlocks:
    """Flat blocks of sharded states hold many tensors: they are the plan's if all of their component is no more."""
    if row.tensor or row.component not in FLAT or observed[row.component] > CLOSE * expected.get(row.component, 0):
        return row
    return row._replace(tensor=f"of the plan's {words(row.component)}", expected=row.count)


def _tried(component: str) -> tuple[str, ...]:
    """Components in which a block of this one may stand in the ledger: backward makes gradients and temporaries."""
    if component == GRADIENTS:
        return (GRADIENTS, ACTIVATIONS, LOGITS, BUFFERS, PARAMETERS)
    if component in (ACTIVATIONS, LOGITS):
        return (component, ACTIVATIONS, LOGITS)
    return (component,)


class _Unpaired:
    """Tensors of one size that no block was paired with yet."""

    __slots__ = ("copies", "name")

    def __init__(self, name: str, copies: int) -> None:
        self.name, self.copies = name, copies


def _taken(groups: list[_Unpaired], count: int) -> tuple[str, int]:
    """The names of the tensors of one size, and how many of ``count`` blocks they are; each is counted once."""
    names, left = [], count
    for group in groups:
        taken = min(left, group.copies)
        if taken:
            names.append(group.name)
            group.copies -= taken
            left -= taken
    if not names and groups:
        names = [groups[0].name]
    return " or ".join(names[:2]) + (f" or {len(names) - 2} more" if len(names) > 2 else ""), count - left


SHOWN_BLOCKS = 8
MOMENTS = {
    "oom": "What was live when the allocation failed",
    "peak": "What was live at the peak",
    "end": "What was live when the snapshot was written",
}


def failing(devices: Sequence[DeviceMemory]) -> DeviceMemory | None:
    """The device whose allocation failed, else the fullest; None where there is none."""
    first = next((device for device in devices if device.failed), None)
    return first or max(devices, key=lambda device: device.peak_allocated_bytes, default=None)


def device_sections(devices: Sequence[DeviceMemory], mapped: Mapped | None) -> list[Section]:
    """Sections for people. ``mapped``: the live blocks of the device that failed next to a plan's ledger."""
    device = failing(devices)
    if device is None:
        return []
    found = [Section("devices", "What the snapshot recorded", (Facts(tuple(map(_fact, devices))),))]
    if device.growth:
        told = [
            Prose(f"{size(g.bytes)} never freed over {plural(g.steps, 'step')}: {place_of(g.stack)}", "bad")
            for g in device.growth[:3]
        ]
        found.insert(0, Section("growth", "Memory that steps do not free", tuple(told)))
    if mapped is not None:
        rows = tuple(
            (gib(row.bytes), f"{row.count:,}", words(row.component), row.tensor or "not in the plan", row.where)
            for row in mapped.rows[:SHOWN_BLOCKS]
        )
        table = Table("", ("GiB", "blocks", "component", "tensor of the plan", "allocated in"), rows, right=(0, 1))
        unknown = mapped.unknown_bytes
        said = f"{size(unknown)} of {size(device.live_bytes)} are in blocks that the plan does not have."
        found.append(Section("live", MOMENTS[device.moment], (table, Prose(said, "dim"))))
    elif device.live:
        told_rows = tuple(
            (gib(group.bytes), f"{group.count:,}", words(component_of(group.stack)), place_of(group.stack) or "unknown")
            for group in device.live[:SHOWN_BLOCKS]
        )
        table = Table("", ("GiB", "blocks", "component", "allocated in"), told_rows, right=(0, 1))
        found.append(Section("live", MOMENTS[device.moment], (table,)))
    return found


def _fact(device: DeviceMemory) -> Fact:
    least = "" if device.complete else "at least "
    said = [f"peak {least}{size(device.peak_allocated_bytes)} allocated"]
    if device.peak_reserved_bytes is not None:
        said.append(f"{size(device.peak_reserved_bytes)} reserved")
    said.append(f"{size(device.allocated_bytes)} at the end")
    if device.pending_bytes:
        said.append(f"{size(device.pending_bytes)} kept for another stream")
    if device.expandable:
        said.append("expandable segments")
    return Fact(f"device {device.device}", f"{', '.join(said)}; {plural(device.events, 'event')}")


def devices_data(devices: Sequence[DeviceMemory], mapped: Mapped | None) -> list[dict[str, Any]]:
    """The devices for programs; ``live`` of the one that failed has the plan's tensors."""
    first = failing(devices)
    return [_device_data(device, mapped if device is first else None) for device in devices]


def _device_data(device: DeviceMemory, mapped: Mapped | None) -> dict[str, Any]:
    live: list[dict[str, Any]] = [
        {
            "component": component_of(group.stack),
            "where": place_of(group.stack),
            "count": group.count,
            "bytes": group.bytes,
            "steps": group.steps,
            "tensor": None,
            "expected": None,
        }
        for group in device.live
    ]
    if mapped is not None:
        live = [{**row._asdict(), "tensor": row.tensor or None} for row in mapped.rows]
    plain = (
        "device", "source", "events", "allocated_bytes", "reserved_bytes", "peak_allocated_bytes",
        "peak_reserved_bytes", "complete", "before_bytes", "moment", "live_bytes", "pending_bytes", "expandable",
    )  # fmt: skip
    return {
        **{key: getattr(device, key) for key in plain},
        "failed": [
            {
                "requested_bytes": failed.requested_bytes,
                "free_bytes": failed.free_bytes,
                "message_bytes": failed.message_bytes,
                "where": place_of(failed.stack),
            }
            for failed in device.failed
        ],
        "growth": [{"where": place_of(g.stack), "steps": g.steps, "bytes": g.bytes} for g in device.growth],
        "live": live,
        "notes": list(device.notes),
    }
