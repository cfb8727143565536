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
    """A call of ``torch.utils.checkpoint``: its nodes without their saved tensors, and how to recompute these."""

    def __init__(
        self, tape: Tape, forward: Run, x: Value, returned: list[Value] | None = None, *, early_stop: bool = True
    ) -> None:
        """Note the arguments of a call: what ``recompute`` needs to run ``forward`` on ``x`` again."""
        self.tape = tape
        self.returned = returned
        """What a reentrant call returns in addition to its output."""
        self.early_stop = early_stop
        self.forward = forward
        self.input = x.storage
        self.shape, self.dtype, self.needs_grad = x.shape, x.dtype, x.origin is not None
        self.autocast = tape.autocast
        self.nodes: list[ref[Node]] = []
        """Nodes that save tensors, in the order of forward; ``early_stop`` ends the recompute after the last one. The
        references are weak, so that a graph which the forward has dropped is freed (``_CheckpointFrame.weak_holders``).
        """
        self.recomputed: list[Node | None] | None = None
        """Nodes of the recompute that runs now, in the order of ``nodes``; None outside it, and for a freed node."""

    def add(self, node: Node, output: Storage | None = None) -> None:
        """Take a recorded node: drop its saved tensors in the forward, collect the node in the recompute.

        ``output``: what the node's operator allocates after it has saved its inputs. The operator that saves the last
        tensor of a recompute is interrupted before that, so that its output is not counted.
        """
        if not saves_tensors(node):
            return
        if self.recomputed is not None:
            count = len(self.recomputed)
            original = self.nodes[count]() if count < len(self.nodes) else None
            self.recomputed.append(node if original is not None else None)
            del original
            if self.early_stop and count + 1 == len(self.nodes):
                self.tape.unmark_peak(output)
                raise _LastSavedError
            self.tape.near_recompute_end = self.early_stop and count + 2 == len(self.nodes)
            return
        self.nodes.append(ref(node))
        if node.frame is None:
            node.run, node.saved = None, ()
            node.frame = self

    def recompute(self) -> None:
        """Run the forward again with gradients, and move the tensors that it saves to the nodes of the first forward.

        The state of the tape (autocast, component, open checkpoint) is that of the checkpointed call meanwhile.
        """
        tape = self.tape
        before = tape.frame, tape.casts, tape.autocast, tape.component, tape.grad_enabled, tape.near_recompute_end
        tape.frame, tape.casts, tape.autocast = self, {}, self.autocast
        tape.near_recompute_end = self.early_stop and len(self.nodes) == 1
        tape.component, tape.grad_enabled = "activations", True
        self.recomputed = []
        self._materialize()
        x = Value(self.input, self.shape, self.dtype, Leaf() if self.needs_grad else None)
        try:
            y = self.forward(x)
            if self.returned is not None:
                tape.python_references.append(y.storage)
            del y
        except _LastSavedError as stop:
            stop.__traceback__ = None  # it would keep the forward's local variables alive
        x.storage = None
        tape.frame, tape.casts, tape.autocast, tape.component, tape.grad_enabled, tape.near_recompute_end = before
        for reference, recomputed in zip(self.nodes, self.recomputed, strict=False):
            node = reference()
            if node is None or recomputed is None:
                continue
            if node.frame is self:
                node.run, node.saved = recomputed.run, recomputed.saved
            recomputed.run, recomputed.saved = None, ()  # the second graph is dropped
        self.nodes, self.recomputed = [], None

    def _materialize(self) -> None:
        """Allocate zeros as the gradients of unused outputs, as autograd does for CheckpointFunction.backward.

        Arguments of that function refer to the zeros until it returns, so that no gradient is added to them in place.
        """
        for value in tuple(self.returned or ()):
            node = value.origin
            if isinstance(node, Node):
                zeros = node.grad = self.tape.new(value.shape, value.dtype, "zeros")
                zeros.holders += 2
                self.returned = [*(self.returned or ()), Value(zeros, value.shape, value.dtype)]


def saves_tensors(node: Node) -> bool:
    """Tell whether a node saves a tensor, itself or in a nested checkpoint, so that the recompute makes it again.

    Only such nodes are matched between forward and recompute. The number of other nodes may differ: a recompute casts
    weights again, where the forward found the casts in autocast's cache.
    """
    return node.frame is not None or any(saved is SAVED_WEIGHT or isinstance(saved, Storage) for saved in node.saved)


