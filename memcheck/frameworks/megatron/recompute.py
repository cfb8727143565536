"""Megatron's two ways to recompute: reentrant checkpoints, and checkpoints that drop an output others have saved.

Source: Megatron-core ``tensor_parallel/random.py`` (CheckpointFunction, CheckpointWithoutOutput).
"""

from __future__ import annotations

from collections.abc import Callable

from memcheck.autograd import Node, Storage, Value, backward
from memcheck.autograd.context import Context
from memcheck.autograd.tensor import Leaf, ceil_div, rounded
from memcheck.record import Record

Function = Callable[[Context, tuple[Value, ...]], Value]


class InputSpec(Record):
    """An input that a checkpoint keeps, to run its function on it again."""

    storage: Storage | None
    shape: tuple[int, ...]
    dtype: str
    needs_grad: bool

    @staticmethod
    def of(value: Value) -> InputSpec:
        """Return what is kept of an input."""
        return InputSpec(storage=value.storage, shape=value.shape, dtype=value.dtype, needs_grad=value.needs_grad)


def _values(specs: list[InputSpec], leaves: list[Leaf | None]) -> list[Value]:
    """Return the inputs of a recompute, whose gradients arrive at ``leaves``; None: an input wants no gradient."""
    return [Value(spec.storage, spec.shape, spec.dtype, leaf) for spec, leaf in zip(specs, leaves, strict=True)]


def checkpoint(
    ctx: Context, function: Function, inputs: tuple[Value, ...], *, distribute: bool = False, routed: bool = False
) -> Value:
    """Run ``function`` without a graph, keep its inputs, and run it again in backward (``tensor_parallel.checkpoint``).

    ``distribute`` (distribute_saved_activations): keep 1/tp of the first input on this tensor rank, and gather it
    again. ``routed``: the layer has an MoE dispatcher, whose ``self.probs`` live until its next forward. They refer to
    the graph of the recompute, and so keep the first input and its gradient. The recomputed output stays alive during
    the inner backward, unlike in torch's non-reentrant checkpoint.
    """
    tape = ctx.tape
    enabled, tape.grad_enabled = tape.grad_enabled, False
    out = function(ctx, inputs)
    tape.grad_enabled = enabled
    if not enabled:
        return out
    first = inputs[0]
    shards_input = distribute and ctx.tp > 1 and first.storage is not None
    if shards_input:
        shard = tape.new((ceil_div(first.numel, ctx.tp),), first.dtype, "1/tp of the layer input")
        first.storage = shard
        del shard
    input_specs = [InputSpec.of(v) for v in inputs]
    del first

    def run(box: list[Storage]) -> list[Storage | None]:
        """Backward: run the function again with a graph, then its backward. ``box``: the incoming gradient."""
        leaves = [Leaf() if spec.needs_grad else None for spec in input_specs]
        component, tape.component = tape.component, "activations"
        recompute_inputs = _values(input_specs, leaves)
        if shards_input:
            full_shape, dtype = input_specs[0].shape, input_specs[0].dtype
            recompute_inputs[0].storage = tape.new(full_shape, dtype, "gathered layer input")
        result = function(ctx, tuple(recompute_inputs))
        first = recompute_inputs[0].storage if routed else None
        recompute_inputs.clear()
        tape.component = "temporaries"
        # arguments of CheckpointFunction.backward keep the incoming gradient: nothing is added in place to it
        incoming = list(box)
        for gradient in incoming:
            gradient.holders += 1
        recomputed_output = result.storage
        backward(tape, result, box)
        del incoming, recomputed_output
        tape.component = component
        if first is not None and leaves[0] is not None and leaves[0].grad is not None:
            tape.retained_storages += [first, leaves[0].grad]
            leaves[0].grad.holders += 1
        return [leaf.grad if leaf is not None else None for leaf in leaves]

    if not any(spec.needs_grad for spec in input_specs):
        # no input needs a gradient, but weights inside do: the checkpoint takes part in backward all the same
        inputs = (Value(None, (), out.dtype, Leaf()),)
    kept_inputs = [spec.storage for spec in input_specs]
    result = tape.record(Value(out.storage, out.shape, out.dtype), inputs, run, saves=kept_inputs)
    if isinstance(result.origin, Node):
        result.origin.hands_over_gradient = True
    return result


Outputs = Callable[[Context, tuple[Value, ...]], tuple[Value, ...]]


