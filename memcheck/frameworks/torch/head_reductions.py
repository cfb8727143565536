"""FSDP2's hooks around a loss that runs the head chunk by chunk and reduces the head's gradient itself.

Source: torchtitan components/loss.py, ChunkedLossWrapper; torch 2.13 _fsdp_param_group.py, post_backward.
"""

from __future__ import annotations

from memcheck.accounts.program import NOTHING, NamedCurve, Recorder
from memcheck.frameworks.torch.data_parallel import MicroBatch, NamedUnit, StepUnits
from memcheck.frameworks.torch.fsdp import NO_GROUP, Group
from memcheck.frameworks.torch.fully_shard import BUFFERS, ROOT, FullyShard, FullyShardHooks
from memcheck.record import Record


class HeadReducingShard(Record):
    """The settings of FSDP2 in a step whose loss reduces the gradient of the head itself."""

    shard: FullyShard

    @property
    def sizes(self) -> int:
        """No sizes but those of groups."""
        return 0

    def hooks(self, recorder: Recorder, step_units: StepUnits, first: int) -> FullyShardHooks:
        """Return the hooks of one step: plain FSDP2's if the rank or pipeline chunk has no head."""
        if not step_units.units[-1].reduced:
            return FullyShardHooks(recorder, step_units, self.shard)
        return HeadReducingHooks(recorder, step_units, self.shard)


class HeadReducingHooks(FullyShardHooks):
    """FSDP2's hooks where the loss reduces the gradient of the head itself.

    ``head_groups``: the groups of the head, ``early`` reduced within the loss and ``late`` by FSDP2's hook.
    ``norm_is_reduced``: the gradient of the final norm has been reduced in this step.
    ``pending_input``: the input of the loss's reduction while it waits for the next loss.
    """

    def __init__(self, recorder: Recorder, step_units: StepUnits, options: FullyShard) -> None:
        super().__init__(recorder, step_units, options)
        self.head, self.head_groups = step_units.units[-1], step_units.groups[-1]
        self.norm_is_reduced, self.pending_input = False, NOTHING

    def curve(self, unit: NamedUnit, first: bool) -> NamedCurve:
        """Return a unit's memory curve in this micro-batch; the head's gradient exists from the ``first`` one on."""
        if unit.reduced and self.options.no_sync:
            return unit.first_curve if first else unit.later_curve
        return super().curve(unit, first)

    def reduced_by_hook(self, i: int) -> Group:
        """Return the group that the hook of unit ``i`` reduces: for the head all that the loss has not reduced."""
        return self.head_groups.late if self.units[i].reduced else self.unit_groups[i]

    def before_loss(self, *, after_model: bool) -> None:
        """Gather the group of norm and head again for the loss; the norm's post-forward hook has resharded it.

        ``after_model``: the loss runs after the model's forward. The reduce-scatter input of the previous loss is
        released here: from now on the head's memory curve counts it.
        """
        super().before_loss(after_model=after_model)
        if after_model or self.options.loss_after_root:
            if self.root != NO_GROUP:
                self._gather_root_again("loss")
            elif self.head.first_curve.peak_before_loss is not None:
                self.recorder.hold(BUFFERS, self.unit_groups[-1].flat)
                self.recorder.high("forward", self.head.first_curve.peak_before_loss, "all-gather of the head")
                self.recorder.release(BUFFERS, self.unit_groups[-1].flat)
        self.recorder.release(BUFFERS, self.pending_input)
        self.pending_input = NOTHING

    def after_forward(self, i: int, end: int) -> None:
        """Hold the head's sharded gradient, which the loss has reduced in its forward, and reshard the head.

        ``i``, ``end``: the equal units from ``i`` to ``end``. Later micro-batches add to the first shard. In a pipeline
        the norm's gradient is first reduced with the second micro-batch, whose output buffer holds both gradients.
        """
        if self.units[i].reduced:
            if self.micro_batch.first:
                self.recorder.hold("gradients", self.head_groups.early.reduce_output)
            elif self.options.no_sync and not self.norm_is_reduced:
                self.recorder.hold("gradients", self.head_groups.whole.reduce_output)
                self.norm_is_reduced = True
            self.recorder.release(BUFFERS, self.gathered[i])
            self.gathered[i] = NOTHING
        super().after_forward(i, end)

    def begin_backward(self, micro_batch: MicroBatch, *, all_forwards_first: bool) -> None:
        """Set the state of a backward: the input of the loss's reduction stays until the next reduction."""
        super().begin_backward(micro_batch, all_forwards_first=all_forwards_first)
        self.reduce_input = self.head_groups.early.reduce_input
        self.recorder.hold(BUFFERS, self.reduce_input)
        if self.root != NO_GROUP:
            self._gather_root_again("backward")

    def release_input(self) -> None:
        """Free the input of the last reduction; in a pipeline it waits for the next loss instead."""
        if self.options.no_sync and not self.micro_batch.last:
            self.pending_input = self.reduce_input
        else:
            super().release_input()

    def _gather_root_again(self, instant: str) -> None:
        """Record the second all-gather of the root's group, which was resharded while nothing else was allocated."""
        self.recorder.hold(BUFFERS, self.root.flat)
        self.recorder.mark(instant, f"all-gather of {ROOT}")
        self.recorder.release(BUFFERS, self.root.flat)
