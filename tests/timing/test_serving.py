"""Seconds of a token and of a prompt while serving: against bounds worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from memcheck.catalog.names import find_gpu
from memcheck.errors import UnsupportedError
from memcheck.families.registry import catalog_architecture
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.resolve import resolve
from memcheck.job.types import InferenceJob, Layout
from memcheck.models.parameters import count_parameters
from memcheck.models.types import Rough
from memcheck.plan.read import build_plan
from memcheck.timing.serving import decode_time
from memcheck.timing.types import StepTime

HBM = 0.92 * 3.35e12
"""Bytes per second of an H100."""


def served(model: Any = "llama-3.1-8b", gpus: int = 1, tensor: int = 1, pipeline: int = 1, **keys: Any) -> StepTime:
    """The time of a served model on H100s; keys of ``inference`` by their names."""
    values = {
        "memcheck": 1,
        "model": model,
        "hardware": {"gpu": "h100-80gb", "gpus_per_node": gpus, "nodes": 1},
        "parallelism": {"tensor": tensor, "pipeline": pipeline},
        "inference": {"batch_size": 1, "context_length": 1024, "weights": "bf16", "kv_cache": "bf16", **keys},
    }
    job = resolve(build_plan(values), FRAMEWORKS, base_dir=".").job
    if not isinstance(job, InferenceJob):
        raise TypeError(job)
    return decode_time(job, find_gpu("h100-80gb"))


def test_a_token_takes_as_long_as_its_weights_are_read() -> None:
    """One sequence of Llama 3.1 8B: all weights but the embedding's, 15 GB at 92 % of 3.35 TB/s, and a little cache."""
    llama = catalog_architecture("llama-3.1-8b")
    read = 2 * (count_parameters(llama) - llama.vocab_size * llama.hidden_size)
    assert served().seconds == pytest.approx(read / HBM, rel=0.02)
    assert served().compute_seconds == 0
    assert served().tokens_per_second_per_gpu == pytest.approx(1 / served().seconds)


def test_the_cache_is_read_for_every_token() -> None:
    """32 layers of 8 heads of 128, keys and values, 16 sequences of 32,768 tokens: 68.7 GB; in fp8 half of that."""
    wide, narrow = (served(batch_size=16, context_length=32768, kv_cache=dtype) for dtype in ("bf16", "fp8"))
    cache = 2 * 2 * 8 * 128 * 32 * 16 * 32768
    assert wide.seconds - narrow.seconds == pytest.approx(cache / 2 / HBM, rel=0.01)


def test_more_sequences_share_the_weights() -> None:
    """Throughput grows with the batch, less than in proportion once caches weigh, and arithmetic takes over at last."""
    rates = [served(batch_size=n, context_length=128).tokens_per_second_per_gpu for n in (1, 8, 64, 1024)]
    assert 7 < rates[1] / rates[0] < 8
    assert rates == sorted(rates)
    assert served(batch_size=1024, context_length=128).compute_seconds > 0


def test_smaller_weights_are_read_faster() -> None:
    """int4 rests in a quarter; the head stays in 16 bits."""
    wide, narrow = served(weights="bf16").seconds, served(weights="int4").seconds
    assert 2.5 < wide / narrow < 4


def test_tensor_ranks_share_the_reading_and_wait_for_each_other() -> None:
    """Eight ranks are faster than one and less than eight times, by two all-reduces a layer."""
    one, eight = served("llama-3.1-8b", 8), served("llama-3.1-8b", 8, 8)
    assert eight.exchanges.tensor > 0
    assert 2.5 < one.seconds / eight.seconds < 8
    assert eight.seconds - eight.exchanges.tensor == pytest.approx(one.seconds / 8, rel=0.05)


def test_a_pipeline_is_no_faster_for_one_token() -> None:
    """A token passes all stages; the GPUs of the others are idle meanwhile."""
    one, two = served("llama-3.1-8b", 2), served("llama-3.1-8b", 2, 1, 2)
    assert two.seconds >= one.seconds
    assert two.tokens_per_second_per_gpu == pytest.approx(one.tokens_per_second_per_gpu / 2, rel=0.05)


def test_few_tokens_read_few_experts() -> None:
    """Mixtral: one token reads two of eight experts, many read all."""
    few, many = (served("mixtral-8x7b", batch_size=n, context_length=128).hbm_seconds for n in (1, 64))
    assert 3 < many / few < 4


def test_tensor_ranks_add_up_what_their_experts_made() -> None:
    """All of them have the same tokens: dealing the experts out sends none, and reads and multiplies no more."""
    eight, mixtral = Layout(gpus_per_node=8, tensor=8), catalog_architecture("mixtral-8x7b")
    cut, dealt = (
        decode_time(InferenceJob(mixtral, eight._replace(expert=n), 64, 1024, "bf16", "bf16"), find_gpu("h100-80gb"))
        for n in (1, 8)
    )
    assert dealt.exchanges.expert == 0.0
    assert dealt.hbm_seconds == pytest.approx(cut.hbm_seconds, rel=0.01)
    assert dealt.prefill_seconds == pytest.approx(cut.prefill_seconds, rel=0.05)


def test_a_prompt_is_a_forward_pass() -> None:
    """Prefill: two FLOPs a parameter and token, and attention, at no more than what matrix products reach."""
    llama = catalog_architecture("llama-3.1-8b")
    flops = 2 * 8192 * (count_parameters(llama) - 2 * llama.vocab_size * llama.hidden_size)
    prompt = served(context_length=8192).prefill_seconds
    assert flops / (0.803 * 989e12) < prompt < 1.5 * flops / (0.803 * 989e12)
    assert served(context_length=32768).prefill_seconds > 4 * prompt


def test_latent_caches_are_small() -> None:
    """DeepSeek-V2-Lite's cache of a token is 576 numbers a layer, whatever the heads."""
    short, long = (served("deepseek-v2-lite", batch_size=8, context_length=n).hbm_seconds for n in (1024, 65536))
    assert long - short == pytest.approx(8 * (65536 - 1024) * 576 * 2 * 27 / HBM, rel=0.05)


def test_a_rough_model_is_not_timed() -> None:
    """Its layers are not known; the error says what to write."""
    values = {
        "memcheck": 1,
        "model": "llama-3.1-8b",
        "hardware": {"gpu": "h100-80gb"},
        "inference": {"batch_size": 1, "context_length": 128},
    }
    job = resolve(build_plan(values), FRAMEWORKS, base_dir=".").job
    if not isinstance(job, InferenceJob):
        raise TypeError(job)
    with pytest.raises(UnsupportedError, match="no layers"):
        decode_time(job._replace(architecture=Rough(10**9, 8, 1024, 10.0, None)), find_gpu("h100-80gb"))
