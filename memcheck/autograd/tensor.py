"""Storages, values, parameters, the tape that counts their bytes, and tensors that several units read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from memcheck.autograd.engine import CheckpointFrame, KeptOutputs


ITEM_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "bool": 1, "int64": 8, "int32": 4, "fp64": 8}
Entry = tuple[str, tuple[int, ...], str, int, str, int]
"""A row of an inventory: label, shape and dtype of a tensor, bytes of all its copies, component, how many copies."""
BLOCK_BYTES = 512
"""The CUDA caching allocator rounds every block up to this (c10/cuda/CUDACachingAllocator.cpp, kMinBlockSize)."""

_WIDER = {"fp8": 0, "bf16": 1, "fp16": 1, "fp32": 2, "fp64": 3}
"""Floating-point dtypes in the order of promotion."""


def ceil_div(dividend: int, divisor: int) -> int:
    """Divide and round up, such as heads over the ranks of which one may have a head more than another."""
    return -(-dividend // divisor)


def round_up(number: int, multiple: int) -> int:
    """Return the smallest multiple of ``multiple`` that is not below ``number``."""
    return ceil_div(number, multiple) * multiple


def rounded(n_bytes: int) -> int:
    """Round ``n_bytes`` up to the size of the block that the caching allocator returns."""
    return (n_bytes + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES


def rounded_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """Compute the bytes of the caching allocator's block for a tensor of this shape."""
    numel = 1
    for size in shape:
        numel *= size
    return rounded(numel * ITEM_BYTES[dtype])


def promote(a: str, b: str) -> str:
    """Return the result dtype of an elementwise operation on two floating-point tensors (``torch.promote_types``)."""
    if a == b:
        return a
    if _WIDER[a] == _WIDER[b]:  # bf16 with fp16
        return "fp32"
    return a if _WIDER[a] > _WIDER[b] else b


class Dim(int):
    """A size with the symbol under which formulas show it. Arithmetic gives plain ints."""

    symbol: str

    def __new__(cls, value: int, symbol: str) -> Dim:  # noqa: D102, PYI034 - Python 3.10 has no typing.Self
        self = super().__new__(cls, value)
        self.symbol = symbol
        return self


