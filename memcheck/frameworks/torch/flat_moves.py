"""FSDP1's all-gathers of a unit's flat parameter, and reduce-scatters of its gradient.

Sources: torch 2.13 distributed/fsdp/_flat_param.py (pre_unshard, unshard, post_unshard), _runtime_utils.py
(_prefetch_handle, _post_backward_hook, _reduce_grad).
"""

from __future__ import annotations

from memcheck.accounts.program import NOTHING, Amount
from memcheck.frameworks.torch.fsdp import Group
from memcheck.frameworks.torch.gathers import WHERE, Gathers
from memcheck.frameworks.torch.reductions import Reductions


class FlatGathers(Gathers):
    """The shard in the dtype of the products, which goes when the whole parameter is there."""

    def root(self, root: Group) -> int:
        """The root's parameter is there already."""
        self._gather(root, NOTHING, "forward", "the root group")
        return NOTHING

    def forward(self, own: Group, previous: int, where: str) -> int:
        """Nothing is left beside the parameter."""
        self._gather(own, own.gathered, "forward", where)
        return NOTHING

    def backward(self, own: Group, prefetched: int, where: str) -> None:
        """What was gathered ahead is the parameter."""
        if not prefetched:
            self._gather(own, own.gathered, "backward", where)

    def ahead(self, own: Group, where: str) -> int:
        """The whole parameter of the next unit."""
        self._gather(own, own.gathered, "backward", where)
        return own.gathered

    def _gather(self, own: Group, parameter: int, instant: str, where: str) -> None:
        self.recorder.hold(WHERE, own.flat)
        self.recorder.hold(WHERE, parameter)
        self.recorder.mark(instant, f"all-gather of {where}")
        self.recorder.release(WHERE, own.flat)


class FlatReductions(Reductions):
    """From the flat gradient to its shard."""

    def join(self, g: Group, unsharded: Amount, where: str) -> Amount:
        """The gradient of the flat parameter: autograd's backward of the split into views puts theirs into a row."""
        recorder = self.recorder
        recorder.hold("gradients", g.accumulated)
        recorder.mark("backward", f"flat gradient of {where}")
        recorder.hold_amount("gradients", unsharded, -1)
        return ()

    def reduce(self, g: Group, unsharded: Amount, previous: int, first: bool, last: bool, where: str) -> int:
        """The hook's variables hold the flat gradient, in both dtypes, until the shard rests; no buffer stays."""
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
