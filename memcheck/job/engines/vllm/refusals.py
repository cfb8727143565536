"""What vLLM refuses before any question of memory: lengths, heads, pipelines, block sizes.

Source: vLLM ``config/model.py`` (``verify_with_parallel_config``, ``_get_and_verify_max_len``), ``v1/attention``.
"""

from __future__ import annotations

from memcheck.errors import UnsupportedError
from memcheck.job.engines.types import EngineSettings, Refusal
from memcheck.job.engines.vllm.caches import generation
from memcheck.job.engines.vllm.versions import Version
from memcheck.models.module_types import Attention, LatentAttention
from memcheck.models.types import Architecture

FP8_FROM = 80
"""Compute architecture from which an attention backend takes a cache in fp8 (a T4 has none)."""
BLOCK_STEP = 16
"""Every attention backend on NVIDIA GPUs takes multiples of 16 tokens."""


def refused(architecture: Architecture, settings: EngineSettings, version: Version, arch: str | None) -> Refusal | None:
    """Return the first error with which the engine ends before it measures memory; None if there is none."""
    if architecture.model_type in version.absent:
        return Refusal("setup", version.words["absent"], pointer="/model")
    mixers = [
        mixer
        for layer, _ in architecture.blocks
        for mixer in (layer.mixer, layer.second_mixer)
        if isinstance(mixer, Attention | LatentAttention)
    ]
    ranks = settings.tensor
    for mixer in mixers:
        if mixer.heads % ranks:
            return _setup(version.words["heads"].format(heads=mixer.heads, tensor=ranks), "tensor")
        if isinstance(mixer, Attention) and mixer.kv_heads % ranks and ranks % mixer.kv_heads:
            heads = f"{mixer.kv_heads} KV heads"
            words = f"AssertionError: {heads} neither divide nor are divided by tensor parallel size {ranks}"
            return _setup(words, "tensor")
    if settings.pipeline > 1 and architecture.model_type in version.no_pipeline:
        return _setup(version.words["pipeline"], "pipeline")
    if settings.length > settings.longest > 0:
        words = version.words["too_many"].format(length=settings.length, longest=settings.longest)
        return _setup(words, "max_model_len")
    if settings.kv_cache == "fp8" and 0 < generation(arch) < FP8_FROM and mixers:
        return _setup("No valid attention backend found: kv_cache_dtype fp8 is not supported on this GPU", "kv_cache")
    if settings.block is not None and settings.block % BLOCK_STEP and mixers:
        words = f"No valid attention backend found: block_size {settings.block} is no multiple of {BLOCK_STEP}"
        return _setup(words, "block_size")
    return None


def require_modelled(architecture: Architecture, version: Version, pipeline: int) -> None:
    """Check that memcheck knows how this version lays the model out.

    Raises:
        UnsupportedError: it is an encoder, its modules are others than those computed here, or a rank has no layer.
    """
    mixers = [layer.mixer for layer, _ in architecture.blocks]
    encoder = any(isinstance(mixer, Attention) and mixer.bidirectional for mixer in mixers)
    if (
        encoder
        or (architecture.encoder is not None and architecture.model_type not in ENCODED)
        or architecture.model_type in version.unmodelled
    ):
        raise UnsupportedError(
            f"memcheck has no model of vLLM {version.name} with {architecture.model_type}",
            "size the model without an engine, or exclude the plan",
            "/model",
        )
    if pipeline > architecture.num_layers:
        raise UnsupportedError(
            f"pipeline {pipeline} is more than the {architecture.num_layers} layers of the model",
            "write a smaller `pipeline`",
            "/inference/pipeline",
        )
    if architecture.vision is not None and architecture.vision.crosses:
        raise UnsupportedError(
            f"memcheck has no model of vLLM {version.name} with layers that read pictures by cross attention",
            "size its language model alone: `model: {part: language}`",
            "/model",
        )


ENCODED = ("whisper",)
"""Encoder-decoders whose cross attention memcheck computes."""


def _setup(words: str, key: str) -> Refusal:
    return Refusal(kind="setup", words=words, pointer=f"/inference/{key}")
