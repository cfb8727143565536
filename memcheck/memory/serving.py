"""What a serving rank holds at its peak, tensor by tensor, and each component's arithmetic.

The KV cache of a plan without an engine, in the blocks and pages in which serving engines keep it.

Windows keep the tokens in flight as well, groups of layers are padded to one page, recurrent states have several pages.
The arithmetic is that of vLLM's newest version that memcheck knows, which is the largest of the known ones.
"""

from __future__ import annotations

from memcheck.accounts.estimate import Formula, TensorGroup
from memcheck.autograd import rounded
from memcheck.autograd.curve import Inventory
from memcheck.autograd.tensor import ceil_div
from memcheck.errors import UnsupportedError
from memcheck.job.engines.types import Cache, CacheGroup, EngineSettings
from memcheck.job.engines.vllm.caches import layer_caches
from memcheck.job.engines.vllm.planner import WINDOWS, grouped, on_rank, request_pages
from memcheck.job.engines.vllm.versions import Version, known
from memcheck.job.types import DTYPE_BYTES, InferenceJob
from memcheck.models.types import Architecture, Attention, Block, LatentAttention, ParameterTensor
from memcheck.record import Record

TERMS = 6
"""Tensors of the working set that a formula names."""
SHAPES = "the shapes of the model's modules"
SCALES = {
    "int8": "; one fp16 scale per 128 weights",
    "int4": "; fp16 scale and 4-bit zero per group of 128 (GPTQ, AWQ)",
    "fp4": "; one fp8 scale per 16 weights (NVFP4)",
}
CACHE = "vLLM v1/kv_cache_interface.py: keys and values in blocks, whole groups of layers at a time"
LATENT = (
    "DeepSeek-V2 (arXiv 2405.04434), section 2.1: the cache holds the compressed keys and values, and one rotary key"
)
STATE = "vLLM v1/kv_cache_interface.py: pages of convolution and recurrent states, whatever the number of tokens"
LOGITS = "transformers generation/utils.py: the last token's logits, copied to fp32"
WORKING = "transformers modeling files, replayed by memcheck.frameworks"
"""Sources that formulas name."""


class Weight(Record):
    """One resident tensor on this rank."""

    tensor: ParameterTensor
    shape: tuple[int, ...]
    """Shape on this rank."""
    elements: int
    """Elements on this rank."""
    dtype: str
    """Dtype in which it is stored."""
    bytes: int
    """Bytes on the GPU, rounded up to 512."""


class ServingRank(Record):
    """The tensors of one serving rank at the peak of a prefill, in bytes."""

    weights: tuple[tuple[Weight, int], ...]
    """Weights of the rank, each with the number of equal ones: equal layers have equal weights."""
    caches: tuple[tuple[Block, int, int], ...]
    """The KV cache of each kind of layer: bytes for all sequences, and the number of equal layers."""
    working: int
    """Peak bytes of the activations of a forward pass."""
    inventory: Inventory
    """What the working set is made of."""
    vocabulary: int
    """Logits of a token on this rank; 0 without the head."""

    def logits(self, sequences: int) -> int:
        """Bytes of the logits of the last token of each sequence, in fp32."""
        return rounded(4 * sequences * self.vocabulary)


