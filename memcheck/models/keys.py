"""Configuration keys that every family may carry: those without a size, and those with the same meaning elsewhere."""

from __future__ import annotations

IRRELEVANT = frozenset(
    """
    add_cross_attention architectures attention_softmax_in_fp32 attn_implementation auto_map bad_words_ids
    begin_suppress_tokens bos_token_id cache_implementation chunk_size_feed_forward classifier_dropout
    classifier_dropout_prob cross_attention_hidden_size decoder_start_token_id diversity_penalty do_sample dtype
    early_stopping encoder_no_repeat_ngram_size eos_token_id eos_token_ids exponential_decay_length_penalty
    finetuning_task forced_bos_token_id forced_eos_token_id generation_config gradient_checkpointing id2label
    ignore_index initializer_factor initializer_range is_decoder is_encoder_decoder is_llama_config label2id
    layer_norm_eps layer_norm_epsilon length_penalty logits_to_keep max_length min_length model_type
    name_or_path no_repeat_ngram_size norm_eps norm_epsilon norm_topk_prob num_beam_groups num_beams num_labels
    num_logits_to_keep num_return_sequences original_max_position_embeddings output_attentions
    output_hidden_states output_router_logits output_scores pad_token_id prefix pretraining_tp problem_type
    pruned_heads remove_invalid_values repetition_penalty return_dict return_dict_in_generate rms_norm_eps
    rope_interleaved rope_local_base_freq rope_theta rope_type rotary_emb_base rotary_scaling_factor
    routed_scaling_factor router_aux_loss_coef router_jitter_noise router_z_loss_coef
    scale_attention_softmax_in_fp32 scoring_func sep_token_id seq_aux suppress_tokens task_specific_params
    temperature tf_legacy_loss tie_encoder_decoder tokenizer_class tokenizer_name top_k top_p topk_method
    torch_dtype torchscript transformers.js_config transformers_version typical_p unk_token_id unsloth_fixed
    unsloth_version use_bfloat16 use_cache vocab_file
    """.split()  # noqa: SIM905  # a list of 120 quoted names is harder to read
)
"""Carried by many configurations, without influence on any tensor's size."""

SYNONYMS: tuple[frozenset[str], ...] = (
    frozenset(("hidden_size", "n_embd", "n_embed", "d_model", "dim")),
    frozenset(("num_hidden_layers", "n_layer", "n_layers", "num_layers")),
    frozenset(("num_attention_heads", "n_head", "n_heads", "num_heads")),
    frozenset(
        ("num_key_value_heads", "num_kv_heads", "n_kv_heads", "n_head_kv", "num_query_groups", "multi_query_group_num")
    ),
    frozenset(
        ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "d_ff", "d_inner", "ffn_intermediate_size")
    ),
    frozenset(("head_dim", "attention_head_dim", "kv_channels")),
    frozenset(("vocab_size", "padded_vocab_size", "n_vocab")),
    frozenset(("max_position_embeddings", "n_positions", "max_seq_len", "max_seq_length", "seq_length", "n_ctx")),
    frozenset(("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")),
    frozenset(("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "moe_topk", "num_selected_experts")),
    frozenset(("moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size")),
    frozenset(("n_shared_experts", "num_shared_experts", "num_shared_expert")),
    frozenset(("hidden_act", "activation_function", "hidden_activation", "activation", "mlp_hidden_act")),
    frozenset(("attention_bias", "qkv_bias", "use_qkv_bias", "use_bias")),
)
"""Names of one quantity in different families. A family reads its own; a foreign one is named in the error."""

ACTIVATIONS = frozenset(
    """
    gelu gelu_10 gelu_accurate gelu_fast gelu_new gelu_python gelu_python_tanh gelu_pytorch_tanh laplace
    leaky_relu linear mish prelu quick_gelu relu relu2 relu6 sigmoid silu swish tanh xielu
    """.split()  # noqa: SIM905  # as above
)
"""Names in transformers' ``ACT2FN``."""


def synonyms(key: str) -> frozenset[str]:
    """Return the names that other families have for what ``key`` says."""
    for group in SYNONYMS:
        if key in group:
            return group - {key}
    return frozenset()
