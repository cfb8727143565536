"""How long serving takes: one token for every sequence (decode), and one prompt before its first token (prefill).

Decode reads every weight and the whole cache for each token, so that memory bounds it until the batch is large; prefill
is a forward pass. Source: Pope et al. 2022 (arXiv 2211.05102), section 2: memory and compute time of both, all-reduces
of tensor parallelism. Latent attention multiplies the compressed cache itself (DeepSeek-V2 report, section 2.1).

A batch passes the stages of a pipeline one after another. Kernels' launches, sampling and the scheduler are not
counted. Quantised weights are read as they are stored and multiplied in 16 bits.
"""

from __future__ import annotations

from math import prod

from memcheck.accounts.state import block_component_tensors, expert_slices, local_tensor
from memcheck.autograd.tensor import ceil_div
from memcheck.catalog.names import Gpu
from memcheck.errors import UnsupportedError
from memcheck.job.types import DTYPE_BYTES, InferenceJob, Layout
from memcheck.memory.inference import kv_bytes_per_sequence, weight_bytes
from memcheck.models.module_types import DenseDispatchMoe
from memcheck.models.parameters import outer_tensors
from memcheck.models.types import Architecture, Attention, Block, LatentAttention, Mixer, Moe, Rough
from memcheck.record import Record
from memcheck.timing.model import parts_of
from memcheck.timing.rates import TERA, Rates, all_reduce, all_to_all, group, rates_of, send
from memcheck.timing.shape import Shape
from memcheck.timing.types import Exchanges, StepTime


class DecodePass(Record):
    """One layer, or the head, while one token of every sequence goes through a rank."""

    arithmetic_seconds: float = 0.0
    memory_seconds: float = 0.0
    """Seconds that arithmetic and that memory bounds: one of the two is zero."""
    flops: float = 0.0


def decode_time(job: InferenceJob, gpu: Gpu) -> StepTime:
    """Compute the time of one decode step, one token for every sequence with full caches, and of one prefill.

    Raises:
        MissingRateError: the GPU's record lacks a rate without which there is no answer.
        UnsupportedError: a rough model, whose layers are not known.
    """
    architecture, layout = job.architecture, job.layout
    if isinstance(architecture, Rough):
        raise UnsupportedError(
            "a rough model has no layers to time", "name a model or write its architecture", "/model/rough"
        )
    compute = job.weights if job.weights in ("fp32", "fp16") else "bf16"
    rates = rates_of(gpu, compute, layout.gpus_per_node, fp8=False)
    layers = {id(block): _layer(job, architecture, block, rates) for block, _ in architecture.blocks}
    passes = [layers[id(block)] for block in architecture.layers()] + [_head(job, architecture, rates)]
    exchanges = _exchanges(job, architecture, rates, job.batch_size, DTYPE_BYTES[compute])
    arithmetic = sum(decode_pass.arithmetic_seconds for decode_pass in passes)
    memory = sum(decode_pass.memory_seconds for decode_pass in passes)
    seconds = arithmetic + memory + exchanges.seconds
    tokens = job.batch_size * layout.data / (seconds * layout.world_size)
    rate = sum(decode_pass.flops for decode_pass in passes) / seconds / layout.pipeline
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
        model_flops_share=rate / rates.peak_flops,
        recompute_share=0.0,
        exchanges=exchanges,
        assumptions=rates.assumptions,
        prefill_seconds=_prefill(job, architecture, rates, DTYPE_BYTES[compute]),
    )


def _roofline(flops: float, bytes_moved: float, rates: Rates) -> DecodePass:
    """Compute the roofline time of a pass: that of its arithmetic or of its memory traffic, whichever is longer."""
    arithmetic, memory = flops / rates.matmul_flops, bytes_moved / rates.hbm_bandwidth
    return DecodePass(arithmetic, 0.0, flops) if arithmetic > memory else DecodePass(0.0, memory, flops)


def _layer(job: InferenceJob, architecture: Architecture, block: Block, rates: Rates) -> DecodePass:
    """Compute the roofline time of one layer in one decode step, per tensor-parallel rank.

    It reads the weights and the KV cache. Of routed experts it reads those that the batch is expected to choose.
    """
    layout, batch = job.layout, job.batch_size
    bytes_moved = flops = 0.0
    for tensor, component in block_component_tensors(block):
        elements = prod(local_tensor(tensor, component, layout.tensor, layout.expert, expert_slices(layout)))
        share_read = share_used = 1.0
        if tensor.group == "experts" and isinstance(component, Moe) and not isinstance(component, DenseDispatchMoe):
            choices = batch * _batches(layout) * component.experts_per_token
            not_chosen = (1 - 1 / component.experts) ** choices
            share_read = 1 - not_chosen
            share_used = _batches(layout) * component.experts_per_token / component.experts
        bytes_moved += share_read * weight_bytes(tensor, elements, job.weights)
        flops += 2.0 * share_used * elements * batch  # a multiplication and an addition per element
    cache = kv_bytes_per_sequence(block, job.context_length, job.kv_cache, layout.tensor)
    accesses = 2 if isinstance(block.mixer, Mixer) else 1  # a recurrent state is written back
    bytes_moved += batch * cache * accesses
    flops += batch * _attention_flops(block, job.context_length, layout.tensor)
    return _roofline(flops, bytes_moved, rates)


