"""One training step on one pipeline rank, unit by unit: forward, loss, backward layer by layer, optimizer.

The peak is the highest moment of this walk. Data-parallel wrappers hook in where they do in PyTorch: FSDP2 around each
unit's forward and backward, DDP's buckets beside the gradients.
"""

from __future__ import annotations

from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.memory.alike import distinct, stretches
from memcheck.memory.fsdp import NO_GROUP, Group, adds_in_place, group, skips_reduction, wraps
from memcheck.memory.ledger.curve import Curve
from memcheck.memory.moves import Components
from memcheck.memory.open_timeline import OpenTimeline
from memcheck.memory.pipeline import NO_BORDER, Border
from memcheck.memory.resting import ways_of
from memcheck.memory.rests import engine_walk, gradient_views
from memcheck.memory.state import LocalTensor
from memcheck.memory.tape.tensor import rounded
from memcheck.memory.timeline import Timeline
from memcheck.memory.units import STYLES, Unit
from memcheck.memory.variables import Variables


class Step:
    """The walk.

    ``per_micro_batch``: what each micro-batch in flight makes for itself beside its units (rotary tables); ``border``:
    what a pipeline stage exchanges with its neighbours; ``groups``: FSDP2's groups of the distinct units, where the
    sizes of their shards are left open.
    """

    def __init__(
        self,
        job: TrainingJob,
        units: list[Unit],
        *,
        micro_batches: int,
        in_flight: float,
        per_micro_batch: int = 0,
        border: Border = NO_BORDER,
        groups: tuple[Group, ...] | None = None,
    ) -> None:
        self.job = job
        self.units = units
        self.stretches = stretches(units)
        self.micro_batches = micro_batches
        self.in_flight = in_flight
        self.timeline = Timeline() if groups is None else OpenTimeline()
        self.per_micro_batch = per_micro_batch
        self.border = border
        self.sharded = wraps(job)
        self.distinct = distinct(units)
        if groups is None:
            groups = tuple(self._group(unit) if self.sharded else NO_GROUP for unit, _ in self.distinct)
        by_tensors = {id(unit.tensors): g for (unit, _), g in zip(self.distinct, groups, strict=True)}
        self.groups = [by_tensors[id(unit.tensors)] for unit in units]
        self.root = self._root_group() if self.sharded else NO_GROUP
        self.reshard = job.layout.reshard_after_forward and job.layout.zero_stage == 3
        pipelined = job.layout.pipeline > 1
        self.unsynchronised = skips_reduction(job)
        self.in_place = adds_in_place(job)
        # torch.distributed.pipelining keeps parameters gathered from one backward to the next forward, and since 2.15
        # reduces behind the last backward instead of within it (stage.py, perform_reduce_grad)
        self.stays_gathered = self.sharded and pipelined
        self.reduces_behind = self.stays_gathered and job.casts_gradients
        self.loss_inside_root = not pipelined and job.loss.kind in ("standard", "fused-linear") and job.loss.upcast
        self.engine = engine_walk(job, [unit.tensors for unit in units], self.timeline)
        self.views, self.views_late = (False, False) if self.sharded else gradient_views(job)
        self.pipelined = pipelined
        self.holds_rows = not pipelined and STYLES.get(job.framework) == "transformers"

    # ------------------------------------------------------------------ groups

    def _group(self, unit: Unit) -> Group:
        return group_of(self.job, unit.tensors)

    def _reduced_early(self, unit: Unit) -> Group:
        return self._group(unit._replace(tensors=tuple(t for t in unit.tensors if t.name == unit.reduced)))

    def _root_group(self) -> Group:
        """transformers wraps blocks and the root: embedding, final norm and head are one group, gathered all step."""
        if self.job.framework == "torchtitan":
            return NO_GROUP
        total = NO_GROUP
        for unit, g in zip(self.units, self.groups, strict=True):
            if unit.kind != "block":
                total = Group(*(a + b for a, b in zip(total, g, strict=True)))
        return total

    def _own_group(self, index: int) -> Group:
        """The group that is gathered for this unit alone; none when it belongs to the root."""
        if self.units[index].kind != "block" and self.root != NO_GROUP:
            return NO_GROUP
        return self.groups[index]

    # ------------------------------------------------------------------ the walk

    def run(self, rests: Components = (), step_temporaries: int = 0) -> Timeline:
        """Walk one steady step and return its account.

        ``rests``: bytes that live all step (states, token ids, receive buffers); ``step_temporaries``: those of the
        optimizer.
        """
        timeline = self.timeline
        for component, n_bytes in rests:
            timeline.hold(component, n_bytes)
        timeline.mark("init", "states at rest")
        saved = sum(u.fresh.saved for u in self.units) + self.per_micro_batch
        self.graph_before = sum(u.fresh.outlives for u in self.units if u.kind != "head")
        timeline.hold("activations", self.graph_before)
        for first, last, others in self._walks():
            # other micro-batches in flight: what their units saved, and their outputs in the stage's cache
            held = int(others * (saved + self.border.output))
            here = self.stays_gathered and (not first or (held > 0 and not self.reshard))
            if first and here:
                # the first micro-batch gathers the parameters, alone; those behind it find them there
                before = dict(timeline.live)
                self._forward(first, here=False)
                timeline.repeat(before, -1)
            timeline.hold("activations", self.per_micro_batch + held)
            if not first:
                timeline.hold("communication_buffers", self.border.input_gradient)
            if self.engine is not None:
                self.engine.begin_micro_batch()
            unsent = min(int(others), self.border.sends) * self.border.unsent_output
            timeline.hold("activations", unsent)
            # where all micro-batches are in flight at once, all forwards are over before a backward leaves gradients
            timeline.muted = not first and self.in_flight >= self.micro_batches
            gathered = self._forward(first, here)
            timeline.muted = False
            timeline.release("activations", unsent)
            timeline.hold("communication_buffers", self.border.output_gradient)
            self._backward(first, last, gathered)
            timeline.release("communication_buffers", self.border.output_gradient)
            if not first:
                timeline.release("communication_buffers", self.border.input_gradient)
            if self.engine is not None:
                self.engine.end_backward(first, last)
            timeline.release("activations", self.per_micro_batch + held)
        timeline.hold("temporaries", step_temporaries)
        timeline.mark("optimizer", f"{self.job.optimizer.name} step ({self.job.optimizer.implementation})")
        timeline.release("temporaries", step_temporaries)
        return timeline

    def _walks(self) -> list[tuple[bool, bool, float]]:
        """Micro-batches that differ: (first, last, other micro-batches in flight during its backward)."""
        m, n = self.micro_batches, self.in_flight
        if m == 1:
            return [(True, True, 0)]
        second = (False, m == 2, max(0.0, min(n - 1, m - 2)))
        walks = [(True, False, n - 1), second]
        apart = self.unsynchronised or self.stays_gathered or self.views_late or self.engine is not None
        if m > 2 and apart:  # else the last one repeats the second
            walks.append((False, True, 0))
        return walks

    def _curve(self, unit: Unit, first: bool) -> Curve:
        if self.engine is not None and self.engine.moves_gradients:
            return unit.again
        if self.sharded and (first or not self.in_place):
            return unit.fresh  # autograd sees fresh unsharded gradients
        if self.sharded or self.views:
            return unit.again
        return unit.fresh if first else unit.again

    def _forward(self, first: bool, here: bool) -> list[int]:
        """Forward of one micro-batch; ``here``: an earlier one has left the parameters gathered."""
        timeline = self.timeline
        casts = 0
        held_flat = 0
        # the schedule's variable holds the last stage's output until the next forward returns (schedules.py)
        variables = Variables(timeline)
        variables.assign("output", "logits_and_loss", self.units[-1].fresh.lingers * (self.pipelined and not first))
        gathered = [self._own_group(i).gathered if here else 0 for i in range(len(self.units))]
        timeline.hold("communication_buffers", sum(gathered))
        if self.root != NO_GROUP:
            timeline.hold("communication_buffers", self.root.gathered)
            if not here:
                timeline.hold("communication_buffers", self.root.flat)
                held_flat = self.root.flat
                timeline.mark("forward", "all-gather of the root group")
        for i, end in self.stretches:
            unit, own = self.units[i], self._own_group(i)
            before = dict(timeline.live) if end - i > 1 else timeline.live
            if own.gathered and not here:
                timeline.hold("activations", unit.fresh.input)
                self._gather_ahead(own, held_flat, unit.name)
                timeline.release("activations", unit.fresh.input)
                held_flat = own.flat
                gathered[i] = own.gathered
            curve = self._curve(unit, first)
            if unit.kind == "head" and held_flat and self.root == NO_GROUP:
                timeline.release("communication_buffers", held_flat)
                held_flat = 0
            if curve.before is not None:
                timeline.high("forward", curve.before, unit.name)
                variables.let_go()
            if unit.kind == "head":  # whose curve counts them until its logits replace the old ones
                timeline.release("activations", self.graph_before)
                if self.engine is not None:
                    self.engine.before_head()
            timeline.high("loss" if unit.kind == "head" else "forward", curve.forward, unit.name)
            timeline.hold_all(curve.saved_components)
            timeline.hold("activations", curve.until_forward_ends)
            variables.assign("outputs", "activations", curve.returned)  # of the model's loop over its layers
            if unit.reduced and first:
                timeline.hold("gradients", self._reduced_early(unit).reduce_output)
            casts += curve.until_forward_ends * (end - i)
            if gathered[i] and self._reshards(i):
                timeline.release("communication_buffers", gathered[i])
                gathered[i] = 0
            gathered[i:end] = [gathered[i]] * (end - i)
            timeline.repeat(before, end - i - 1)
            if self.holds_rows and (unit.kind == "embedding" or (i == 1 and self.units[0].kind == "embedding")):
                # `inputs_embeds`: a variable of the model's forward, where nothing else holds them
                variables.assign(f"inputs_embeds {unit.kind}", "activations", curve.freed_input)
        variables.let_go()
        timeline.release("communication_buffers", held_flat)  # the root's post-forward frees the last flat buffer
        timeline.release("activations", casts)
        return gathered

    def _gather_ahead(self, own: Group, previous: int, where: str) -> None:
        """Gather a unit's parameters and let go of the previous group's flat buffer: before they are copied out, or, up
        to torch 2.14, after it, because a variable of wait_for_unshard holds it.
        """
        timeline = self.timeline
        late = own.gathered if self.job.casts_gradients else 0
        timeline.hold("communication_buffers", own.flat + own.gathered - late)
        timeline.mark("forward", f"all-gather of {where}")
        timeline.release("communication_buffers", previous - late)

    def _reshards(self, index: int) -> bool:
        if self.units[index].kind == "head":
            return False  # torchtitan keeps [norm, lm_head] gathered: backward needs it at once
        return self.reshard

    def _backward(self, first: bool, last: bool, gathered: list[int]) -> None:
        timeline = self.timeline
        behind = last and self.reduces_behind
        keeps = self.stays_gathered and (behind or not last)
        last = last and not behind
        prefetched = 0
        if self.root != NO_GROUP and self.loss_inside_root:
            prefetched = self._prefetch(len(self.units), gathered)  # the root's output is the loss: its hook runs first
        reduce_input = 0
        lingers = 0
        unsharded_root = 0
        for i, end in reversed(self.stretches):
            unit, own = self.units[i], self._own_group(i)
            before = dict(timeline.live) if end - i > 1 else timeline.live
            curve = self._curve(unit, first)
            prefetched = self._gather_again(i, gathered, prefetched)
            timeline.hold_all(curve.saved_components, -1)
            timeline.high("backward", curve.backward, unit.name)
            gradients = curve.gradients
            if self.engine is not None:
                self.engine.behind(unit.kind, first, last)
            if unit.kind == "embedding" and self.sharded and self._whole_table():
                # DTensor's local slice of the full-size embedding gradient is cloned before FSDP reduces it
                gradients = self._local_slice(unit, gradients)
            timeline.hold_all(
                (("gradients", gradients), ("logits_and_loss", curve.lingers), ("activations", curve.outlives))
            )
            lingers += curve.lingers
            if unit.kind == "head" and not prefetched:
                prefetched = self._prefetch(i, gathered)
                timeline.mark("backward", f"all-gather after {unit.name}")
            if own.gathered:
                if not keeps:
                    timeline.release("communication_buffers", gathered[i])
                    gathered[i] = 0
                if unit.reduced:
                    own = self._group(unit._replace(tensors=_without(unit.tensors, unit.reduced)))
                timeline.hold("temporaries", curve.input_gradient)  # made before the unit's hook runs
                reduce_input = self._reduce(own, gradients, reduce_input, first, last, unit.name)
                timeline.release("temporaries", curve.input_gradient)
            elif unit.kind != "block":
                unsharded_root += gradients
            if last and self.views_late:
                timeline.release("communication_buffers", unit.fresh.gradients)  # the bucket is the gradients now
            gathered[i:end] = [gathered[i]] * (end - i)
            timeline.repeat(before, end - i - 1)
        if self.root != NO_GROUP:
            # resharded before its gradients are reduced (_fsdp_param_group.py, post_backward), if it is at all
            timeline.release("communication_buffers", 0 if keeps else self.root.gathered)
            reduce_input = self._reduce(self.root, unsharded_root, reduce_input, first, last, "the root group")
            timeline.release("communication_buffers", self.root.gathered if keeps else 0)
        if behind:
            reduce_input = self._reduce_all(gathered)
        timeline.hold_all((("communication_buffers", reduce_input + prefetched), ("logits_and_loss", lingers)), -1)
        timeline.mark("backward", "end of backward")
        timeline.release("communication_buffers", sum(gathered))

    def _gather_again(self, index: int, gathered: list[int], prefetched: int) -> int:
        """The unit's parameters for its backward, and the next unit's flat buffer: the bytes of that."""
        unit, own = self.units[index], self._own_group(index)
        arrived = unit.fresh.output_gradient
        self.timeline.hold("temporaries", arrived)
        if own.gathered and not gathered[index]:
            self._copy_out(own, prefetched, unit.name)
            prefetched = 0
            gathered[index] = own.gathered
        if own.gathered and unit.kind != "head":
            prefetched = prefetched or self._prefetch(index, gathered)
        self.timeline.release("temporaries", arrived)
        return prefetched

    def _reduce_all(self, gathered: list[int]) -> int:
        """Every group resharded and reduced, one after the other, once the last backward is over."""
        reduce_input = 0
        for i in reversed(range(len(self.units))):
            own = self._own_group(i)
            if own.gathered:
                self.timeline.release("communication_buffers", gathered[i])
                gathered[i] = 0
                reduce_input = self._reduce(own, 0, reduce_input, False, True, self.units[i].name)
        return self._reduce(self.root, 0, reduce_input, False, True, "the root group")

    def _whole_table(self) -> bool:
        """Whether a tensor-parallel rank's embedding gradient is made for the whole table: RowwiseParallel's is."""
        return self.job.layout.tensor > 1 and self.job.framework != "torchtitan"

    def _local_slice(self, unit: Unit, gradients: int) -> int:
        timeline = self.timeline
        local = unit.tensors[0]
        clone = rounded(local.numel * DTYPE_BYTES[self.job.recipe.compute])
        timeline.hold("gradients", gradients)
        timeline.hold("temporaries", clone)
        timeline.mark("backward", "clone of the local embedding gradient")
        timeline.release("temporaries", clone)
        timeline.release("gradients", gradients)
        table = rounded(local.numel * self.job.layout.tensor * DTYPE_BYTES[self.job.recipe.compute])
        return gradients - table + clone

    def _copy_out(self, own: Group, prefetched: int, where: str) -> None:
        """Parameters from the flat buffer that was gathered ahead, or from one that is gathered now."""
        timeline = self.timeline
        timeline.hold("communication_buffers", own.gathered + (0 if prefetched else own.flat))
        timeline.mark("backward", f"all-gather of {where}")
        timeline.release("communication_buffers", prefetched or own.flat)

    def _prefetch(self, behind: int, gathered: list[int]) -> int:
        """Backward prefetch: the next unit's flat buffer is gathered while this one computes."""
        for i in range(behind - 1, -1, -1):
            own = self._own_group(i)
            if own.gathered:
                if gathered[i]:
                    return 0
                self.timeline.hold("communication_buffers", own.flat)
                return own.flat
        return 0

    def _reduce(self, g: Group, unsharded: int, previous: int, first: bool, last: bool, where: str) -> int:
        """Reduce-scatter of one group; returns the input buffer that stays until the next one."""
        timeline = self.timeline
        if self.unsynchronised and not last:
            # no_sync: gradients stay unsharded, in the reduce dtype
            if self.in_place:
                timeline.release("gradients", unsharded)
            if first:
                timeline.hold("gradients", g.accumulated)
                timeline.mark("backward", f"gradient accumulation of {where}")
            if not self.in_place:
                timeline.release("gradients", unsharded)
            return previous
        if self.unsynchronised:  # added to those that wait, or they themselves
            timeline.release("gradients", unsharded)
            unsharded = 0
        timeline.release("communication_buffers", previous)
        timeline.hold("communication_buffers", g.reduce_input)
        timeline.mark("backward", f"reduce-scatter of {where}")
        timeline.release("gradients", unsharded)
        if self.unsynchronised:
            timeline.release("gradients", g.accumulated)
        if self.job.parameter_offload != "none":
            return g.reduce_input  # the sharded gradient is copied to the host
        timeline.hold_shard(g.reduce_output)
        timeline.mark("backward", f"reduce-scatter of {where}")
        if g.sharded != g.reduce_output:  # _to_dtype_if_needed(reduce_output, orig_dtype)
            timeline.hold_shard(g.sharded)
            timeline.mark("backward", f"gradients of {where} in the shards' dtype")
            timeline.release_shard(g.reduce_output)
        if not first and not self.unsynchronised:
            timeline.release_shard(g.sharded)  # added in place to the earlier micro-batches' shard
        return g.reduce_input


def group_of(job: TrainingJob, tensors: tuple[LocalTensor, ...]) -> Group:
    """The group that FSDP2 makes of a unit's tensors."""
    ways = job.layout.shard_group
    divided = [(t, ways_of(job, t, ways)) for t in tensors]
    return group(divided, job.recipe.compute, job.recipe.reduce, job.recipe.params)


def _without(tensors: tuple[LocalTensor, ...], name: str) -> tuple[LocalTensor, ...]:
    return tuple(t for t in tensors if t.name != name)
