"""Mixtures of experts whose adapters are named as in transformers 4, where each expert was a module of its own.

PEFT 0.21 ``utils/transformers_weight_conversion.py`` (``_convert_peft_config_moe``) asks for the model's type in
transformers 5.23 ``conversion_mapping.py``: of these types ``gate_proj``, ``up_proj``, ``down_proj`` (``w1``...) and
``gate`` are the stacked tensors and the router, and no other matrix of the model. Of all others they are modules.
"""

from __future__ import annotations

from memcheck.models.types import Attention, Block, Mlp, Moe

NAMED = {
    "afmoe", "cohere2_moe", "deepseek_v2", "deepseek_v3", "deepseek_v32", "dots1", "ernie4_5_moe", "exaone_moe",
    "flex_olmo", "glm4_moe", "glm4_moe_lite", "glm4v_moe", "glm_moe_dsa", "hunyuan_v1_moe", "kimi_k2",
    "longcat_flash", "mellum", "minimax", "minimax_m2", "mixtral", "olmoe", "qwen3_moe", "qwen3_next",
    "qwen3_omni_moe_thinker", "solar_open",
}  # fmt: skip


def with_names(blocks: tuple[tuple[Block, int], ...], model_type: str) -> tuple[tuple[Block, int], ...]:
    """Mark the modules that LoRA targets by transformers 4's names of experts (``gate_proj``, ``up_proj``,
    ``down_proj``).

    In the model types of ``NAMED`` these names mean the stacked experts and no dense MLP; in all others the reverse.
    ``blocks``: (layer, how many).
    """
    named = model_type in NAMED
    return tuple((_named(block, named=named), count) for block, count in blocks)


def _named(block: Block, *, named: bool) -> Block:
    """Mark what adapters named ``gate_proj``... reach in one layer.

    ``named``: those names mean stacked experts, so that adapters on linear layers reach no MLP.
    """
    if isinstance(block.mixer, Attention) and block.mixer.gate_matrix:  # AFMoE calls it gate_proj, too
        block = block._replace(mixer=block.mixer._replace(gate_matrix="hidden" if named else "adaptable"))
    if isinstance(block.mlp, Moe):
        return block._replace(mlp=block.mlp._replace(adaptable=not named))
    return block._replace(mlp=block.mlp._replace(adaptable=not named)) if isinstance(block.mlp, Mlp) else block