def _batches(layout: Layout) -> int:
    """Count the batches whose tokens reach the ranks of one copy of the experts.

    Tensor ranks all have the same tokens, and sum their parts of the layer's output as they do without experts.
    """
    return max(1, layout.expert * expert_slices(layout) // layout.tensor)


def _attention_flops(block: Block, context: int, tensor: int) -> float:
    """Count the FLOPs of one token's attention over the cached keys and values, per tensor-parallel rank.

    Scores and weighted values are one product each, of two FLOPs per head, dimension and cached token. Latent attention
    attends in the latent space: scores over latent and rotary dimensions, values over the latent ones.
    """
    mixer = block.mixer
    if isinstance(mixer, Attention):
        keys = min(context, mixer.window) if mixer.window else context
        score_width = value_width = mixer.head_dim
    elif isinstance(mixer, LatentAttention):
        keys = context
        score_width, value_width = mixer.kv_lora_rank + mixer.qk_rope_head_dim, mixer.kv_lora_rank
    else:
        return 0.0
    return 2.0 * ceil_div(mixer.heads, tensor) * (score_width + value_width) * keys


LOGIT_BYTES = 2.0 + 4.0
"""Bytes written per logit: bf16 by the product, and an fp32 copy."""


def _head(job: InferenceJob, architecture: Architecture, rates: Rates) -> DecodePass:
    """Compute the roofline time of the LM head for one decode step, per tensor-parallel rank.

    It reads the weight, which a tied model shares with its embedding, and writes logits [batch, vocabulary / ranks].
    """
    group_name = "embedding" if architecture.tie_word_embeddings else "head"
    bytes_moved = flops = 0.0
    for tensor in outer_tensors(architecture):
        if tensor.group == group_name:
            elements = ceil_div(tensor.count, job.layout.tensor)
            bytes_moved += weight_bytes(tensor, elements, job.weights)
            flops += 2.0 * elements * job.batch_size
    bytes_moved += LOGIT_BYTES * job.batch_size * ceil_div(architecture.vocab_size, job.layout.tensor)
    return _roofline(flops, bytes_moved, rates)


def _exchanges(job: InferenceJob, architecture: Architecture, rates: Rates, tokens: int, item_bytes: int) -> Exchanges:
    """Compute the seconds of all exchanges of a forward pass over ``tokens`` tokens.

    Tensor-parallel ranks all-reduce the hidden states after attention and feed-forward. Routed tokens go to their
    experts and back. Pipeline stages send the hidden states on.
    """
    layout = job.layout
    hidden_bytes = float(tokens * architecture.hidden_size * item_bytes)
    reduce = all_reduce(group(rates, layout.tensor, 1), hidden_bytes)
    expert_ranks = layout.expert if _batches(layout) > 1 else 1  # ranks that have the same tokens send each other none
    expert_links = group(rates, expert_ranks, layout.expert_tensor)
    tensor = expert = 0.0
    for block, count in architecture.blocks:
        halves = [half for half in (block.mixer, block.mlp) if half is not None]
        tensor += count * reduce * len(halves)
        if isinstance(block.mlp, Moe):  # to the experts, and back
            expert += 2 * count * all_to_all(expert_links, hidden_bytes * block.mlp.experts_per_token)
    stages = group(rates, layout.pipeline, layout.world_size // layout.pipeline)
    return Exchanges(tensor=tensor, expert=expert, pipeline=(layout.pipeline - 1) * send(stages, hidden_bytes))


def _prefill(job: InferenceJob, architecture: Architecture, rates: Rates, item_bytes: int) -> float:
    """Compute the seconds of a prefill: a forward pass over one prompt as long as the context, with fused kernels.

    ``item_bytes``: bytes per element of activations. The logits, of the last token alone, are left out.
    """
    layout = job.layout
    shape = Shape(
        batch=1,
        sequence=job.context_length,
        context_parallel=1,
        tensor_parallel=layout.tensor,
        sequence_parallel=False,
        expert_parallel=layout.expert,
        expert_tensor_parallel=expert_slices(layout),
        item_bytes=item_bytes,
        autocast=False,
        fp8_products=False,
        fuses_elementwise=True,
        attention="flash",
        adapter=None,
        frozen_modules=(),
        expert_imbalance=1.0,
        recompute="none",
        recompute_modules=(),
        loss_is_vocab_parallel=True,
        loss_kind="fused-linear",
        loss_chunks=1,
        upcasts_logits=False,
        base_trained=False,
    )
    costs = parts_of(architecture, shape, rates).layer_costs
    forward = sum(count * sum(cost.forward) for (_, count), cost in zip(architecture.blocks, costs, strict=True))
    return forward + _exchanges(job, architecture, rates, job.context_length, item_bytes).seconds
