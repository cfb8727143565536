"""Targets of adapters that are patterns of paths, matched as PEFT matches them."""

from __future__ import annotations

import re

import pytest

from memcheck.edge.expressions import Expression, ExpressionError
from memcheck.families.registry import read_architecture
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.adapters import reach_of
from memcheck.job.lookup import ResolutionError
from memcheck.job.resolve import resolve
from memcheck.models.module_paths import linear_layers
from memcheck.plan.read import build_plan
from tests.models.configs import LLAMA
from tests.models.multimodal import MODELS, QWEN2_5_VL

PATHS = (
    "model.layers.0.self_attn.q_proj",
    "model.layers.17.mlp.down_proj",
    "model.visual.blocks.3.attn.qkv",
    "model.language_model.layers.3.self_attn.q_proj",
    "lm_head",
    "",
)
PATTERNS = (
    r".*language_model.*\.(q_proj|k_proj)",
    r"model\.layers\.\d+\.(?:self_attn|mlp)\.(?:q|k|down)_proj",
    r"^(?!.*visual).*\.q_proj$",
    r".*(?=q_proj)q_proj",
    r"[^v]*",
    r"model\.layers\.[0-9]{1,2}\..*?_proj",
    r"(a|b)*|lm_head",
    r"(?P<part>model)\.layers\.1[0-7]\.[\w.]+",
    r"(.*)*x?",
)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_expressions_match_as_pythons_do(pattern: str) -> None:
    """Every path matches or does not as ``re.fullmatch`` has it."""
    assert [Expression(pattern).fullmatch(path) for path in PATHS] == [
        bool(re.fullmatch(pattern, path)) for path in PATHS
    ]


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "a)",
        "*a",
        "a**",
        "[",
        "[z-a]",
        r"\1",
        "(?<=a)b",
        "a{99999}",
        "a{3,2}",
        r"\p{L}",
        "a" * 2000,
        "(" * 50 + ")" * 50,
    ],
)
def test_what_is_no_expression_is_an_error(pattern: str) -> None:
    """An expression that cannot be read, or is of a kind that is not understood, is an error of its own type."""
    with pytest.raises(ExpressionError):
        Expression(pattern)


def test_no_expression_is_tried_twice_at_one_place() -> None:
    """What keeps backtracking busy for ever is one pass here; what is much work all the same is an error."""
    assert not Expression("(a*)*(a*)*b").fullmatch("a" * 60)


def test_an_expression_that_is_too_much_work_is_an_error() -> None:
    """The places that are looked at are counted."""
    pattern = Expression("((((.{0,64}){0,64}){64}){64}){64}x")
    with pytest.raises(ExpressionError, match="too long"):
        pattern.fullmatch("a" * 400)


def test_a_pattern_reaches_the_part_that_it_names() -> None:
    """The paths are those of transformers' modules: a language model beside its tower and the projector."""
    vision = read_architecture(QWEN2_5_VL)
    names = ("self_attn.q_proj", "self_attn.v_proj")
    assert dict(reach_of(r".*language_model.*\.(q|v)_proj", vision)) == {"language": names}
    assert dict(reach_of(r"model\.visual\.blocks\.\d+\.attn\..*", vision)) == {"vision": ("attn.qkv", "attn.proj")}
    assert set(dict(reach_of(r"^(?!.*lm_head).*", vision))) == {"language", "vision", "projector"}
    text = read_architecture(LLAMA)
    assert dict(reach_of(r".*\.o_proj|lm_head", text)) == {"language": ("self_attn.o_proj", "lm_head")}


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (r".*\.layers\.(1|7)\.self_attn\.q_proj", "in some layers"),
        (r".*query", "no linear layer"),
        (r"(", "cannot be matched"),
        (r"self_attn\.q_proj", "no linear layer"),
    ],
)
def test_what_a_pattern_may_not_say(pattern: str, said: str) -> None:
    """Some layers of a kind, no layer at all, and what is no pattern are errors at the plan's key."""
    with pytest.raises(ResolutionError) as caught:
        reach_of(pattern, read_architecture(LLAMA))
    assert said in caught.value.problems[0].message
    assert caught.value.problems[0].pointer == "/training/lora/target_modules"


def test_a_pattern_is_the_list_of_what_it_reaches() -> None:
    """The job's adapters have the targets of the part, and none elsewhere."""
    section = {"method": "lora", "sequence_length": 1024, "images": {"patches": 400, "tokens": 100}}
    section["lora"] = {"rank": 8, "target_modules": r".*visual.*\.qkv"}
    plan = {"memcheck": 1, "model": {"architecture": QWEN2_5_VL}, "hardware": {"gpu": "h100"}, "training": section}
    lora = resolve(build_plan(plan), FRAMEWORKS, base_dir=".").job.lora
    assert lora is not None
    assert (lora.targets_in("vision"), lora.targets_in("language")) == (("attn.qkv",), ())


def test_paths_are_those_of_the_modules() -> None:
    """Where classes keep their parts, one layer of each: read off transformers 5.23's named_modules."""
    found = {layer.path for layer in linear_layers(read_architecture(MODELS["PaddlePaddle/PaddleOCR-VL"].config))}
    assert {
        "model.visual.vision_model.encoder.layers.26.self_attn.out_proj",
        "model.language_model.layers.0.mlp.down_proj",
        "model.projector.linear_2",
        "lm_head",
    } <= found
