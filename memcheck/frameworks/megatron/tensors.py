"""Parameter tensors of one rank as Megatron-core lays them out.

Sources: Megatron-core ``transformer/attention.py``, ``multi_latent_attention.py``, ``mlp.py``, ``moe/experts.py``,
``moe/router.py``, ``moe/shared_experts.py``, ``tensor_parallel/layers.py``; vocabulary padding:
``megatron/training/tokenizer/tokenizer.py`` (_vocab_size_with_padding).
"""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.state import LocalTensor, block_component_tensors, local_tensor
from memcheck.errors import UnsupportedError
from memcheck.job.types import Layout, TrainingJob
from memcheck.models.types import Architecture, Attention, Block, LatentAttention, Mixer, Mlp, Moe, Norm

MOST_EXPERTS = 2**14
"""Experts of a layer, each of which has tensors of its own here."""


def padded_vocabulary(vocab_size: int, job: TrainingJob) -> int:
    """Rounded up to a multiple of ``make_vocab_size_divisible_by`` (128) times the tensor ranks."""
    multiple = int(str(job.option("make_vocab_size_divisible_by") or 128)) * job.layout.tensor
    return -(-vocab_size // multiple) * multiple


def block_tensors(block: Block, job: TrainingJob, hidden: int) -> tuple[LocalTensor, ...]:
    """One transformer layer; one object for all jobs that cut it alike."""
    layout = job.layout
    cut = Layout(tensor=layout.tensor, expert=layout.expert, expert_tensor=layout.expert_tensor)
    return _block_tensors(block, cut, hidden)


@lru_cache(maxsize=64)
def _block_tensors(block: Block, layout: Layout, hidden: int) -> tuple[LocalTensor, ...]:
    """``layout``: the degrees that cut a layer, and no others."""
    found: list[LocalTensor] = _norm(block.input_norm, "input_layernorm")
    found += _mixer(block, layout, hidden)
    found += _norm(block.mixer_output_norm, "post_self_attn_layernorm")
    found += _norm(block.mlp_norm, "pre_mlp_layernorm")
    if isinstance(block.mlp, Mlp):
        found += _mlp(block.mlp, layout, hidden, "mlp")
    elif isinstance(block.mlp, Moe):
        found += _moe(block.mlp, layout, hidden)
    found += _norm(block.mlp_output_norm, "post_mlp_layernorm")
    return tuple(found)


def whole_block(block: Block, hidden: int) -> tuple[LocalTensor, ...]:
    """One transformer layer on the one rank that has all of it."""
    return _block_tensors(block, Layout(), hidden)


def _matrix(name: str, rows: int, columns: int, *, expert: bool = False) -> LocalTensor:
    return LocalTensor(name=name, shape=(rows, columns), trained=True, dtype=None, expert=expert, matrix=True)


def _vector(name: str, n: int, *, expert: bool = False) -> LocalTensor:
    return LocalTensor(name=name, shape=(n,), trained=True, dtype=None, expert=expert)


def _norm(norm: Norm | None, name: str) -> list[LocalTensor]:
    if norm is None:
        return []
    found = [_vector(name + ".weight", norm.size * norm.rows)] if norm.weight else []
    return found + ([_vector(name + ".bias", norm.size * norm.rows)] if norm.bias else [])


def _linear(name: str, rows: int, columns: int, *, bias: bool) -> list[LocalTensor]:
    return [_matrix(name + ".weight", rows, columns), *([_vector(name + ".bias", rows)] if bias else [])]


def _mixer(block: Block, layout: Layout, hidden: int) -> list[LocalTensor]:
    mixer, tp = block.mixer, layout.tensor
    if isinstance(mixer, Attention):
        width = (mixer.heads * (2 if mixer.output_gate else 1) + 2 * mixer.kv_heads) * mixer.head_dim
        tensors = _linear("self_attention.linear_qkv", -(-width // tp), hidden, bias=mixer.qkv_bias)
        tensors += _linear(
            "self_attention.linear_proj", hidden, -(-mixer.heads * mixer.head_dim // tp), bias=mixer.out_bias
        )
        tensors += _norm(mixer.query_norm, "self_attention.q_layernorm")
        return tensors + _norm(mixer.key_norm, "self_attention.k_layernorm")
    if isinstance(mixer, LatentAttention):
        return _latent(mixer, tp, hidden)
    if mixer is None:
        return []
    if isinstance(mixer, Mixer) and mixer.kind == "gated-delta-net":
        return _delta_net(mixer, tp, hidden, biased=block.input_norm is not None and block.input_norm.bias)
    ways = (tp, layout.expert, layout.expert_tensor)
    return [
        LocalTensor(t.name, local_tensor(t, c, *ways), True, matrix=len(t.shape) > 1)
        for t, c in block_component_tensors(block)
        if c is mixer
    ]


def _latent(attention: LatentAttention, tp: int, hidden: int) -> list[LocalTensor]:
    owner = "self_attention."
    q = attention.heads * (attention.qk_nope_head_dim + attention.qk_rope_head_dim) // tp
    found: list[LocalTensor] = []
    if attention.q_lora_rank:
        found += [_matrix(owner + "linear_q_down_proj.weight", attention.q_lora_rank, hidden)]
        found += [_matrix(owner + "linear_q_up_proj.weight", q, attention.q_lora_rank)]
        found += [_vector(owner + "linear_q_up_proj.layer_norm_weight", attention.q_lora_rank)]
    else:
        found += [_matrix(owner + "linear_q_proj.weight", q, hidden)]
    found += [
        _matrix(owner + "linear_kv_down_proj.weight", attention.kv_lora_rank + attention.qk_rope_head_dim, hidden)
    ]
    up = attention.heads * (attention.qk_nope_head_dim + attention.v_head_dim) // tp
    found += [_matrix(owner + "linear_kv_up_proj.weight", up, attention.kv_lora_rank)]
    found += [_vector(owner + "linear_kv_up_proj.layer_norm_weight", attention.kv_lora_rank)]
    return [*found, _matrix(owner + "linear_proj.weight", hidden, attention.heads * attention.v_head_dim // tp)]


def _delta_net(mixer: Mixer, tp: int, hidden: int, *, biased: bool) -> list[LocalTensor]:
    """Megatron-core's GatedDeltaNet: one matrix makes q, k, v, the gate, beta and alpha. ``biased``: its norm is."""
    owner, keys = "self_attention.", (mixer.key_heads or mixer.heads) * mixer.key_dim
    values = mixer.heads * mixer.head_dim
    heads, mixed = -(-mixer.heads // tp), -(-(2 * keys + values) // tp)
    width = mixed + -(-values // tp) + 2 * heads
    return [
        _vector(owner + "dt_bias", heads),
        _vector(owner + "A_log", heads),
        _matrix(owner + "in_proj.weight", width, hidden),
        LocalTensor(name=owner + "conv1d.weight", shape=(mixed, 1, mixer.kernel), trained=True, dtype=None),
        _vector(owner + "out_norm.weight", mixer.head_dim),
        *([_vector(owner + "out_norm.bias", mixer.head_dim)] if biased else []),
        _matrix(owner + "out_proj.weight", hidden, -(-values // tp)),
    ]


def _mlp(mlp: Mlp, layout: Layout, hidden: int, owner: str) -> list[LocalTensor]:
    width = -(-mlp.width // layout.tensor)
    tensors = _linear(owner + ".linear_fc1", width * (2 if mlp.gated else 1), hidden, bias=mlp.bias)
    return tensors + _linear(owner + ".linear_fc2", hidden, width, bias=mlp.bias)


def _moe(moe: Moe, layout: Layout, hidden: int) -> list[LocalTensor]:
    if moe.experts > MOST_EXPERTS:
        raise UnsupportedError(f"more than {MOST_EXPERTS:,} experts have no memory model here", "take fewer", "/model")
    local = -(-moe.experts // layout.expert)
    width = -(-moe.width // layout.expert_tensor)
    found = [_matrix("mlp.router.weight", moe.experts, hidden)]
    for e in range(local):
        rows = width * (2 if moe.gated else 1)
        found.append(_matrix(f"mlp.experts.linear_fc1.weight{e}", rows, hidden, expert=True))
        found.append(_matrix(f"mlp.experts.linear_fc2.weight{e}", hidden, width, expert=True))
        if moe.bias:
            found.append(_vector(f"mlp.experts.linear_fc1.bias{e}", rows, expert=True))
            found.append(_vector(f"mlp.experts.linear_fc2.bias{e}", hidden, expert=True))
    if moe.shared_width:
        shared = Mlp(moe.shared_width, moe.gated, moe.activation)
        found += _mlp(shared, layout, hidden, "mlp.shared_experts")
        if moe.shared_gate:
            found.append(_matrix("mlp.shared_experts.gate_weight", 1, hidden))
    return found


def embedding_tensors(architecture: Architecture, job: TrainingJob) -> tuple[LocalTensor, ...]:
    """The vocabulary shard and learned positions."""
    vocab = padded_vocabulary(architecture.vocab_size, job) // job.layout.tensor
    found = [_matrix("embedding.word_embeddings.weight", vocab, architecture.hidden_size)]
    if architecture.learned_positions:
        found.append(
            _matrix("embedding.position_embeddings.weight", architecture.learned_positions, architecture.hidden_size)
        )
    return tuple(found)


def head_tensors(architecture: Architecture, job: TrainingJob, *, shares: bool) -> tuple[LocalTensor, ...]:
    """Final norm and output layer. ``shares``: the embedding's table of the same rank is the output weight."""
    found = _norm(architecture.final_norm, "decoder.final_layernorm")
    if not shares:
        vocab = padded_vocabulary(architecture.vocab_size, job) // job.layout.tensor
        found.append(_matrix("output_layer.weight", vocab, architecture.hidden_size))
    return tuple(found)
