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
    """Run the backward of the graph that made ``root``, as torch's engine does, and count live bytes on the tape.

    ``box``: a list with the gradient of ``root``, or empty. The engine takes it out of the list, so that no variable of
    the caller keeps it alive: it is freed when its last consumer is done.
    """
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
    copies, ignores_peaks = tape.copies, tape.ignores_peaks
    while ready:
        _, current = heappop(ready)  # the node that was created last
        tape.copies, tape.ignores_peaks = current.copies, ignores_peaks or current.copies > 1
        if current.grad is not None and any([isinstance(edge, Parameter) for edge in current.edges]):  # noqa: C419
            tape.weight_backward_bytes += current.grad.bytes
        results = _call(tape, current)
        tape.copies = copies  # sums of gradients are there once, however many pieces add to them
        edges, current.edges = current.edges, ()
        current = None  # type: ignore[assignment]  # the node dies here
        for i, edge in enumerate(edges):
            if edge is None:
                continue
            box = [grad] if (grad := results[i]) is not None else []
            grad = results[i] = None  # `box` has the only reference: who takes the gradient out of it can free it
            if isinstance(edge, Node):
                if box:
                    _merge(tape, edge, box)
                edge.pending -= 1
                if edge.pending == 0 and edge.grad is not None:
                    heappush(ready, (-edge.sequence, edge))
            elif isinstance(edge, Parameter):
                edge.pending_uses -= 1
                if box:
                    _arrive(tape, edge, box)
            elif box:
                _merge(tape, edge, box)
    tape.ignores_peaks = ignores_peaks
    for weight in weights:  # some uses of a weight get no gradient: what has arrived is its sum
        weight.pending_uses = 0
        if weight.summed_gradient is not None:
            _accumulate(tape, weight)
    tape.component = component


def _count_dependencies(root: Node) -> list[Parameter]:
    """Set ``pending`` of every node and weight below ``root`` to the gradients that it will get; return the weights."""
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
                edge.pending_uses += 1
                weights[id(edge)] = edge
    return list(weights.values())


def _call(tape: Tape, node: Node) -> list[Storage | None]:
    """Run the backward function of one node, and return a gradient per edge; None where it computes none.

    The incoming gradient and the saved tensors die on return. The engine sums and casts the results (engine.cpp,
    validate_outputs) while the saved tensors still live. Tensors that a checkpoint has recomputed die earlier: its
    ``unpack_hook`` returns each once, and the function drops them as it returns.
    """
    if node.run is None and node.frame is not None and node.grad is not None:
        node.frame.recompute()  # the checkpointed forward runs again, and gives this node its saved tensors
    run, saved, grad = node.run, node.saved, node.grad
    view_gradients, input_metadata = node.view_gradients, node.input_metadata
    node.grad = node.run = node.view_gradients = None
    node.saved = ()
    if run is None or grad is None:
        return [None] * len(node.edges)
    grad.holders -= 1
    results: Sequence[Storage | None]
    if node.hands_over_gradient:
        box = [grad]
        grad = None
        results = run(box)
    elif type(run) is tuple:
        results = evaluate(tape, run, grad)
    else:
        results = run(grad)
    del view_gradients
    gradients = list(results)
    if input_metadata:
        if node.frame is not None and node.frame.returned is None:
            run, saved = None, ()  # noqa: F841 - lets go of them
        del results
        _validate(tape, gradients, input_metadata)
    node.frame = None
    return gradients


def _validate(
    tape: Tape, gradients: list[Storage | None], input_metadata: tuple[tuple[tuple[int, ...], str, int], ...]
) -> None:
    """Sum and cast each gradient of the list to the shape, dtype and number of elements of its input."""
    for i, (shape, dtype, numel) in enumerate(input_metadata):
        grad = gradients[i]
        if grad is not None and grad.numel != numel:
            grad = gradients[i] = tape.new(shape, grad.dtype, "sum")
        if grad is not None and grad.dtype != dtype:
            gradients[i] = tape.new(shape, dtype, "to backward")


def _merge(tape: Tape, target: Node | Leaf, box: list[Storage]) -> None:
    """Move the gradient in ``box`` into the target's buffer, or add it to the gradient that is there.

    The sum is made in place, unless something else refers to the buffered gradient, or it is a tensor subclass such as
    DTensor (input_buffer.cpp, can_accumulate_inplace). ``box`` is empty afterwards.
    """
    old = target.grad
    if old is None:
        new = target.grad = box.pop()
        new.holders += 1
    elif isinstance(target, Node) and target.view_gradients is not None:
        target.view_gradients.append(box.pop())
    elif tape.dtensor_gradients or old.holders > 1:
        new = target.grad = tape.new(old.shape, old.dtype, "add gradients")
        old.holders -= 1
        new.holders += 1
    box.clear()


def _arrive(tape: Tape, parameter: Parameter, box: list[Storage]) -> None:
    """Add the gradient in ``box`` to a parameter's gradients of this backward; after the last one, set ``.grad``.

    The first of several gradients is a transposed view of a matrix product. Its base refers to the same storage, so
    that the second gradient is not added in place. A cast gradient is a new tensor with one reference.
    """
    grad = box.pop()
    if parameter.consume_gradient is not None:
        parameter.consume_gradient(grad)
        return
    if parameter.cast_to is not None and parameter.cast_to != grad.dtype:
        grad = tape.new(grad.shape, parameter.cast_to, "cast gradient")
    old = parameter.summed_gradient
    if old is None:
        parameter.summed_gradient = grad
        grad.holders = 0 if parameter.cast_to is not None or not parameter.pending_uses else 2
    elif tape.dtensor_gradients or old.holders:
        parameter.summed_gradient = tape.new(old.shape, old.dtype, "add gradients")
    del old, grad
    if not parameter.pending_uses:
        _accumulate(tape, parameter)


def _accumulate(tape: Tape, parameter: Parameter) -> None:
    """Make the summed gradient of this backward the parameter's ``.grad`` (functions/accumulate_grad.h).

    Where ``.grad`` exists from an earlier micro-batch, the new gradient is added in place and dies here.
    """
    grad = parameter.summed_gradient
    parameter.summed_gradient = None
    if grad is None:
        return
    tape.record_grad_hook()
    if parameter.awaits_tied_gradient:
        parameter.awaits_tied_gradient = False
        parameter.grad_buffer = grad
    elif parameter.has_grad is False:
        grad.move("gradients")
        parameter.grad_buffer = grad
        parameter.has_grad = True
