"""Parameter tensors of one rank as Megatron-core lays them out.

Sources: Megatron-core ``transformer/attention.py``, ``multi_latent_attention.py``, ``mlp.py``, ``moe/experts.py``,
``moe/router.py``, ``moe/shared_experts.py``, ``tensor_parallel/layers.py``; vocabulary padding:
``megatron/training/tokenizer/tokenizer.py`` (_vocab_size_with_padding).

A Megatron rank while DistributedDataParallel lays out its buffers: parameters exist twice.

Layers are made on the GPU first, for all chunks. Then each chunk's buffers are allocated whole, one for dense and one
for expert parameters, each with room for parameters and gradients. After that the parameters are copied into them one
by one and freed (Megatron-core distributed/param_and_grad_buffer.py, ``_ParamAndGradBuffer.__init__``: ``param_data``,
``grad_data``, then ``param.data = new_param_data``; training/models/dist_utils.py for the order). Only the distributed
optimizer remaps parameters. Master weights and optimizer states come later: over many ranks they take less than this.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import islice

from memcheck.accounts.estimate import Instant
from memcheck.accounts.ranks import Components, ResidentTensors
from memcheck.accounts.state import LocalTensor, StateBytes, block_component_tensors, local_tensor
from memcheck.autograd.tensor import ceil_div, round_up, rounded
from memcheck.errors import UnsupportedError
from memcheck.frameworks.megatron.buffers import Counted, counted, distributed, dtypes, group_bytes
from memcheck.frameworks.megatron.fsdp import is_sharded
from memcheck.frameworks.megatron.own_code import code_of
from memcheck.job.types import Layout, TrainingJob
from memcheck.models.types import Architecture, Attention, Block, LatentAttention, Mixer, Mlp, Moe, Norm

MAX_EXPERTS = 2**14
"""Experts of a layer, each of which has tensors of its own here."""


def padded_vocabulary(vocab_size: int, job: TrainingJob) -> int:
    """Return the vocabulary, rounded up to a multiple of ``make_vocab_size_divisible_by`` (128) times the tensor
    ranks.
    """
    multiple = int(str(job.option("make_vocab_size_divisible_by") or 128)) * job.layout.tensor
    return round_up(vocab_size, multiple)


def block_tensors(block: Block, job: TrainingJob, hidden: int) -> tuple[LocalTensor, ...]:
    """List the parameter tensors of one transformer layer on one rank.

    The result is cached by the degrees that divide a layer, so that jobs with the same degrees share it.
    """
    layout = job.layout
    cut = Layout(tensor=layout.tensor, expert=layout.expert, expert_tensor=layout.expert_tensor)
    return _block_tensors(block, cut, hidden)


@lru_cache(maxsize=64)
def _block_tensors(block: Block, layout: Layout, hidden: int) -> tuple[LocalTensor, ...]:
    """List the parameter tensors of one layer. ``layout``: the degrees that divide a layer, and no others."""
    tensors: list[LocalTensor] = _norm(block.input_norm, "input_layernorm")
    tensors += _mixer(block, layout, hidden)
    tensors += _norm(block.mixer_output_norm, "post_self_attn_layernorm")
    tensors += _norm(block.mlp_norm, "pre_mlp_layernorm")
    if isinstance(block.mlp, Mlp):
        tensors += _mlp(block.mlp, layout, hidden, "mlp")
    elif isinstance(block.mlp, Moe):
        tensors += _moe(block.mlp, layout, hidden)
    tensors += _norm(block.mlp_output_norm, "post_mlp_layernorm")
    return tuple(tensors)


def whole_block(block: Block, hidden: int) -> tuple[LocalTensor, ...]:
    """One transformer layer on the one rank that has all of it."""
    return _block_tensors(block, Layout(), hidden)


def _matrix(name: str, rows: int, columns: int, *, expert: bool = False) -> LocalTensor:
    """A trained weight of shape [rows, columns]."""
    return LocalTensor(name=name, shape=(rows, columns), trained=True, dtype=None, expert=expert, matrix=True)


def _vector(name: str, n: int, *, expert: bool = False) -> LocalTensor:
    """A trained vector of ``n`` elements."""
    return LocalTensor(name=name, shape=(n,), trained=True, dtype=None, expert=expert)


def _norm(norm: Norm | None, name: str) -> list[LocalTensor]:
    """List the weight of a norm, and its bias if it has one; none without a norm."""
    if norm is None:
        return []
    tensors = [_vector(name + ".weight", norm.size * norm.rows)] if norm.weight else []
    return tensors + ([_vector(name + ".bias", norm.size * norm.rows)] if norm.bias else [])


def _linear(name: str, rows: int, columns: int, *, bias: bool) -> list[LocalTensor]:
    """Weight [rows, columns] of a linear layer, and its bias [rows] if it has one."""
    return [_matrix(name + ".weight", rows, columns), *([_vector(name + ".bias", rows)] if bias else [])]


def _mixer(block: Block, layout: Layout, hidden: int) -> list[LocalTensor]:
    """List the tensors of a layer's attention, or other mixer, on one tensor rank."""
    mixer, tensor_ranks = block.mixer, layout.tensor
    if isinstance(mixer, Attention):
        query_heads = 2 * mixer.heads if mixer.output_gate else mixer.heads  # a gate for each query
        qkv_width = (query_heads + 2 * mixer.kv_heads) * mixer.head_dim
        tensors = _linear("self_attention.linear_qkv", ceil_div(qkv_width, tensor_ranks), hidden, bias=mixer.qkv_bias)
        tensors += _linear(
            "self_attention.linear_proj",
            hidden,
            ceil_div(mixer.heads * mixer.head_dim, tensor_ranks),
            bias=mixer.out_bias,
        )
        tensors += _norm(mixer.query_norm, "self_attention.q_layernorm")
        return tensors + _norm(mixer.key_norm, "self_attention.k_layernorm")
    if isinstance(mixer, LatentAttention):
        return _latent(mixer, tensor_ranks, hidden)
    if mixer is None:
        return []
    if isinstance(mixer, Mixer) and mixer.kind == "gated-delta-net":
        return _delta_net(mixer, tensor_ranks, hidden, biased=block.input_norm is not None and block.input_norm.bias)
    degrees = (tensor_ranks, layout.expert, layout.expert_tensor)
    return [
        LocalTensor(t.name, local_tensor(t, component, *degrees), trained=True, matrix=len(t.shape) > 1)
        for t, component in block_component_tensors(block)
        if component is mixer
    ]


