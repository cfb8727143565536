"""Megatron's two ways to recompute: reentrant checkpoints, and checkpoints that drop an output others have saved.

Source: Megatron-core ``tensor_parallel/random.py`` (CheckpointFunction, CheckpointWithoutOutput).
"""

from __future__ import annotations

from collections.abc import Callable

from memcheck.autograd import Node, Storage, Value, backward
from memcheck.autograd.context import Context
from memcheck.autograd.tensor import Leaf, rounded

Function = Callable[[Context, tuple[Value, ...]], Value]


def checkpoint(
    ctx: Context, function: Function, inputs: tuple[Value, ...], *, distribute: bool = False, routed: bool = False
) -> Value:
    """``tensor_parallel.checkpoint``: keeps the inputs, runs ``function`` again in backward.

    ``distribute`` (distribute_saved_activations): the first input is kept as this tensor rank's 1/tp of it and gathered
    again. ``routed``: a dispatcher inside keeps the routing probabilities (``self.local_probs``, ``self.probs``) until
    its next forward; they hold the graph of the recompute, whose leaf is the first input, with its gradient. Unlike
    torch's non-reentrant checkpoint the recomputed output stays alive during the inner backward.
    """
    tape = ctx.tape
    enabled, tape.grad_enabled = tape.grad_enabled, False
    out = function(ctx, inputs)
    tape.grad_enabled = enabled
    if not enabled:
        return out
    first = inputs[0]
    parted = distribute and ctx.tp > 1 and first.storage is not None
    if parted:
        piece = tape.new((-(-first.numel // ctx.tp),), first.dtype, "1/tp of the layer input")
        first.storage = piece
        del piece
    specs = [(v.storage, v.shape, v.dtype, v.origin is not None) for v in inputs]
    del first

    def run(box: list[Storage]) -> list[Storage | None]:
        leaves = [Leaf() if s[3] else None for s in specs]
        component, tape.component = tape.component, "activations"
        again = [Value(s[0], s[1], s[2], leaf) for s, leaf in zip(specs, leaves, strict=True)]
        if parted:
            again[0].storage = tape.new(again[0].shape, again[0].dtype, "gathered layer input")
        result = function(ctx, tuple(again))
        first = again[0].storage if routed else None
        again.clear()
        tape.component = "temporaries"
        outer = list(box)  # the checkpoint's own arguments hold the incoming gradient to the end: none is added to it
        for gradient in outer:
            gradient.holders += 1
        held = result.storage
        backward(tape, result, box)
        del outer, held
        tape.component = component
        if first is not None and leaves[0] is not None and leaves[0].grad is not None:
            tape.retained += [first, leaves[0].grad]
            leaves[0].grad.holders += 1
        return [leaf.grad if leaf is not None else None for leaf in leaves]

    if not any(s[3] for s in specs):  # trained weights inside: the checkpoint takes part in backward all the same
        inputs = (Value(None, (), out.dtype, Leaf()),)
    result = tape.record(Value(out.storage, out.shape, out.dtype), inputs, run, saves=[s[0] for s in specs])
    if isinstance(result.origin, Node):
        result.origin.handover = True
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
        """``checkpoint(function, *inputs)``."""
        tape = self.ctx.tape
        enabled, tape.grad_enabled = tape.grad_enabled, False
        outs = function(self.ctx, inputs)
        tape.grad_enabled = enabled
        if not enabled:
            return outs
        specs = [(v.storage, v.shape, v.dtype, v.origin is not None) for v in inputs]
        self.storages = [(o.storage, o.storage.bytes) for o in outs if o.storage is not None]
        ctx, recomputed = self.ctx, self.recomputed

        def again(specs: list[tuple[Storage | None, tuple[int, ...], str, bool]] = specs) -> None:
            leaves = [Leaf() if s[3] else None for s in specs]
            values = tuple(Value(s[0], s[1], s[2], leaf) for s, leaf in zip(specs, leaves, strict=True))
            component, tape.component = tape.component, "activations"
            recomputed.append((function(ctx, values), leaves))
            tape.component = component

        self.again = again
        return _joined(self, outs, inputs)

    def discard(self, after: Value) -> Value:
        """Empty the outputs now; make them again when the gradient of ``after`` arrives."""
        tape = self.ctx.tape
        again, kept = self.again, self.storages
        self.again, self.storages = None, []
        if again is None or after.origin is None:
            return after
        for storage, _ in kept:
            resize(storage, 0)

        def run(grad: Storage) -> list[Storage | None]:
            again()
            for storage, n_bytes in kept:
                resize(storage, n_bytes)
            return [grad]

        return tape.record(Value(after.storage, after.shape, after.dtype), (after,), run, saves=[s for s, _ in kept])


def _joined(owner: Discarded, outs: tuple[Value, ...], inputs: tuple[Value, ...]) -> tuple[Value, ...]:
    """Attach the backward of all outputs together: it waits for every output's gradient."""
    tape = owner.ctx.tape
    arrived: list[Storage | None] = [None] * len(outs)

    def run(grad: Storage) -> list[Storage | None]:
        if owner.again is not None:  # never discarded: recompute now
            owner.again()
            owner.again = None
        values, leaves = owner.recomputed.pop()
        gradients = list(arrived)
        arrived[:] = [None] * len(arrived)
        root = tape.record(Value(None, (1,), "bf16"), values, _giving(gradients))
        del values
        gradients_box = [tape.new((1,), "bf16", "root")]
        del gradients
        backward(tape, root, gradients_box)
        return [leaf.grad if leaf is not None else None for leaf in leaves]

    carrier = tape.record(Value(None, (), "bf16"), inputs, run)
    if isinstance(carrier.origin, Node):
        carrier.origin.held = []

    def part(i: int, o: Value) -> Value:
        def keep(grad: Storage) -> list[Storage | None]:
            arrived[i] = grad
            return [grad]

        return tape.record(Value(o.storage, o.shape, o.dtype), (carrier,), keep)

    return tuple(part(i, o) for i, o in enumerate(outs))


def _giving(gradients: list[Storage | None]) -> Callable[[Storage], list[Storage | None]]:
    """A backward function that gives these gradients away, one for each input."""
    return lambda grad: [gradients.pop(0) for _ in range(len(gradients))]


def resize(storage: Storage, n_bytes: int) -> None:
    """``untyped_storage().resize_``: the block changes its size and keeps its references."""
    tape = storage.tape
    change = rounded(n_bytes) - storage.bytes
    storage.bytes += change
    tape.live += change
    tape.by_component[storage.component] = tape.by_component.get(storage.component, 0) + change
    if tape.inventory is not None and (entry := tape.inventory.get(storage.key)) is not None:
        tape.inventory[storage.key] = (*entry[:3], storage.bytes, *entry[4:])
    if tape.live > tape.peak:
        tape.mark_peak("recomputed output")
