"""Maps blocks that were live in a snapshot to the tensors of a plan's ledger, those without a counterpart first.

A stack says which component a block belongs to: the optimizer, FSDP's gathers, the loss, a module's forward. Within a
component, blocks and tensors are paired by bytes. A block that no tensor of the ledger has the size of has no
counterpart: the plan does not know of it. A block of a known tensor that is there more often than the ledger says is
listed with the difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memcheck.accounts.estimate import TensorGroup
from memcheck.edge.screen import words
from memcheck.record import Record
from memcheck.why.snapshot_file import Frame
from memcheck.why.snapshots import LiveBlocks

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