def checkpoint(tape: Tape, forward: Run, x: Value, returned: list[Value] | None = None) -> Value:
    """Run ``torch.utils.checkpoint.checkpoint(forward, x)`` on the tape, and return the output.

    ``returned``: None for ``use_reentrant=False``. A list for ``use_reentrant=True``, to which ``forward`` appends what
    it returns in addition to its output.
    """
    if not tape.grad_enabled:
        return forward(x)
    outside = tape.frame
    tape.frame = frame = CheckpointFrame(tape, forward, x, returned, early_stop=returned is None)
    y = forward(x)
    tape.frame = outside
    if outside is not None:  # nested: the outer recompute runs this call again as a whole
        for reference in frame.nodes:
            if (node := reference()) is not None:
                outside.add(node)
    return y


class KeptOutputs:
    """The operator outputs that torchtitan's selective recompute keeps instead of computing them again.

    Every second matrix product is recomputed; products with an excluded matrix always are
    (torchtitan distributed/activation_checkpoint.py, ``_apply_op_sac``).
    """

    __slots__ = ("always", "count", "kept", "kinds", "position", "recomputing")

    def __init__(self, kinds: frozenset[str], always: frozenset[tuple[int, ...]]) -> None:
        """``kinds``: operators whose outputs are kept. ``always``: matrices whose products are always recomputed."""
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
        """Allocate an operator's output, or return the storage that the forward has kept of it.

        ``kind``: the operator's name in the policy (``mm``, ``addmm``, ...). ``matrix``: shape [outputs, inputs] of the
        weight of a matrix product; None for other operators.
        """
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
        """Begin the recompute, in which the operators of the forward run a second time."""
        self.recomputing = True
        self.count = self.position = 0

    def _keeps(self, kind: str, matrix: tuple[int, ...] | None) -> bool:
        """Say whether the next output of this kind is kept; counts matrix products, of which every second is."""
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
        self.tape.kept_outputs = self.selection
        super().recompute()
        self.tape.kept_outputs = self.selection = None


def checkpoint_whole(tape: Tape, forward: Run, x: Value, selection: KeptOutputs | None = None) -> Value:
    """Run ``torch.utils.checkpoint.checkpoint(forward, x, early_stop=False, context_fn=...)`` on the tape.

    ``selection``: the policy of ``context_fn``, which keeps some outputs; None: everything is recomputed.
    """
    if not tape.grad_enabled:
        return forward(x)
    tape.frame = frame = WholeFrame(tape, forward, x, selection)
    tape.kept_outputs = selection
    y = forward(x)
    tape.frame = tape.kept_outputs = None
    del frame
    return y


def retain(tape: Tape, *values: Value) -> None:
    """Keep ``values`` alive after backward, as a container of the model's forward does (shared keys and values).

    Without a checkpoint they die with the graph, and nothing is kept. A recompute runs with gradients: its values refer
    to their graph, and so to every tensor that was saved on the way.
    """
    if tape.frame is None:
        return
    tape.retained_storages.clear()  # the container's entries are replaced
    storages = {id(v.storage): v.storage for v in values if v.storage is not None}
    stack = [v.origin for v in values] if tape.frame.recomputed is not None else []
    seen = set()
    while stack:
        node = stack.pop()
        if not isinstance(node, Node) or id(node) in seen:
            continue
        seen.add(id(node))
        stack.extend(node.edges)
        storages.update((id(saved), saved) for saved in node.saved if isinstance(saved, Storage))
    tape.retained_storages.extend(storages.values())


def ctx_attribute(tape: Tape, storage: Storage) -> Storage | None:
    """Keep a storage as an attribute of an autograd Function's ctx, in place of ``save_for_backward``.

    The attribute lives as long as the graph, and not only to its node's backward. A non-reentrant checkpoint replaces
    saved tensors alone, so that the attribute stays in memory. Returns None in the forward of a reentrant checkpoint,
    which builds no graph.
    """
    frame = tape.frame
    if frame is not None and frame.recomputed is None and frame.returned is not None:
        return None  # a reentrant call runs its forward without a graph
    if frame is None or frame.recomputed is None:
        tape.until_graph_freed[storage.key] = storage.bytes
    return storage


def with_ctx_attributes(run: Backward, attributes: object) -> Backward:
    """Return ``run`` with a reference to ``attributes``: storages on a Function's ctx, which no checkpoint drops."""
    if attributes is None:
        return run

    def with_reference(grad: Storage, _attributes: object = attributes) -> list[Storage | None]:
        """Return the gradients of ``run``. The default argument lives as long as this function."""
        return run(grad)

    return with_reference
