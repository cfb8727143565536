"""What backward does not free: entries of a container that the forward filled, and attributes of a Function's ctx."""

from __future__ import annotations

from memcheck.autograd.checkpoint import Backward
from memcheck.autograd.tensor import Node, Storage, Tape, Value


def retain(tape: Tape, *values: Value) -> None:
    """What is put into a container of the model's forward: in a recompute, with the graph that made it.

    The recompute runs with gradients, so what it puts there refers to every tensor that was saved on the way.
    """
    if tape.frame is None:
        return
    tape.retained.clear()  # the container's entries are replaced
    found = {id(v.storage): v.storage for v in values if v.storage is not None}
    stack = [v.origin for v in values] if tape.frame.again is not None else []
    seen = set()
    while stack:
        node = stack.pop()
        if not isinstance(node, Node) or id(node) in seen:
            continue
        seen.add(id(node))
        stack.extend(node.edges)
        found.update((id(saved), saved) for saved in node.saved if isinstance(saved, Storage))
    tape.retained.extend(found.values())


def held_by_ctx(tape: Tape, storage: Storage) -> Storage | None:
    """An attribute of ctx in place of a saved tensor: it goes with the graph, and not with its node's backward. What a
    checkpoint puts placeholders for are saved tensors alone, so that it stays through one that is not reentrant.
    """
    frame = tape.frame
    if frame is not None and frame.again is None and frame.returned is not None:
        return None  # a reentrant call runs its forward without a graph
    if frame is None or frame.again is None:
        tape.outliving[storage.key] = storage.bytes
    return storage


def holding(run: Backward, kept: object) -> Backward:
    """The backward function, with storages that a checkpoint does not see."""
    return run if kept is None else lambda grad: (run(grad), kept)[0]
