"""FSDP2's reduce-scatters of a group's gradients, and all-reduces over replicas.

Source: torch 2.13 distributed/fsdp/_fully_shard/_fsdp_collectives.py (foreach_reduce), _fsdp_param_group.py
(post_backward, finalize_backward).
"""

from __future__ import annotations

from collections.abc import Iterable

from memcheck.accounts.program import NOTHING, Amount, Recorder
from memcheck.accounts.sizes import NamedCurve
from memcheck.frameworks.torch.fsdp import Group
from memcheck.frameworks.torch.step_options import StepOptions
from memcheck.frameworks.torch.step_parts import NamedUnit


class Reductions:
    """Records them in a step."""

    def __init__(self, recorder: Recorder, how: StepOptions) -> None:
        self.recorder, self.how = recorder, how

    def rest(self, groups: Iterable[tuple[Group, int]]) -> None:
        """What lives between two steps: no gradient."""
        self.recorder.mark("init", "states at rest")

    def around(self, unit: NamedUnit, curve: NamedCurve) -> Amount:
        """What there is when a unit's hook runs: the gradient of its input."""
        return ((curve.input_gradient, 1),)

    def join(self, g: Group, unsharded: Amount, where: str) -> Amount:
        """What a unit's gradients are before its parameters go: they themselves."""
        return unsharded

    def reduce(self, g: Group, unsharded: Amount, previous: int, first: bool, last: bool, where: str) -> int:
        """Reduce-scatter of one group; returns the input buffer that stays until the next one."""
        recorder = self.recorder
        if self.how.unsynchronised and not last:
            # no_sync: gradients stay unsharded, in the reduce dtype
            if self.how.in_place:
                recorder.hold_amount("gradients", unsharded, -1)
            if first:
                recorder.hold("gradients", g.accumulated)
                recorder.hold("gradients", g.alone)
                recorder.mark("backward", f"gradient accumulation of {where}")
            if not self.how.in_place:
                recorder.hold_amount("gradients", unsharded, -1)
            return previous
        if self.how.unsynchronised:  # added to those that wait, or they themselves
            recorder.hold_amount("gradients", unsharded, -1)
            unsharded = ()
        recorder.release("communication_buffers", previous)
        recorder.hold("communication_buffers", g.reduce_input)
        recorder.mark("backward", f"reduce-scatter of {where}")
        recorder.hold_amount("gradients", unsharded, -1)
        if self.how.unsynchronised:
            recorder.release("gradients", g.accumulated)
        elif first and not self.how.several_runs:
            recorder.hold("gradients", g.alone)
        if self.how.offloads:
            return g.reduce_input  # the sharded gradient is copied to the host
        recorder.hold("temporaries", g.last)
        recorder.hold("gradients", g.reduce_output)
        recorder.hold("temporaries", g.divided)
        recorder.mark("backward", f"reduce-scatter of {where}")
        recorder.release("temporaries", g.divided)
        if g.sharded != g.reduce_output:  # _to_dtype_if_needed(reduce_output, orig_dtype)
            recorder.hold("gradients", g.sharded)
            recorder.mark("backward", f"gradients of {where} in the shards' dtype")
            recorder.release("gradients", NOTHING if self.how.keeps_reduced else g.reduce_output)
        added = self.how.several_runs or (not first and not self.how.unsynchronised)
        if added and self.kept(g, first) != g.sharded:
            recorder.release("gradients", g.sharded)  # added in place to the earlier micro-batches' shard
        recorder.release("temporaries", g.last)
        return g.reduce_input

    def reduce_all(self, root: Group, each: list[tuple[Group, int, str]], previous: int) -> int:
        """All groups resharded and reduced: the root, then units (stage.py, perform_reduce_grad: ``all_states``).

        ``each``: the group of a unit, what is gathered of it, and the unit's name; ``previous``: the input of the
        reduction before.
        """
        reduce_input = self.reduce(root, (), previous, False, True, "the root group")
        for own, gathered, name in each:
            if own.gathered:
                self.recorder.release("communication_buffers", gathered)
                reduce_input = self.reduce(own, (), reduce_input, False, True, name)
        return reduce_input

    def kept(self, g: Group, first: bool) -> int:
        """What the all-reduce over replicas wrote, which the group refers to until the backward is over, where it is
        not itself the resident gradients (``AllReduceState``).
        """
        if not self.how.keeps_reduced:
            return NOTHING
        if g.sharded != g.reduce_output:
            return g.reduce_output
        new = first or self.how.unsynchronised
        return NOTHING if new and not self.how.several_runs else g.sharded