def ledger(job: InferenceJob, rank: ServingRank) -> tuple[TensorGroup, ...]:
    """List the groups of equal live tensors of a serving rank, the largest first."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    rows = [
        (weight.tensor.name, f"{_shape(weight.shape)} {weight.dtype}", "parameters", weight.bytes, times)
        for weight, times in rank.weights
    ]
    rows += [
        (f"cache of {_kind(block)}", _cached(job, block), "kv_cache", size, times)
        for block, size, times in rank.caches
        if size
    ]
    rows += [
        (name, f"{_shape(shape)} {dtype}", "activations", size, 1) for name, shape, dtype, size, *_ in rank.inventory
    ]
    if rank.vocabulary:
        shape = f"{_shape((job.batch_size, rank.vocabulary))} fp32"
        rows.append(("logits of the last token", shape, "logits_and_loss", rank.logits(job.batch_size), 1))
    for name, shape, component, size, times in rows:
        group = groups.setdefault((name, shape, component), [0, 0])
        group[0] += times
        group[1] += times * size
    ranked = sorted(groups.items(), key=lambda item: -item[1][1])
    return tuple(
        TensorGroup(name=key[0], shape=key[1], copies=count, bytes=size, component=key[2])
        for key, (count, size) in ranked
    )


def formulas(job: InferenceJob, rank: ServingRank) -> tuple[Formula, ...]:
    """Return the arithmetic of a serving rank: one formula per component, and one per kind of cache."""
    elements = sum(times * weight.elements for weight, times in rank.weights)
    rows = [
        Formula(
            "parameters",
            "sum over tensors of elements x bits of a weight, each rounded up to 512 B; only matrices are quantised",
            f"{elements:,} elements, {job.weights}",
            bytes=sum(times * weight.bytes for weight, times in rank.weights),
            source=SHAPES + SCALES.get(job.weights, ""),
        )
    ]
    caches: dict[tuple[str, str, str], list[int]] = {}
    for block, size, times in rank.caches:
        if size:
            layers = caches.setdefault(_cache_formula(job, block, size), [0, 0])
            layers[0] += times
            layers[1] += times * size
    for (formula, numbers, source), (count, size) in caches.items():
        rows.append(Formula("kv_cache", formula, f"{count} layers x {numbers}", bytes=size, source=source))
    terms = sorted(rank.inventory, key=lambda row: -row[3])
    named = " + ".join(f"{label} {_shape(shape)} {dtype}" for label, shape, dtype, *_ in terms[:TERMS])
    smaller_ones = f" + {len(terms) - TERMS} smaller ones" if len(terms) > TERMS else ""
    if rank.working:
        numbers = f"a pass of {job.pass_tokens:,} tokens in the block that needs most"
        rows.append(Formula("activations", named + smaller_ones, numbers, bytes=rank.working, source=WORKING))
    if rank.vocabulary:
        numbers, size = f"{job.batch_size} x {rank.vocabulary:,} x 4 B", rank.logits(job.batch_size)
        rows.append(
            Formula("logits_and_loss", "sequences x vocabulary / tensor x 4 B", numbers, bytes=size, source=LOGITS)
        )
    return tuple(rows)


def _cache_formula(job: InferenceJob, block: Block, size: int) -> tuple[str, str, str]:
    """Return the formula, its numbers and its source for the cache of one layer, ``size`` bytes.

    The number of tokens is computed from the bytes: it includes the rest of the last block, the tokens in flight of a
    sliding window, and padding.
    """
    mixer, item, sequences = block.mixer, DTYPE_BYTES[job.kv_cache], job.batch_size
    if isinstance(mixer, Attention):
        heads = max(1, ceil_div(mixer.kv_heads, job.layout.tensor))
        kept = size // (sequences * 2 * heads * mixer.head_dim * item)
        formula = "sequences x tokens in whole blocks x 2 x kv heads / tensor x head_dim x bytes, per layer"
        return formula, f"{sequences} x {kept:,} x 2 x {heads} x {mixer.head_dim} x {item} B", CACHE
    if isinstance(mixer, LatentAttention):
        width = mixer.kv_lora_rank + mixer.qk_rope_head_dim
        formula = "sequences x tokens in whole blocks x (kv_lora_rank + qk_rope_head_dim) x bytes, per layer"
        numbers = f"({mixer.kv_lora_rank} + {mixer.qk_rope_head_dim})"
        return formula, f"{sequences} x {size // (sequences * width * item):,} x {numbers} x {item} B", LATENT
    return "sequences x pages of the state, as large as attention's, per layer", f"{sequences} sequences", STATE


def _kind(block: Block) -> str:
    """Say in words what a layer caches: keys and values, compressed ones (MLA), or a recurrent state."""
    if isinstance(block.mixer, Attention):
        return "keys and values in the window" if block.mixer.window else "keys and values"
    return "compressed keys and values" if isinstance(block.mixer, LatentAttention) else "recurrent state"


def _cached(job: InferenceJob, block: Block) -> str:
    """Return the shape and dtype of one layer's cache for all sequences, for reports."""
    mixer = block.mixer
    if isinstance(mixer, Attention):
        heads = max(1, ceil_div(mixer.kv_heads, job.layout.tensor))
        tokens = min(job.context_length, mixer.window) if mixer.window else job.context_length
        return f"{_shape((2, job.batch_size, heads, tokens, mixer.head_dim))} {job.kv_cache}"
    if isinstance(mixer, LatentAttention):
        width = mixer.kv_lora_rank + mixer.qk_rope_head_dim
        return f"{_shape((job.batch_size, job.context_length, width))} {job.kv_cache}"
    return f"[{job.batch_size}, state]"


