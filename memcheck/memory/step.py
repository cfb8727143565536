"""One training step on one pipeline rank, unit by unit: forward, loss, backward layer by layer, optimizer.

The peak is the highest moment of this walk. Data-parallel wrappers hook in where they do in PyTorch: FSDP2 around each
unit's forward and backward, DDP's buckets beside the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from memcheck.accounts.moves import Components
from memcheck.accounts.timeline import Timeline, Variables
from memcheck.accounts.unit import Unit
from memcheck.autograd.curve import Curve
from memcheck.frameworks.torch.fsdp import NO_GROUP, Group
from memcheck.memory.conduct import Beyond, Conduct, Groups
from memcheck.memory.runs import Run, stretches

if TYPE_CHECKING:
    from memcheck.frameworks.deepspeed.step import EngineWalk


class Step:
    """The walk, on a timeline: it changes what lives there and marks the moments that may be the highest.

    ``groups``: FSDP2's, run by run; ``engine``: DeepSpeed's hooks into it.
    """

    def __init__(
        self,
        how: Conduct,
        runs: Sequence[Run],
        groups: Sequence[Groups],
        beyond: Beyond,
        timeline: Timeline,
        engine: EngineWalk | None = None,
    ) -> None:
        self.how = how
        self.timeline = timeline
        self.engine = engine
        self.beyond = beyond
        self.border = beyond.border
        self.stretches = stretches(runs)
        self.units: list[Unit] = []
        self.names: list[str] = []
        self.groups: list[Groups] = []
        self.root = NO_GROUP
        for run, found in zip(runs, groups, strict=True):
            self.units += [run.unit] * run.times
            self.names += run.names()
            self.groups += [found] * run.times
            if how.rooted and run.unit.kind != "block":
                self.root = Group(*(a + b for a, b in zip(self.root, found.whole, strict=True)))

    def _own_group(self, index: int) -> Group:
        """The group that is gathered for this unit alone; none when it belongs to the root."""
        if self.units[index].kind != "block" and self.root != NO_GROUP:
            return NO_GROUP
        return self.groups[index].whole

    # ------------------------------------------------------------------ the walk

    def run(self, rests: Components = (), optimizer: str = "optimizer step", step_temporaries: int = 0) -> Timeline:
        """Walk one steady step and return its account.

        ``rests``: bytes that live all step (states, token ids, receive buffers); ``optimizer``: its step in words;
        ``step_temporaries``: what that takes for itself.
        """
        timeline, border, own = self.timeline, self.border, self.beyond.per_micro_batch
        for component, n_bytes in rests:
            timeline.hold(component, n_bytes)
        timeline.mark("init", "states at rest")
        self.graph_before = sum(u.fresh.outlives for u in self.units if u.kind != "head")
        timeline.hold("activations", self.graph_before)
        for (first, last, sends), held in zip(self.how.walks, self.beyond.held, strict=True):
            here = self.how.stays_gathered and (not first or (held > 0 and not self.how.reshards))
            if first and here:
                # the first micro-batch gathers the parameters, alone; those behind it find them there
                before = dict(timeline.live)
                self._forward(first, here=False)
                timeline.repeat(before, -1)
            timeline.hold("activations", own + held)
            if not first:
                timeline.hold("communication_buffers", border.input_gradient)
            if self.engine is not None:
                self.engine.begin_micro_batch()
            unsent = sends * border.unsent_output
            timeline.hold("activations", unsent)
            timeline.muted = not first and self.how.all_at_once
            gathered = self._forward(first, here)
            timeline.muted = False
            timeline.release("activations", unsent)
            timeline.hold("communication_buffers", border.output_gradient)
            self._backward(first, last, gathered)
            timeline.release("communication_buffers", border.output_gradient)
            if not first:
                timeline.release("communication_buffers", border.input_gradient)
            if self.engine is not None:
                self.engine.end_backward(first, last)
            timeline.release("activations", own + held)
        timeline.hold("temporaries", step_temporaries)
        timeline.mark("optimizer", optimizer)
        timeline.release("temporaries", step_temporaries)
        return timeline

    def _curve(self, unit: Unit, first: bool) -> Curve:
        if self.engine is not None and self.engine.moves_gradients:
            return unit.again
        if self.how.sharded and (first or not self.how.in_place):
            return unit.fresh  # autograd sees fresh unsharded gradients
        if self.how.sharded or self.how.views:
            return unit.again
        return unit.fresh if first else unit.again

    def _forward(self, first: bool, here: bool) -> list[int]:
        """Forward of one micro-batch; ``here``: an earlier one has left the parameters gathered."""
        timeline = self.timeline
        casts = held_flat = 0
        # the schedule's variable holds the last stage's output until the next forward returns (schedules.py)
        variables = Variables(timeline)
        variables.assign("output", "logits_and_loss", self.units[-1].fresh.lingers * (self.how.pipelined and not first))
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
                self._gather_ahead(own, held_flat, self.names[i])
                timeline.release("activations", unit.fresh.input)
                held_flat = own.flat
                gathered[i] = own.gathered
            curve = self._curve(unit, first)
            if unit.kind == "head" and held_flat and self.root == NO_GROUP:
                timeline.release("communication_buffers", held_flat)
                held_flat = 0
            if curve.before is not None:
                timeline.high("forward", curve.before, self.names[i])
                variables.let_go()
            if unit.kind == "head":
                held_flat = self._before_loss(held_flat)
            timeline.high("loss" if unit.kind == "head" else "forward", curve.forward, self.names[i])
            timeline.hold_all(curve.saved_components)
            timeline.hold("activations", curve.until_forward_ends)
            variables.assign("outputs", "activations", curve.returned)  # of the model's loop over its layers
            if unit.reduced and first:
                timeline.hold("gradients", self.groups[i].early.reduce_output)
            casts += curve.until_forward_ends * (end - i)
            if gathered[i] and self._reshards(i):
                timeline.release("communication_buffers", gathered[i])
                gathered[i] = 0
            gathered[i:end] = [gathered[i]] * (end - i)
            timeline.repeat(before, end - i - 1)
            if self.how.holds_rows and (unit.kind == "embedding" or (i == 1 and self.units[0].kind == "embedding")):
                # `inputs_embeds`: a variable of the model's forward, where nothing else holds them
                variables.assign(f"inputs_embeds {unit.kind}", "activations", curve.freed_input)
            # `causal_mask`: from the look-up of the rows until the stack has returned
            variables.assign("causal_mask", "activations", self.beyond.masks * (unit.kind != "head"))
        variables.let_go()
        timeline.release("communication_buffers", held_flat)  # the root's post-forward frees the last flat buffer
        timeline.release("activations", casts)
        return gathered

    def _before_loss(self, flat: int) -> int:
        """What is let go of behind the final norm, whose flat buffer is still ``flat``: what is left of that."""
        timeline = self.timeline
        timeline.release("activations", self.graph_before)  # the curve counts it until its logits replace the old ones
        if self.engine is not None:
            self.engine.before_head()
        if not self.how.loss_behind_root:
            return flat
        timeline.release("communication_buffers", flat)  # by the root's post-forward
        return 0

    def _gather_ahead(self, own: Group, previous: int, where: str) -> None:
        """Gather a unit's parameters and let go of the previous group's flat buffer: before they are copied out, or, up
        to torch 2.14, after it, because a variable of wait_for_unshard holds it.
        """
        timeline = self.timeline
        late = own.gathered if self.how.casts_gradients else 0
        timeline.hold("communication_buffers", own.flat + own.gathered - late)
        timeline.mark("forward", f"all-gather of {where}")
        timeline.release("communication_buffers", previous - late)

    def _reshards(self, index: int) -> bool:
        if self.units[index].kind == "head":
            return False  # torchtitan keeps [norm, lm_head] gathered: backward needs it at once
        return self.how.reshards

    def _backward(self, first: bool, last: bool, gathered: list[int]) -> None:
        timeline = self.timeline
        behind = last and self.how.reduces_behind
        keeps = self.how.stays_gathered and (behind or not last)
        last = last and not behind
        prefetched = 0
        if self.root != NO_GROUP and self.how.loss_inside_root:
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
            timeline.high("backward", curve.backward, self.names[i])
            gradients = curve.gradients
            if self.engine is not None:
                self.engine.behind(unit.kind, first, last)
            if unit.kind == "embedding" and self.how.sharded and self.how.whole_table:
                # DTensor's local slice of the full-size embedding gradient is cloned before FSDP reduces it
                gradients = self._local_slice(gradients)
            timeline.hold_all(
                (("gradients", gradients), ("logits_and_loss", curve.lingers), ("activations", curve.outlives))
            )
            lingers += curve.lingers
            if unit.kind == "head" and not prefetched:
                prefetched = self._prefetch(i, gathered)
                timeline.mark("backward", f"all-gather after {self.names[i]}")
            if own.gathered:
                if not keeps:
                    timeline.release("communication_buffers", gathered[i])
                    gathered[i] = 0
                if unit.reduced:
                    own = self.groups[i].late
                timeline.hold("temporaries", curve.input_gradient)  # made before the unit's hook runs
                reduce_input = self._reduce(own, gradients, reduce_input, first, last, self.names[i])
                timeline.release("temporaries", curve.input_gradient)
            elif unit.kind != "block":
                unsharded_root += gradients
            if last and self.how.views_late:
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
            self._copy_out(own, prefetched, self.names[index])
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
                reduce_input = self._reduce(own, 0, reduce_input, False, True, self.names[i])
        return self._reduce(self.root, 0, reduce_input, False, True, "the root group")

    def _local_slice(self, gradients: int) -> int:
        """The gradient of the rank's own rows, which are cloned from that of the whole table."""
        timeline, clone = self.timeline, self.beyond.table_slice
        timeline.hold("gradients", gradients)
        timeline.hold("temporaries", clone)
        timeline.mark("backward", "clone of the local embedding gradient")
        timeline.release("temporaries", clone)
        timeline.release("gradients", gradients)
        return gradients - self.beyond.table + clone

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
        if self.how.unsynchronised and not last:
            # no_sync: gradients stay unsharded, in the reduce dtype
            if self.how.in_place:
                timeline.release("gradients", unsharded)
            if first:
                timeline.hold("gradients", g.accumulated)
                timeline.mark("backward", f"gradient accumulation of {where}")
            if not self.how.in_place:
                timeline.release("gradients", unsharded)
            return previous
        if self.how.unsynchronised:  # added to those that wait, or they themselves
            timeline.release("gradients", unsharded)
            unsharded = 0
        timeline.release("communication_buffers", previous)
        timeline.hold("communication_buffers", g.reduce_input)
        timeline.mark("backward", f"reduce-scatter of {where}")
        timeline.release("gradients", unsharded)
        if self.how.unsynchronised:
            timeline.release("gradients", g.accumulated)
        if self.how.offloads:
            return g.reduce_input  # the sharded gradient is copied to the host
        timeline.hold_shard(g.reduce_output)
        timeline.mark("backward", f"reduce-scatter of {where}")
        if g.sharded != g.reduce_output:  # _to_dtype_if_needed(reduce_output, orig_dtype)
            timeline.hold_shard(g.sharded)
            timeline.mark("backward", f"gradients of {where} in the shards' dtype")
            timeline.release_shard(g.reduce_output)
        if not first and not self.how.unsynchronised:
            timeline.release_shard(g.sharded)  # added in place to the earlier micro-batches' shard
        return g.reduce_input
