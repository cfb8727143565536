"""The real modules of transformers, on PyTorch's meta device, against the tensors computed from the configuration."""

from __future__ import annotations

import random
from typing import Any

import pytest

from memcheck.families.registry import read_architecture
from memcheck.models.parameters import block_tensors, outer_tensors
from tests.models.configs import DEEPSEEK_V3, GEMMA3, GPT2, LLAMA, MIXTRAL, QWEN3_MOE, without

pytestmark = pytest.mark.torch


def variants(seed: int) -> list[dict[str, Any]]:
    """One small configuration of several families, with its switches thrown at random."""
    pick = random.Random(seed)  # noqa: S311  # test data

    def switch() -> bool:
        return pick.random() < 0.5

    opt = {**without(LLAMA, "num_key_value_heads", "intermediate_size"), "max_position_embeddings": 32}
    return [
        {**LLAMA, "attention_bias": switch(), "mlp_bias": switch(), "tie_word_embeddings": switch()},
        {**MIXTRAL, "tie_word_embeddings": switch()},
        {**QWEN3_MOE, "attention_bias": switch(), "decoder_sparse_step": pick.choice([1, 2])},
        {
            **DEEPSEEK_V3,
            "q_lora_rank": pick.choice([None, 24]),
            "n_group": 1,
            "topk_group": 1,
            "attention_bias": switch(),
        },
        {**GPT2, "n_inner": pick.choice([None, 80])},
        {**GEMMA3, "attention_bias": switch()},
        {**opt, "model_type": "opt", "ffn_dim": 96, "do_layer_norm_before": switch(), "word_embed_proj_dim": 32},
        {**opt, "model_type": "falcon", "new_decoder_architecture": True, "num_kv_heads": 2, "bias": switch()},
    ]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_names_and_shapes_of_every_tensor(seed: int) -> None:
    """Every parameter that transformers registers is there under its name and shape, and no other."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers", minversion="5.0")
    for config in variants(seed):
        given = {k: v for k, v in config.items() if k != "model_type"}
        real_config = transformers.AutoConfig.for_model(config["model_type"], **given)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(real_config)
        real = {name: tuple(p.shape) for name, p in model.named_parameters()}
        architecture = read_architecture(config)
        ours = {t.name: t.shape for t in outer_tensors(architecture)}
        for i, block in enumerate(architecture.layers()):
            ours.update({f"{architecture.paths.layers}.{i}.{t.name}": t.shape for t in block_tensors(block)})
        assert ours == real, config
