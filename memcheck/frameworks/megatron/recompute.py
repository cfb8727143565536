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
"""A part of a forward that is run again in backward: from its inputs to its output."""
Outputs = Callable[[Context, tuple[Value, ...]], tuple[Value, ...]]
"""A part of a forward with several outputs."""


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


def _leaves(specs: list[InputSpec]) -> list[Leaf | None]:
    """Return the leaves at which the gradients of a recompute's inputs arrive; None: an input wants no gradient."""
    return [Leaf() if spec.needs_grad else None for spec in specs]


def _values(specs: list[InputSpec], leaves: list[Leaf | None]) -> list[Value]:
    """Return the inputs of a recompute, whose gradients arrive at ``leaves`` (``detach_variable``)."""
    return [Value(spec.storage, spec.shape, spec.dtype, leaf) for spec, leaf in zip(specs, leaves, strict=True)]


def _gradients(leaves: list[Leaf | None]) -> list[Storage | None]:
    """Return the gradients that have arrived at the inputs of a recompute."""
    return [leaf.grad if leaf is not None else None for leaf in leaves]


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
    shards_input = distribute and ctx.tp > 1 and inputs[0].storage is not None
    if shards_input:
        inputs[0].storage = tape.new((ceil_div(inputs[0].numel, ctx.tp),), inputs[0].dtype, "1/tp of the layer input")
    input_specs = [InputSpec.of(value) for value in inputs]

    def run(incoming: list[Storage]) -> list[Storage | None]:
        """Backward (CheckpointFunction.backward): run the function again with a graph, then that graph's backward.

        ``incoming``: a list with the gradient of the output, which the inner backward empties.
        """
        leaves = _leaves(input_specs)
        component, tape.component = tape.component, "activations"
        recompute_inputs = _values(input_specs, leaves)
        if shards_input:
            full_shape, dtype = input_specs[0].shape, input_specs[0].dtype
            recompute_inputs[0].storage = tape.new(full_shape, dtype, "gathered layer input")
        result = function(ctx, tuple(recompute_inputs))
        first_input = recompute_inputs[0].storage if routed else None
        recompute_inputs.clear()  # the new graph holds what it has saved of them
        tape.component = "temporaries"
        _backward_with_held_arguments(ctx, result, incoming)
        tape.component = component
        gradients = _gradients(leaves)
        if first_input is not None and gradients[0] is not None:  # the dispatcher's `self.probs` keep both
            tape.retained_storages += [first_input, gradients[0]]
            gradients[0].holders += 1
        return gradients

    kept_inputs = [spec.storage for spec in input_specs]
    if not any(spec.needs_grad for spec in input_specs):
        # no input needs a gradient, but weights inside do: the checkpoint takes part in backward all the same
        inputs = (Value(None, (), out.dtype, Leaf()),)
    result = tape.record(Value(out.storage, out.shape, out.dtype), inputs, run, saves=kept_inputs)
    if isinstance(result.origin, Node):
        result.origin.hands_over_gradient = True
    return result


def _backward_with_held_arguments(ctx: Context, output: Value, incoming: list[Storage]) -> None:
    """Run the backward of a recompute, during which its output and the incoming gradient stay alive.

    Both are variables of CheckpointFunction.backward. So autograd adds nothing to that gradient in place.
    """
    held_gradients, held_output = list(incoming), output.storage
    for gradient in held_gradients:
        gradient.holders += 1
    backward(ctx.tape, output, incoming)
    del held_gradients, held_output


class Recomputed(Record):
    """A checkpoint's function that has run again, with a graph."""

    outputs: tuple[Value, ...]
    input_leaves: list[Leaf | None]
    """Where the gradients of its inputs arrive."""


class Discarded:
    """CheckpointWithoutOutput: outputs that consumers saved are emptied after use and made again in backward.

    The hook runs the function again with a graph and copies its outputs into the emptied storages; the copies, and what
    the function saved, live until the checkpoint's own backward.
    """

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.storages: list[tuple[Storage, int]] = []
        """The outputs that :meth:`discard` empties, with their bytes."""
        self.recomputed: list[Recomputed] = []
        """The recompute, until the checkpoint's own backward."""
        self.again: Callable[[], None] | None = None
        """Runs the function again, and appends to ``recomputed``; None: it has run, or will when a hook calls it."""

    def run(self, function: Outputs, inputs: tuple[Value, ...]) -> tuple[Value, ...]:
        """Run ``checkpoint(function, *inputs)`` without a graph and return its outputs, which :meth:`discard` can
        empty.
        """
        ctx, tape, recomputed = self.ctx, self.ctx.tape, self.recomputed
        enabled, tape.grad_enabled = tape.grad_enabled, False
        outputs = function(ctx, inputs)
        tape.grad_enabled = enabled
        if not enabled:
            return outputs
        specs = [InputSpec.of(value) for value in inputs]
        self.storages = [(output.storage, output.storage.bytes) for output in outputs if output.storage is not None]

        def again() -> None:
            """Run the function again with a graph, and keep its outputs and the leaves at its inputs."""
            leaves = _leaves(specs)
            values = tuple(_values(specs, leaves))  # a variable of the caller, which lives until the function returns
            component, tape.component = tape.component, "activations"
            recomputed.append(Recomputed(function(ctx, values), leaves))
            tape.component = component

        self.again = again
        return _join_backward(self, outputs, inputs)

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


def _join_backward(owner: Discarded, outputs: tuple[Value, ...], inputs: tuple[Value, ...]) -> tuple[Value, ...]:
    """Attach one backward to all outputs of a checkpoint, which runs when every output has its gradient.

    ``owner``: the checkpoint. Returns the outputs with the backward attached; ``inputs`` get its gradients. The
    backward recomputes the outputs if :meth:`Discarded.discard` has not registered a hook for that.
    """
    tape = owner.ctx.tape
    arrived: list[Storage | None] = [None] * len(outputs)  # the gradient of each output

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: give the recomputed outputs their gradients, and run the backward of the recompute."""
        if owner.again is not None:  # never discarded: recompute now
            owner.again()
            owner.again = None
        recomputed_outputs, leaves = owner.recomputed.pop()
        gradients = list(arrived)
        arrived[:] = [None] * len(arrived)

        def distribute(grad: Storage) -> list[Storage | None]:
            """Hand each output's gradient on, without keeping it."""
            return [gradients.pop(0) for _ in range(len(gradients))]

        # a root above all outputs, as torch.autograd.backward(outputs, gradients) starts from several
        root = tape.record(Value(None, (1,), "bf16"), recomputed_outputs, distribute)
        del recomputed_outputs
        backward(tape, root, [tape.new((1,), "bf16", "root")])
        return _gradients(leaves)

    carrier = tape.record(Value(None, (), "bf16"), inputs, run)
    if isinstance(carrier.origin, Node):
        carrier.origin.view_gradients = []  # the node waits for the gradients of all outputs

    def output_node(i: int, output: Value) -> Value:
        """Record one output as a node that stores its gradient when it arrives."""

        def collect(grad: Storage) -> list[Storage | None]:
            arrived[i] = grad
            return [grad]

        return tape.record(Value(output.storage, output.shape, output.dtype), (carrier,), collect)

    return tuple(output_node(i, output) for i, output in enumerate(outputs))


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
