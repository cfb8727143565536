"""Checkpoints of parts of a layer."""

from __future__ import annotations

from memcheck.frameworks.torch.units import base_setting, block_curve
from tests.memory.jobs import job, llama_8b


def test_a_layer_in_four_checkpoints_keeps_four_inputs() -> None:
    """Both norms, attention and network keep what goes into each: four times the hidden states of one checkpoint."""
    setting = base_setting(job(), llama_8b(), None)
    names = "parts:self_attn,mlp,input_layernorm,post_attention_layernorm"
    apart, whole = (block_curve(llama_8b().blocks[0][0], setting, mode).saved_bytes for mode in (names, "full"))
    assert apart == 4 * whole == 4 * 2 * 4096 * 4096
