"""Will it boot: public boots, plans whose answer is known, input that is refused, and what may never shrink."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memcheck.errors import MemcheckError
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.engines.types import EngineAnswer
from memcheck.job.resolve import resolve
from memcheck.memory.estimate import estimate
from memcheck.plan.read import build_plan

GIB = 2**30
EAGER = {"version": "0.33.0", "enforce_eager": True}


def answer(model: object, gpu: str, gpus: int = 1, **inference: object) -> EngineAnswer:
    values = {
        "memcheck": 1,
        "model": model,
        "hardware": {"gpu": gpu, "gpus_per_node": gpus},
        "inference": {"engine": "vllm", **inference},
    }
    resolved = resolve(build_plan(values), FRAMEWORKS, base_dir=".")
    found = estimate(resolved.job, resolved.gpu).engine
    assert found is not None
    return found


PLANS = {
    "llama-8b-l40s": (("llama-3.1-8b", "l40s"), {**EAGER, "max_model_len": 131072}, "boots"),
    "llama-70b-tp4": (("llama-3.3-70b", "h100-80gb", 4), {**EAGER, "tensor": 4, "max_model_len": 131072}, "boots"),
    "qwen3-32b-16k": (("qwen3-32b", "h100-80gb"), {"version": "0.11.0", "max_model_len": 16000}, "boots"),
    "qwen3-32b-32k": (("qwen3-32b", "h100-80gb"), {"version": "0.11.0", "max_model_len": 32000}, "does_not_boot"),
    "gpt-oss-120b": (
        ("gpt-oss-120b", "h100-80gb"),
        {**EAGER, "weights": "fp4", "gpu_memory_utilization": 0.95},
        "boots",
    ),
    "gemma-3-27b-tp2": (("gemma-3-27b", "h100-80gb", 2), {**EAGER, "tensor": 2, "max_model_len": 131072}, "boots"),
    "qwen3-next-tp4": (("qwen3-next-80b-a3b", "h100-80gb", 4), {**EAGER, "tensor": 4}, "boots"),
    "deepseek-v3-fp8": (("deepseek-v3", "h200", 8), {**EAGER, "tensor": 8, "weights": "fp8"}, "boots"),
    "qwen2.5-7b-4090": (("qwen2.5-7b", "rtx-4090"), {**EAGER, "max_model_len": 8192}, "boots"),
    "graphs-unknown": (("llama-3.1-8b", "l40s"), {"version": "0.33.0", "max_model_len": 8192}, "depends"),
    "graphs-stated": (
        ("llama-3.1-8b", "l40s"),
        {"version": "0.33.0", "max_model_len": 8192, "graphs_gib": 1.5},
        "boots",
    ),
    "before-the-oldest": (("llama-3.1-8b", "l40s"), {"version": "0.9.1", "enforce_eager": True}, "depends"),
    "heads": (("falcon-7b", "l40s", 2), {"tensor": 2}, "does_not_boot"),
    "share-of-everything": (("llama-3.1-8b", "l40s"), {**EAGER, "gpu_memory_utilization": 0.999}, "does_not_boot"),
    "no-room": (("llama-3.3-70b", "h100-80gb"), EAGER, "does_not_boot"),
}


def test_the_room_of_graphs_is_where_the_answer_turns() -> None:
    """With graphs just below the room the engine boots, with graphs above it does not."""
    open_ = answer("llama-3.1-8b", "l40s", version="0.33.0", max_model_len=8192)
    room = open_.graphs_room_bytes
    assert room is not None
    for more, expected in ((-0.01, "boots"), (1.5, "does_not_boot")):
        stated = answer("llama-3.1-8b", "l40s", version="0.33.0", max_model_len=8192, graphs_gib=room / GIB + more)
        assert stated.answer == expected, more
        assert stated.graphs_room_bytes is None
    tight = answer("llama-3.1-8b", "rtx-4090", version="0.33.0", max_model_len=16384)
    assert (tight.answer, tight.graphs_room_bytes) == ("depends", None)


@pytest.mark.parametrize("name", PLANS)
def test_answer(name: str) -> None:
    """Each plan has the answer of the engine's arithmetic by hand."""
    where, inference, expected = PLANS[name]
    assert answer(*where, **inference).answer == expected


BOOTS = {
    "gpt-oss-20b": (("gpt-oss-20b", "h100-80gb"), {"weights": "fp4"}, 50.28, None),
    "llama-3.3-70b-fp8-tp2": (("llama-3.3-70b", "h100-80gb", 2), {"weights": "fp8", "tensor": 2}, 32.00, None),
    "qwen3-0.6b": (("qwen3-0.6b", "h100-80gb"), {}, 64.45, None),
    "mistral-small-3.2": (("mistral-small-3.2-24b", "h100-80gb"), {"gpu_memory_utilization": 0.95}, 28.20, 184832),
}
"""Pools and tokens that vLLM 0.11.0 logged: llm-d-incubation/llm-d-planner docs/empirical-vllm-memory-results.md."""