def _shape(shape: tuple[int, ...]) -> str:
    return f"[{', '.join(str(int(size)) for size in shape)}]"


ARCH = "sm_90"
"""A GPU on which an engine keeps the most pages of a state."""


def layer_bytes(job: InferenceJob, a: Architecture, first: int, last: int) -> dict[int, int] | None:
    """Return the KV cache's bytes by layer number, from ``first`` to ``last`` (excluded), for all sequences of a job.

    vLLM pads all groups of layers to pages of one size: padding counts with the layers of its group. None: memcheck
    does not know how vLLM keeps this model's cache.
    """
    version = known()[-1]
    settings = EngineSettings(
        name="vllm",
        version=version.name,
        tensor=job.layout.tensor,
        pipeline=job.layout.pipeline,
        longest=job.context_length,
        batched_tokens=job.pass_tokens,
        kv_cache="fp8" if DTYPE_BYTES[job.kv_cache] == 1 else "auto",
        weights="fp32" if job.kv_cache == "fp32" else "bf16",
    )
    try:
        layers = layer_caches(a, settings, version, ARCH).layers
        groups = on_rank(grouped(layers, version), first, last)
    except UnsupportedError:
        return None
    bytes_by_layer: dict[int, int] = {}
    padded_block_bytes = max((_block_bytes(group) for group in groups), default=0)
    for group in groups:
        blocks = max(_blocks(cache, job, settings, version) for cache in group.caches)
        group_bytes = blocks * padded_block_bytes
        for number, cache in zip(group.layers, group.caches, strict=False):
            share = group_bytes * cache.page_bytes // max(1, _block_bytes(group))
            bytes_by_layer[number] = bytes_by_layer.get(number, 0) + share
    return bytes_by_layer


def _block_bytes(group: CacheGroup) -> int:
    """Return the bytes of one block (a page of each layer) of the layers of a group that are on the rank."""
    return sum(cache.page_bytes for cache in group.caches[: len(group.layers)])


def _blocks(cache: Cache, job: InferenceJob, settings: EngineSettings, version: Version) -> int:
    """Return the number of KV-cache blocks that one layer needs for all sequences of the job.

    A sliding window has the window's tokens for each sequence, and the tokens of the passes in flight, which all
    sequences share.
    """
    per_sequence = request_pages(cache, job.context_length, settings, version)
    if cache.kind not in WINDOWS:
        return job.batch_size * per_sequence
    of_window = request_pages(cache, job.context_length, settings._replace(batched_tokens=0), version)
    in_flight = ceil_div((settings.pipeline + 1) * settings.batched_tokens, cache.block)
    return max(per_sequence, min(job.batch_size * per_sequence, job.batch_size * of_window + in_flight))
