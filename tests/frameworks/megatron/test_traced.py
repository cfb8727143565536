"""The local layer spec against traces of Megatron-core itself.

Activation bytes that were live at the end of the forward pass of Megatron-core's GPTModel (local spec, plain bf16,
masked_softmax_fusion and the other fusions off), traced on fake tensors with torch 2.13.
"""

from __future__ import annotations

import pytest

from memcheck.frameworks.megatron.workspaces import ChunkContents, workspaces
from tests.frameworks.megatron.models import MIB, grid, job, layer_curve, llama_8b, setting

PLAIN = {
    "transformer_impl": "local",
    "masked_softmax_fusion": False,
    "bias_swiglu_fusion": False,
    "bias_dropout_fusion": False,
    "gradient_accumulation_fusion": False,
    "apply_rope_fusion": False,
}


@pytest.mark.parametrize(
    ("layers", "tensor", "parallel", "batch", "sequence", "recompute", "traced_mib"),
    [
        (8, 1, False, 1, 2048, "none", 9713.133),
        (32, 4, True, 1, 2048, "none", 9545.145),
        (32, 4, True, 1, 4096, "selective", 6866.305),
        (32, 8, True, 1, 8192, "full", 788.074),
        (32, 4, False, 2, 2048, "selective", 9794.066),
    ],
)
def test_forward_ends_with_the_traced_activations(
    layers: int, tensor: int, parallel: bool, batch: int, sequence: int, recompute: str, traced_mib: float
) -> None:
    """Llama-3.1-8B: what the layers keep, the final norm, the score buffer and the rotary table, within 0.01 %."""
    options: dict[str, object] = dict(PLAIN)
    if recompute == "selective":
        options["recompute_granularity"] = "selective"
    config = setting(
        4096,
        batch=batch,
        sequence=sequence,
        attention="local",
        tensor_parallel=tensor,
        sequence_parallel=parallel,
        options=options,
    )
    model = llama_8b(layers)
    saved = layer_curve(model, config, recompute=recompute == "full").saved_bytes
    rows = batch * sequence // (tensor if parallel else 1)
    final_norm = 2 * 2 * rows * 4096 + 4 * rows
    plan = job(model, grid(tensor, tensor=tensor), micro_batch_size=batch, sequence_length=sequence)
    side = workspaces(plan, model, config, ChunkContents(list(model.layers()), [], has_embedding=True, has_head=True))
    found = layers * saved + final_norm + side.global_buffer + side.rotary_tables
    assert found / MIB == pytest.approx(traced_mib, rel=1e-4)
