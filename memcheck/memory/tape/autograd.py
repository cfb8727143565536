"""The backward engine: order of execution, gradient buffers, what dies when.

Follows torch/csrc/autograd/engine.cpp: ready nodes run latest-created first; a node's incoming gradient and saved
tensors die when its function has returned; gradients that meet in a buffer are added in place when nobody else holds
the first one (input_buffer.cpp, can_accumulate_inplace); AccumulateGrad steals a fresh gradient and adds in place to an
existing one (functions/accumulate_grad.h).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from memcheck.memory.tape.tensor import Leaf, Node, Parameter, Storage, Tape, Value


def backward(tape: Tape, root: Value, box: list[Storage]) -> None:
    """Run the graph below ``root``. The boxed gradient is taken over: it dies when its last consumer is done."""
    node = root.origin
    root.origin = None
    if not isinstance(node, Node) or not box:
        box.clear()
        return
    _count_dependencies(node)
    _merge(tape, node, box)
    component, tape.component = tape.component, "temporaries"
    ready: list[tuple[int, Node]] = [(-node.sequence, node)]
    node = None
    while ready:
        _, current = heapq.heappop(ready)
        results = _call(current)
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
                    heapq.heappush(ready, (-edge.sequence, edge))
            elif box:
                if isinstance(edge, Leaf):
                    _merge(tape, edge, box)
                else:
                    accumulate_grad(edge, box)
    tape.component = component


def _count_dependencies(root: Node) -> None:
    seen = {id(root)}
    stack = [root]
    while stack:
        for edge in stack.pop().edges:
            if isinstance(edge, Node):
                edge.pending += 1
                if id(edge) not in seen:
                    seen.add(id(edge))
                    stack.append(edge)


def _call(node: Node) -> list[Storage | None]:
    """Run one backward function; its gradient and what it saved die on return."""
    if node.run is None and node.frame is not None and node.grad is not None:
        node.frame.recompute()
    run, grad, held = node.run, node.grad, node.held
    node.grad = node.run = node.held = None
    if run is None or grad is None:
        return [None] * len(node.edges)
    grad.holders -= 1
    results: Sequence[Storage | None]
    if node.handover:
        box = [grad]
        grad = None
        results = run(box)
    else:
        results = run(grad)
    del held
    node.frame = None
    return list(results)


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


def accumulate_grad(parameter: Parameter, box: list[Storage]) -> None:
    """A parameter's gradient has arrived."""
    grad = box.pop()
    if parameter.sink is not None:
        parameter.sink(grad)
    elif parameter.waits:
        parameter.waits = False
        parameter.grad_buffer = grad
    elif parameter.grad is False:
        grad.move("gradients")
        parameter.grad_buffer = grad
        parameter.grad = True
    # else: added in place to the gradient of the earlier micro-batches; the new one dies here
