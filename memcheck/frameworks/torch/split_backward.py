"""A backward of inputs alone, followed by that of the weights.

Source: torch 2.13 distributed/pipelining/_backward.py (stage_backward_input, stage_backward_weight).
"""

from __future__ import annotations

from collections.abc import Sequence

from memcheck.accounts.program import Recorder
from memcheck.accounts.sizes import NamedCurve
from memcheck.frameworks.torch.step_options import StepOptions
from memcheck.frameworks.torch.step_parts import NamedUnit


class SplitBackward:
    """Records it in a step, where it is ``on``."""

    def __init__(
        self, recorder: Recorder, how: StepOptions, units: Sequence[NamedUnit], stretches: Sequence[tuple[int, int]]
    ) -> None:
        self.recorder, self.how, self.units, self.stretches = recorder, how, units, stretches
        self.on = self.unreduced = False

    def begin(self, *, split: bool) -> None:
        """A micro-batch's pass, whose backward is split or whole. FSDP2's hooks run on every gradient that exists after
        it.
        """
        self.on = split
        if self.unreduced and not split:
            self._keep_unreduced(-1)

    def retain(self, curve: NamedCurve, sign: int = 1) -> None:
        """The graph stays, with the gradients from which those of the weights are computed."""
        if self.on:
            self.recorder.hold_bundle(curve.saved, sign)
            self.recorder.hold("temporaries", curve.for_weights, sign)

    def end(self, curves: Sequence[NamedCurve], *, last: bool) -> None:
        """The backward of the weights. ``last``: the gradients of all micro-batches are reduced after it."""
        if not self.on:
            return
        self.recorder.mark("backward", "gradients of the weights")
        for curve in curves:
            self.retain(curve, -1)
        if self.how.sharded and self.unreduced == last:
            self._keep_unreduced(-1 if last else 1)

    def _keep_unreduced(self, sign: int) -> None:
        """Gradients of weights that FSDP2's hooks have not seen, in the dtype in which they wait: the next
        micro-batch's backward of inputs adds to them. Those of the last stage's layers follow all of its round's.
        """
        self.unreduced = sign > 0
        first = len(self.units) - 1 if self.units[-1].kind == "head" else 0
        each = [(self.units[i].fresh.gradients, end - i) for i, end in self.stretches if i >= first]
        self.recorder.hold_amount("gradients", tuple(each), sign)
