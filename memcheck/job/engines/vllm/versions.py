"""Which versions of vLLM memcheck knows, and what moved between them (``versions.json``).

Defaults of vLLM that depend on the GPU and the model.

Source: vLLM 0.20.2 and 0.33.0 ``engine/arg_utils.py`` (``get_batch_defaults``), ``config/vllm.py``
(``_set_cudagraph_sizes``), ``config/model.py`` (``_get_and_verify_max_len``).
"""

from __future__ import annotations

import os
from functools import lru_cache

from memcheck.catalog.names import Gpu
from memcheck.edge.json_text import read_own_json
from memcheck.job.engines.types import Captures, EngineSettings
from memcheck.models.module_types import Attention, LatentAttention, Mixer
from memcheck.models.types import Architecture
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


PATH = os.path.join(os.path.dirname(__file__), "versions.json")


class Version(Record):
    """One version of vLLM that memcheck knows: its defaults, its model types, and how it plans the KV cache."""

    name: str
    share: float
    """Default of ``gpu_memory_utilization``."""
    largest_batch: int
    """Default of ``max_num_batched_tokens`` on GPUs of 160 GiB and more."""
    null_block: bool
    """One block is held back before the check of one request."""
    overlapping_batches: bool
    """Batches are scheduled while the one before runs: windows keep the tokens of both."""
    pads_pages: bool
    """Pages that do not divide the largest are padded."""
    shares_indices: bool
    """Layers that use an earlier indexer's choice have none of their own (GLM 5.2)."""
    exports_states: bool
    """A prefill exports states in its middle, for which a request has one page more."""
    caches_hybrid_prefixes: bool
    """Prefix caching is on for models with recurrent states, which then hold several pages of a state."""
    profile: str
    """``fit`` (four public boots) | ``unknown``: how the transient of the profile run is estimated."""
    graphs_in_share: bool
    """CUDA graphs are estimated at start, and taken off the pool."""
    both_ends: tuple[str, ...]
    """Model types that hold embedding and head on every pipeline rank."""
    table_on_last: tuple[str, ...]
    """Model types that hold the embedding on the last rank as well as on the first, although the head is not tied."""
    whole_networks: tuple[str, ...]
    """Model types whose feed-forward networks tensor parallelism does not divide: transformers has no plan for them."""
    whole_attention: tuple[str, ...]
    """Model types whose attention it does not divide."""
    own_rotation: tuple[str, ...]
    """Model types that run transformers' modules, which make their rotation anew each time."""
    whole_prompts: tuple[str, ...]
    """Model types whose prompts are not cut into chunks, so that a pass takes the longest request."""
    no_pipeline: tuple[str, ...]
    """Model types that cannot be divided over pipeline ranks."""
    unmodelled: tuple[str, ...]
    """Model types whose modules hold more than memcheck computes: their plans are refused."""
    absent: tuple[str, ...]
    """Model types that the version cannot run."""
    stretched_rotation: tuple[str, ...]
    """Model types with a rotary table of four times the positions (``MRotaryEmbedding``)."""
    mask_of_positions: tuple[str, ...]
    """Model types with a buffer of one byte for each pair of positions."""
    words: dict[str, Any]
    """Errors by kind, with ``{names}`` for numbers."""

    def too_long(self, length: int, needed: str, available: str, longest: int) -> str:
        """Return the error about a request that does not fit, with its numbers; ``longest``: tokens that would fit, or
        0.
        """
        estimate = self.words["estimate"].format(estimated=longest) if longest > 0 else ""
        return str(self.words["too_long"].format(length=length, needed=needed, available=available, estimate=estimate))


@lru_cache(maxsize=1)
def known() -> tuple[Version, ...]:
    """List every version of vLLM that memcheck knows, oldest first."""
    data = read_own_json(PATH)
    return tuple([Version(name=name, **_tuples(row)) for name, row in data["versions"].items()])


def _tuples(row: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}


def order(name: str) -> tuple[int, int, int] | None:
    """Return (major, minor, patch) of a version's name, whatever comes after them; None: it is no version."""
    text = name.removeprefix("v")
    end = next((i for i, letter in enumerate(text) if letter not in DIGITS and letter != "."), len(text))
    parts = text[:end].rstrip(".").split(".")
    if not 2 <= len(parts) <= 3 or len(name) > MOST_LETTERS or not all(1 <= len(part) <= 4 for part in parts):
        return None
    if not all(letter.isalnum() or letter in ".+-" for letter in text[end:]):
        return None
    major, minor, *patch = [int(part) for part in parts]
    return major, minor, patch[0] if patch else 0


DIGITS = "0123456789"
MOST_LETTERS = 40
"""Letters of a version's name at most."""


def enclosing(name: str) -> tuple[Version, ...]:
    """Return the known version of vLLM of that name, or else its two known neighbours, the older first.

    Before the oldest known version, and after the newest, there is only one neighbour.

    Raises:
        ValueError: ``name`` is no version.
    """
    place = order(name)
    if place is None:
        raise ValueError(name)
    versions = known()
    for version in versions:
        if order(version.name) == place:
            return (version,)
    before = [v for v in versions if (order(v.name) or place) < place]
    after = [v for v in versions if (order(v.name) or place) > place]
    return (*before[-1:], *after[:1])


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
