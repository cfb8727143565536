"""How long serving takes: one token for every sequence (decode), and one prompt before its first token (prefill).

Decode reads every weight and the whole cache for each token, so that memory bounds it until the batch is large; prefill
is a forward pass. Source: Pope et al. 2022 (arXiv 2211.05102), section 2: memory and compute time of both, all-reduces
of tensor parallelism. Latent attention multiplies the compressed cache itself (DeepSeek-V2 report, section 2.1).

A batch passes the stages of a pipeline one after another. Kernels' launches, sampling and the scheduler are not
counted. Quantised weights are read as they are stored and multiplied in 16 bits.
"""

from __future__ import annotations

from memcheck.accounts.state import block_component_tensors, expert_slices, local_tensor
from memcheck.catalog.types import Gpu
from memcheck.errors import UnsupportedError
from memcheck.job.types import DTYPE_BYTES, InferenceJob, Layout
from memcheck.memory.inference import kv_bytes_per_sequence, weight_bytes
from memcheck.models.feed_forward_types import DenseDispatchMoe
from memcheck.models.parameters import outer_tensors
from memcheck.models.types import Architecture, Attention, Block, LatentAttention, Mixer, Moe, Rough
from memcheck.record import Record
from memcheck.timing.collectives import all_reduce, all_to_all, group, send
from memcheck.timing.model import parts_of
from memcheck.timing.rates import TERA, Rates, rates
from memcheck.timing.shape import Shape
from memcheck.timing.types import Exchanges, StepTime


class DecodePass(Record):
    """One layer, or the head, while one token of every sequence goes through a rank."""

    arithmetic: float = 0.0
    memory: float = 0.0
    """Seconds that arithmetic and that memory bounds: one of the two is zero."""
    flops: float = 0.0


def decode_time(job: InferenceJob, gpu: Gpu) -> StepTime:
    """The time of one token for every sequence of the batch, with full caches, and of one prompt.

    Raises:
        MissingRateError: the GPU's record lacks a rate without which there is no answer.
        UnsupportedError: a rough model, whose layers are not known.
    """
    a, layout = job.architecture, job.layout
    if isinstance(a, Rough):
        raise UnsupportedError(
            "a rough model has no layers to time", "name a model or write its architecture", "/model/rough"
        )
    compute = job.weights if job.weights in ("fp32", "fp16") else "bf16"
    r = rates(gpu, compute, False, layout.gpus_per_node)
    layers = {id(block): _layer(job, a, block, r) for block, _ in a.blocks}
    found = [layers[id(block)] for block in a.layers()] + [_head(job, a, r)]
    exchanges = _exchanges(job, a, r, job.batch_size, DTYPE_BYTES[compute])
    arithmetic, memory = sum(p.arithmetic for p in found), sum(p.memory for p in found)
    seconds = arithmetic + memory + exchanges.seconds
    tokens = job.batch_size * layout.data / (seconds * layout.world_size)
    rate = sum(p.flops for p in found) / seconds / layout.pipeline
    return StepTime(
        seconds=seconds,
        compute_seconds=arithmetic,
        hbm_seconds=memory,
        exposed_communication_seconds=exchanges.seconds,
        bubble_seconds=0.0,
        offload_seconds=0.0,
        tokens_per_second_per_gpu=tokens,
        model_tflops_per_gpu=rate / TERA,
        hardware_tflops_per_gpu=rate / TERA,
        model_flops_share=rate / r.peak,
        recompute_share=0.0,
        exchanges=exchanges,
        assumptions=r.assumptions,
        prefill_seconds=_prefill(job, a, r, DTYPE_BYTES[compute]),
    )


def _bound(flops: float, size: float, r: Rates) -> DecodePass:
    """The time of a pass: by arithmetic or by memory traffic, whichever is longer."""
    arithmetic, memory = flops / r.linear, size / r.hbm
    return DecodePass(arithmetic, 0.0, flops) if arithmetic > memory else DecodePass(0.0, memory, flops)