@pytest.mark.parametrize("name", BOOTS)
def test_public_boot(name: str) -> None:
    """The pool of a public boot is within 3 % or half a GiB, and inside the interval; its tokens follow from it."""
    where, inference, logged, tokens = BOOTS[name]
    stated = {"version": "0.11.0", "max_model_len": 16000, "block_size": 128, **inference}
    found = answer(*where, **stated)
    assert found.answer == "boots"
    assert abs(found.pool_bytes / GIB - logged) <= max(0.5, 0.03 * logged)
    low, high = found.pool_interval_bytes
    assert low / GIB - 0.1 <= logged <= high / GIB + 0.1
    if tokens is not None:
        given_pool = {k: v for k, v in stated.items() if k != "gpu_memory_utilization"}
        pool = answer(*where, **given_pool, kv_cache_bytes=int(logged * GIB)).pool
        assert pool is not None
        assert pool.tokens == pytest.approx(tokens, rel=0.001)


def test_pool_of_a_public_boot_with_states() -> None:
    """Tokens and concurrency of club-3090 issue 612: vLLM 0.24.0, Qwen3.6-35B-A3B, fp8 cache, prefixes cached."""
    found = answer(
        *("qwen3.5-35b-a3b", "rtx-5090"),
        version="0.24.0",
        weights="fp4",
        kv_cache="fp8",
        kv_cache_bytes=int(5.98 * GIB),
        max_model_len=131072,
        max_num_batched_tokens=8192,
        max_num_seqs=1,
        prefix_caching=True,
    )
    assert found.pool is not None
    assert (found.pool.tokens, round(found.pool.concurrency, 2)) == (567978, 4.33)


def test_words_of_the_engine() -> None:
    """The error has the words of that version, with its numbers."""
    found = answer("qwen3-32b", "h100-80gb", version="0.20.2", max_model_len=32000, gpu_memory_utilization=0.85)
    assert found.refusal is not None
    assert found.refusal.words.startswith(
        "To serve at least one request with the models's max seq len (32000), (7.81 GiB KV cache is needed, which is"
    )


def test_unknown_version_is_computed_as_both_around_it() -> None:
    """The known versions around it are named with their answers, and a difference makes it depend on the version."""
    found = answer("llama-3.1-8b", "l40s", version="0.28.1", enforce_eager=True)
    assert found.enclosing == (("0.24.0", "boots"), ("0.33.0", "boots"))
    assert found.answer == "boots"
    mixed = answer("qwen3-32b", "h100-80gb", version="0.15.0", max_model_len=16000)
    assert mixed.answer == "depends"
    assert mixed.depends_on[0] == "version"


@pytest.mark.parametrize(
    ("gpu", "inference"),
    [
        ("l40s", {"gpu_memory_utilization": 1.5}),
        ("l40s", {"gpu_memory_utilization": 0.9, "kv_cache_bytes": 1}),
        ("l40s", {"context_length": 4096}),
        ("l40s", {"version": "latest"}),
        ("l40s", {"images": True}),
        ("l40s", {"enforce_eager": True, "graphs_gib": 1}),
        ("l40s", {"kv_cache": "int8"}),
        ("mi300x", {}),
    ],
)
def test_refused_input(gpu: str, inference: dict) -> None:
    """What excludes itself, is no version, or has no model is an error on its key."""
    with pytest.raises(MemcheckError):
        answer("llama-3.1-8b", gpu, **inference)


MODELS = ("llama-3.1-8b", "gemma-3-4b", "qwen3-next-80b-a3b", "deepseek-v2-lite", "gpt-oss-20b")


@settings(max_examples=25, deadline=None)
@given(
    model=st.sampled_from(MODELS),
    share=st.floats(0.5, 0.95),
    length=st.integers(256, 4096),
    tokens=st.integers(256, 8192),
    sequences=st.integers(1, 512),
)
def test_more_share_is_never_less(model: str, share: float, length: int, tokens: int, sequences: int) -> None:
    """More of the GPU is never fewer tokens. Longer requests, more sequences or tokens are never more room."""

    def tried(**changes: object) -> tuple[int, int]:
        stated = {
            **EAGER,
            "gpu_memory_utilization": share,
            "max_model_len": length,
            "max_num_seqs": sequences,
            "max_num_batched_tokens": tokens,
            **changes,
        }
        found = answer(model, "h200", **stated)
        return (found.pool.blocks if found.pool is not None else 0), found.request_bytes

    blocks, request = tried()
    assert tried(gpu_memory_utilization=min(0.96, share + 0.04))[0] >= blocks
    assert tried(max_num_seqs=2 * sequences)[0] <= blocks
    more_tokens, larger = tried(max_num_batched_tokens=2 * tokens)
    assert more_tokens <= blocks
    assert larger >= request
    assert tried(max_model_len=2 * length)[1] >= request