class Storage:
    """A block of device memory, counted as live from its construction until its last Python reference goes.

    Replayed code therefore frees a block as Python does: ``del x``, a rebound name, or ``list[i] = None``.
    """

    __slots__ = ("bytes", "component", "dtype", "holders", "key", "numel", "shape", "tape")

    def __init__(self, tape: Tape, shape: tuple[int, ...], dtype: str, label: str, component: str) -> None:
        """Allocate the block: count its bytes on the tape under ``component``, and note a new peak."""
        numel = 1
        for d in shape:
            numel *= d
        self.tape = tape
        self.shape = shape
        self.dtype = dtype
        self.numel = numel
        self.component = component
        self.holders = 0
        """Gradient buffers that hold this storage."""
        size = (numel * ITEM_BYTES[dtype] + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES  # `rounded`, a thousandfold
        if size > tape.largest:  # noqa: PLR1730 - cheaper than a call of `max`, a thousandfold
            tape.largest = size
        self.bytes = size = size * tape.copies
        live = tape.live = tape.live + size
        by = tape.by_component
        by[component] = by.get(component, 0) + size
        self.key = tape.events = tape.events + 1
        if tape.inventory is not None:
            tape.inventory[self.key] = (label, shape, dtype, size, component, tape.copies)
        if live > tape.peak and not tape.ignores_peaks:
            tape.mark_peak(label)

    def move(self, component: str) -> None:
        """Count the bytes under another component from now on."""
        if component == self.component:
            return
        by = self.tape.by_component
        by[self.component] -= self.bytes
        by[component] = by.get(component, 0) + self.bytes
        self.component = component
        inventory = self.tape.inventory
        if inventory is not None and self.key in inventory:
            entry = inventory[self.key]
            inventory[self.key] = (*entry[:4], component, entry[5])

    def __del__(self) -> None:
        """Count the memory as free when the last reference goes, as PyTorch's allocator does."""
        tape = self.tape
        tape.live -= self.bytes
        tape.by_component[self.component] -= self.bytes
        if tape.inventory is not None:
            tape.inventory.pop(self.key, None)


class Parameter:
    """A weight. Its own bytes are counted with the states; the tape counts its gradient and its cast copies."""

    __slots__ = (
        "awaits_tied_gradient",
        "cast_gradient",
        "cast_gradient_dtype",
        "cast_to",
        "consume_gradient",
        "dtype",
        "first_micro_batch",
        "grad_buffer",
        "has_grad",
        "name",
        "pending_uses",
        "requires_grad",
        "shape",
        "shared_with_earlier",
        "shared_with_later",
        "summed_gradient",
        "used_as_view",
    )

    def __init__(self, name: str, shape: tuple[int, ...], dtype: str, requires_grad: bool, *, has_grad: bool) -> None:
        """``shape``: on this rank. ``requires_grad``: it is trained. ``has_grad``: an earlier micro-batch has left a
        gradient in ``.grad``.
        """
        self.name = name
        self.shape = shape
        self.dtype = dtype
        self.requires_grad = requires_grad
        self.has_grad = has_grad
        """A gradient exists. One from an earlier micro-batch is counted with the states, not here."""
        self.first_micro_batch = not has_grad
        """True in the first micro-batch: no gradient existed before it."""
        self.grad_buffer: Storage | None = None
        """The storage of ``.grad`` if this micro-batch has made it."""
        self.consume_gradient: Callable[[Storage], None] | None = None
        """Consumes each new gradient in place of ``.grad``: a persistent main gradient, a bucket, an optimizer step."""
        self.shared_with_earlier = False
        """An earlier layer runs with the same weight, and counts autocast's copy of it."""
        self.shared_with_later = False
        """A later layer runs with the same weight, and counts its gradient."""
        self.cast_gradient_dtype: str | None = None
        """Dtype of the gradient of autocast's copy, if several layers share the weight. Their gradients are summed in
        the copy's node before they are cast back. None: the weight is not shared so."""
        self.cast_gradient: Storage | None = None
        """The sum of later layers' gradients of autocast's copy."""
        self.awaits_tied_gradient = False
        """The head's gradient of a tied table waits in AccumulateGrad's buffer for the embedding's."""
        self.used_as_view = False
        """Matrix products read a view of the weight. A view is no leaf, so autocast does not cache its copy."""
        self.cast_to: str | None = None
        """Dtype to which autograd casts each arriving gradient (``Tensor.grad_dtype``)."""
        self.pending_uses = 0
        """Number of uses in the graph whose gradients have not arrived."""
        self.summed_gradient: Storage | None = None
        """The sum of the gradients that have arrived in this backward."""


class Node:
    """A backward function with what it saved and where its results go."""

    __slots__ = (
        "__weakref__",
        "copies",
        "edges",
        "frame",
        "grad",
        "hands_over_gradient",
        "input_metadata",
        "pending",
        "run",
        "saved",
        "sequence",
        "view_gradients",
    )

    def __init__(
        self,
        sequence: int,
        edges: tuple[Node | Parameter | Leaf | None, ...],
        run: Callable[[Any], Any] | tuple[Any, ...],
        saved: Sequence[Storage | SavedWeight | None] = (),
    ) -> None:
        """``sequence``: the number of the node in order of creation. ``edges``: where each input's gradient goes."""
        self.sequence = sequence
        self.edges = edges
        self.run: Any = run
        """A function of the gradient, or an operator's formula; None: a checkpoint makes it again."""
        self.saved = saved
        """Storages that the node keeps for its backward, and ``SAVED_WEIGHT`` for weights."""
        self.grad: Storage | None = None
        self.view_gradients: list[Storage] | None = None
        """Gradients of the outputs of split or unbind, all kept until the last one has arrived; None: another node."""
        self.frame: CheckpointFrame | None = None
        """The checkpointed call that will make the saved tensors again."""
        self.copies = 1
        """Number of equal pieces that this tensor is counted as: :class:`memcheck.autograd.loss.counted_as`."""
        self.hands_over_gradient = False
        """``run`` gets the gradient in a list, and so can free it before it returns (checkpointed units)."""
        self.input_metadata: tuple[tuple[tuple[int, ...], str, int], ...] = ()
        """Shape, dtype and number of elements of each input: the engine sums and casts gradients to them. Empty: the
        function returns gradients that fit."""
        self.pending = 0
        """Number of gradients that have not arrived."""


class SavedWeight:
    """A weight that a node saves: counted with the states, and yet a checkpoint puts a placeholder for it."""

    __slots__ = ()


SAVED_WEIGHT = SavedWeight()
"""The one placeholder for all weights."""


class Leaf:
    """A unit's input: its gradient leaves the unit."""

    __slots__ = ("grad",)

    def __init__(self) -> None:
        self.grad: Storage | None = None


class Value:
    """A tensor as the forward code sees it: a storage (shared by views), and its place in the graph."""

    __slots__ = ("dtype", "origin", "shape", "storage")

    def __init__(
        self,
        storage: Storage | None,
        shape: tuple[int, ...],
        dtype: str,
        origin: Node | Parameter | Leaf | None = None,
    ) -> None:
        """``storage``: None for a tensor whose bytes are counted elsewhere, such as a parameter."""
        self.storage = storage
        self.shape = shape
        self.dtype = dtype
        self.origin = origin
        """What made the tensor; None: it needs no gradient."""

    @property
    def needs_grad(self) -> bool:
        """The graph has made the tensor, or it is a leaf that wants a gradient (``requires_grad``)."""
        return self.origin is not None

    @property
    def numel(self) -> int:
        """Elements."""
        return prod(self.shape)

    def view(self, *shape: int) -> Value:
        """A view of the storage under another shape; gradients pass through unchanged."""
        return Value(self.storage, shape, self.dtype, self.origin)

    def detach(self) -> Value:
        """A value of this storage outside the graph."""
        return Value(self.storage, self.shape, self.dtype)


class Tape:
    """Counts live bytes, remembers their highest point and what was live then.

    The bytes of a :class:`Storage` count until its last Python reference goes. Hence each ``del`` in a forward stands
    for a variable that ends there in the code that is replayed.
    """

    def __init__(  # noqa: PLR0915 - each attribute with its docstring
        self, *, autocast: str | None = None, inventory: bool = False
    ) -> None:
        """Begin with no live byte. ``autocast``: dtype of torch.autocast; ``inventory``: list the tensors of a peak."""
        self.live = 0
        """Live bytes now."""
        self.copies = 1
        """Number of equal pieces that one recorded piece counts as now: :class:`memcheck.autograd.loss.counted_as`."""
        self.ignores_peaks = False
        """New allocations are not considered for the peak."""
        self.peak = self.earlier_peak = 0
        """Most live bytes since the last reset, and the most before it."""
        self.largest = 0
        """Bytes of the largest block so far."""
        self.peak_label = ""
        """The tensor whose allocation reached the peak."""
        self.peak_components: dict[str, int] = {}
        """Bytes by component at the peak."""
        self.peak_inventory: list[Entry] = []
        """The tensors that lived at the peak."""
        self.near_recompute_end = False
        """The running recompute of a checkpoint stops after the next saved tensor (early stop)."""
        self.previous_peak: tuple[int, Any] = (0, None)
        """The event that set the last peak while ``near_recompute_end``, and the fields of the peak before it."""
        self.saves_linear_inputs = False
        """``F.linear`` is a Function of Python that saves its input whatever is trained."""
        self.has_grad_hooks = False
        """An engine's hook runs whenever a weight's gradient has arrived."""
        self.grad_hook_moments: list[tuple[int, dict[str, int]]] = []
        """Live bytes, in total and by component, when hooks ran: the first moment, and the highest of the others."""
        self.by_component: dict[str, int] = {}
        """Live bytes by component: ``activations``, ``gradients``, ``temporaries`` and others."""
        self.events = 0
        """Allocations so far."""
        self.sequence = 0
        """Nodes of the graph so far."""
        self.weight_backward_bytes = 0
        """Bytes of all output gradients that weight gradients were computed from: a zero-bubble schedule keeps them."""
        self.autocast = autocast
        """Dtype to which torch.autocast casts matrix products; None outside autocast."""
        self.casts: dict[int, Value] = {}
        """Autocast's weight cache, by identity of the parameter."""
        self.grad_enabled = True
        """Operators record their backward; False under ``torch.no_grad``."""
        self.frame: CheckpointFrame | None = None
        """The checkpointed call whose forward runs now."""
        self.python_references: list[Storage | None] = []
        """Storages that Python variables hold during the running backward, as a reentrant checkpoint's do."""
        self.component = "activations"
        """The component under which new storages are counted."""
        self.kept_outputs: KeptOutputs | None = None
        """Decides in a selectively checkpointed forward which outputs are kept, and returns these in its recompute."""
        self.dtensor_gradients = False
        """Gradients are tensor subclasses (DTensor): autograd then never accumulates in place."""
        self.inventory: dict[int, Entry] | None = {} if inventory else None
        self.retained_storages: list[Storage] = []
        """Storages in a container of the model's forward: keys and values that layers share, with their graph."""
        self.until_graph_freed: dict[int, int] = {}
        """Bytes, by storage, that backward does not free: they live as long as the graph is referenced."""

    def new(self, shape: tuple[int, ...], dtype: str, label: str) -> Storage:
        """Allocate a storage; its bytes are live until the last reference to it goes."""
        return Storage(self, shape, dtype, label, self.component)

    def output(
        self, kind: str, shape: tuple[int, ...], dtype: str, label: str, matrix: tuple[int, ...] | None = None
    ) -> Storage:
        """Allocate an operator's output, or return the one that selective recompute has kept.

        ``kind``: the operator's name in the policy. ``matrix``: [outputs, inputs] of the weight of a matrix product.
        """
        if self.kept_outputs is None:
            return Storage(self, shape, dtype, label, self.component)
        return self.kept_outputs.output(self, kind, shape, dtype, label, matrix)

    def mark_peak(self, label: str) -> None:
        """Record the current live bytes, by component, as the peak. ``label``: the tensor that was just allocated."""
        if self.near_recompute_end:
            before = self.peak, self.peak_label, self.peak_components, self.peak_inventory
            self.previous_peak = self.events, before
        self.peak = self.live
        self.peak_label = label
        self.peak_components = dict(self.by_component)
        if self.inventory is not None:
            self.peak_inventory = [entry for entry in self.inventory.values() if entry[3]]

    def record_grad_hook(self) -> None:
        """Record the live bytes at a moment at which an engine's hook for a new gradient runs.

        ``grad_hook_moments`` keeps the first such moment, and the highest of the others.
        """
        if (
            self.has_grad_hooks
            and not self.ignores_peaks
            and (len(self.grad_hook_moments) < 2 or self.live > self.grad_hook_moments[1][0])
        ):
            self.grad_hook_moments[1:] = [(self.live, dict(self.by_component))]

    def unmark_peak(self, storage: Storage | None) -> None:
        """Restore the peak before the newest allocation, ``storage``, if that has set one: torch does not make it."""
        event, before = self.previous_peak
        if storage is not None and before and event == self.events == storage.key:
            self.peak, self.peak_label, self.peak_components, self.peak_inventory = before

    def reset_peak(self) -> None:
        """Start a new phase of the replay: its peak so far is what is live now."""
        self.earlier_peak = max(self.earlier_peak, self.peak)
        self.mark_peak("start")

    def value(self, shape: tuple[int, ...], dtype: str, label: str) -> Value:
        """Allocate a tensor that needs no gradient."""
        return Value(Storage(self, shape, dtype, label, self.component), shape, dtype)

    def leaf(self, shape: tuple[int, ...], dtype: str, label: str) -> Value:
        """Allocate a tensor whose gradient leaves the unit."""
        return Value(self.new(shape, dtype, label), shape, dtype, Leaf())

    def external(self, shape: tuple[int, ...], dtype: str) -> Value:
        """A tensor whose bytes are counted elsewhere."""
        return Value(None, shape, dtype)

    def record(
        self,
        out: Value,
        inputs: tuple[Value, ...],
        run: Callable[..., Any] | tuple[Any, ...],
        *,
        saves: Sequence[Storage | SavedWeight | None] = (),
        validated: bool = False,
        saves_first: bool = False,
    ) -> Value:
        """Attach a backward function to ``out``, unless no input needs a gradient, and return ``out``.

        ``run(grad)`` returns one gradient per input, None where none is needed. A tuple in its place is the formula of
        an operator (``memcheck.autograd.operator``).

        ``saves``: storages that the node keeps until ``run`` has returned, and that a checkpoint makes again.
        ``validated``: the engine sums and casts what comes back to the shape and dtype of each input. ``saves_first``:
        an operator of ATen saves its inputs before it makes ``out`` (a Function of Python does so afterwards).
        """
        if not self.grad_enabled:
            return out
        edges = tuple([v.origin for v in inputs])
        if edges.count(None) < len(edges):
            self.sequence += 1
            out.origin = node = Node(self.sequence, edges, run, saves)
            node.copies = self.copies
            if validated:
                node.input_metadata = tuple([(v.shape, v.dtype, v.numel) for v in inputs])
            if self.frame is not None:
                self.frame.add(node, out.storage if saves_first else None)
        return out

    def views(self, x: Value, *shapes: tuple[int, ...]) -> list[Value]:
        """Return views of ``x`` with these shapes, as split, chunk and unbind do.

        Their backward waits for the gradients of all views, and allocates one of the size of ``x``.
        """
        shape, dtype = x.shape, x.dtype
        outputs = [Value(x.storage, view_shape, dtype) for view_shape in shapes]
        if not x.needs_grad or not self.grad_enabled:
            return outputs
        # one node of the graph joins the gradients of all views, and each view passes its own on to that node
        joint = self.record(Value(None, (), dtype), (x,), lambda grad: [self.new(shape, dtype, "split backward")])
        if isinstance(joint.origin, Node):
            joint.origin.view_gradients = []
        return [self.record(output, (joint,), lambda grad: [grad]) for output in outputs]

    def parameter(self, weight: Parameter) -> Value:
        """A parameter as a value (a leaf of the graph when it is trained)."""
        return Value(None, weight.shape, weight.dtype, weight if weight.requires_grad else None)


Backward = Callable[[Storage], "list[Storage | None]"]
"""The backward of a node: from the gradient of its result to a gradient for each input, or None."""


class Gathered(Leaf):
    """A tensor that several units read, whose gradient is counted with another unit: adding to it is in place."""

    __slots__ = ()

    @property
    def grad(self) -> Storage | None:
        """None that counts here."""
        return None

    @grad.setter
    def grad(self, value: Storage | None) -> None:
        """Drop the gradient: it is added in place to a tensor that is counted elsewhere."""


def shared(tape: Tape, shape: tuple[int, ...], dtype: str, *, needs_grad: bool, starts: bool) -> Value:
    """Return a tensor that several units read, and whose bytes are counted elsewhere.

    ``needs_grad``: its gradient is computed. ``starts``: backward reaches this unit first, which allocates the
    gradient; other units add to it in place.
    """
    leaf: Leaf | None = None
    if needs_grad:
        leaf = Leaf() if starts else Gathered()
    return Value(tape.new((0,), dtype, "shared"), shape, dtype, leaf)


def shared_copy(weight: Parameter, dtype: str, cast_back: Backward) -> Backward:
    """Return the backward function of autocast's copy of a weight that several layers read.

    The gradients of all layers are summed in place in the copy's node. The first layer is the last that backward
    reaches: there one cast turns the sum into the weight's gradient. ``cast_back``: that cast.
    """
    if not weight.shared_with_earlier:
        weight.cast_gradient_dtype, weight.has_grad = dtype, not weight.first_micro_batch

        def run(grad: Storage) -> list[Storage | None]:
            gradients = cast_back(grad)
            weight.cast_gradient = None
            return gradients

        return run

    def wait(grad: Storage) -> list[Storage | None]:
        if not weight.shared_with_later:
            weight.cast_gradient = grad
        return [None]

    return wait
