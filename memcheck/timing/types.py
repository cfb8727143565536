"""What the throughput model answers."""

from __future__ import annotations

from memcheck.errors import UnsupportedError
from memcheck.job.types import Assumption
from memcheck.record import Record


class MissingRateError(UnsupportedError):
    """A GPU whose record lacks a rate that decides the answer; there is no default for it."""


class RooflineSeconds(Record):
    """Seconds of a pass, by what bounds its operations."""

    arithmetic_seconds: float
    """Seconds of the operations that arithmetic bounds."""
    memory_seconds: float
    """Seconds of the operations that memory traffic bounds."""


class Exchanges(Record):
    """Seconds of a step that the slowest rank spends in communication which nothing hides."""

    tensor: float = 0.0
    """Activations over the tensor-parallel group."""
    context: float = 0.0
    """Keys and values over the context-parallel group."""
    expert: float = 0.0
    """Tokens to experts and back."""
    data: float = 0.0
    """Parameters and gradients over the data-parallel group."""
    pipeline: float = 0.0
    """Activations and their gradients between stages."""

    @property
    def seconds(self) -> float:
        """Seconds of all parts together."""
        return self.tensor + self.context + self.expert + self.data + self.pipeline


class StepTime(Record):
    """One optimizer step of one plan on one GPU type, or one token of all that it serves, as a roofline model has it:
    good for ranking, no promise.
    """

    seconds: float
    """The sum of the six parts below."""
    compute_seconds: float
    """Matrix products and attention on the slowest rank, where arithmetic is what bounds them; recompute included."""
    hbm_seconds: float
    """What device memory bounds on that rank: norms, activations' copies, casts, the loss, the optimizer's step."""
    exposed_communication_seconds: float
    """Communication that no computation hides."""
    bubble_seconds: float
    """Seconds that the rank waits for the other stages of a pipeline."""
    offload_seconds: float
    """Transfers to and from the host, and the optimizer's step there."""
    tokens_per_second_per_gpu: float
    model_tflops_per_gpu: float
    """Model TFLOPS, without recompute: ``6 N + attention`` per token of what the step trains, over the time."""
    hardware_tflops_per_gpu: float
    """Hardware TFLOPS, with recompute and with what attention's backward computes again."""
    model_flops_share: float
    """``model_tflops_per_gpu`` over the peak rate of the dtype of the activations (MFU)."""
    recompute_share: float
    """Arithmetic that recompute adds, as a share of the model's own."""
    exchanges: Exchanges
    assumptions: tuple[Assumption, ...]
    """Rates that the GPU's record lacks, and what was used instead."""
    prefill_seconds: float = 0.0
    """While serving: one prompt as long as the context, before its first token. The rest is one token for every
    sequence of the batch."""
