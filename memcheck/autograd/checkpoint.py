"""Activation checkpointing, whole or operator by operator, and what backward does not free."""

from __future__ import annotations

from _weakref import ref
from collections.abc import Callable

from memcheck.autograd.tensor import SAVED_WEIGHT, Leaf, Node, Storage, Tape, Value

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
    return node.frame is not None or any(each is SAVED_WEIGHT or isinstance(each, Storage) for each in node.saved)


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


class KeptOutputs:
    """Which outputs stay. Every second matrix product is recomputed; products with an excluded matrix always are."""

    __slots__ = ("always", "count", "kept", "kinds", "position", "recomputing")

    def __init__(self, kinds: frozenset[str], always: frozenset[tuple[int, ...]]) -> None:
        self.kinds = kinds
        self.always = always
        """Matrices ([outputs, inputs]) whose products are always recomputed, and not counted (the router's gate)."""
        self.kept: list[Storage | None] = []
        self.count = 0
        self.position = 0
        self.recomputing = False

    def output(
        self, tape: Tape, kind: str, shape: tuple[int, ...], dtype: str, label: str, matrix: tuple[int, ...] | None
    ) -> Storage:
        """A new storage, or the one that was kept in forward."""
        if not self._keeps(kind, matrix):
            return tape.new(shape, dtype, label)
        if self.recomputing:
            storage = self.kept[self.position]
            self.kept[self.position] = None
            self.position += 1
            if storage is not None:
                return storage
        storage = tape.new(shape, dtype, label)
        self.kept.append(storage)
        return storage

    def again(self) -> None:
        """Begin the recomputation: the operators of the forward come by a second time."""
        self.recomputing = True
        self.count = self.position = 0

    def _keeps(self, kind: str, matrix: tuple[int, ...] | None) -> bool:
        if kind not in self.kinds:
            return False
        if kind != "mm":
            return True
        if matrix in self.always:
            return False
        self.count += 1
        return self.count % 2 == 1


class WholeFrame(CheckpointFrame):
    """A checkpointed call without early stop, which may keep some operators' outputs."""

    def __init__(self, tape: Tape, forward: Run, x: Value, selection: KeptOutputs | None) -> None:
        super().__init__(tape, forward, x, early_stop=False)
        self.selection = selection

    def recompute(self) -> None:
        """Run the forward again around the outputs that were kept."""
        if self.selection is not None:
            self.selection.again()
        self.tape.selection = self.selection
        super().recompute()
        self.tape.selection = self.selection = None


def checkpoint_whole(tape: Tape, forward: Run, x: Value, selection: KeptOutputs | None = None) -> Value:
    """``checkpoint(forward, x, early_stop=False, context_fn=...)``."""
    if not tape.grad_enabled:
        return forward(x)
    tape.frame = frame = WholeFrame(tape, forward, x, selection)
    tape.selection = selection
    y = forward(x)
    tape.frame = tape.selection = None
    del frame
    return y


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


def ctx_attribute(tape: Tape, storage: Storage) -> Storage | None:
    """An attribute of ctx in place of a saved tensor: it goes with the graph, and not with its node's backward. What a
    checkpoint puts placeholders for are saved tensors alone, so that it stays through one that is not reentrant.
    """
    frame = tape.frame
    if frame is not None and frame.again is None and frame.returned is not None:
        return None  # a reentrant call runs its forward without a graph
    if frame is None or frame.again is None:
        tape.outliving[storage.key] = storage.bytes
    return storage


def with_ctx_attributes(run: Backward, kept: object) -> Backward:
    """The backward function, with storages that a checkpoint does not see."""
    return run if kept is None else lambda grad: (run(grad), kept)[0]
