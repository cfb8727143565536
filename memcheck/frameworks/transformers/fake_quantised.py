"""Quantization-aware training of transformers' models, as Axolotl prepares it: where it has a memory model.

Source: Axolotl 067b021c ``utils/quantization.py`` (prepare_model_for_qat): torchao's ``quantize_`` puts a
FakeQuantizedLinear in place of every ``nn.Linear``, the head among them.
"""

from __future__ import annotations

from memcheck.errors import UnsupportedError
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, Attention, Mlp

PLACE = "/training/options/quantizer"


def refuse_quantizer(job: TrainingJob) -> None:
    """Check that every linear layer that a step runs has a memory model with its quantizers.

    Raises:
        UnsupportedError: a layer has no such model.
    """
    architecture, layout = job.architecture, job.layout
    plain = False
    if isinstance(architecture, Architecture) and architecture.encoder is None:
        layers = [block for block, _ in architecture.blocks]
        plain = all(isinstance(layer.mixer, Attention) and isinstance(layer.mlp, Mlp) for layer in layers)
    cases = (
        (job.method != "full", "with adapters", "choose method: full"),
        (job.compile, "of a compiled model", "leave `compile` out"),
        (layout.tensor * layout.pipeline * layout.context > 1, "of divided layers or rows", "leave the degree out"),
        (layout.zero_stage in (1, 2), "under ZeRO-1 or 2", "choose parallelism.zero_stage: 0 or 3"),
        (job.images is not None and job.images.pictures > 0, "of a model that sees", "write `images: {per_sample: 0}`"),
        (not plain, "of layers that are not attention and a feed-forward network", "leave it out"),
        (job.objective.name != "sft", f"under objective {job.objective.name}", "leave it out"),
    )
    for problem, what, help in cases:
        if problem:
            raise UnsupportedError(f"quantization-aware training {what} has no memory model", help, PLACE)
