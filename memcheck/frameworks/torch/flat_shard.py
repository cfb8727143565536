"""FSDP1's hooks around the units of a step: each unit's parameters are one flat tensor.

Sources: torch 2.13 distributed/fsdp/_flat_param.py (pre_unshard, unshard, post_unshard), _runtime_utils.py
(_prefetch_handle, _post_backward_hook, _reduce_grad).
"""

from __future__ import annotations

from memcheck.accounts.program import NOTHING, Amount, Recorder
from memcheck.accounts.sizes import NamedCurve
from memcheck.frameworks.torch.data_parallel import SECOND_OF_PAIR, MicroBatch, NamedUnit, StepUnits
from memcheck.frameworks.torch.fsdp import Group
from memcheck.frameworks.torch.fully_shard import ROOT, WHERE, FullyShard, FullyShardHooks
from memcheck.record import Record


class FlatShard(Record):
    """How FSDP1 runs a step."""

    shard: FullyShard
    """What FSDP1 and FSDP2 have in common."""
    leaves_apart: bool
    """Trained modules inside frozen ones are units of their own (peft ``fsdp_auto_wrap_policy``)."""
    reenters: bool
    """Layers are recomputed within a backward of their own."""

    @property
    def sizes(self) -> int:
        """No sizes but those of groups."""
        return 0

    def hooks(self, recorder: Recorder, row: StepUnits, first: int) -> FlatShardHooks:
        """The hooks of one step."""
        return FlatShardHooks(recorder, row, self)


class FlatShardHooks(FullyShardHooks):
    """FSDP1's hooks: the shard in the dtype of the products goes when the whole parameter is there."""

    def __init__(self, recorder: Recorder, row: StepUnits, options: FlatShard) -> None:
        self.leaves_apart, self.reenters = options.leaves_apart, options.reenters
        super().__init__(recorder, row, options.shard._replace(loss_inside_root=True))

    def curve(self, unit: NamedUnit, first: bool) -> NamedCurve:
        """Autograd makes new views of the flat gradient."""
        return unit.fresh

    def curve_of_second(self, unit: NamedUnit) -> NamedCurve:
        """The second pass's gradients are views of a flat gradient of its own."""
        return unit.fresh

    def at_rest(self) -> None:
        """The flat gradients of the step before, to which no parameter refers, until the next forward looks
        (torch 2.13 _flat_param.py, _reset_flat_param_grad_info_if_needed).
        """
        here = self.recorder.here
        if not self.options.offloads:
            for i, end in self.stretches:
                self.recorder.hold("gradients", self.own[i].sharded, end - i)
            self.recorder.hold("gradients", self.root.sharded)
            self.recorder.mark("forward", "states at rest")
        super().at_rest()
        self.recorder.repeat(here, -1)

    def begin_backward(self, each: MicroBatch, *, all_at_once: bool) -> None:
        """FSDP1's hook is AccumulateGrad's, which runs once for both passes of a pair."""
        super().begin_backward(each, all_at_once=all_at_once)
        if self.pair == SECOND_OF_PAIR and not self.options.unsynchronised:
            self.reduces, self.keeps = True, False

    def gather_root(self) -> int:
        """The root's whole parameter; nothing else stays allocated."""
        self._gather(self.root, "forward", ROOT)
        return NOTHING

    def gather_for_forward(self, own: Group, previous: int, where: str) -> int:
        """The unit's whole parameter; nothing else stays allocated."""
        self._gather(own, "forward", where)
        return NOTHING

    def gather_for_backward(self, own: Group, prefetched: int, where: str) -> None:
        """What was gathered ahead is the parameter."""
        if not prefetched:
            self._gather(own, "backward", where)

    def gather_ahead(self, own: Group, where: str, instant: str) -> int:
        """The whole parameter of the next unit."""
        self._gather(own, instant, where)
        return own.gathered

    def still_gathered(self, after: Group) -> int:
        """Bytes of a frozen unit's parameters that are still gathered when those of the next unit are. The unit is
        resharded once the gradient of its input exists, after the hook that gathers the next units (_runtime_utils.py,
        _register_post_backward_reshard_only_hook).
        """
        return NOTHING if after.reduce_output else after.gathered

    def _gather(self, own: Group, instant: str, where: str) -> None:
        self.recorder.hold(WHERE, own.flat)
        self.recorder.hold(WHERE, own.gathered)
        self.recorder.mark(instant, f"all-gather of {where}")
        self.recorder.release(WHERE, own.flat)

    def around(self, unit: NamedUnit, curve: NamedCurve) -> Amount:
        """Within a reentrant checkpoint's backward what it holds: its detached input, its output, gradients of both
        (torch 2.13 utils/checkpoint.py, CheckpointFunction.backward).
        """
        if not (self.reenters and unit.kind == "block"):
            return super().around(unit, curve)
        return ((unit.fresh.input, 2), (unit.fresh.output_gradient, 2))

    def join(self, g: Group, unsharded: Amount, where: str) -> Amount:
        """The gradient of the flat parameter: autograd's backward of the split into views puts theirs into a row.

        That of a pair's second pass is added in place to the one that has waited.
        """
        self.recorder.hold("gradients", g.accumulated)
        self.recorder.mark("backward", f"flat gradient of {where}")
        self.recorder.hold_amount("gradients", unsharded, -1)
        self.recorder.release("gradients", g.accumulated if self.pair == SECOND_OF_PAIR else NOTHING)
        return ()

    def reduce(self, g: Group, unsharded: Amount, previous: int, last: bool, where: str) -> int:
        """The hook's variables hold the flat gradient, in both dtypes, until the shard is stored; no buffer stays."""
        recorder, delayed = self.recorder, self.options.unsynchronised
        added = g.accumulated if delayed and not self.new else NOTHING  # in place, once the hook is over
        if delayed and not last:
            recorder.release("gradients", added)
            return NOTHING
        recorder.hold(WHERE, g.reduce_input)
        recorder.mark("backward", f"reduce-scatter of {where}")
        recorder.hold("gradients", g.reduce_output)
        recorder.mark("backward", f"reduce-scatter of {where}")
        if g.sharded != g.reduce_output:  # _cast_grad_to_param_dtype
            recorder.hold("gradients", g.sharded)
            recorder.mark("backward", f"gradients of {where} in the shards' dtype")
            recorder.release("gradients", g.reduce_output)
        if self.options.offloads or not (self.new or delayed):  # _saved_grad_shard is added to in place
            recorder.release("gradients", g.sharded)
        recorder.release(WHERE, g.reduce_input)
        recorder.release("gradients", g.accumulated)
        recorder.release("gradients", added)
        return NOTHING
