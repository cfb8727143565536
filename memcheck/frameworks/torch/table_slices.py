"""The gradient of an embedding's table, which RowwiseParallel makes whole on every rank."""

from __future__ import annotations

from memcheck.accounts.program import Amount, Recorder
from memcheck.frameworks.torch.step_options import StepSizes


def local_slice(recorder: Recorder, beyond: StepSizes, gradients: Amount) -> Amount:
    """The gradient of the rank's own rows, which are cloned from that of the whole table."""
    clone = beyond.table_slice
    recorder.hold_amount("gradients", gradients)
    recorder.hold("temporaries", clone)
    recorder.mark("backward", "clone of the local embedding gradient")
    recorder.release("temporaries", clone)
    recorder.hold_amount("gradients", gradients, -1)
    return (*gradients, (beyond.table, -1), (clone, 1))
