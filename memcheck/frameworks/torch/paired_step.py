"""A step whose micro-batch has two forward passes before its backward: the columns of a pair of texts, embedded apart.

Every weight has two uses in one graph, and its ``AccumulateGrad`` waits for the gradients of both
(torch/csrc/autograd/engine.cpp, ``GraphTask::dependencies_`` and ``InputBuffer``). Until the backward of the first
column arrives, the second column's gradients wait whole in autograd's buffers. They are not summed with those of
earlier micro-batches, are in no DDP bucket and are unsharded. FSDP2 reduces what ``AccumulateGrad`` has stored
(_fsdp_param_group.py, ``post_backward``). FSDP1's hook belongs to that node, so that its parameters stay gathered, too.
"""

from __future__ import annotations

from memcheck.accounts.sizes import NamedCurve
from memcheck.frameworks.torch.data_parallel import FIRST_OF_PAIR, SECOND_OF_PAIR, MicroBatch
from memcheck.frameworks.torch.step import Step


class PairedStep(Step):
    """Records the passes in turn: the one whose gradients wait, and the one that they are joined with."""

    def walk(self, each: MicroBatch, held: int, *, muted: bool) -> None:
        """One pass. A pair's gradients are new, and go where there are others: earlier ones, or DDP's buckets."""
        self.parallel.pair = FIRST_OF_PAIR if each.first else SECOND_OF_PAIR
        super().walk(each, held, muted=not each.first)  # both forwards came before
        self.parallel.earlier = self.parallel.earlier or not each.first

    def retain(self, i: int, curve: NamedCurve) -> None:
        """After the backward of a unit's second use, the pending gradient is summed with its own."""
        unit = self.units[i]
        if curve is not unit.fresh and self.parallel.drops_pending(self.parallel.earlier):
            self.recorder.release("gradients", unit.fresh.gradients)
