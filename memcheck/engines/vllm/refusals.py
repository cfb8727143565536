"""What vLLM refuses before any question of memory: lengths, heads, pipelines, block sizes.

Source: vLLM ``config/model.py`` (``verify_with_parallel_config``, ``_get_and_verify_max_len``), ``v1/attention``.
"""

from __future__ import annotations

from memcheck.engines.types import EngineSettings, Refusal
from memcheck.engines.vllm.versions import Version
from memcheck.models.attention_types import Attention, LatentAttention
from memcheck.models.types import Architecture

BLOCK_STEP = 16
"""Every attention backend on NVIDIA GPUs takes multiples of 16 tokens."""


def refused(a: Architecture, settings: EngineSettings, version: Version) -> Refusal | None:
    """The first error with which the engine ends before it looks at memory; None: it looks."""
    mixers = [m for b, _ in a.blocks for m in (b.mixer, b.second_mixer) if isinstance(m, Attention | LatentAttention)]
    t = settings.tensor
    for m in mixers:
        if m.heads % t:
            return _setup(version.words["heads"].format(heads=m.heads, tensor=t), "tensor")
        if isinstance(m, Attention) and m.kv_heads % t and t % m.kv_heads:
            words = f"AssertionError: {m.kv_heads} KV heads neither divide nor are divided by tensor parallel size {t}"
            return _setup(words, "tensor")
    if settings.pipeline > 1 and a.model_type in version.no_pipeline:
        return _setup(version.words["pipeline"], "pipeline")
    if settings.length > settings.longest > 0:
        words = version.words["too_many"].format(length=settings.length, longest=settings.longest)
        return _setup(words, "max_model_len")
    if settings.block is not None and settings.block % BLOCK_STEP and mixers:
        words = f"No valid attention backend found: block_size {settings.block} is no multiple of {BLOCK_STEP}"
        return _setup(words, "block_size")
    return None


def _setup(words: str, key: str) -> Refusal:
    return Refusal(kind="setup", words=words, pointer=f"/inference/{key}")