def _layer(job: InferenceJob, a: Architecture, block: Block, r: Rates) -> DecodePass:
    """Weights and caches that are read, and what is multiplied with them."""
    layout, batch = job.layout, job.batch_size
    size = flops = 0.0
    for t, component in block_component_tensors(block):
        elements = 1
        for d in local_tensor(t, component, layout.tensor, layout.expert, expert_slices(layout)):
            elements *= d
        read, used = 1.0, 1.0
        if t.group == "experts" and isinstance(component, Moe) and not isinstance(component, DenseDispatchMoe):
            choices = batch * _batches(layout) * component.experts_per_token
            read = 1 - (1 - 1 / component.experts) ** choices
            used = _batches(layout) * component.experts_per_token / component.experts
        size += read * weight_bytes(t, elements, job.weights)
        flops += 2.0 * used * elements * batch
    cache = kv_bytes_per_sequence(block, job.context_length, job.kv_cache, layout.tensor)
    size += batch * cache * (2 if isinstance(block.mixer, Mixer) else 1)  # a state is written back
    flops += batch * _scores(block, job.context_length, layout.tensor)
    return _bound(flops, size, r)


def _batches(layout: Layout) -> int:
    """Batches whose tokens the ranks of one copy of the experts see: tensor ranks all have the same tokens, and add
    their parts of the layer's output up as they do without experts.
    """
    return max(1, layout.expert * expert_slices(layout) // layout.tensor)


def _scores(block: Block, context: int, tensor: int) -> float:
    """FLOPs of one token's attention over what is cached."""
    mixer = block.mixer
    if isinstance(mixer, Attention):
        seen = min(context, mixer.window) if mixer.window else context
        return 4.0 * -(-mixer.heads // tensor) * mixer.head_dim * seen
    if isinstance(mixer, LatentAttention):
        return 2.0 * -(-mixer.heads // tensor) * (2 * mixer.kv_lora_rank + mixer.qk_rope_head_dim) * context
    return 0.0


def _head(job: InferenceJob, a: Architecture, r: Rates) -> DecodePass:
    """The head's weight, which a tied model shares with its embedding, and fp32 logits."""
    name = "embedding" if a.tie_word_embeddings else "head"
    size = flops = 0.0
    for t in outer_tensors(a):
        if t.group == name:
            elements = -(-t.count // job.layout.tensor)
            size += weight_bytes(t, elements, job.weights)
            flops += 2.0 * elements * job.batch_size
    size += 6.0 * job.batch_size * -(-a.vocab_size // job.layout.tensor)
    return _bound(flops, size, r)


def _exchanges(job: InferenceJob, a: Architecture, r: Rates, tokens: int, item_bytes: int) -> Exchanges:
    """All-reduces of hidden states after attention and feed-forward, routed tokens there and back, and stages."""
    layout = job.layout
    hidden = float(tokens * a.hidden_size * item_bytes)
    tensor = all_reduce(group(r, layout.tensor, 1), hidden)
    experts = group(r, layout.expert if _batches(layout) > 1 else 1, layout.expert_tensor)
    reduced = routed = 0.0
    for block, count in a.blocks:
        reduced += count * tensor * ((block.mixer is not None) + (block.mlp is not None))
        if isinstance(block.mlp, Moe):
            routed += 2 * count * all_to_all(experts, hidden * block.mlp.experts_per_token)
    stages = group(r, layout.pipeline, layout.world_size // layout.pipeline)
    return Exchanges(tensor=reduced, expert=routed, pipeline=(layout.pipeline - 1) * send(stages, hidden))


def _prefill(job: InferenceJob, a: Architecture, r: Rates, item_bytes: int) -> float:
    """A forward pass over one prompt as long as the context; fused kernels, logits of the last token alone."""
    layout = job.layout
    shape = Shape(
        batch=1,
        sequence=job.context_length,
        context=1,
        tensor=layout.tensor,
        sequence_parallel=False,
        expert=layout.expert,
        expert_tensor=expert_slices(layout),
        item_bytes=item_bytes,
        autocast=False,
        fp8=False,
        fused=True,
        attention="flash",
        adapter=None,
        frozen=(),
        imbalance=1.0,
        recompute="none",
        modules=(),
        head_sharded=True,
        loss="fused-linear",
        chunks=1,
        upcast=False,
        trained=False,
    )
    costs = parts_of(a, shape, r).costs
    forward = sum(count * sum(cost.forward) for (_, count), cost in zip(a.blocks, costs, strict=True))
    return forward + _exchanges(job, a, r, job.context_length, item_bytes).seconds
