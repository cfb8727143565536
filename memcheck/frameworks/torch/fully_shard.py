"""FSDP2's hooks around the units of a step: all-gathers of parameters, reduce-scatters of gradients.

Source: torch 2.13 distributed/fsdp/_fully_shard/_fsdp_collectives.py (foreach_all_gather and its copy-out,
foreach_reduce), _fsdp_param_group.py (post_backward, finalize_backward).
"""

from __future__ import annotations

from memcheck.accounts.program import NOTHING, Amount, Blocks, NamedCurve, Recorder
from memcheck.frameworks.torch.data_parallel import (
    FIRST_OF_PAIR,
    NO_GROUP,
    DataParallel,
    Group,
    MicroBatch,
    NamedUnit,
    StepUnits,
)
from memcheck.record import Record

BUFFERS = "communication_buffers"
ROOT = "the root group"


class FullyShard(Record):
    """The settings of FSDP2 that decide what a step gathers, reduces and keeps."""

    reshards: bool
    """Units are resharded after their forward (``reshard_after_forward``)."""
    several_backwards: bool
    """A pipeline's schedule runs several times per step: the reduced gradients of earlier runs already exist."""
    keeps_all_reduce_output: bool
    """Every group refers to what its all-reduce over replicas wrote until the backward is over."""
    no_sync: bool
    """Micro-batches before the last leave their gradients unsharded (``set_requires_gradient_sync(False)``)."""
    adds_in_place: bool
    """Autograd adds to unsharded gradients of earlier micro-batches."""
    stays_gathered: bool
    """torch.distributed.pipelining keeps parameters gathered from one backward to the next forward, and reduces after
    the last backward instead of within it (stage.py, perform_reduce_grad).
    """
    frees_early: bool
    """The all-gather of a forward frees the previous flat buffer before it copies parameters out (torch 2.15)."""
    loss_inside_root: bool
    """The hook that prefetches the last unit runs first in the backward: the root's, whose forward computes the loss,
    or the one of the ends' group, whose forward ends with the root's where the head's module never runs.
    """
    loss_after_root: bool
    """The root's forward returns hidden states, and the head runs chunk by chunk after it."""
    whole_table_gradient: bool
    """A tensor-parallel rank's embedding gradient is made for the whole table: RowwiseParallel's is."""
    offloads_gradients: bool
    """Sharded gradients are copied to the host."""
    has_end_groups: bool
    """The ends are groups of their own in addition to a root, whose forward ends after the loss."""
    root_joins_streams: bool
    """A module of the root's joins streams between the last layer and the final norm, whose group is the head's."""
    gathers_ahead: bool
    """Each group's forward begins with the all-gather of the next one (``set_modules_to_forward_prefetch``)."""
    keeps_gathered: bool
    """Units that are not resharded after their forward stay gathered after a backward that does not synchronise, too
    (_runtime_utils.py, _should_free_in_backward).
    """
    wrapped_kinds: tuple[str, ...]
    """Kinds of units that are groups of their own."""

    @property
    def sizes(self) -> int:
        """No sizes but those of groups."""
        return 0

    def hooks(self, recorder: Recorder, step_units: StepUnits, first: int) -> FullyShardHooks:
        """The hooks of one step."""
        return FullyShardHooks(recorder, step_units, self)


