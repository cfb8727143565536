"""What each rank of a pipeline holds, and which of them is the slowest."""

from __future__ import annotations

from typing import Any

import pytest

from memcheck.catalog.names import find_gpu
from memcheck.models.types import Architecture
from memcheck.timing.model import Stage, parts_of, shape_of, stages_of
from memcheck.timing.rates import rates_of
from tests.timing.plans import job, timed

WRITTEN = "pipeline_model_parallel_layout"


def held(model: str = "llama-3.1-8b", gpus: int = 8, framework: str = "megatron", **keys: Any) -> tuple[Stage, ...]:
    """The distinct ranks of a job."""
    one = job(model, gpus, framework, gradient_accumulation_steps=32, **keys)
    assert isinstance(one.architecture, Architecture)
    return stages_of(one.architecture, one, one.layout.pipeline)


def test_stages_are_even_unless_the_options_say_otherwise() -> None:
    """32 layers over 4 ranks: eight each; six on the first as Megatron is told; as many as a written layout has."""
    assert [s.layers_by_run for s in held(pipeline=4)] == [(8,)] * 3
    assert [s.ranks for s in held(pipeline=4)] == [1, 2, 1]
    first = held(pipeline=3, gpus=24, tensor=8, options={"decoder_first_pipeline_num_layers": 6})
    assert [(s.layers_by_run, s.has_embedding, s.has_head) for s in first] == [
        ((6,), True, False),
        ((13,), False, False),
        ((13,), False, True),
    ]
    written = held(pipeline=4, options={WRITTEN: "Et*7|(t*9|)*2t*7L"})
    assert [s.layers_by_run for s in written] == [(7,), (9,), (7,)]
    assert [s.layers_by_run for s in held(pipeline=4, framework="torchtitan")] == [(8,)] * 3


def test_virtual_stages_of_a_rank_add_up() -> None:
    """Two ranks with two chunks each: the first holds the first and the third."""
    found = held(pipeline=2, virtual_stages=2, options={WRITTEN: "Et*4|t*8|t*12|t*8L"})
    assert [(s.layers_by_run, s.has_embedding, s.has_head) for s in found] == [
        ((16,), True, False),
        ((16,), False, True),
    ]


def test_prediction_layers_are_where_the_layout_has_them() -> None:
    """One more layer of the last kind: behind the last layers unless a written layout says so."""
    keys = {"model": "deepseek-v3", "gpus": 128, "sequence_length": 4096, "pipeline": 4, "expert": 8}
    plain = held(**keys, options={WRITTEN: "Et*16|(t*15|)*2t*15mL", "mtp_num_layers": 1})
    assert [(s.layers_by_run, s.mtp_layers) for s in plain] == [((3, 13), 0), ((0, 15), 0), ((0, 16), 1)]
    alone = held(**{**keys, "pipeline": 1, "gpus": 8}, options={"mtp_num_layers": 1})
    assert [(s.layers_by_run, s.mtp_layers) for s in alone] == [((3, 59), 1)]


def test_a_prediction_layer_costs_a_layer_and_a_head() -> None:
    """Multi-token prediction adds the arithmetic of a layer, of another head and of the product ahead of them."""
    keys = {"sequence_length": 4096, "tensor": 2}
    one, more = (timed(framework="megatron", options=o, **keys) for o in ({}, {"mtp_num_layers": 1}))
    plain = job(framework="megatron", options={"mtp_num_layers": 1}, **keys)
    assert isinstance(plain.architecture, Architecture)
    r = rates_of(find_gpu("h100-80gb"), "bf16", 8, engine_attention=True, fp8=False)
    parts = parts_of(plain.architecture, shape_of(plain), r)
    (cost,), head = parts.layer_costs, parts.head_cost
    layer = (
        cost.forward.arithmetic_seconds
        + cost.input_gradients.arithmetic_seconds
        + cost.weight_gradients.arithmetic_seconds
    )
    expected = (
        layer
        + head.forward.arithmetic_seconds
        + head.backward.arithmetic_seconds
        + head.mtp_projection.arithmetic_seconds
    )
    assert more.compute_seconds - one.compute_seconds == pytest.approx(expected)
    assert head.mtp_projection_parameters == 2 * 4096 * 4096 // 2
    assert more.exchanges.tensor > one.exchanges.tensor


def test_model_flops_count_what_is_predicted() -> None:
    """Per token: another layer, another head and a product of twice the width, whatever the pipeline."""
    per_token = []
    for pipeline, options in ((1, {}), (1, {"mtp_num_layers": 1}), (2, {"mtp_num_layers": 1})):
        time = timed(framework="megatron", pipeline=pipeline, sequence_length=4096, options=options)
        per_token.append(time.model_tflops_per_gpu / time.tokens_per_second_per_gpu)
    layer = 4096 * (2 * 4096 + 2 * 1024 + 3 * 14336) + 4096 * 4096
    extra = 6 * (layer + 128256 * 4096 + 2 * 4096 * 4096) / 1e12
    assert per_token[1] - per_token[0] == pytest.approx(extra, rel=1e-3)
    assert per_token[2] == pytest.approx(per_token[1])


def test_a_balanced_layout_is_faster() -> None:
    """The last rank, which predicts and has two heads, decides unless it has fewer layers."""
    keys = {"sequence_length": 4096, "pipeline": 4, "gradient_accumulation_steps": 32}
    even, fewer = (
        timed(framework="megatron", options={WRITTEN: text, "mtp_num_layers": 1}, **keys).seconds
        for text in ("Et*8|(t*8|)*2t*8mL", "Et*9|(t*9|)*2t*5mL")
    )
    assert fewer < even
