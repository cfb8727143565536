"""What a step optimises: the objective, the head that it needs, and the models in addition to the trained one."""

from __future__ import annotations

from memcheck.models.types import Architecture
from memcheck.record import Record

PAIRED = ("dpo", "ipo", "orpo", "simpo", "cpo", "reward")
"""Objectives whose samples are pairs: the chosen and the rejected sequence are two rows of one forward pass."""
COMPARED = ("dpo", "ipo", "kto")
"""Objectives that compare the policy with a reference."""
SCORED = (*COMPARED, "orpo", "simpo", "cpo")
"""Objectives over log-probabilities of a completion."""
DISTILLED = ("gkd", "distill")
"""Objectives that compare the student with a teacher."""
LLAMA_FACTORY = "llama-factory"
"""The code of a loss that LLaMA-Factory computes itself."""
MS_SWIFT = "ms-swift"
"""The code of a loss that ms-swift computes itself."""
OPEN_INSTRUCT = "open-instruct"
"""The code of a loss that open-instruct computes itself."""
TRAINERS = (LLAMA_FACTORY, MS_SWIFT, OPEN_INSTRUCT)
"""The codes that are a trainer's name, without a version."""
PIECEWISE = ("trl-1.7", "trl-1.13")
"""The codes of TRL's ``chunked_nll``: with the head in fp32, and in the dtype of the hidden states."""
OWN = "own"
"""The code of a loss in the framework's own training loop."""
SECOND_PASSES = ("resident", "host", "adapter-off")
"""References whose log-probabilities are made in the step."""
SECOND_MODELS = ("resident", "host")
"""References that are a model of their own."""


class Objective(Record):
    """The loss, and whose code computes it. As it is by default, the model computes it: next-token cross-entropy."""

    name: str = "sft"
    code: str = ""
    """Which lines compute the loss: ``trl-0.24`` | ``trl-0.29`` | ``trl-1.7`` | ``trl-1.13`` | ``trl-1.15`` |
    ``llama-factory`` | ``ms-swift`` | ``open-instruct`` | ``own``.

    Empty: the model's own.
    """
    prompt_length: int = 0
    """Tokens of a row that are not scored."""
    beta: float = 0.5
    """Distillation's share: 0 is the forward divergence, 1 the reverse one, between them both are mixed."""
    reference: str = "none"
    """``resident`` | ``host`` | ``precomputed`` | ``adapter-off`` | ``none``."""
    wide_outputs: bool = False
    """accelerate copies the model's outputs to fp32 as its forward returns (``convert_outputs_to_fp32``)."""

    @property
    def rows(self) -> int:
        """Rows of a forward pass for each sample of a micro-batch."""
        return 2 if self.name in PAIRED else 1

    @property
    def outside(self) -> bool:
        """Whether the loss is taken after the model's forward, on what that returned."""
        return bool(self.code) and self.name not in ("sft", "reward", "distill")

    @property
    def fused(self) -> bool:
        """Whether the loss is taken from hidden states, without logits."""
        return self.code == "trl-1.15" and self.name not in ("gkd", "reward")

    @property
    def in_pieces(self) -> bool:
        """Whether head and loss run on some tokens at a time, each time again in backward (``chunked_nll``)."""
        return self.code in PIECEWISE

    @property
    def in_model(self) -> bool:
        """Whether the model's own forward is given a loss without whole logits, in place of what the plan states."""
        return self.name == "sft" and (self.fused or self.in_pieces)

    @property
    def usual_loss(self) -> str:
        """The kind of loss with which a recipe of the framework's own computes the objective; empty in a trainer's.

        Its divergences are of chunks of logits.
        """
        if self.code != OWN:
            return ""
        return "chunked" if self.name in DISTILLED else "standard"

    @property
    def holds_reference(self) -> bool:
        """Whether the training loop's variables hold the reference's logits until the next micro-batch's: torchtune's
        recipes of adapters do not delete them (``recipes/lora_dpo_*.py``).
        """
        return self.code == OWN and self.reference == "adapter-off"

    @property
    def watched(self) -> bool:
        """Whether the trainer reads the model's logits after its forward, for metrics."""
        return self.name == "sft" and self.code == "trl-0.29"

    @property
    def second_pass(self) -> bool:
        """Whether another forward pass runs without gradients in each micro-batch."""
        return self.name in DISTILLED or (self.name in COMPARED and self.reference in SECOND_PASSES)


class ModelHead(Record):
    """What the trained model ends in."""

    kind: str = "lm"
    """``lm`` | ``classification`` | ``token-classification`` | ``reward`` | ``embedding``."""
    labels: int = 0

    @property
    def columns(self) -> int:
        """Forward passes of a micro-batch whose graphs live side by side: texts are embedded column by column."""
        return 2 if self.kind == "embedding" else 1


class Evaluation(Record):
    """The pass between steps."""

    micro_batch_size: int
    sequence_length: int
    """0: that of the training."""
    steps: int = 1
    keeps_logits: bool = False
    """Whether the logits of every evaluation step accumulate on the GPU until the evaluation is over."""


class Companion(Record):
    """A model that a step needs in addition to the one that is trained."""

    role: str
    """``reference`` | ``teacher``."""
    architecture: Architecture
    place: str = "device"
    """``device`` | ``host``: where its parameters rest."""
    dtype: str = "bf16"