class Discarded:
    """CheckpointWithoutOutput: outputs that consumers saved are emptied after use and made again in backward.

    The hook runs the function again with a graph and copies its outputs into the emptied storages; the copies, and what
    the function saved, live until the checkpoint's own backward.
    """

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.storages: list[tuple[Storage, int]] = []
        self.recomputed: list[tuple[tuple[Value, ...], list[Leaf | None]]] = []
        self.again: Callable[[], None] | None = None

    def run(self, function: Outputs, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        """Run ``checkpoint(function, *inputs)`` without a graph and return its outputs, which :meth:`discard` can
        empty.
        """
        tape = self.ctx.tape
        enabled, tape.grad_enabled = tape.grad_enabled, False
        outs = function(self.ctx, inputs)
        tape.grad_enabled = enabled
        if not enabled:
            return outs
        specs = [InputSpec.of(v) for v in inputs]
        self.storages = [(output.storage, output.storage.bytes) for output in outs if output.storage is not None]
        ctx, recomputed = self.ctx, self.recomputed

        def again(specs: list[InputSpec] = specs) -> None:
            """Run the function again with a graph, and keep its outputs and the leaves at its inputs."""
            leaves = [Leaf() if spec.needs_grad else None for spec in specs]
            values = tuple(_values(specs, leaves))  # a variable of the caller, which lives until the function returns
            component, tape.component = tape.component, "activations"
            recomputed.append((function(ctx, values), leaves))
            tape.component = component

        self.again = again
        return _join_backward(self, outs, inputs)

    def discard(self, after: Value) -> Value:
        """Free the outputs' memory now, and recompute them in backward when the gradient of ``after`` arrives.

        Source: Megatron-core tensor_parallel/random.py, CheckpointWithoutOutput.discard_output_and_register_recompute.
        Returns ``after`` with the hook attached.
        """
        tape = self.ctx.tape
        recompute, outputs = self.again, self.storages
        self.again, self.storages = None, []
        if recompute is None or not after.needs_grad:
            return after
        for storage, _ in outputs:
            resize(storage, 0)

        def run(grad: Storage) -> list[Storage | None]:
            """Backward hook: recompute the outputs, and give their storages memory again."""
            recompute()
            for storage, n_bytes in outputs:
                resize(storage, n_bytes)
            return [grad]

        saved = [storage for storage, _ in outputs]
        return tape.record(Value(after.storage, after.shape, after.dtype), (after,), run, saves=saved)


def _join_backward(owner: Discarded, outs: tuple[Value, ...], inputs: tuple[Value, ...]) -> tuple[Value, ...]:
    """Attach one backward to all outputs of a checkpoint, which runs when every output has its gradient.

    ``owner``: the checkpoint. ``outs``: its outputs, which are returned with the backward attached. ``inputs``: get the
    gradients. The backward recomputes the outputs if that has not happened yet.
    """
    tape = owner.ctx.tape
    arrived: list[Storage | None] = [None] * len(outs)

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: recompute the outputs unless :meth:`Discarded.discard` has, and run their backward from all
        gradients.
        """
        if owner.again is not None:  # never discarded: recompute now
            owner.again()
            owner.again = None
        values, leaves = owner.recomputed.pop()
        gradients = list(arrived)
        arrived[:] = [None] * len(arrived)
        root = tape.record(Value(None, (1,), "bf16"), values, _distribute_gradients(gradients))
        del values
        root_gradient = [tape.new((1,), "bf16", "root")]
        del gradients
        backward(tape, root, root_gradient)
        return [leaf.grad if leaf is not None else None for leaf in leaves]

    carrier = tape.record(Value(None, (), "bf16"), inputs, run)
    if isinstance(carrier.origin, Node):
        carrier.origin.view_gradients = []

    def output_node(i: int, output: Value) -> Value:
        """Record one output as a node that stores its gradient when it arrives."""

        def collect(grad: Storage) -> list[Storage | None]:
            arrived[i] = grad
            return [grad]

        return tape.record(Value(output.storage, output.shape, output.dtype), (carrier,), collect)

    return tuple(output_node(i, output) for i, output in enumerate(outs))


def _distribute_gradients(gradients: list[Storage | None]) -> Callable[[Storage], list[Storage | None]]:
    """Return a backward function that gives the recomputed outputs their gradients, one for each."""
    return lambda grad: [gradients.pop(0) for _ in range(len(gradients))]


def resize(storage: Storage, n_bytes: int) -> None:
    """Resize a storage in place, as ``untyped_storage().resize_`` does; its references stay.

    Updates the tape's live bytes, its bytes per component and the peak.
    """
    tape = storage.tape
    change = rounded(n_bytes) - storage.bytes
    storage.bytes += change
    tape.live += change
    tape.by_component[storage.component] = tape.by_component.get(storage.component, 0) + change
    if tape.inventory is not None and storage.key in tape.inventory:
        label, shape, dtype, _, component, copies = tape.inventory[storage.key]
        tape.inventory[storage.key] = (label, shape, dtype, storage.bytes, component, copies)
    if tape.live > tape.peak:
        tape.mark_peak("recomputed output")
