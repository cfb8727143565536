"""FSDP2's hooks around the units of a step: all-gathers of parameters, reduce-scatters of gradients.

Source: torch 2.13 distributed/fsdp/_fully_shard/_fsdp_collectives.py (foreach_all_gather and its copy-out,
foreach_reduce), _fsdp_param_group.py (post_backward, finalize_backward).
"""

from __future__ import annotations

from memcheck.accounts.program import NOTHING, Amount, Recorder
from memcheck.accounts.sizes import NamedCurve
from memcheck.accounts.unit import OF_TOWER
from memcheck.frameworks.torch.data_parallel import (
    FIRST_OF_PAIR,
    DataParallel,
    MicroBatch,
    NamedUnit,
    StepUnits,
)
from memcheck.frameworks.torch.fsdp import NO_GROUP, Group
from memcheck.record import Record

WHERE = "communication_buffers"
ROOT = "the root group"


class FullyShard(Record):
    """How FSDP2 runs a step."""

    reshards: bool
    several_runs: bool
    """A pipeline's schedule runs several times a step: reduced gradients of the runs before are there."""
    keeps_reduced: bool
    """Every group refers to what its all-reduce over replicas wrote until the backward is over."""
    unsynchronised: bool
    """Micro-batches before the last leave their gradients unsharded."""
    in_place: bool
    """Autograd adds to unsharded gradients of earlier micro-batches."""
    stays_gathered: bool
    """torch.distributed.pipelining keeps parameters gathered from one backward to the next forward, and reduces after
    the last backward instead of within it (stage.py, perform_reduce_grad).
    """
    frees_early: bool
    """The all-gather of a forward lets go of the previous flat buffer before it copies out (torch 2.15)."""
    loss_inside_root: bool
    """The root's forward computes the loss, so that the root's hook runs first in the backward."""
    loss_after_root: bool
    """The root's forward returns hidden states, and the head runs chunk by chunk after it."""
    whole_table: bool
    """A tensor-parallel rank's embedding gradient is made for the whole table: RowwiseParallel's is."""
    offloads: bool
    """Sharded gradients are copied to the host."""
    carved: bool
    """The ends are groups of their own in addition to a root, whose forward ends after the loss."""
    collapses: bool
    """A module of the root's joins streams between the last layer and the final norm, whose group is the head's."""
    gathers_ahead: bool
    """Each group's forward begins with the all-gather of the next one (``set_modules_to_forward_prefetch``)."""
    keeps_gathered: bool
    """Units that are not resharded after their forward stay gathered after a backward that does not synchronise, too
    (_runtime_utils.py, _should_free_in_backward).
    """
    wrapped: tuple[str, ...]
    """Kinds of units that are groups of their own."""

    @property
    def sizes(self) -> int:
        """No sizes but those of groups."""
        return 0

    def hooks(self, recorder: Recorder, row: StepUnits, first: int) -> FullyShardHooks:
        """The hooks of one step."""
        return FullyShardHooks(recorder, row, self)


