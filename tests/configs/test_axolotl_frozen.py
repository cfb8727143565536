"""Axolotl's ``unfrozen_parameters``, ``model_quantization_config`` and patterns of adapters' targets."""

from __future__ import annotations

import re

import pytest

from memcheck.autograd.context import is_frozen
from memcheck.edge.expressions import Expression
from memcheck.families.registry import architecture_of
from memcheck.judge import Gate, check_file
from memcheck.models.parameters import block_tensors
from memcheck.plan.types import ModelSpec
from tests.configs.test_trainers import AXOLOTL, QLORA, read

LLAMA = "meta-llama/Llama-3.1-8B"
MIXTRAL = AXOLOTL.replace(LLAMA, "mistralai/Mixtral-8x7B-v0.1")
LORA = "adapter: lora\nlora_r: 8\n"
PATTERN = r"lora_target_modules: 'model.layers.[\d]+.(mlp|cross_attn|self_attn).(up|down|gate|q|k|v|o)_proj'" + "\n"


@pytest.mark.parametrize(
    ("patterns", "frozen"),
    [
        (["^lm_head.weight$"], ["embed", "norm", "layers:0-32"]),
        (["model.layers.1"], ["embed", "norm", "head", "layers:0-1", "layers:2-10", "layers:20-32"]),
        (["model.layers.3[01]+.mlp", "^model.embed_tokens.weight$[:32000]"], ["norm", "head", "layers:0-30"]),
        (["model.layers.[0-9]+.self_attn.(q|v)_proj", "model.norm"], ["embed", "head"]),
    ],
)
def test_what_no_pattern_names_is_frozen(patterns: list[str], frozen: list[str]) -> None:
    """Every parameter that starts like a pattern is trained, and nothing else: held against Python's own ``re``."""
    keys = f"gradient_checkpointing: true\nunfrozen_parameters: {patterns}\n"
    found = read("a.yml", AXOLOTL + keys)
    assert not found.problems
    said = found.settings["training.freeze"].value
    assert isinstance(said, list)
    assert said[: len(frozen)] == frozen
    architecture = architecture_of(ModelSpec(name=LLAMA))
    block, layers = architecture.blocks[0]  # type: ignore[union-attr]
    assert layers == 32
    upstream = [re.sub(r"\[[0-9]*(?::[0-9]*)?\]$", "", each).replace(".", r"\.") for each in patterns]
    ranges = [tuple(map(int, each[7:].split("-"))) for each in said if each.startswith("layers:")]
    modules = tuple(each for each in said if each not in ("embed", "norm", "head") and not each.startswith("layers:"))
    for i in range(layers):
        for tensor in block_tensors(block):
            trained = any(re.match(each, f"model.layers.{i}.{tensor.name}") for each in upstream)
            whole = any(first <= i < end for first, end in ranges)
            assert trained != (whole or is_frozen(tensor.name.removesuffix(".weight"), modules)), (i, tensor.name)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("unfrozen_parameters: [model.layers.1.mlp, model.layers.2.self_attn]\n", "in some layers and not in others"),
        ("unfrozen_parameters: [model.layers.1.attention]\n", "matches no parameter"),
        ("unfrozen_parameters: ['model.layers.(']\n", "unfrozen_parameters"),
        ("unfrozen_parameters: [lm_head]\ngradient_checkpointing: false\n", "rows want a gradient"),
        ("model_quantization_config: FineGrainedFP8Config\n", "a base of another quantization"),
        ("model_quantization_config: Mxfp4Config\n", "a base of another quantization"),
    ],
)
def test_what_a_plan_cannot_say_is_refused_at_its_key(keys: str, said: str) -> None:
    """A pattern that trains nothing, or some layers of a kind, and a base that stays quantised."""
    (problem,) = read("a.yml", AXOLOTL.replace("gradient_checkpointing: true\n", "") + keys).problems
    assert said in problem.message
    assert problem.location is not None


def test_names_of_transformers_4_are_read_as_the_present_ones() -> None:
    """Mixtral's ``block_sparse_moe`` is ``mlp`` today: estimated as trained, which the note calls an upper bound."""
    keys = (
        "gradient_checkpointing: true\nunfrozen_parameters: ['^lm_head', 'model.layers.3[01].block_sparse_moe.gate']\n"
    )
    found = read("a.yml", MIXTRAL + keys)
    assert not found.problems
    assert any("upper bound" in each.message and "block_sparse_moe" in each.message for each in found.notes)
    said = found.settings["training.freeze"].value
    inside = ["input_layernorm", "mlp.experts", "post_attention_layernorm", "self_attn"]
    assert said == ["embed", "norm", "layers:0-30", *inside]


