"""The backward engine, which runs nodes and frees what they saved, and activation checkpointing on top of it.

Follows torch/csrc/autograd/engine.cpp: ready nodes run latest-created first. A node's incoming gradient and saved
tensors die when its function has returned. Gradients that meet in a buffer are added in place when the first one has no
other reference (input_buffer.cpp, can_accumulate_inplace). AccumulateGrad steals a fresh gradient and adds in place to
an existing one (functions/accumulate_grad.h). Checkpoints are whole or operator by operator.
"""

from __future__ import annotations

from _weakref import ref
from collections.abc import Callable, Sequence

from memcheck.autograd.operator import evaluate
from memcheck.autograd.tensor import SAVED_WEIGHT, Backward, Leaf, Node, Parameter, Storage, Tape, Value

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
        gradients = _call(tape, current)
        tape.copies = copies  # sums of gradients are there once, however many pieces add to them
        edges, current.edges = current.edges, ()
        del current  # the node dies here
        _pass_on(tape, edges, gradients, ready)
    tape.ignores_peaks = ignores_peaks
    for weight in weights:  # some uses of a weight get no gradient: what has arrived is its sum
        weight.pending_uses = 0
        if weight.summed_gradient is not None:
            _accumulate(tape, weight)
    tape.component = component


def _pass_on(
    tape: Tape,
    edges: tuple[Node | Parameter | Leaf | None, ...],
    gradients: list[Storage | None],
    ready: list[tuple[int, Node]],
) -> None:
    """Move the gradients of a node's inputs to the nodes, weights and leaves that its edges lead to.

    A node that has got all its gradients joins the heap ``ready``. Each gradient that has an edge leaves the list
    ``gradients``, so that the edge holds the only reference and can free it.
    """
    for i, edge in enumerate(edges):
        if edge is None:
            continue
        grad, gradients[i] = gradients[i], None
        box = [grad] if grad is not None else []
        del grad  # `box` has the only reference
        if isinstance(edge, Parameter):
            edge.pending_uses -= 1
            if box:
                _arrive(tape, edge, box)
            continue
        if box:
            _merge(tape, edge, box)
        if isinstance(edge, Node):
            edge.pending -= 1
            if edge.pending == 0 and edge.grad is not None:
                heappush(ready, (-edge.sequence, edge))


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
    """Sum and cast each of ``gradients``, in place, to the shape, dtype and number of elements of its input."""
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


Run = Callable[[Value], Value]
"""A forward that a checkpoint runs again."""


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
        self.shape, self.dtype, self.needs_grad = x.shape, x.dtype, x.needs_grad
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
        if self.recomputed is None:  # the forward
            self.nodes.append(ref(node))
            if node.frame is None:
                node.run, node.saved = None, ()
                node.frame = self
            return
        index = len(self.recomputed)
        is_alive = index < len(self.nodes) and self.nodes[index]() is not None
        self.recomputed.append(node if is_alive else None)
        left = len(self.nodes) - len(self.recomputed)
        if self.early_stop and left == 0:
            self.tape.unmark_peak(output)
            raise _LastSavedError
        self.tape.near_recompute_end = self.early_stop and left == 1

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
