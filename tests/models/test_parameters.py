"""Counting parameters: by hand on small shapes, and the groups they fall into."""

from __future__ import annotations

from memcheck.families.registry import read_architecture
from memcheck.models.parameters import (
    block_tensors,
    count_parameters,
    outer_tensors,
    parameters_by_group,
)
from tests.models.configs import DEEPSEEK_V3, GPT2, LLAMA, MIXTRAL, QWEN3_MOE, without


def test_grouped_attention_and_gated_mlp_by_hand() -> None:
    """Llama: q and o are square, k and v narrow, three MLP matrices, two norms; embedding and head apart."""
    h, kv, f, v = 64, 2 * 16, 96, 100
    layer = 2 * h * h + 2 * h * kv + 3 * h * f + 2 * h
    assert count_parameters(read_architecture(LLAMA)) == 3 * layer + 2 * v * h + h


def test_tied_head_counts_once() -> None:
    """A tied head is the embedding: the count falls by vocabulary x hidden size."""
    apart = read_architecture({**LLAMA, "tie_word_embeddings": False})
    tied = read_architecture({**LLAMA, "tie_word_embeddings": True})
    assert count_parameters(apart) - count_parameters(tied) == 100 * 64
    assert "head" not in parameters_by_group(tied)


def test_class_default_decides_a_tie_that_is_not_stated() -> None:
    """Llama's class leaves the head apart, GPT-2's and Gemma's tie it; files of transformers leave the default out."""
    assert not read_architecture(LLAMA).tie_word_embeddings
    assert read_architecture(GPT2).tie_word_embeddings
    assert read_architecture({**LLAMA, "model_type": "gemma", "head_dim": 16}).tie_word_embeddings


def test_biases_are_counted() -> None:
    """attention_bias adds a bias to q, k, v and o; mlp_bias one to gate, up and down."""
    plain = count_parameters(read_architecture(LLAMA))
    attention = count_parameters(read_architecture({**LLAMA, "attention_bias": True}))
    mlp = count_parameters(read_architecture({**LLAMA, "mlp_bias": True}))
    assert attention - plain == 3 * (64 + 32 + 32 + 64)
    assert mlp - plain == 3 * (96 + 96 + 64)


def test_learned_positions_are_counted() -> None:
    """GPT-2 has a row per position; OPT two more, for padding."""
    gpt2 = parameters_by_group(read_architecture(GPT2))
    opt = {
        **without(LLAMA, "num_key_value_heads", "intermediate_size"),
        "model_type": "opt",
        "ffn_dim": 96,
        "max_position_embeddings": 32,
    }
    assert gpt2["position"] == 32 * 64
    assert parameters_by_group(read_architecture(opt))["position"] == 34 * 64


def test_latent_attention_by_hand() -> None:
    """DeepSeek V3: low-rank q with its norm, compressed kv with its norm, and an output over the value heads."""
    h, a, q_rank, kv_rank, nope, rope, v_dim = 64, 4, 32, 16, 8, 4, 12
    attention = h * q_rank + q_rank * a * (nope + rope)
    attention += h * (kv_rank + rope) + kv_rank * a * (nope + v_dim) + a * v_dim * h
    block = read_architecture(DEEPSEEK_V3).blocks[0][0]
    tensors = block_tensors(block)
    assert sum(t.count for t in tensors if t.group == "attention") == attention
    assert sum(t.count for t in tensors if t.group == "norm") == 2 * h + q_rank + kv_rank


def test_latent_attention_without_a_low_rank_query() -> None:
    """q_lora_rank null is a statement: one full query matrix, as in DeepSeek V2 Lite."""
    block = read_architecture({**DEEPSEEK_V3, "q_lora_rank": None}).blocks[0][0]
    names = [t.name for t in block_tensors(block)]
    assert "self_attn.q_proj.weight" in names
    assert "self_attn.q_a_proj.weight" not in names


def test_experts_are_counted_in_full() -> None:
    """Memory holds every expert, not only those that a token is sent to."""
    architecture = read_architecture(MIXTRAL)
    groups = parameters_by_group(architecture)
    assert groups["experts"] == 3 * 4 * 3 * 64 * 96
    assert groups["router"] == 3 * 4 * 64


def test_dense_layers_between_sparse_ones() -> None:
    """mlp_only_layers and first_k_dense_replace keep layers dense; runs of equal layers stay together."""
    qwen = read_architecture({**QWEN3_MOE, "num_hidden_layers": 4, "mlp_only_layers": [0, 1]})
    assert [n for _, n in qwen.blocks] == [2, 2]
    assert parameters_by_group(qwen)["mlp"] == 2 * 3 * 64 * 96
    assert [n for _, n in read_architecture(DEEPSEEK_V3).blocks] == [1, 3]


def test_shared_experts_have_their_own_group() -> None:
    """Shared experts see every token, so they are not among the routed ones."""
    groups = parameters_by_group(read_architecture({**DEEPSEEK_V3, "n_shared_experts": 2}))
    assert groups["shared_experts"] == 3 * 3 * 64 * 48


def test_groups_add_up() -> None:
    """The groups are a partition of the parameters."""
    for config in (LLAMA, MIXTRAL, QWEN3_MOE, DEEPSEEK_V3, GPT2):
        architecture = read_architecture(config)
        assert sum(parameters_by_group(architecture).values()) == count_parameters(architecture)


def test_names_are_paths_in_the_model() -> None:
    """Outer tensors carry the full path that transformers uses, so that module patterns can match them."""
    names = [t.name for t in outer_tensors(read_architecture(GPT2))]
    assert names == [
        "transformer.wte.weight",
        "transformer.wpe.weight",
        "transformer.ln_f.weight",
        "transformer.ln_f.bias",
    ]


def test_parallel_cut_of_each_matrix() -> None:
    """What makes features is cut along its output, what gathers them along its input; their norms are replicated."""
    shards = {t.name: t.shard for t in block_tensors(read_architecture(LLAMA).blocks[0][0])}
    assert shards["self_attn.q_proj.weight"] == shards["mlp.up_proj.weight"] == "column"
    assert shards["self_attn.o_proj.weight"] == shards["mlp.down_proj.weight"] == "row"
    assert shards["input_layernorm.weight"] == "none"


def test_row_parallel_bias_is_replicated() -> None:
    """The bias behind a row-parallel product is added once, after the sum over ranks."""
    tensors = {t.name: t.shard for t in block_tensors(read_architecture(GPT2).blocks[0][0])}
    assert tensors["mlp.c_fc.bias"] == "column"
    assert tensors["mlp.c_proj.bias"] == "none"


def test_transposed_storage_is_marked() -> None:
    """GPT-2 stores [in, out]: whoever cuts or multiplies needs to know."""
    tensors = {t.name: t for t in block_tensors(read_architecture(GPT2).blocks[0][0])}
    fused = tensors["attn.c_attn.weight"]
    assert fused.transposed
    assert fused.shape == (64, 192)