class FullyShardHooks(DataParallel):
    """FSDP2's hooks. What they hold is named after the moment: ``flat`` in a forward, ``prefetched`` in a backward."""

    hooks_gradients = True
    leaves_apart = False
    """Trained modules inside frozen ones are units of their own (peft ``fsdp_auto_wrap_policy``)."""

    def __init__(self, recorder: Recorder, row: StepUnits, options: FullyShard) -> None:
        super().__init__(recorder, row)
        self.options, self.root, self.stretches = options, row.root, row.stretches
        self.own = self._own_groups()
        self.gathered: list[int] = []
        self.flat = self.ahead = self.prefetched = self.stays = self.reduce_input = NOTHING
        self.unsharded_root: Amount = ()
        self.each = MicroBatch(True, True, 0)
        self.here_now = self.new = self.keeps = self.reduces = False

    def _own_groups(self) -> list[Group]:
        """For each unit the group that is gathered for it alone; none when it belongs to the root.

        Of embedding and head it is what is trained in them, where FSDP1 makes units of that, or what is carved out.
        """
        shared = self.root != NO_GROUP and not (self.leaves_apart or self.options.carved)
        wrapped = self.options.wrapped
        row = zip(self.units, self.row.groups, strict=True)
        return [NO_GROUP if shared and unit.kind not in wrapped else groups.whole for unit, groups in row]

    # a forward

    def curve(self, unit: NamedUnit, first: bool) -> NamedCurve:
        """Autograd sees fresh unsharded gradients, unless it adds to those that were not reduced."""
        return unit.fresh if first or not self.options.in_place else unit.again

    def curve_of_second(self, unit: NamedUnit) -> NamedCurve:
        """The second pass's gradients are new tensors, too."""
        return unit.again._replace(gradients=unit.fresh.gradients)

    def drops_pending(self, earlier: bool) -> bool:
        """The gradients are joined and reduced."""
        return True

    def begin_step(self) -> None:
        """Reduced gradients that are there before a forward."""
        if self.options.several_runs:
            each = [(self.own[i].sharded, end - i) for i, end in self.stretches]
            self.recorder.hold_amount("gradients", (*each, (self.root.sharded, 1)))

    def begin_micro_batch(self, each: MicroBatch, *, others: bool) -> None:
        """Later micro-batches of a pipeline find the parameters gathered."""
        self.each, options = each, self.options
        stays = options.stays_gathered and (not each.first or (others and not options.reshards))
        self.gathered_by_first = stays or (options.keeps_gathered and not each.first)

    def begin_forward(self, *, here: bool) -> None:
        """The root's pre-forward hook gathers its group."""
        self.here_now, self.flat, self.ahead = here, NOTHING, NOTHING
        self.gathered = [own.gathered if here else NOTHING for own in self.own]
        for size in self.gathered:
            self.recorder.hold(WHERE, size)
        if self.root == NO_GROUP:
            return
        if here:
            self.recorder.hold(WHERE, self.root.gathered)
        else:
            self.flat = self.gather_root()

    def before_forward(self, i: int) -> None:
        """The unit's pre-forward hook gathers its group. The head's own module runs after the final norm."""
        if not self.own[i].gathered or self.here_now or self._is_late(i):
            return
        recorder, unit = self.recorder, self.units[i]
        if unit.kind == "head" and self.options.collapses and unit.fresh.before is not None:
            recorder.high("forward", unit.fresh.before, self.names[i])  # before the norm, which gathers
        recorder.hold("activations", unit.fresh.input)
        recorder.release(WHERE, self.ahead)
        self.flat = self.gather_for_forward(self.own[i], self.flat, self.names[i])
        self.ahead = self._gather_next(i + 1)
        recorder.release("activations", unit.fresh.input)
        self.gathered[i] = self.own[i].gathered

    def _gather_next(self, i: int) -> int:
        """The next unit's flat buffer, where it is gathered before one runs forward."""
        if not self.options.gathers_ahead or i == len(self.units) or not self.own[i].gathered:
            return NOTHING
        return self.gather_ahead(self.own[i], self.names[i], "forward")

    def _is_late(self, i: int) -> bool:
        return self.units[i].kind == "head" and self.leaves_apart

    def before_norm(self) -> None:
        """Without a root the last layer's flat buffer goes."""
        if self.flat and self.root == NO_GROUP and not self.options.carved:
            self.recorder.release(WHERE, self.flat)
            self.flat = NOTHING

    def before_loss(self, *, after_model: bool) -> None:
        """The root's post-forward hook frees the flat buffer, where the root has returned before the loss."""
        last = len(self.units) - 1
        if after_model or self.options.loss_after_root:
            self.recorder.release(WHERE, self.flat)
            self.flat = NOTHING
        if self._is_late(last):
            self.gathered[last] = self.own[last].gathered
            self.recorder.hold(WHERE, NOTHING if self.here_now else self.own[last].gathered)

    def after_forward(self, i: int, end: int) -> None:
        """The unit's post-forward hook reshards it; of torchtitan's head not, which the backward needs at once."""
        reshards = self.options.reshards and (self.units[i].kind != "head" or self.leaves_apart)
        if self.gathered[i] and reshards:
            self.recorder.release(WHERE, self.gathered[i])
            self.gathered[i] = NOTHING
        self.gathered[i:end] = [self.gathered[i]] * (end - i)

    def end_forward(self) -> None:
        """The root's post-forward hook frees the last flat buffer."""
        self.recorder.release(WHERE, self.flat)

    # a backward

    def begin_backward(self, each: MicroBatch, *, all_at_once: bool) -> None:
        """Where the root's output is the loss, its hook runs first and gathers ahead."""
        options = self.options
        if options.stays_gathered and all_at_once and not each.first:  # the backward before has left all of them
            self.after_end()
            self.gathered = [own.gathered for own in self.own]
            self.recorder.hold_amount(WHERE, tuple([(size, 1) for size in self.gathered]))
        self.new = not self.earlier if self.pair else each.first
        self.reduces = each.last and not options.stays_gathered
        self.keeps = options.stays_gathered or (options.keeps_gathered and not self.reduces)
        inside = self.root != NO_GROUP and options.loss_inside_root
        self.prefetched = self._prefetch(len(self.units)) if inside else NOTHING
        self.unsharded_root, self.stays, self.reduce_input = (), NOTHING, NOTHING

    def before_backward(self, i: int, curve: NamedCurve) -> None:
        """The unit's pre-backward hook. One without a graph has none: what was gathered for it stays to the end."""
        if self._is_hooked(i, curve) or not self.own[i].gathered:
            self._gather_again(i)
        elif not self.leaves_apart:
            self.prefetched, self.stays = NOTHING, self.stays or self.prefetched

    def arrive(self, i: int, curve: NamedCurve) -> Amount:
        """Clones of the rank's own rows, from a gradient of the whole table."""
        gradients: Amount = ((curve.gradients, 1),)
        if not (self.units[i].kind == "embedding" and self.options.whole_table):
            return gradients
        clone = self.row.beyond.table_slice
        self.recorder.hold_amount("gradients", gradients)
        self.recorder.hold("temporaries", clone)
        self.recorder.mark("backward", "clone of the local embedding gradient")
        self.recorder.release("temporaries", clone)
        self.recorder.hold_amount("gradients", gradients, -1)
        return (*gradients, (self.row.beyond.table, -1), (clone, 1))

    def after_backward(self, i: int, end: int, curve: NamedCurve, gradients: Amount) -> None:
        """The unit's post-backward hook reshards it and reduces its gradients; those of the root's units wait."""
        unit = self.units[i]
        if unit.kind == "head" and not self.prefetched:
            self.prefetched = self._prefetch(i)
            super().after_backward(i, end, curve, gradients)
        if self._is_hooked(i, curve):
            rest = self.row.groups[i].early.gathered if unit.kind in OF_TOWER else NOTHING
            if rest:  # of a tower's unit the root reduces a part
                gradients = (*gradients, (rest, -1))
                self.unsharded_root += ((rest, end - i),)
            self._reduce_unit(i, curve, gradients)
        elif not self.own[i].gathered and unit.kind not in self.options.wrapped:
            self.unsharded_root += tuple([(place, times * (end - i)) for place, times in gradients])
        self.gathered[i:end] = [self.gathered[i]] * (end - i)

    def after_layers(self) -> None:
        """The root is resharded, if at all, and its gradients are reduced."""
        if self.root == NO_GROUP:
            return
        keeps = self.options.stays_gathered
        unsharded = self.join(self.root, self.unsharded_root, ROOT)
        self.recorder.release(WHERE, NOTHING if keeps else self.root.gathered)
        if self.pair != FIRST_OF_PAIR:
            self.reduce_input = self.reduce(self.root, unsharded, self.reduce_input, self.reduces, ROOT)
            self.recorder.release(WHERE, self.root.gathered if keeps else NOTHING)

    def end_backward(self) -> None:
        """The root's final callback. A pipeline's last backward is followed by all reductions."""
        reduces = self.each.last
        if self.options.stays_gathered and reduces:
            self._reduce_all()
        if self.pair != FIRST_OF_PAIR and (reduces or not self.options.unsynchronised):
            for i, end in self.stretches:
                self.recorder.release("gradients", self._all_reduced(self.reduced_by_hook(i), self.new), end - i)
            self.recorder.release("gradients", self._all_reduced(self.root, self.new))
        self.release_input()
        self.recorder.hold_amount(WHERE, ((self.prefetched, -1), (self.stays, -1)))

    def release_input(self) -> None:
        """The input of the last reduction goes with the backward."""
        self.recorder.release(WHERE, self.reduce_input)

    def after_end(self) -> None:
        """What is still gathered goes."""
        self.recorder.hold_amount(WHERE, tuple([(size, -1) for size in self.gathered]))

    def hold_gathered(self, sign: int) -> None:
        """The parameters, while another chunk runs."""
        for first, end in self.stretches:
            self.recorder.hold(WHERE, self.own[first].gathered, sign * (end - first))
        self.recorder.hold(WHERE, self.root.gathered, sign)

    def _is_hooked(self, i: int, curve: NamedCurve) -> bool:
        return bool(self.own[i].gathered and curve.passes_back)

    def _gather_again(self, i: int) -> None:
        """The unit's parameters for its backward, and the next unit's flat buffer."""
        recorder, unit, own = self.recorder, self.units[i], self.own[i]
        late = self.still_gathered(self.own[i + 1]) if i + 1 < len(self.units) else NOTHING
        recorder.hold("temporaries", unit.fresh.output_gradient)
        recorder.hold(WHERE, late)
        if own.gathered and not self.gathered[i]:
            self.gather_for_backward(own, self.prefetched, self.names[i])
            self.prefetched = NOTHING
            self.gathered[i] = own.gathered
        if own.gathered and (unit.kind != "head" or self.options.collapses):
            self.prefetched = self.prefetched or self._prefetch(i)
        recorder.release("temporaries", unit.fresh.output_gradient)
        recorder.release(WHERE, late)

    def _prefetch(self, after: int) -> int:
        """Backward prefetch: the next unit's flat buffer is gathered while unit ``after`` computes."""
        for i in range(after - 1, -1, -1):
            if self.own[i].gathered:
                return NOTHING if self.gathered[i] else self.gather_ahead(self.own[i], self.names[i], "backward")
        return NOTHING

    def _reduce_unit(self, i: int, curve: NamedCurve, gradients: Amount) -> None:
        own, name = self.reduced_by_hook(i), self.names[i]
        released = NOTHING if self.keeps else self.gathered[i]
        self.gathered[i] = self.gathered[i] if self.keeps else NOTHING
        if self.pair == FIRST_OF_PAIR:  # no AccumulateGrad runs, which would call the hook
            self.join(own, gradients, name)
            self.recorder.release(WHERE, released)
            return
        around = self.around(self.units[i], curve)
        self.recorder.hold_amount("temporaries", around)
        gradients = self.join(own, gradients, name)
        self.recorder.release(WHERE, released)
        self.reduce_input = self.reduce(own, gradients, self.reduce_input, self.reduces, name)
        self.recorder.hold_amount("temporaries", around, -1)

    def _reduce_all(self) -> None:
        """All groups resharded and reduced: the root, then units (stage.py, perform_reduce_grad: ``all_states``)."""
        self.new = False
        self.reduce_input = self.reduce(self.root, (), self.reduce_input, True, ROOT)
        for i, name in enumerate(self.names):
            own = self.reduced_by_hook(i)
            if own.gathered:
                self.recorder.release(WHERE, self.gathered[i])
                self.reduce_input = self.reduce(own, (), self.reduce_input, True, name)
        self.gathered = []
        self.new = self.each.first

    def reduced_by_hook(self, i: int) -> Group:
        """What a unit's own hook reduces."""
        return self.own[i]

    # collectives

    def gather_root(self) -> int:
        """The root group's flat buffer, which is returned and stays, and its parameters."""
        self.recorder.hold(WHERE, self.root.flat)
        self._cast(self.root, "forward", ROOT)
        self.recorder.hold(WHERE, self.root.gathered)
        self.recorder.mark("forward", f"all-gather of {ROOT}")
        return self.root.flat

    def gather_for_forward(self, own: Group, previous: int, where: str) -> int:
        """Gather a unit's parameters and let go of the previous group's flat buffer; returns the one that stays."""
        recorder, early = self.recorder, self.options.frees_early  # torch <= 2.14 keeps the previous in a variable
        recorder.hold(WHERE, own.flat)
        self._cast(own, "forward", where)
        if early:
            recorder.mark("forward", f"all-gather of {where}")
            recorder.release(WHERE, previous)
            recorder.hold(WHERE, own.gathered)
        else:
            recorder.hold(WHERE, own.gathered)
            recorder.mark("forward", f"all-gather of {where}")
        self._copied(own, "forward", where)
        recorder.release(WHERE, NOTHING if early else previous)
        return own.flat

    def gather_for_backward(self, own: Group, prefetched: int, where: str) -> None:
        """Parameters from the flat buffer that was gathered ahead, or from one that is gathered now."""
        recorder = self.recorder
        recorder.hold(WHERE, own.gathered)
        recorder.hold(WHERE, NOTHING if prefetched else own.flat)
        recorder.mark("backward", f"all-gather of {where}")
        self._copied(own, "backward", where)
        recorder.release(WHERE, prefetched or own.flat)

    def gather_ahead(self, own: Group, where: str, instant: str) -> int:
        """The next unit's flat buffer, gathered while this one computes."""
        self.recorder.hold(WHERE, own.flat)
        self._cast(own, instant, where)
        return own.flat

    def still_gathered(self, after: Group) -> int:
        """Bytes that stay gathered of ``after``, the unit whose backward has run, while the next one is gathered."""
        return NOTHING

    def _cast(self, own: Group, instant: str, where: str) -> None:
        """The shards in the dtype of the flat buffer, which they are copied into."""
        if own.cast:
            self.recorder.hold(WHERE, own.cast)
            self.recorder.mark(instant, f"all-gather of {where}")
            self.recorder.release(WHERE, own.cast)

    def _copied(self, own: Group, instant: str, where: str) -> None:
        """What is copied out twice, in addition to the flat buffer and the parameters."""
        if own.copied:
            self.recorder.hold(WHERE, own.copied)
            self.recorder.mark(instant, f"copy-out of {where}")
            self.recorder.release(WHERE, own.copied)

    def around(self, unit: NamedUnit, curve: NamedCurve) -> Amount:
        """What there is when a unit's hook runs: the gradient of its input."""
        return ((curve.input_gradient, 1),)

    def join(self, g: Group, unsharded: Amount, where: str) -> Amount:
        """What a unit's gradients are before its parameters go: they themselves."""
        return unsharded

    def reduce(self, g: Group, unsharded: Amount, previous: int, last: bool, where: str) -> int:
        """Reduce-scatter of one group; returns the input buffer that stays until the next one.

        ``previous``: the input buffer of the reduction before; ``last``: in the last micro-batch.
        """
        recorder, options = self.recorder, self.options
        if options.unsynchronised and not last:
            self._accumulate(g, unsharded, where)
            return previous
        if options.unsynchronised:  # added to those that wait, or they themselves
            recorder.hold_amount("gradients", unsharded, -1)
            unsharded = ()
        recorder.release(WHERE, previous)
        recorder.hold(WHERE, g.reduce_input)
        recorder.mark("backward", f"reduce-scatter of {where}")
        recorder.hold_amount("gradients", unsharded, -1)
        if options.unsynchronised:
            recorder.release("gradients", g.accumulated)
        elif self.new and not options.several_runs:
            recorder.hold("gradients", g.alone)
        if options.offloads:
            return g.reduce_input  # the sharded gradient is copied to the host
        recorder.hold("temporaries", g.last)
        recorder.hold("gradients", g.reduce_output)
        recorder.hold("temporaries", g.divided)
        recorder.mark("backward", f"reduce-scatter of {where}")
        recorder.release("temporaries", g.divided)
        if g.sharded != g.reduce_output:  # _to_dtype_if_needed(reduce_output, orig_dtype)
            recorder.hold("gradients", g.sharded)
            recorder.mark("backward", f"gradients of {where} in the shards' dtype")
            recorder.release("gradients", NOTHING if options.keeps_reduced else g.reduce_output)
        added = options.several_runs or (not self.new and not options.unsynchronised)
        if added and self._all_reduced(g, self.new) != g.sharded:
            recorder.release("gradients", g.sharded)  # added in place to the earlier micro-batches' shard
        recorder.release("temporaries", g.last)
        return g.reduce_input

    def _accumulate(self, g: Group, unsharded: Amount, where: str) -> None:
        """Under ``no_sync`` gradients stay unsharded, in the reduce dtype."""
        if self.options.in_place:
            self.recorder.hold_amount("gradients", unsharded, -1)
        if self.new:
            self.recorder.hold("gradients", g.accumulated)
            self.recorder.hold("gradients", g.alone)
            self.recorder.mark("backward", f"gradient accumulation of {where}")
        if not self.options.in_place:
            self.recorder.hold_amount("gradients", unsharded, -1)

    def _all_reduced(self, g: Group, new: bool) -> int:
        """What the all-reduce over replicas wrote, which the group refers to until the backward is over, where it is
        not itself the resident gradients (``AllReduceState``). ``new``: no earlier gradients are there.
        """
        if not self.options.keeps_reduced:
            return NOTHING
        if g.sharded != g.reduce_output:
            return g.reduce_output
        new = new or self.options.unsynchronised
        return NOTHING if new and not self.options.several_runs else g.sharded
