"""FSDP1's all-gathers of a unit's flat parameter, and reduce-scatters of its gradient.

Sources: torch 2.13 distributed/fsdp/_flat_param.py (pre_unshard, unshard, post_unshard), _runtime_utils.py
(_prefetch_handle, _post_backward_hook, _reduce_grad).
"""

from __future__ import annotations

from collections.abc import Iterable

from memcheck.accounts.program import NOTHING, Amount
from memcheck.accounts.sizes import NamedCurve
from memcheck.frameworks.torch.fsdp import Group, flattens, leaves_apart, skips_reduction
from memcheck.frameworks.torch.gathers import WHERE, Gathers
from memcheck.frameworks.torch.reductions import Reductions
from memcheck.frameworks.torch.step_options import StepOptions
from memcheck.frameworks.torch.step_parts import NamedUnit
from memcheck.job.types import TrainingJob


class FlatGathers(Gathers):
    """The shard in the dtype of the products, which goes when the whole parameter is there."""

    def root(self, root: Group) -> int:
        """The root's whole parameter; nothing else stays allocated."""
        self._gather(root, root.gathered, "forward", "the root group")
        return NOTHING

    def forward(self, own: Group, previous: int, where: str) -> int:
        """The unit's whole parameter; nothing else stays allocated."""
        self._gather(own, own.gathered, "forward", where)
        return NOTHING

    def backward(self, own: Group, prefetched: int, where: str) -> None:
        """What was gathered ahead is the parameter."""
        if not prefetched:
            self._gather(own, own.gathered, "backward", where)

    def frozen(self, behind: Group) -> int:
        """Bytes of a frozen unit's parameters that are still gathered when those of the next unit are. The unit is
        resharded once the gradient of its input exists, after the hook that gathers the next units (_runtime_utils.py,
        _register_post_backward_reshard_only_hook).
        """
        return NOTHING if behind.reduce_output else behind.gathered

    def ahead(self, own: Group, where: str, instant: str) -> int:
        """The whole parameter of the next unit."""
        self._gather(own, own.gathered, instant, where)
        return own.gathered

    def _gather(self, own: Group, parameter: int, instant: str, where: str) -> None:
        self.recorder.hold(WHERE, own.flat)
        self.recorder.hold(WHERE, parameter)
        self.recorder.mark(instant, f"all-gather of {where}")
        self.recorder.release(WHERE, own.flat)


class FlatReductions(Reductions):
    """From the flat gradient to its shard."""

    def rest(self, groups: Iterable[tuple[Group, int]]) -> None:
        """The flat gradients of the step before, to which no parameter refers, until the next forward looks
        (torch 2.13 _flat_param.py, _reset_flat_param_grad_info_if_needed).
        """
        here = self.recorder.here
        if not self.how.offloads:
            for group, times in groups:
                self.recorder.hold("gradients", group.sharded, times)
            self.recorder.mark("forward", "states at rest")
        super().rest(groups)
        self.recorder.repeat(here, -1)

    def around(self, unit: NamedUnit, curve: NamedCurve) -> Amount:
        """Within a reentrant checkpoint's backward what it holds: its detached input, its output, gradients of both
        (torch 2.13 utils/checkpoint.py, CheckpointFunction.backward).
        """
        if not (self.how.reenters and unit.kind == "block"):
            return super().around(unit, curve)
        return ((unit.fresh.input, 2), (unit.fresh.output_gradient, 2))

    def join(self, g: Group, unsharded: Amount, where: str) -> Amount:
        """The gradient of the flat parameter: autograd's backward of the split into views puts theirs into a row."""
        recorder = self.recorder
        recorder.hold("gradients", g.accumulated)
        recorder.mark("backward", f"flat gradient of {where}")
        recorder.hold_amount("gradients", unsharded, -1)
        return ()

    def reduce(self, g: Group, unsharded: Amount, previous: int, first: bool, last: bool, where: str) -> int:
        """The hook's variables hold the flat gradient, in both dtypes, until the shard is stored; no buffer stays."""
        recorder = self.recorder
        added = g.accumulated if self.how.unsynchronised and not first else NOTHING  # in place, once the hook is over
        if self.how.unsynchronised and not last:
            recorder.release("gradients", added)
            return NOTHING
        recorder.hold("communication_buffers", g.reduce_input)
        recorder.mark("backward", f"reduce-scatter of {where}")
        recorder.hold("gradients", g.reduce_output)
        recorder.mark("backward", f"reduce-scatter of {where}")
        if g.sharded != g.reduce_output:  # _cast_grad_to_param_dtype
            recorder.hold("gradients", g.sharded)
            recorder.mark("backward", f"gradients of {where} in the shards' dtype")
            recorder.release("gradients", g.reduce_output)
        if self.how.offloads or not (first or self.how.unsynchronised):  # _saved_grad_shard is added to in place
            recorder.release("gradients", g.sharded)
        recorder.release("communication_buffers", g.reduce_input)
        recorder.release("gradients", g.accumulated)
        recorder.release("gradients", added)
        return NOTHING


def flat_options(how: StepOptions, job: TrainingJob) -> StepOptions:
    """How a step runs, with what holds under FSDP1 alone.

    Recomputed blocks without trained parameters of their own leave input and gradient to the backward's end: FSDP1
    waits for the gradients of a frozen unit's inputs before it reshards (_runtime_utils.py,
    _register_post_backward_reshard_only_hook). The hook refers to the AccumulateGrad of an input that is a leaf
    (autograd/graph.py, register_multi_grad_hook), and thereby to the input and its ``.grad``, until the final callback
    removes it. A reentrant checkpoint detaches its input, which makes it a leaf. peft's fsdp_auto_wrap_policy wraps
    adapters by themselves, so that the blocks around them are frozen units.
    """
    layout, checkpointing = job.layout, job.checkpointing
    flat, reentrant = flattens(job), checkpointing.mode == "full" and checkpointing.reentrant
    return how._replace(
        flat=flat,
        flat_stays=flat and skips_reduction(job) and not layout.reshard_after_forward,
        leaves_apart=leaves_apart(job),
        reenters=flat and reentrant,
        keeps_inputs=reentrant,
    )
