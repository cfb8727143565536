"""What a serving rank holds at its peak, tensor by tensor, and each component's arithmetic."""

from __future__ import annotations

from memcheck.accounts.estimate import Formula, TensorGroup
from memcheck.autograd import rounded
from memcheck.autograd.curve import Inventory
from memcheck.autograd.tensor import ceil_div
from memcheck.job.types import DTYPE_BYTES, InferenceJob
from memcheck.models.types import Attention, Block, LatentAttention, ParameterTensor
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
