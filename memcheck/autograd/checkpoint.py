"""Non-reentrant activation checkpointing, the way torch/utils/checkpoint.py does it.

The forward builds its graph, but every saved tensor is replaced by a placeholder, so nothing but the input stays. The
first backward function that asks for a saved tensor runs the whole forward again; backward functions before it, which
saved nothing, have run by then, and their gradients are alive meanwhile. The recompute ends with the last saved tensor.

A reentrant call (``CheckpointFunction.backward``) runs its forward to the end, and is a frame of Python around the
backward of it: its variables hold the recomputed outputs, and its arguments the gradients that came in, until it
returns, so that no other gradient is added in place to those.
"""

from __future__ import annotations

from _weakref import ref
from collections.abc import Callable

from memcheck.autograd.tensor import RESTING, Leaf, Node, Storage, Tape, Value

Run = Callable[[Value], Value]
Backward = Callable[[Storage], "list[Storage | None]"]


class _LastSavedError(Exception):
    """The recompute has made the last tensor that backward asks for."""


class CheckpointFrame:
    """One checkpointed call: its nodes without their saved tensors, and how to make those again."""

    def __init__(
        self, tape: Tape, forward: Run, x: Value, returned: list[Value] | None = None, *, early_stop: bool = True
    ) -> None:
        self.tape = tape
        self.returned = returned
        """What a reentrant call returns in addition to its output."""
        self.early_stop = early_stop
        self.forward = forward
        self.kept = x.storage
        self.shape, self.dtype, self.wants = x.shape, x.dtype, x.origin is not None
        self.autocast = tape.autocast
        self.nodes: list[ref[Node]] = []
        """Nodes that save tensors, in the order of forward; ``early_stop`` ends the recompute after the last one. The
        references are weak, so that a graph which the forward has dropped is freed (``_CheckpointFrame.weak_holders``).
        """
        self.again: list[Node | None] | None = None

    def add(self, node: Node, unmade: Storage | None = None) -> None:
        """A node was recorded: take its saved tensors away, or collect it while recomputing.

        ``unmade``: what the node's operator makes after it has saved its inputs; the last one of a recompute does not.
        """
        if not waits(node):
            return
        if self.again is not None:
            known = self.nodes[len(self.again)]() if len(self.again) < len(self.nodes) else None
            self.again.append(node if known is not None else None)
            del known
            if self.early_stop and len(self.again) == len(self.nodes):
                self.tape.unmark_peak(unmade)
                raise _LastSavedError
            self.tape.ending = self.early_stop and len(self.again) == len(self.nodes) - 1
            return
        self.nodes.append(ref(node))
        if node.frame is None:
            node.run, node.saved = None, ()
            node.frame = self

    def recompute(self) -> None:
        """Run the forward again and give every waiting node its saved tensors."""
        tape = self.tape
        outside = tape.frame, tape.casts, tape.autocast, tape.component, tape.grad_enabled, tape.ending
        tape.frame, tape.casts, tape.autocast = self, {}, self.autocast
        tape.ending = self.early_stop and len(self.nodes) == 1
        tape.component, tape.grad_enabled = "activations", True
        self.again = []
        self._materialize()
        x = Value(self.kept, self.shape, self.dtype, Leaf() if self.wants else None)
        try:
            y = self.forward(x)
            if self.returned is not None:
                tape.held.append(y.storage)
            del y
        except _LastSavedError as stop:
            stop.__traceback__ = None  # it would keep the forward's local variables alive
        x.storage = None
        tape.frame, tape.casts, tape.autocast, tape.component, tape.grad_enabled, tape.ending = outside
        for known, fresh in zip(self.nodes, self.again, strict=False):
            node = known()
            if node is None or fresh is None:
                continue
            if node.frame is self:
                node.run, node.saved = fresh.run, fresh.saved
            fresh.run, fresh.saved = None, ()
        self.nodes, self.again = [], None

    def _materialize(self) -> None:
        """Autograd hands CheckpointFunction.backward zeros as gradients of outputs that nothing used.

        Its arguments refer to them until it returns, so that other gradients are not added in place to them.
        """
        for value in tuple(self.returned or ()):
            node = value.origin
            if isinstance(node, Node):
                zeros = node.grad = self.tape.new(value.shape, value.dtype, "zeros")
                zeros.holders += 2
                self.returned = [*(self.returned or ()), Value(zeros, value.shape, value.dtype)]


def waits(node: Node) -> bool:
    """Whether a node is one to find again in the recompute: it saves something, here or in a checkpoint inside.

    There may be more of the others: the casts of a recompute are its own, those of a forward are shared.
    """
    return node.frame is not None or any(each is RESTING or isinstance(each, Storage) for each in node.saved)


def checkpoint(tape: Tape, forward: Run, x: Value, returned: list[Value] | None = None) -> Value:
    """``checkpoint(forward, x, use_reentrant=False)``.

    ``returned``: of a reentrant call, whose ``forward`` appends to it what it returns in addition to its output.
    """
    if not tape.grad_enabled:
        return forward(x)
    outside = tape.frame
    tape.frame = frame = CheckpointFrame(tape, forward, x, returned, early_stop=returned is None)
    y = forward(x)
    tape.frame = outside
    if outside is not None:  # nested: the outer recompute runs this call again as a whole
        for known in frame.nodes:
            if (node := known()) is not None:
                outside.add(node)
    return y
