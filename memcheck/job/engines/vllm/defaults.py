"""Defaults of vLLM that depend on the GPU and the model.

Source: vLLM 0.20.2 and 0.33.0 ``engine/arg_utils.py`` (``get_batch_defaults``), ``config/vllm.py``
(``_set_cudagraph_sizes``), ``config/model.py`` (``_get_and_verify_max_len``).
"""

from __future__ import annotations

from memcheck.catalog.names import Gpu
from memcheck.job.engines.types import Captures, EngineSettings
from memcheck.job.engines.vllm.versions import Version
from memcheck.models.module_types import Attention, LatentAttention, Mixer
from memcheck.models.types import Architecture
from memcheck.record import Record

GIB = 2**30
LARGEST, LARGE = 160, 70
"""GiB of a GPU from which the defaults are larger."""
SMALL_TIER = ("a100", "gb10")
"""GPUs with the defaults of small ones, whatever their memory."""
STATE_LENGTH = 2048
"""``max_model_len`` of a model whose configuration states no limit (``default_max_len``)."""


class BatchLimits(Record):
    """How much an engine runs in one forward pass."""

    tokens: int
    """``max_num_batched_tokens``."""
    sequences: int
    """``max_num_seqs``."""


def batch_defaults(gpu: Gpu, version: Version) -> BatchLimits:
    """Return the default limits of a batch of an API server on a GPU."""
    if gpu.memory_bytes >= LARGEST * GIB:
        return BatchLimits(tokens=version.largest_batch, sequences=1024)
    if _is_large(gpu):
        return BatchLimits(tokens=8192, sequences=1024)
    return BatchLimits(tokens=2048, sequences=256)


def _is_large(gpu: Gpu) -> bool:
    """Say whether a GPU has the defaults of large ones."""
    return gpu.memory_bytes >= LARGE * GIB and not gpu.name.lower().startswith(SMALL_TIER)


def offline_tokens(gpu: Gpu) -> int:
    """Return the default ``max_num_batched_tokens`` of the class ``LLM`` on a GPU."""
    return 16384 if _is_large(gpu) else 8192


def default_length(architecture: Architecture) -> int:
    """``max_model_len`` where the plan states none: the positions of the configuration."""
    return architecture.max_position_embeddings or STATE_LENGTH


def default_prefixes(architecture: Architecture, version: Version) -> bool:
    """Say whether prefix caching is on by default: not for encoder-decoders, and not for models of recurrent layers
    alone.
    """
    if architecture.encoder is not None or architecture.model_type in version.whole_prompts:
        return False
    mixers = [mixer for layer, _ in architecture.blocks for mixer in (layer.mixer, layer.second_mixer)]
    if not any(isinstance(mixer, Mixer) for mixer in mixers):
        return True
    return version.caches_hybrid_prefixes and any(isinstance(mixer, Attention | LatentAttention) for mixer in mixers)


def capture_sizes(architecture: Architecture, settings: EngineSettings, version: Version, arch: str | None) -> Captures:
    """Return the batch sizes for which CUDA graphs are captured: 1, 2, 4, then in steps of 8, and of 16 from 256 on.

    GPT-OSS raises the limit from 512 to 1,024, and so do Blackwell GPUs of data centres from 0.33 on.
    """
    if settings.eager:
        return Captures()
    raised_limit = architecture.model_type == "gpt_oss" or (version.pads_pages and arch in ("sm_100", "sm_103"))
    most = min(2 * settings.sequences, 1024 if raised_limit else 512, settings.batched_tokens)
    sizes = [size for size in (1, 2, 4, *range(8, 256, 8), *range(256, most + 1, 16)) if size <= most]
    return Captures(sizes=len(sizes), largest=max(sizes, default=0))
