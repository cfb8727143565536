"""Traced steps of small models in every layout, against the estimate."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.slow]

from tests.verify.plans import TINY, plan  # noqa: E402
from tests.verify.running import traced  # noqa: E402

SMALL = {
    **TINY,
    "hidden_size": 512,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 2048,
}
TIED = {**SMALL, "tie_word_embeddings": True}
MOE = {
    **SMALL,
    "model_type": "qwen3_moe",
    "head_dim": 64,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 512,
}
WIDE = {**SMALL, "vocab_size": 8192, "num_hidden_layers": 4}
MIXED = "bf16-mixed"
FSDP = {"zero_stage": 3}


def small(architecture: dict[str, Any] = SMALL, **rest: Any) -> dict[str, Any]:
    """A plan with a model whose matrices outweigh the rounding of blocks."""
    return plan(model={"architecture": architecture}, **rest)


PLANS = {
    "pure bf16": small(),
    "autocast": small(precision=MIXED),
    "autocast in fp16": small(precision="fp16-mixed", optimizer={"name": "adamw", "implementation": "fused"}),
    "fp32, grouped heads": small(precision="fp32"),
    "tied, accumulated": small(TIED, precision=MIXED, gradient_accumulation_steps=4),
    "reentrant recompute": small(activation_checkpointing={"mode": "full", "reentrant": True}, optimizer="sgd"),
    "every second layer": small(activation_checkpointing={"mode": "full", "every_n_layers": 2}, optimizer="sgd"),
    "parts of each layer": small(
        activation_checkpointing={"modules": ["self_attn", "mlp", "input_layernorm", "post_attention_layernorm"]},
        optimizer="sgd",
    ),
    "bf16 logits": small(loss={"kind": "standard", "upcast": False}, optimizer="sgd"),
    "chunked loss": small(loss={"kind": "chunked", "chunks": 4}, optimizer="sgd"),
    "fused loss under autocast": small(loss="fused-linear", precision=MIXED, optimizer="sgd"),
    "masked rows": small(sequences="masked", attention="sdpa", precision=MIXED, optimizer="sgd"),
    "padded rows, eager": small(sequences="padded", attention="eager", micro_batch_size=2, optimizer="sgd"),
    "rows end to end": small(sequences="flattened", attention="sdpa", micro_batch_size=2, optimizer="sgd"),
    "adafactor": small(optimizer="adafactor"),
    "for-loop": small(WIDE, optimizer={"name": "adamw", "implementation": "for-loop"}, clip_grad_norm=True),
    "adapters in fp32": small(method="lora", activation_checkpointing="full"),
    "some adapters in bf16": small(method="lora", lora={"rank": 8, "target_modules": ["q_proj"], "dtype": "bf16"}),
    "adapters under autocast": small(method="lora", framework="huggingface", precision=MIXED),
    "adapters, fused loss": small(WIDE, method="lora", loss="fused-linear"),
    "adapters, chunked loss": small(WIDE, method="lora", loss={"kind": "chunked", "chunks": 4}),
    "frozen parts": small(freeze=["embed", "head", "norm", "layers:0-1"]),
    "frozen modules": small(freeze=["mlp"], optimizer="sgd"),
    "experts": small(MOE, optimizer="sgd"),
    "DDP": small(gpus=4, precision=MIXED),
    "DDP on bucket views": small(gpus=4, precision=MIXED, parallelism={"gradient_as_bucket_view": True}),
    "ZeroRedundancyOptimizer": small(gpus=4, precision=MIXED, parallelism={"zero_stage": 1}),
    "FSDP2": small(gpus=4, precision=MIXED, parallelism=FSDP),
    "FSDP2 around a wide root": small(
        {**SMALL, "vocab_size": 32768}, gpus=4, parallelism=FSDP, sequence_length=8, optimizer="sgd", method="lora"
    ),
    "FSDP2, pure bf16": small(gpus=4, parallelism=FSDP),
    "FSDP2 without synchronisation": small(
        WIDE, gpus=4, precision=MIXED, parallelism={**FSDP, "gradient_sync": "last"}, gradient_accumulation_steps=3
    ),
    "FSDP2 without resharding": small(gpus=4, precision=MIXED, parallelism={**FSDP, "reshard_after_forward": False}),
    "FSDP2, chunked loss": small(gpus=4, precision=MIXED, parallelism=FSDP, loss={"kind": "chunked", "chunks": 4}),
    "FSDP2, fused loss": small(gpus=4, precision=MIXED, parallelism=FSDP, loss="fused-linear"),
    "FSDP2, experts": small(MOE, gpus=4, precision=MIXED, parallelism=FSDP),
    "FSDP2, adapters": small(gpus=4, parallelism=FSDP, method="lora", lora={"rank": 8, "dtype": "bf16"}),
    "HSDP": small(gpus=8, precision=MIXED, parallelism={**FSDP, "shard_group": 4}),
    "tensor": small(gpus=2, parallelism={"tensor": 2}),
    "tensor and sequence, vocabulary": small(
        gpus=2, parallelism={"tensor": 2, "sequence": True}, loss="vocab-parallel", optimizer="sgd"
    ),
    "tensor, Muon beside a loop": small(WIDE, gpus=2, parallelism={"tensor": 2}, optimizer="muon", sequence_length=8),
    "FSDP2 and tensor": small(gpus=8, precision=MIXED, parallelism={**FSDP, "tensor": 2, "sequence": True}),
    "pipeline": small(gpus=2, parallelism={"pipeline": 2}, gradient_accumulation_steps=4),
    "pipeline of FSDP2": small(
        gpus=8, precision=MIXED, parallelism={**FSDP, "pipeline": 2}, gradient_accumulation_steps=4
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_estimate_and_trace_agree(name: str) -> None:
    """Every rank's peak within 1.5 %, and every instant is known to both."""
    request, observation, comparisons = traced(PLANS[name])
    assert request.replaced == ()
    assert len(comparisons) == request.job.layout.pipeline
    for comparison in comparisons:
        assert comparison.agrees(), (comparison.error, comparison.terms[:3])
        assert {i.name for i in comparison.observed.instants} >= {"init", "forward", "backward", "optimizer"}
        for instant in comparison.observed.instants:
            assert sum(instant.components_bytes.values()) == instant.allocated_bytes
    assert observation.ranks[0].parameters > 0
