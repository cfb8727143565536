"""Parameter tensors of one rank as Megatron-core lays them out.

Sources: Megatron-core ``transformer/attention.py``, ``multi_latent_attention.py``, ``mlp.py``, ``moe/experts.py``,
``moe/router.py``, ``moe/shared_experts.py``, ``tensor_parallel/layers.py``; vocabulary padding:
``megatron/training/tokenizer/tokenizer.py`` (_vocab_size_with_padding).
"""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.state import LocalTensor, block_component_tensors, local_tensor
from memcheck.autograd.tensor import ceil_div, round_up
from memcheck.errors import UnsupportedError
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
        qkv_width = (mixer.heads * (2 if mixer.output_gate else 1) + 2 * mixer.kv_heads) * mixer.head_dim
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
        LocalTensor(t.name, local_tensor(t, component, *degrees), True, matrix=len(t.shape) > 1)
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
    prefix, keys = "self_attention.", (mixer.key_heads or mixer.heads) * mixer.key_dim
    values = mixer.heads * mixer.head_dim
    heads, mixed = ceil_div(mixer.heads, tensor_ranks), ceil_div(2 * keys + values, tensor_ranks)
    width = mixed + ceil_div(values, tensor_ranks) + 2 * heads
    return [
        _vector(prefix + "dt_bias", heads),
        _vector(prefix + "A_log", heads),
        _matrix(prefix + "in_proj.weight", width, hidden),
        LocalTensor(name=prefix + "conv1d.weight", shape=(mixed, 1, mixer.kernel), trained=True, dtype=None),
        _vector(prefix + "out_norm.weight", mixer.head_dim),
        *([_vector(prefix + "out_norm.bias", mixer.head_dim)] if biased else []),
        _matrix(prefix + "out_proj.weight", hidden, ceil_div(values, tensor_ranks)),
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