class FullyShardHooks(DataParallel):
    """FSDP2's hooks in one step.

    ``unit_groups``: the group that each unit gathers. ``gathered``: bytes of each unit's parameters while they are
    unsharded. ``flat_buffer``: the output of the last all-gather in a forward. ``backward_prefetched``: the one of the
    unit whose backward comes next. ``reduce_input``: the input of the last reduce-scatter.
    """

    hooks_gradients = True
    has_adapter_units = False
    """Trained modules inside frozen ones are units of their own (peft ``fsdp_auto_wrap_policy``)."""

    def __init__(self, recorder: Recorder, step_units: StepUnits, options: FullyShard) -> None:
        """Set the state before a step: nothing is gathered, and no reduction is pending."""
        super().__init__(recorder, step_units)
        self.options, self.root, self.layer_groups = options, step_units.root, step_units.layer_groups
        self.unit_groups = self._own_groups()
        self.gathered: list[int] = []
        self.flat_buffer = self.forward_prefetched = self.backward_prefetched = self.unused_prefetch = (
            self.reduce_input
        ) = NOTHING
        self.unsharded_root: Amount = ()
        self.micro_batch = MicroBatch(is_first=True, is_last=True, outputs_in_transfer=0)
        self.already_gathered = self.gradients_are_new = self.keeps_parameters = self.reduces_now = False

    def _own_groups(self) -> list[Group]:
        """Return, for each unit, the group that its hooks gather; NO_GROUP where it belongs to the root's group.

        Embedding and head have one only in part: FSDP1 wraps the modules in them that are trained, and some
        frameworks wrap the ends themselves (``has_end_groups``).
        """
        ends_are_in_root = self.root != NO_GROUP and not self.has_adapter_units and not self.options.has_end_groups
        own_groups = []
        for unit, groups in zip(self.units, self.step_units.groups, strict=True):
            is_in_root = ends_are_in_root and unit.kind not in self.options.wrapped_kinds
            own_groups.append(NO_GROUP if is_in_root else groups.whole)
        return own_groups

    # a forward

    def curve(self, unit: NamedUnit, first: bool) -> NamedCurve:
        """Autograd sees fresh unsharded gradients, unless it adds to those that were not reduced."""
        return unit.first_curve if first or not self.options.adds_in_place else unit.later_curve

    def curve_of_second(self, unit: NamedUnit) -> NamedCurve:
        """The second pass's gradients are new tensors, too."""
        return unit.later_curve._replace(gradient_bytes=unit.first_curve.gradient_bytes)

    def frees_first_gradients(self, pair_before: bool) -> bool:
        """The gradients are joined and reduced."""
        return True

    def begin_step(self) -> None:
        """Hold the reduced gradients of earlier runs of the schedule in this step."""
        if self.options.several_backwards:
            sharded = [Blocks(self.unit_groups[i].sharded_gradients, end - i) for i, end in self.layer_groups]
            self.recorder.hold_amount("gradients", (*sharded, Blocks(self.root.sharded_gradients)))

    def begin_micro_batch(self, micro_batch: MicroBatch, *, others: bool) -> None:
        """Decide whether this micro-batch finds the parameters already gathered, as later ones of a pipeline do.

        ``others``: other micro-batches are in flight.
        """
        self.micro_batch, options = micro_batch, self.options
        if micro_batch.is_first:
            self.gathered_by_first = options.stays_gathered and others and not options.reshards
        else:
            self.gathered_by_first = options.stays_gathered or options.keeps_gathered

    def begin_forward(self, *, already_gathered: bool) -> None:
        """Run FSDP2's pre-forward hook of the root, which gathers the root's group.

        ``already_gathered``: an earlier micro-batch has left it, and the layers', gathered.
        """
        self.already_gathered, self.flat_buffer, self.forward_prefetched = already_gathered, NOTHING, NOTHING
        self.gathered = [group.unsharded_params if already_gathered else NOTHING for group in self.unit_groups]
        for size in self.gathered:
            self.recorder.hold(BUFFERS, size)
        if self.root == NO_GROUP:
            return
        if already_gathered:
            self.recorder.hold(BUFFERS, self.root.unsharded_params)
        else:
            self.flat_buffer = self.gather_root()

    def before_forward(self, i: int) -> None:
        """Run the pre-forward hook of unit ``i``, which gathers its group.

        Nothing happens if it is gathered already, or if its module is a part of the head that runs after the norm.
        """
        if not self.unit_groups[i].unsharded_params or self.already_gathered or self._is_gathered_after_norm(i):
            return
        recorder, unit = self.recorder, self.units[i]
        if unit.kind == "head" and self.options.root_joins_streams and unit.first_curve.peak_before_loss is not None:
            recorder.high("forward", unit.first_curve.peak_before_loss, self.names[i])  # before the norm, which gathers
        recorder.hold("activations", unit.first_curve.input_bytes)
        recorder.release(BUFFERS, self.forward_prefetched)
        self.flat_buffer = self.gather_for_forward(self.unit_groups[i], self.flat_buffer, self.names[i])
        self.forward_prefetched = self._gather_next(i + 1)
        recorder.release("activations", unit.first_curve.input_bytes)
        self.gathered[i] = self.unit_groups[i].unsharded_params

    def _gather_next(self, i: int) -> int:
        """Gather unit ``i`` ahead of its forward if forward prefetch is set; return its flat buffer, or NOTHING."""
        if not self.options.gathers_ahead or i == len(self.units) or not self.unit_groups[i].unsharded_params:
            return NOTHING
        return self.gather_ahead(self.unit_groups[i], self.names[i], "forward")

    def _is_gathered_after_norm(self, i: int) -> bool:
        return self.units[i].kind == "head" and self.has_adapter_units

    def before_norm(self) -> None:
        """Free the last layer's flat buffer if there is no root, whose hook would free it later."""
        if self.flat_buffer and self.root == NO_GROUP and not self.options.has_end_groups:
            self.recorder.release(BUFFERS, self.flat_buffer)
            self.flat_buffer = NOTHING

    def before_loss(self, *, after_model: bool) -> None:
        """Free the flat buffer if the root's forward returns before the loss, and gather a trained part of the head.

        ``after_model``: the trainer computes the loss after the model's forward has returned.
        """
        last = len(self.units) - 1
        if after_model or self.options.loss_after_root:
            self.recorder.release(BUFFERS, self.flat_buffer)
            self.flat_buffer = NOTHING
        if self._is_gathered_after_norm(last):
            self.gathered[last] = self.unit_groups[last].unsharded_params
            self.recorder.hold(BUFFERS, NOTHING if self.already_gathered else self.unit_groups[last].unsharded_params)

    def after_forward(self, i: int, end: int) -> None:
        """Run the post-forward hook of unit ``i``, which reshards it; units up to ``end`` are in the same state.

        The head stays gathered, because its backward comes next.
        """
        reshards = self.options.reshards and (self.units[i].kind != "head" or self.has_adapter_units)
        if self.gathered[i] and reshards:
            self.recorder.release(BUFFERS, self.gathered[i])
            self.gathered[i] = NOTHING
        self.gathered[i:end] = [self.gathered[i]] * (end - i)

    def end_forward(self) -> None:
        """The root's post-forward hook frees the last flat buffer."""
        self.recorder.release(BUFFERS, self.flat_buffer)

    # a backward

    def begin_backward(self, micro_batch: MicroBatch, *, all_forwards_first: bool) -> None:
        """Set the state of a backward, and run the root's pre-backward hook if the root computes the loss.

        That hook prefetches the last unit. ``all_forwards_first``: the forwards of all micro-batches have run before
        the first backward.
        """
        options = self.options
        if options.stays_gathered and all_forwards_first and not micro_batch.is_first:
            # the previous micro-batch's backward has left all parameters gathered
            self.after_end()
            self.gathered = [group.unsharded_params for group in self.unit_groups]
            self.recorder.hold_amount(BUFFERS, tuple([Blocks(size) for size in self.gathered]))
        self.gradients_are_new = not self.pair_before if self.pair else micro_batch.is_first
        self.reduces_now = micro_batch.is_last and not options.stays_gathered
        self.keeps_parameters = options.stays_gathered or (options.keeps_gathered and not self.reduces_now)
        hooked = (
            len(self.units) - 1 if options.has_end_groups else len(self.units)
        )  # a head's group of its own has the hook
        inside = options.loss_inside_root and (self.root != NO_GROUP or options.has_end_groups)
        self.backward_prefetched = self._prefetch(hooked) if inside else NOTHING
        self.unsharded_root, self.unused_prefetch, self.reduce_input = (), NOTHING, NOTHING

    def before_backward(self, i: int, curve: NamedCurve) -> None:
        """Run the pre-backward hook of unit ``i``, which gathers its parameters again.

        A unit without a graph has no such hook: the buffer that was gathered ahead for it stays to the end.
        """
        if self._is_hooked(i, curve) or not self.unit_groups[i].unsharded_params:
            self._gather_for_unit_backward(i)
        elif not self.has_adapter_units:
            self.backward_prefetched, self.unused_prefetch = NOTHING, self.unused_prefetch or self.backward_prefetched

    def unit_gradients(self, i: int, curve: NamedCurve) -> Amount:
        """Return the gradients that the backward of unit ``i`` has allocated.

        A tensor-parallel embedding first allocates the gradient of the whole table, then clones this rank's rows of it.
        """
        gradients = (Blocks(curve.gradient_bytes),)
        if not (self.units[i].kind == "embedding" and self.options.whole_table_gradient):
            return gradients
        clone = self.step_units.step_sizes.table_gradient_slice
        self.recorder.hold_amount("gradients", gradients)
        self.recorder.hold("temporaries", clone)
        self.recorder.mark("backward", "clone of the local embedding gradient")
        self.recorder.release("temporaries", clone)
        self.recorder.release_amount("gradients", gradients)
        return (*gradients, Blocks(self.step_units.step_sizes.table_gradient, times=-1), Blocks(clone))

    def after_backward(self, i: int, end: int, curve: NamedCurve, gradients: Amount) -> None:
        """Run FSDP2's post-backward hook of unit ``i``, which reshards it and reduce-scatters its ``gradients``.

        The unit represents all equal units from ``i`` to ``end``. Gradients of units without a group of their own are
        kept for the root's hook. ``curve``: of the unit in this micro-batch.
        """
        unit = self.units[i]
        if unit.kind == "head" and not self.backward_prefetched:
            self.backward_prefetched = self._prefetch(i)
            super().after_backward(i, end, curve, gradients)
        if self._is_hooked(i, curve):
            reduced_by_root = self.step_units.groups[i].share_of_root.unsharded_gradients
            if reduced_by_root:  # a part of a tower's unit belongs to the root
                gradients = (*gradients, Blocks(reduced_by_root, times=-1))
                self.unsharded_root += (Blocks(reduced_by_root, end - i),)
            self._reduce_unit(i, curve, gradients)
        elif not self.unit_groups[i].unsharded_params and unit.kind not in self.options.wrapped_kinds:
            self.unsharded_root += tuple([Blocks(size, times * (end - i)) for size, times in gradients])
        self.gathered[i:end] = [self.gathered[i]] * (end - i)

    def after_layers(self) -> None:
        """Reshard the root, unless its parameters stay gathered, and reduce its gradients."""
        if self.root == NO_GROUP:
            return
        keeps = self.options.stays_gathered
        unsharded = self.flatten_gradients(self.root, self.unsharded_root, ROOT)
        self.recorder.release(BUFFERS, NOTHING if keeps else self.root.unsharded_params)
        if self.pair != FIRST_OF_PAIR:
            self.reduce_input = self.reduce(self.root, unsharded, self.reduce_input, self.reduces_now, ROOT)
            self.recorder.release(BUFFERS, self.root.unsharded_params if keeps else NOTHING)

    def end_backward(self) -> None:
        """Run the root's final callback, which frees what the all-reduces wrote and what was gathered in vain.

        In a pipeline all groups are reduced here, after the last backward.
        """
        reduces = self.micro_batch.is_last
        if self.options.stays_gathered and reduces:
            self._reduce_all()
        if self.pair != FIRST_OF_PAIR and (reduces or not self.options.no_sync):
            for i, end in self.layer_groups:
                self.recorder.release(
                    "gradients", self._all_reduce_output(self.reduced_by_hook(i), self.gradients_are_new), end - i
                )
            self.recorder.release("gradients", self._all_reduce_output(self.root, self.gradients_are_new))
        self.release_input()
        self.recorder.release_amount(BUFFERS, (Blocks(self.backward_prefetched), Blocks(self.unused_prefetch)))

    def release_input(self) -> None:
        """The input of the last reduction goes with the backward."""
        self.recorder.release(BUFFERS, self.reduce_input)

    def after_end(self) -> None:
        """Free the parameters that are still gathered after the backward."""
        self.recorder.release_amount(BUFFERS, tuple([Blocks(size) for size in self.gathered]))

    def hold_gathered(self, sign: int) -> None:
        """Hold (``sign`` 1) or release (-1) this chunk's gathered parameters while another chunk runs."""
        for first, end in self.layer_groups:
            self.recorder.hold(BUFFERS, self.unit_groups[first].unsharded_params, sign * (end - first))
        self.recorder.hold(BUFFERS, self.root.unsharded_params, sign)

    def _is_hooked(self, i: int, curve: NamedCurve) -> bool:
        return bool(self.unit_groups[i].unsharded_params and curve.passes_back)

    def _gather_for_unit_backward(self, i: int) -> None:
        """Gather the parameters of unit ``i`` for its backward, and the flat buffer of the unit that comes next."""
        recorder, unit, group = self.recorder, self.units[i], self.unit_groups[i]
        # the next unit in forward order, whose backward is over, still has parameters that are not freed
        not_yet_freed = self.still_gathered(self.unit_groups[i + 1]) if i + 1 < len(self.units) else NOTHING
        recorder.hold("temporaries", unit.first_curve.output_gradient_bytes)
        recorder.hold(BUFFERS, not_yet_freed)
        if group.unsharded_params and not self.gathered[i]:
            self.gather_for_backward(group, self.backward_prefetched, self.names[i])
            self.backward_prefetched = NOTHING
            self.gathered[i] = group.unsharded_params
        if group.unsharded_params and (unit.kind != "head" or self.options.root_joins_streams):
            self.backward_prefetched = self.backward_prefetched or self._prefetch(i)
        recorder.release("temporaries", unit.first_curve.output_gradient_bytes)
        recorder.release(BUFFERS, not_yet_freed)

    def _prefetch(self, after: int) -> int:
        """Gather the unit that comes before unit ``after``, while that one's backward computes (backward prefetch).

        Returns its flat buffer, or NOTHING if its parameters are gathered already.
        """
        for i in range(after - 1, -1, -1):
            if self.unit_groups[i].unsharded_params:
                return (
                    NOTHING if self.gathered[i] else self.gather_ahead(self.unit_groups[i], self.names[i], "backward")
                )
        return NOTHING

    def _reduce_unit(self, i: int, curve: NamedCurve, gradients: Amount) -> None:
        """Reshard unit ``i`` and reduce its unsharded ``gradients``.

        In the first pass of a pair the hook does not run: the unit is only resharded.
        """
        group, name = self.reduced_by_hook(i), self.names[i]
        released = NOTHING if self.keeps_parameters else self.gathered[i]
        self.gathered[i] = self.gathered[i] if self.keeps_parameters else NOTHING
        if self.pair == FIRST_OF_PAIR:  # no AccumulateGrad runs, which would call the hook
            self.flatten_gradients(group, gradients, name)
            self.recorder.release(BUFFERS, released)
            return
        around = self.held_by_hook(self.units[i], curve)
        self.recorder.hold_amount("temporaries", around)
        gradients = self.flatten_gradients(group, gradients, name)
        self.recorder.release(BUFFERS, released)
        self.reduce_input = self.reduce(group, gradients, self.reduce_input, self.reduces_now, name)
        self.recorder.release_amount("temporaries", around)

    def _reduce_all(self) -> None:
        """Reshard and reduce all groups: the root, then the units (stage.py, perform_reduce_grad: ``all_states``)."""
        self.gradients_are_new = False
        self.reduce_input = self.reduce(self.root, (), self.reduce_input, True, ROOT)
        for i, name in enumerate(self.names):
            group = self.reduced_by_hook(i)
            if group.unsharded_params:
                self.recorder.release(BUFFERS, self.gathered[i])
                self.reduce_input = self.reduce(group, (), self.reduce_input, True, name)
        self.gathered = []
        self.gradients_are_new = self.micro_batch.is_first

    def reduced_by_hook(self, i: int) -> Group:
        """Return the group that a unit's own hook reduces."""
        return self.unit_groups[i]

    # collectives

    def gather_root(self) -> int:
        """All-gather the root's parameters, and return the flat buffer, which stays allocated until the next
        all-gather.
        """
        self.recorder.hold(BUFFERS, self.root.all_gather_output)
        self._cast_shards(self.root, "forward", ROOT)
        self.recorder.hold(BUFFERS, self.root.unsharded_params)
        self.recorder.mark("forward", f"all-gather of {ROOT}")
        return self.root.all_gather_output

    def gather_for_forward(self, group: Group, previous: int, name: str) -> int:
        """Gather a unit's parameters for its forward and free the previous group's flat buffer.

        Returns the new flat buffer, which stays until the next all-gather. Up to torch 2.14 a variable refers to the
        previous buffer until the copy-out is over.
        """
        recorder, early = self.recorder, self.options.frees_early
        recorder.hold(BUFFERS, group.all_gather_output)
        self._cast_shards(group, "forward", name)
        if early:
            recorder.mark("forward", f"all-gather of {name}")
            recorder.release(BUFFERS, previous)
            recorder.hold(BUFFERS, group.unsharded_params)
        else:
            recorder.hold(BUFFERS, group.unsharded_params)
            recorder.mark("forward", f"all-gather of {name}")
        self._copy_out(group, "forward", name)
        recorder.release(BUFFERS, NOTHING if early else previous)
        return group.all_gather_output

    def gather_for_backward(self, group: Group, prefetched: int, name: str) -> None:
        """Copy a unit's parameters out of the ``prefetched`` flat buffer, or out of one that is gathered now.

        The flat buffer is freed.
        """
        recorder = self.recorder
        recorder.hold(BUFFERS, group.unsharded_params)
        recorder.hold(BUFFERS, NOTHING if prefetched else group.all_gather_output)
        recorder.mark("backward", f"all-gather of {name}")
        self._copy_out(group, "backward", name)
        recorder.release(BUFFERS, prefetched or group.all_gather_output)

    def gather_ahead(self, group: Group, name: str, instant: str) -> int:
        """Start the all-gather of the next unit while this one computes, and return its flat buffer."""
        self.recorder.hold(BUFFERS, group.all_gather_output)
        self._cast_shards(group, instant, name)
        return group.all_gather_output

    def still_gathered(self, after: Group) -> int:
        """Bytes that stay gathered of ``after``, the unit whose backward has run, while the next one is gathered."""
        return NOTHING

    def _cast_shards(self, group: Group, instant: str, name: str) -> None:
        """Record the temporary copy of the shards in the dtype of the flat buffer, if they have another dtype."""
        if group.all_gather_input:
            self.recorder.hold(BUFFERS, group.all_gather_input)
            self.recorder.mark(instant, f"all-gather of {name}")
            self.recorder.release(BUFFERS, group.all_gather_input)

    def _copy_out(self, group: Group, instant: str, name: str) -> None:
        """Record the temporary that the copy-out needs in addition to flat buffer and parameters, if any.

        ``foreach_all_gather_copy_out`` copies a tensor twice that is sharded along another dimension than the first.
        """
        if group.copy_out_temporaries:
            self.recorder.hold(BUFFERS, group.copy_out_temporaries)
            self.recorder.mark(instant, f"copy-out of {name}")
            self.recorder.release(BUFFERS, group.copy_out_temporaries)

    def held_by_hook(self, unit: NamedUnit, curve: NamedCurve) -> Amount:
        """Return what is alive only because a unit's post-backward hook runs: the gradient of the unit's input."""
        return (Blocks(curve.input_gradient_bytes),)

    def flatten_gradients(self, group: Group, unsharded: Amount, name: str) -> Amount:
        """Return the gradients that wait for the reduction of a group: under FSDP2 the unsharded ones as they are."""
        return unsharded

    def reduce(self, group: Group, unsharded: Amount, previous: int, last: bool, name: str) -> int:
        """Reduce-scatter one group's gradients and return the input buffer, which stays until the next reduction.

        ``unsharded``: the gradients. ``previous``: the input buffer of the previous reduction. ``last``: this is the
        last micro-batch. Before it gradients are only accumulated under ``no_sync``.
        """
        recorder, options = self.recorder, self.options
        if options.no_sync and not last:
            self._accumulate(group, unsharded, name)
            return previous
        if options.no_sync:  # added to those that wait, or they themselves
            recorder.release_amount("gradients", unsharded)
            unsharded = ()
        recorder.release(BUFFERS, previous)
        recorder.hold(BUFFERS, group.reduce_scatter_input)
        recorder.mark("backward", f"reduce-scatter of {name}")
        recorder.release_amount("gradients", unsharded)
        if options.no_sync:
            recorder.release("gradients", group.unsharded_gradients)
        elif self.gradients_are_new and not options.several_backwards:
            recorder.hold("gradients", group.unmanaged_expert_gradients)
        if options.offloads_gradients:
            return group.reduce_scatter_input  # the sharded gradient is copied to the host
        recorder.hold("temporaries", group.last_unsharded_gradient)
        recorder.hold("gradients", group.reduce_scatter_output)
        recorder.hold("temporaries", group.divided_gradients)
        recorder.mark("backward", f"reduce-scatter of {name}")
        recorder.release("temporaries", group.divided_gradients)
        if group.sharded_gradients != group.reduce_scatter_output:  # _to_dtype_if_needed(reduce_output, orig_dtype)
            recorder.hold("gradients", group.sharded_gradients)
            recorder.mark("backward", f"gradients of {name} in the shards' dtype")
            if not options.keeps_all_reduce_output:
                recorder.release("gradients", group.reduce_scatter_output)
        # reduced gradients exist already: of earlier runs of the schedule, or of earlier micro-batches unless no_sync
        # leaves these unreduced
        added = options.several_backwards or (not self.gradients_are_new and not options.no_sync)
        if added and self._all_reduce_output(group, self.gradients_are_new) != group.sharded_gradients:
            recorder.release("gradients", group.sharded_gradients)  # added in place to the earlier micro-batches' shard
        recorder.release("temporaries", group.last_unsharded_gradient)
        return group.reduce_scatter_input

    def _accumulate(self, group: Group, unsharded: Amount, name: str) -> None:
        """Keep the gradients of a group unsharded, in the reduce dtype, as under ``no_sync``."""
        if self.options.adds_in_place:
            self.recorder.release_amount("gradients", unsharded)
        if self.gradients_are_new:
            self.recorder.hold("gradients", group.unsharded_gradients)
            self.recorder.hold("gradients", group.unmanaged_expert_gradients)
            self.recorder.mark("backward", f"gradient accumulation of {name}")
        if not self.options.adds_in_place:
            self.recorder.release_amount("gradients", unsharded)

    def _all_reduce_output(self, group: Group, new: bool) -> int:
        """Return the output of the all-reduce over replicas that stays alive in addition to the sharded gradients.

        The group refers to it until the backward is over (``AllReduceState``). It is NOTHING where that output itself
        becomes the gradients: no reduced gradients exist that it is added to. ``new``: this is the first micro-batch.
        """
        if not self.options.keeps_all_reduce_output:
            return NOTHING
        if group.sharded_gradients != group.reduce_scatter_output:
            return group.reduce_scatter_output
        # under no_sync only the last micro-batch is reduced, so that it never finds reduced gradients of earlier ones;
        # but where the schedule runs several times per step, earlier runs have left some (begin_step)
        finds_reduced = self.options.several_backwards or not (new or self.options.no_sync)
        return group.sharded_gradients if finds_reduced else NOTHING
