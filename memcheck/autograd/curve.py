"""The memory curve of one unit: replayed once, then used for every equal layer."""

from __future__ import annotations

from collections.abc import Callable

from memcheck.autograd import Tape, Value, backward
from memcheck.autograd.context import Context, Setting
from memcheck.autograd.engine import checkpoint
from memcheck.autograd.tensor import Entry, Leaf, rounded_bytes
from memcheck.record import Record

Inventory = tuple[Entry, ...]
"""Tensors that are live at one moment."""


class Peak(Record):
    """The most live bytes in one phase (forward or backward) of a unit, without what was live before the unit."""

    bytes: int
    label: str
    """The tensor whose allocation reached the peak."""
    components: tuple[tuple[str, int], ...]
    """Bytes by component (``activations``, ``gradients``, ``temporaries``), which add up to ``bytes``."""
    inventory: Inventory = ()
    """The live tensors one by one; empty unless the replay was asked to list them."""
    largest_block: int = 0
    """Bytes of the largest block that the unit has made so far, live or not."""


class Saved(Record):
    """Tensors of one unit that are live between its forward and its backward."""

    bytes: int
    inventory: Inventory
    """The tensors one by one; empty unless the replay was asked to list them."""
    components: tuple[tuple[str, int], ...]
    """Bytes by component, which add up to ``bytes``."""


class Curve(Record):
    """The bytes that one unit (a layer, a head) adds to the live bytes of a rank, phase by phase.

    The unit's input counts as its own, its output as that of the next unit.
    """

    saved_bytes: int
    """Bytes that are live from the end of the unit's forward to its backward: tensors saved for backward."""
    saved_inventory: Inventory
    """The saved tensors one by one; empty unless the replay was asked to list them."""
    saved_components: tuple[tuple[str, int], ...]
    """``saved_bytes`` by component."""
    autocast_cache_bytes: int
    """Bytes of autocast's weight copies that nothing has saved: its cache keeps them until autocast is left."""
    forward_peak: Peak
    """The highest point of the forward."""
    backward_peak: Peak
    """The highest point of the backward: includes the unit's saved set, the gradient of its output and the new
    gradients of its parameters.
    """
    gradient_bytes: int
    """Bytes of new ``.grad`` tensors after the unit's backward."""
    until_backward_ends: int = 0
    """Bytes that are live until the backward of the whole model ends: the model's output if the training loop still
    references it, and a tied head's gradient that waits for the embedding's."""
    peak_before_loss: Peak | None = None
    """The highest point of a head's final norm, before logits and loss. None: the unit is no head."""
    grad_hook_peak: Peak | None = None
    """The highest point of the unit's backward at which an engine's hook runs: a gradient has just arrived."""
    later_grad_hook_peak: Peak | None = None
    """The highest point of the backward at which an engine's hook runs, without the unit's first gradient. Set where
    that gradient may be the first of a whole backward.
    """
    extra_output_bytes: int = 0
    """Bytes that the unit returns in addition to its output and has not saved: attention weights of a checkpointed
    layer.
    """
    input_bytes: int = 0
    """Bytes of the unit's input, if the unit has an input of its own. They are live when its parameters are gathered
    for its forward.
    """
    freed_input_bytes: int = 0
    """Bytes of the unit's input that are freed after its forward, because nothing has saved it. For an embedding: bytes
    of the rows that it looks up."""
    input_gradient_bytes: int = 0
    """Bytes of the gradient of the unit's input; 0: it needs none."""
    output_gradient_bytes: int = 0
    """Bytes of the gradient of the unit's output, with which its backward starts."""
    gradient_bytes_for_earlier_units: int = 0
    """Bytes of gradients that this unit's backward leaves for an earlier unit, such as those of a shared weight."""
    gradient_bytes_of_later_units: int = 0
    """Bytes of gradients that the backward of later units has left for this one (``gradient_bytes_for_earlier_units``
    of those units). From the start of this unit's backward on, ``backward_peak`` counts them."""
    until_graph_freed: int = 0
    """Bytes that are live until the training loop drops the graph, when the next forward's output replaces this one."""
    weight_backward_bytes: int = 0
    """Bytes of output gradients that a zero-bubble schedule keeps from the input backward to the weight backward."""


Forward = Callable[[Context, Value], Value]
"""The forward of a unit on a context: its input, such as [tokens, hidden], to its output."""


