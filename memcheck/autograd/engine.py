"""The backward engine: order of execution, gradient buffers, what dies when.

Follows torch/csrc/autograd/engine.cpp: ready nodes run latest-created first. A node's incoming gradient and saved
tensors die when its function has returned. Gradients that meet in a buffer are added in place when the first one has no
other reference (input_buffer.cpp, can_accumulate_inplace). AccumulateGrad steals a fresh gradient and adds in place to
an existing one (functions/accumulate_grad.h).
"""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.autograd.operator import evaluate
from memcheck.autograd.tensor import Leaf, Node, Parameter, Storage, Tape, Value

try:  # without the module around them, which is long
    from _heapq import heappop, heappush
except ImportError:
    from heapq import heappop, heappush


def backward(tape: Tape, root: Value, box: list[Storage]) -> None:
    """Run the graph below ``root``. The boxed gradient is taken over: it dies when its last consumer is done."""
    node = root.origin
    root.origin = None
    if not isinstance(node, Node) or not box:
        box.clear()
        return
    weights = _count_dependencies(node)
    _merge(tape, node, box)
    component, tape.component = tape.component, "temporaries"
    ready: list[tuple[int, Node]] = [(-node.sequence, node)]
    node = None
    copies, silent = tape.copies, tape.silent
    while ready:
        _, current = heappop(ready)
        tape.copies, tape.silent = current.copies, silent or current.copies > 1
        if current.grad is not None and any([isinstance(e, Parameter) for e in current.edges]):  # noqa: C419
            tape.for_weights += current.grad.bytes
        results = _call(tape, current)
        tape.copies = copies  # sums of gradients are there once, however many pieces add to them
        edges, current.edges = current.edges, ()
        current = None  # type: ignore[assignment]
        for i, edge in enumerate(edges):
            if edge is None:
                continue
            box = [r] if (r := results[i]) is not None else []
            r = results[i] = None
            if isinstance(edge, Node):
                if box:
                    _merge(tape, edge, box)
                edge.pending -= 1
                if edge.pending == 0 and edge.grad is not None:
                    heappush(ready, (-edge.sequence, edge))
            elif isinstance(edge, Parameter):
                edge.pending -= 1
                if box:
                    _arrive(tape, edge, box)
            elif box:
                _merge(tape, edge, box)
    tape.silent = silent
    for weight in weights:  # uses that no gradient reached
        weight.pending = 0
        if weight.buffer is not None:
            _accumulate(tape, weight)
    tape.component = component


def _count_dependencies(root: Node) -> list[Parameter]:
    """Count how many gradients every node and weight will get; the weights."""
    seen = {id(root)}
    stack = [root]
    weights: dict[int, Parameter] = {}
    while stack:
        for edge in stack.pop().edges:
            if isinstance(edge, Node):
                edge.pending += 1
                if id(edge) not in seen:
                    seen.add(id(edge))
                    stack.append(edge)
            elif isinstance(edge, Parameter):
                edge.pending += 1
                weights[id(edge)] = edge
    return list(weights.values())


def _call(tape: Tape, node: Node) -> list[Storage | None]:
    """Run one backward function; its gradient and what it saved die on return.

    Gradients are summed and cast (engine.cpp, validate_outputs) before what was saved dies, unless a checkpoint has
    made it again: its ``unpack_hook`` hands a tensor out once, and the function lets go of it as it returns.
    """
    if node.run is None and node.frame is not None and node.grad is not None:
        node.frame.recompute()
    run, saved, grad, held, like = node.run, node.saved, node.grad, node.held, node.like
    node.grad = node.run = node.held = None
    node.saved = ()
    if run is None or grad is None:
        return [None] * len(node.edges)
    grad.holders -= 1
    results: Sequence[Storage | None]
    if node.handover:
        box = [grad]
        grad = None
        results = run(box)
    elif type(run) is tuple:
        results = evaluate(tape, run, grad)
    else:
        results = run(grad)
    del held
    found = list(results)
    if like:
        if node.frame is not None and node.frame.returned is None:
            run, saved = None, ()  # noqa: F841 - lets go of them
        del results
        _validate(tape, found, like)
    node.frame = None
    return found


def _validate(tape: Tape, found: list[Storage | None], like: tuple[tuple[tuple[int, ...], str, int], ...]) -> None:
    """Give gradients their inputs' shapes and dtypes, one after the other."""
    for i, (shape, dtype, numel) in enumerate(like):
        grad = found[i]
        if grad is not None and grad.numel != numel:
            grad = found[i] = tape.new(shape, grad.dtype, "sum")
        if grad is not None and grad.dtype != dtype:
            found[i] = tape.new(shape, dtype, "to backward")


def _merge(tape: Tape, target: Node | Leaf, box: list[Storage]) -> None:
    """Put the boxed gradient into the target's buffer, or add it to what is there."""
    old = target.grad
    if old is None:
        new = target.grad = box.pop()
        new.holders += 1
    elif isinstance(target, Node) and target.held is not None:
        target.held.append(box.pop())
    elif tape.subclass or old.holders > 1:
        new = target.grad = tape.new(old.shape, old.dtype, "add gradients")
        old.holders -= 1
        new.holders += 1
    box.clear()


def _arrive(tape: Tape, parameter: Parameter, box: list[Storage]) -> None:
    """One of a parameter's gradients has arrived; AccumulateGrad runs after the last.

    The first of several is the transpose of a matrix product, which its base refers to, too: the second is not added
    in place. Casts are new tensors.
    """
    grad = box.pop()
    if parameter.sink is not None:
        parameter.sink(grad)
        return
    if parameter.cast_to is not None and parameter.cast_to != grad.dtype:
        grad = tape.new(grad.shape, parameter.cast_to, "cast gradient")
    old = parameter.buffer
    if old is None:
        parameter.buffer = grad
        grad.holders = 0 if parameter.cast_to is not None or not parameter.pending else 2
    elif tape.subclass or old.holders:
        parameter.buffer = tape.new(old.shape, old.dtype, "add gradients")
    del old, grad
    if not parameter.pending:
        _accumulate(tape, parameter)


def _accumulate(tape: Tape, parameter: Parameter) -> None:
    """All gradients of this backward have arrived (functions/accumulate_grad.h)."""
    grad = parameter.buffer
    parameter.buffer = None
    if grad is None:
        return
    tape.arrived()
    if parameter.waits:
        parameter.waits = False
        parameter.grad_buffer = grad
    elif parameter.grad is False:
        grad.move("gradients")
        parameter.grad_buffer = grad
        parameter.grad = True
    # else: added in place to the gradient of the earlier micro-batches; the new one dies here
