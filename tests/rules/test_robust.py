"""No plan that the schema accepts makes a rule fail."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.plan.read import load_documents, read_plan
from memcheck.rules.run import check_layout, make_context

DEGREE = st.sampled_from([1, 2, 3, 4, 7, 8, 16, 64, 1024, 1048576])
MODELS = ("llama-3.1-8b", "mixtral-8x7b", "gpt2", "qwen2.5-7b", "deepseek-v3", "gemma-2-9b")
ROUGH = {"rough": {"parameters": "7B", "layers": 32, "hidden_size": 4096, "activation_multiplier": 10}}
(TEMPLATE,) = load_documents(
    "plan.yaml", b"memcheck: 1\nmodel: llama-3.1-8b\nhardware: {gpu: h100-80gb}\ntraining: {framework: megatron}\n"
)

PARALLELISM = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("tensor", "context", "pipeline", "virtual_stages", "expert", "expert_tensor"), DEGREE),
        "data": st.one_of(DEGREE, st.just("auto")),
        "zero_stage": st.integers(0, 3),
        "shard_group": st.one_of(DEGREE, st.just("auto")),
        "sequence": st.booleans(),
        "pipeline_schedule": st.sampled_from(["gpipe", "1f1b", "interleaved-1f1b", "zero-bubble", "dualpipe"]),
    },
)
TRAINING = st.fixed_dictionaries(
    {"micro_batch_size": DEGREE, "sequence_length": st.sampled_from([1, 1023, 4096, 1073741824])},
    optional={
        "framework": st.sampled_from(
            ["huggingface", "pytorch", "torchtitan", "megatron", "deepspeed", "litgpt", "torchtune"]
        ),
        "global_batch_size": DEGREE,
        "method": st.sampled_from(["full", "lora", "qlora"]),
        "precision": st.sampled_from(["fp32", "bf16-mixed", "fp16-mixed", "fp8-mixed", "bf16-pure", "fp16-pure"]),
        "loss": st.sampled_from(["standard", "chunked", "fused-linear", "vocab-parallel"]),
        "attention": st.sampled_from(["flash", "sdpa", "flex", "eager"]),
        "activation_checkpointing": st.sampled_from(["none", "selective", "full"]),
        "freeze": st.lists(st.sampled_from(["embed", "layers:0-8", "layers:9-9", "layers:0-999999"]), max_size=3),
        "options": st.dictionaries(
            st.sampled_from(["reduce_bucket_size", "cp_comm_type", "nothing", "use_distributed_optimizer"]),
            st.one_of(
                st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), st.lists(st.integers())
            ),
            max_size=3,
        ),
    },
)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    model=st.one_of(st.sampled_from(MODELS), st.just(ROUGH)),
    gpu=st.sampled_from(["h100-80gb", "t4", "mi300x"]),
    gpus=DEGREE,
    parallelism=PARALLELISM,
    training=TRAINING,
)
def test_rules_answer_every_valid_plan(model: Any, gpu: str, gpus: int, parallelism: Any, training: Any) -> None:
    """However odd the numbers, each finding has a place, a message and a severity, and comes quickly."""
    hardware = {"gpu": gpu, "gpus_per_node": min(gpus, 65536)}
    values = {
        "memcheck": 1,
        "model": model,
        "hardware": hardware,
        "parallelism": parallelism,
        "training": training,
    }
    document = TEMPLATE._replace(values=values)
    plan, _ = read_plan(document)
    assert plan is not None
    context = make_context(plan, document, resolve(plan, FRAMEWORKS, base_dir="."), fail_above=0.9, warn_above=0.85)
    findings, possible = check_layout(context)
    for finding in findings:
        assert finding.message
        assert finding.location.path == "plan.yaml"
        assert len(finding.message) + len(finding.help) < 2000
    layout = context.layout
    if possible and not any(f.severity == "error" for f in findings):
        assert layout.tensor * layout.context * layout.pipeline * layout.data == layout.world_size