def test_experts_that_are_dequantized_when_they_are_loaded_rest_in_16_bits() -> None:
    """``Mxfp4Config`` with ``dequantize`` is the same job as one without either."""
    text = AXOLOTL.replace(LLAMA, "openai/gpt-oss-20b")
    plain = read("a.yml", text)
    kwargs = "model_quantization_config_kwargs: {dequantize: true}\n"
    found = read("a.yml", f"{text}model_quantization_config: Mxfp4Config\n{kwargs}")
    assert not found.problems
    assert not [each for each in found.notes if "quantization" in each.message]
    assert {k: v.value for k, v in found.settings.items()} == {k: v.value for k, v in plain.settings.items()}


def test_a_pattern_names_what_the_model_has() -> None:
    """Of a model whose layers have other names, PEFT adapts those that match, as the report says."""
    text = AXOLOTL.replace(LLAMA, "LiquidAI/LFM2-8B-A1B") + LORA + PATTERN
    found = read("a.yml", text)
    assert found.settings["training.lora.target_modules"].value == ["q_proj", "k_proj", "v_proj"]
    (result,), _ = check_file("plan.yaml", found.text.encode(), Gate())
    assert "MEM413" not in {each.code for each in result.findings}
    assert read("a.yml", AXOLOTL + LORA + PATTERN).settings["training.lora.target_modules"].value == [
        *("up_proj", "down_proj", "gate_proj", "q_proj", "k_proj", "v_proj", "o_proj")
    ]


def test_a_pattern_that_names_fewer_layers_than_its_last_words_stays_a_pattern() -> None:
    """Shared experts are inside ``mlp``, so that ``mlp.(up|down)_proj`` does not reach them."""
    text = AXOLOTL.replace(LLAMA, "Qwen/Qwen1.5-MoE-A2.7B") + LORA + PATTERN
    found = read("a.yml", text)
    assert not found.problems
    assert isinstance(found.settings["training.lora.target_modules"].value, str)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("qat: {activation_dtype: nvfp4, weight_dtype: nvfp4, group_size: 16}\n", "to NVFP4"),
        ("qat: {activation_dtype: mxfp4, weight_dtype: mxfp4}\n", "quantization-aware training"),
        ("qat: {weight_dtype: int4}\n", "quantization-aware training"),
        (
            "qat: {activation_dtype: int8, weight_dtype: int4, quantize_embedding: true}\n",
            "quantization-aware training",
        ),
    ],
)
def test_quantizers_without_a_memory_model_are_refused(keys: str, said: str) -> None:
    """By name, at the key; weights of NVFP4 stop torchao itself."""
    (problem,) = read("a.yml", AXOLOTL + keys).problems
    assert said in problem.message
    assert problem.location is not None


def test_quantization_aware_training_of_int4_weights_is_read() -> None:
    """Inputs to int8, weights to int4 in groups of 32 unless the config says how many."""
    for keys, size in (("", 32), (", group_size: 256, fake_quant_after_n_steps: 10", 256)):
        found = read("a.yml", f"{AXOLOTL}qat: {{activation_dtype: int8, weight_dtype: int4{keys}}}\n")
        assert not found.problems
        assert found.settings["training.options.quantizer"].value == "int8-int4"
        assert found.settings["training.options.groupsize"].value == size


def test_adapters_leave_the_rest_frozen_whatever_is_named() -> None:
    """Beside adapters nothing else is trained."""
    found = read("a.yml", f"{AXOLOTL}{QLORA}unfrozen_parameters: [model.layers.1]\n")
    assert not found.problems
    assert "training.freeze" not in found.settings


@pytest.mark.parametrize("pattern", ["a.b", "^a", "a$", "[ab]+c", "(a|b){2}", ""])
def test_the_start_of_a_text_matches_as_in_python(pattern: str) -> None:
    """``Expression.begins`` is ``re.match``."""
    for text in ("a", "ab", "axb", "axbc", "bac", "aac", "xa", "a.b.c", ""):
        assert Expression(pattern).begins(text) == (re.match(pattern, text) is not None), (pattern, text)