def replay(
    forward: Forward,
    setting: Setting,
    shape: tuple[int, ...],
    dtype: str,
    *,
    recompute: bool = False,
    inventory: bool = False,
    table: tuple[int, int] = (0, 0),
) -> Curve:
    """Run one unit forward and backward on a fresh tape, and return its memory curve in bytes.

    ``shape``, ``dtype``: the unit's input on this rank. ``recompute``: the unit is checkpointed as a whole.
    ``inventory``: also list the tensors that live at each peak. ``table``: the shape of cos and of sin that FSDP2 casts
    for this unit before its forward; (0, 0): it casts none.
    """
    tape = Tape(autocast=setting.autocast_dtype, inventory=inventory)
    tape.dtensor_gradients = setting.uses_dtensor
    ctx = Context(tape, setting)
    storage = None if setting.input_is_counted_elsewhere else tape.new(shape, dtype, "block input")
    x = Value(storage, shape, dtype, Leaf() if setting.needs_input_gradient else None)
    del storage
    if table[1]:  # 0: the model has no rotary embeddings, or FSDP2 casts no table
        ctx.rotary_tables = tuple([tape.new(table, setting.param_dtype, "rotary table, cast") for _ in range(2)])
    output = checkpointed(ctx, forward, x) if recompute else forward(ctx, x)
    reentrant = recompute and setting.reentrant
    if reentrant and output.needs_grad:
        # CheckpointFunction's ctx has the call's arguments until the graph goes
        tape.until_graph_freed.update((storage.key, storage.bytes) for storage in ctx.rotary_tables)
    ctx.rotary_tables = ()
    forward_peak = peak_of(tape)
    input_leaf, output_spec, has_graph = x.origin, (output.shape, output.dtype), output.needs_grad
    freed = _free_variables(ctx, output, x)
    saved = end_forward(tape)
    taken_gradient_bytes = _take_cast_gradients(ctx)
    # the gradient is an argument of the schedule's backward_step, or of CheckpointFunction.backward
    _run_backward(tape, output, output_spec, is_argument=setting.holds_output_gradient or reentrant)
    curve = curve_of(tape, forward_peak, saved)
    tape.python_references.clear()
    del input_leaf  # the input's gradient was alive until here
    until_backward_ends = sum(storage.bytes for storage in tape.retained_storages)
    tape.retained_storages.clear()
    return curve._replace(
        autocast_cache_bytes=freed.autocast_copies,
        extra_output_bytes=freed.extra_outputs,
        input_bytes=rounded_bytes(shape, dtype) if not setting.input_is_counted_elsewhere else 0,
        freed_input_bytes=freed.input,
        input_gradient_bytes=rounded_bytes(shape, dtype) if setting.needs_input_gradient else 0,
        output_gradient_bytes=rounded_bytes(*output_spec) if has_graph else 0,
        until_graph_freed=sum(tape.until_graph_freed.values()),
        until_backward_ends=until_backward_ends,
        gradient_bytes_for_earlier_units=_cast_gradient_bytes(ctx),
        gradient_bytes_of_later_units=taken_gradient_bytes,
        weight_backward_bytes=tape.weight_backward_bytes,
    )


def curve_without_input(tape: Tape, ctx: Context, output: Value, forward_peak: Peak) -> Curve:
    """Run the backward of a unit without an input of its own, and return its memory curve in bytes.

    ``output``: the output of its forward, which has run on ``tape``. ``forward_peak``: the peak of that forward.
    Tensors in ``ctx.extra_outputs`` are still referenced by variables when the forward ends.
    """
    output_spec = (output.shape, output.dtype)
    freed = _free_variables(ctx, output)
    saved = end_forward(tape)
    _run_backward(tape, output, output_spec)
    curve = curve_of(tape, forward_peak, saved)
    return curve._replace(autocast_cache_bytes=freed.autocast_copies, extra_output_bytes=freed.extra_outputs)


def curve_of(tape: Tape, forward_peak: Peak, saved: Saved) -> Curve:
    """Return the memory curve of a unit whose backward has just run on the tape.

    ``saved``: what its forward has saved (:func:`end_forward`). Bytes that a unit keeps beyond that are 0.
    """
    return Curve(
        saved_bytes=saved.bytes,
        saved_inventory=saved.inventory,
        saved_components=saved.components,
        autocast_cache_bytes=0,
        forward_peak=forward_peak,
        backward_peak=peak_of(tape),
        gradient_bytes=tape.by_component.get("gradients", 0),
        grad_hook_peak=grad_hook_peak(tape),
    )


class _Freed(Record):
    """Bytes that are freed when a unit's forward has returned, because only variables referred to them."""

    input: int
    autocast_copies: int
    """Copies of weights in autocast's cache."""
    extra_outputs: int
    """What the unit returns in addition to its output."""


def _free_variables(ctx: Context, output: Value, x: Value | None = None) -> _Freed:
    """Free a unit's output, its input ``x``, autocast's copies and further outputs, in this order.

    Tensors that the graph has saved stay alive. The output's bytes count with the next unit.
    """
    tape = ctx.tape
    output.storage = None
    with_input = tape.live
    if x is not None:
        x.storage = None
    with_copies = tape.live
    tape.casts.clear()
    with_extra_outputs = tape.live
    for value in ctx.extra_outputs:
        value.storage = None
    return _Freed(with_input - with_copies, with_copies - with_extra_outputs, with_extra_outputs - tape.live)


