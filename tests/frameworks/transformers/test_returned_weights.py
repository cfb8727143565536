"""Attention weights that a layer returns: a recompute that ends early has them in variables until it ends."""

from __future__ import annotations

from benchmarks.family_draw import families
from benchmarks.score import resolved
from memcheck.memory.estimate import estimate

TRACED_BYTES = 470_196_736
"""The backward of RoFormer, three layers, two rows of 1,024 tokens, adapters in fp32 under autocast, each layer
recomputed (torch 2.13, transformers 5.23, peft 0.21): at the scaled product of the last adapter the dropped
probabilities, 12 x 1024 x 1024 in fp32 for each row, are still there."""


def test_a_recompute_holds_returned_weights_to_its_end() -> None:
    """Beside the fp32 copy of the widest input: they were let go with the attention, 4.9 % too early."""
    plan = families()["roformer"]
    training = {
        **plan["training"],
        "framework": "huggingface",
        "precision": "bf16-mixed",
        "activation_checkpointing": "full",
        "torch_version": "2.13",
        "micro_batch_size": 2,
        "method": "lora",
    }
    hardware = {**plan["hardware"], "gpus_per_node": 2, "nodes": 1}
    job, gpu, overhead = resolved({**plan, "memcheck": 1, "hardware": hardware, "parallelism": {}, "training": training})
    backward = next(i for i in estimate(job, gpu, overhead).ranks[0].instants if i.name == "backward")
    assert -0.001 <= backward.allocated_bytes / TRACED_BYTES - 1 <= 0.011