def _latent(attention: LatentAttention, tensor_ranks: int, hidden: int) -> list[LocalTensor]:
    """List the tensors of multi-latent attention on one tensor rank; the down projections are not divided."""
    prefix = "self_attention."
    query_rows = attention.heads * (attention.qk_nope_head_dim + attention.qk_rope_head_dim) // tensor_ranks
    tensors: list[LocalTensor] = []
    if attention.q_lora_rank:
        tensors += [_matrix(prefix + "linear_q_down_proj.weight", attention.q_lora_rank, hidden)]
        tensors += [_matrix(prefix + "linear_q_up_proj.weight", query_rows, attention.q_lora_rank)]
        tensors += [_vector(prefix + "linear_q_up_proj.layer_norm_weight", attention.q_lora_rank)]
    else:
        tensors += [_matrix(prefix + "linear_q_proj.weight", query_rows, hidden)]
    tensors += [
        _matrix(prefix + "linear_kv_down_proj.weight", attention.kv_lora_rank + attention.qk_rope_head_dim, hidden)
    ]
    kv_rows = attention.heads * (attention.qk_nope_head_dim + attention.v_head_dim) // tensor_ranks
    tensors += [_matrix(prefix + "linear_kv_up_proj.weight", kv_rows, attention.kv_lora_rank)]
    tensors += [_vector(prefix + "linear_kv_up_proj.layer_norm_weight", attention.kv_lora_rank)]
    return [
        *tensors,
        _matrix(prefix + "linear_proj.weight", hidden, attention.heads * attention.v_head_dim // tensor_ranks),
    ]


def _delta_net(mixer: Mixer, tensor_ranks: int, hidden: int, *, biased: bool) -> list[LocalTensor]:
    """List the tensors of Megatron-core's GatedDeltaNet: ``in_proj`` makes q, k, v, the gate, beta and alpha.

    ``biased``: its norm has a bias.
    """
    prefix = "self_attention."
    key_width = (mixer.key_heads or mixer.heads) * mixer.key_dim
    value_width = mixer.heads * mixer.head_dim
    heads, local_values = ceil_div(mixer.heads, tensor_ranks), ceil_div(value_width, tensor_ranks)
    qkv_width = ceil_div(2 * key_width + value_width, tensor_ranks)
    in_proj_width = qkv_width + local_values + 2 * heads  # q, k, v; the gate; beta and alpha
    return [
        _vector(prefix + "dt_bias", heads),
        _vector(prefix + "A_log", heads),
        _matrix(prefix + "in_proj.weight", in_proj_width, hidden),
        LocalTensor(name=prefix + "conv1d.weight", shape=(qkv_width, 1, mixer.kernel), trained=True, dtype=None),
        _vector(prefix + "out_norm.weight", mixer.head_dim),
        *([_vector(prefix + "out_norm.bias", mixer.head_dim)] if biased else []),
        _matrix(prefix + "out_proj.weight", hidden, local_values),
    ]


def _mlp(mlp: Mlp, layout: Layout, hidden: int, owner: str) -> list[LocalTensor]:
    """List the tensors of a feed-forward network on one tensor rank. ``owner``: its module path."""
    width = ceil_div(mlp.width, layout.tensor)
    tensors = _linear(owner + ".linear_fc1", width * (2 if mlp.gated else 1), hidden, bias=mlp.bias)
    return tensors + _linear(owner + ".linear_fc2", hidden, width, bias=mlp.bias)


def _moe(moe: Moe, layout: Layout, hidden: int) -> list[LocalTensor]:
    """List the tensors of an MoE layer on one rank: the router, this rank's experts and the shared experts.

    Raises:
        UnsupportedError: there are more experts than are estimated.
    """
    if moe.experts > MAX_EXPERTS:
        raise UnsupportedError(f"more than {MAX_EXPERTS:,} experts have no memory model here", "take fewer", "/model")
    local_experts = ceil_div(moe.experts, layout.expert)
    local_width = ceil_div(moe.width, layout.expert_tensor)
    tensors = [_matrix("mlp.router.weight", moe.experts, hidden)]
    for expert in range(local_experts):
        rows = local_width * (2 if moe.gated else 1)
        tensors.append(_matrix(f"mlp.experts.linear_fc1.weight{expert}", rows, hidden, expert=True))
        tensors.append(_matrix(f"mlp.experts.linear_fc2.weight{expert}", hidden, local_width, expert=True))
        if moe.bias:
            tensors.append(_vector(f"mlp.experts.linear_fc1.bias{expert}", rows, expert=True))
            tensors.append(_vector(f"mlp.experts.linear_fc2.bias{expert}", hidden, expert=True))
    if moe.shared.width:
        shared = Mlp(moe.shared.width, moe.gated, moe.activation, bias=False, tensors=())
        tensors += _mlp(shared, layout, hidden, "mlp.shared_experts")
        if moe.shared.gate:
            tensors.append(_matrix("mlp.shared_experts.gate_weight", 1, hidden))
    return tensors


def embedding_tensors(architecture: Architecture, job: TrainingJob) -> tuple[LocalTensor, ...]:
    """List the rank's shard of the embedding table, [padded vocabulary / tensor ranks, hidden], and learned
    positions.
    """
    vocab_shard = padded_vocabulary(architecture.vocab_size, job) // job.layout.tensor
    tensors = [_matrix("embedding.word_embeddings.weight", vocab_shard, architecture.hidden_size)]
    if architecture.learned_positions:
        tensors.append(
            _matrix("embedding.position_embeddings.weight", architecture.learned_positions, architecture.hidden_size)
        )
    return tuple(tensors)


def head_tensors(architecture: Architecture, job: TrainingJob, *, shares: bool) -> tuple[LocalTensor, ...]:
    """List the tensors of final norm and output layer.

    ``shares``: the embedding table of the same rank is the output weight, which is then not listed again.
    """
    tensors = _norm(architecture.final_norm, "decoder.final_layernorm")
    if not shares:
        vocab = padded_vocabulary(architecture.vocab_size, job) // job.layout.tensor
        tensors.append(_matrix("output_layer.weight", vocab, architecture.hidden_size))
    return tuple(tensors)


BUILDING = "copying parameters into DDP's buffers"
"""The operation of an instant at Megatron's start, before the first step, in words for reports."""


def with_building(components: Components, instants: tuple[Instant, ...]) -> tuple[Instant, ...]:
    """Return the instants of a step, the first of them replaced by Megatron's start if that has more live bytes.

    ``components``: bytes by component while parameters are copied into DDP's buffers, from
    :func:`buffer_layout_components`; empty: nothing is copied. The replaced instant keeps its name.
    """
    total = sum([n_bytes for _, n_bytes in components])
    if total <= instants[0].allocated_bytes:
        return instants
    return (
        Instant(name=instants[0].name, operation=BUILDING, allocated_bytes=total, components_bytes=dict(components)),
        *instants[1:],
    )


def buffer_layout_components(job: TrainingJob, resident: ResidentTensors, chunks: tuple[int, ...]) -> Components:
    """Return the bytes per component on one rank while DDP copies its parameters into contiguous buffers.

    ``resident``: the rank's units with their tensors. ``chunks``: number of units of each model chunk. ``job``: as
    ``state_key`` returns it, with only what decides resident bytes. Empty under Megatron-FSDP, which has no such copy.
    """
    if is_sharded(job):
        return ()
    units = iter(resident.units)
    counted_chunks: dict[tuple[int, ...], list[Counted]] = {}  # chunks are often alike
    tensors = []
    for unit_count in chunks:
        chunk_units = list(islice(units, unit_count))
        key = tuple(map(id, chunk_units))
        if key not in counted_chunks:
            counted_chunks[key] = counted(chunk_units)  # type: ignore[arg-type]
        tensors.append(counted_chunks[key])
    return tuple(building(job, tensors).items())


def building(job: TrainingJob, chunks: list[list[Counted]]) -> dict[str, int]:
    """Return the bytes by component at the peak of Megatron's start, when parameters are copied into DDP's buffers.

    Empty: nothing is copied. ``chunks``: the tensors of each model chunk. The dense parameters of a chunk, and its
    experts, are a group each: its parameter and gradient buffers are allocated before its old tensors are freed.
    """
    if not distributed(job) or not code_of(job.framework.style).remaps:
        return {}
    element_bytes = dtypes(job).parameter_bytes
    parameters = 0
    groups: list[tuple[Counted, ...]] = []
    for tensors in chunks:
        parameters += sum([t.times * rounded(t.numel * element_bytes) for t in tensors])
        for expert in (False, True):
            group = tuple([t for t in tensors if t.trained and t.expert == expert])
            groups += [group] if group else []
    group_sizes: dict[tuple[Counted, ...], tuple[int, StateBytes]] = {}  # many chunks are equal
    for group in groups:
        if group not in group_sizes:
            old_bytes = sum([t.times * rounded(t.numel * element_bytes) for t in group])
            group_sizes[group] = old_bytes, group_bytes(job, list(group), expert=group[0].expert)
    gradients = peak = 0
    peak_components: dict[str, int] = {}
    for group in groups:
        old_bytes, buffers = group_sizes[group]
        parameters += buffers.parameters
        gradients += buffers.gradients
        if parameters + gradients > peak:
            peak, peak_components = parameters + gradients, {"parameters": parameters, "gradients": gradients}
        parameters -= old_bytes  # the tensors that were copied are freed
    return peak_components