def _run_backward(
    tape: Tape, output: Value, output_spec: tuple[tuple[int, ...], str], *, is_argument: bool = False
) -> None:
    """Run a unit's backward from a new gradient of its output; without a graph, do nothing.

    ``output_spec``: shape and dtype of the gradient. ``is_argument``: a caller's variable refers to it to the end.
    """
    if not output.needs_grad:
        return
    gradient = [tape.new(*output_spec, "output gradient")]
    if is_argument:
        gradient[0].holders += 1
        tape.python_references.append(gradient[0])
    backward(tape, output, gradient)


def _take_cast_gradients(ctx: Context) -> int:
    """Allocate the gradients of autocast's weight copies that later layers have left; return their bytes."""
    for p in ctx.parameters:
        if p.cast_gradient_dtype is not None:
            p.cast_gradient = ctx.tape.new(p.shape, p.cast_gradient_dtype, "gradient of an autocast copy")
    return _cast_gradient_bytes(ctx)


def _cast_gradient_bytes(ctx: Context) -> int:
    """Return the bytes of gradients of autocast's weight copies that are not cast back yet.

    Layers that share a weight sum them in the copy's node, from the last layer to the first.
    """
    return sum(p.cast_gradient.bytes for p in ctx.parameters if p.cast_gradient is not None)


def end_forward(tape: Tape) -> Saved:
    """Return the tensors that a finished forward has saved, and start the backward phase.

    From here on the tape has a new peak, and counts new tensors as temporaries.
    """
    saved = saved_now(tape)
    tape.component = "temporaries"
    tape.reset_peak()
    return saved


def saved_now(tape: Tape) -> Saved:
    """Return all tensors that are live on the tape."""
    return Saved(
        bytes=tape.live,
        inventory=tuple(tape.inventory.values()) if tape.inventory is not None else (),
        components=tuple((name, n_bytes) for name, n_bytes in tape.by_component.items() if n_bytes),
    )


def peak_of(tape: Tape) -> Peak:
    """Return the highest point of the tape since its last reset."""
    return Peak(
        bytes=tape.peak,
        label=tape.peak_label,
        components=tuple((k, v) for k, v in tape.peak_components.items() if v),
        inventory=tuple(tape.peak_inventory),
        largest_block=tape.largest,
    )


def grad_hook_peak(tape: Tape, first: int = 0) -> Peak | None:
    """Return the highest point at which an engine's hook for a new gradient has run; None: no hook has run.

    ``first``: the index in ``tape.grad_hook_moments`` to start from. 1 leaves the first gradient of the unit out.
    """
    n_bytes, components = max(tape.grad_hook_moments[first:], key=lambda arrived: arrived[0], default=(0, {}))
    nonzero = tuple((k, v) for k, v in components.items() if v)
    return Peak(n_bytes, "a gradient's hook", nonzero) if nonzero else None


def checkpointed(ctx: Context, forward: Forward, x: Value) -> Value:
    """Run a unit under ``torch.utils.checkpoint``; the setting says whether it is reentrant."""
    tables = ctx.rotary_tables  # cos and sin are arguments of the call: the recompute reads the same ones

    def run(value: Value) -> Value:
        """Run the forward with the caller's rotary tables, and drop its variables."""
        caller_tables, ctx.rotary_tables = ctx.rotary_tables, tables
        try:
            return forward(ctx, value)
        finally:  # also where checkpoint's early stop ends a recomputation in the middle, by an exception
            ctx.attention_locals, ctx.rotary_tables = [], caller_tables

    return checkpoint(ctx.tape, run, x, ctx.extra_outputs if ctx.setting.reentrant else None)


def keeping(curve: Curve, n_bytes: int, entries: Inventory, live_at_peak: int = 0) -> Curve:
    """Return a unit's curve with ``n_bytes`` more activations saved in its forward, listed as ``entries``.

    ``live_at_peak``: how many of these bytes are still live at the peak of the unit's backward.
    """
    components = dict(curve.saved_components)
    components["activations"] = components.get("activations", 0) + n_bytes
    return curve._replace(
        saved_bytes=curve.saved_bytes + n_bytes,
        saved_components=tuple(components.items()),
        saved_inventory=curve.saved_inventory + entries,
        backward_peak=_higher(curve.backward_peak, live_at_peak) if live_at_peak else curve.backward_peak,
    )


def _higher(peak: Peak, n_bytes: int) -> Peak:
    """Return ``peak`` with ``n_bytes`` more activations live."""
    components = dict(peak.components)
    components["activations"] = components.get("activations", 0) + n_bytes
    return peak._replace(bytes=peak.bytes + n_bytes, components=tuple(components.items()))
