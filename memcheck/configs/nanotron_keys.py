"""nanotron's keys, and the plan keys for the same things. Read at nanotron 2411b022 of April 2026
(``src/nanotron/config/*.py``, ``optim/gradient_accumulator.py``, ``optim/zero.py``, ``helpers.py``).
"""

from __future__ import annotations

from memcheck.configs.evidence import all_keys
from memcheck.configs.types import KeyRow

VERSION = "nanotron at 2411b022 (April 2026)"
TITLE = "nanotron"
recognise = all_keys(("tokens.micro_batch_size", "tokens.sequence_length"), ("model.model_config.hidden_size",))

CONFIG = "model.model_config."
ARCHITECTURE = "model.architecture."
DIMENSIONS: dict[str, str] = {
    "hidden_size": "hidden_size",
    "num_hidden_layers": "num_hidden_layers",
    "num_attention_heads": "num_attention_heads",
    "num_key_value_heads": "num_key_value_heads",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "max_position_embeddings": "max_position_embeddings",
}
FLAGS: dict[str, bool] = {"tie_word_embeddings": False}
"""Switches of the architecture and their defaults (models_config.py)."""
CLASSES: dict[str, str] = {"is_llama_config": "llama", "is_qwen2_config": "qwen2"}
"""Model classes of nanotron, by the key that names each. Both build Llama's decoder. Qwen 2's has biases on query, key
and value only if ``attention_bias`` is set."""
KINDS = tuple(CLASSES)
ENGINES: dict[str, str] = {"1f1b": "1f1b", "afab": "gpipe"}

ROWS = (
    KeyRow("tokens.micro_batch_size", "training.micro_batch_size"),
    KeyRow("tokens.batch_accumulation_per_replica", "training.gradient_accumulation_steps"),
)
DEGREES: dict[str, str] = {
    "parallelism.dp": "parallelism.data",
    "parallelism.tp": "parallelism.tensor",
    "parallelism.pp": "parallelism.pipeline",
}
STAGES: dict[str, int] = {"0": 0, "1": 1}

REFUSED: dict[str, str] = {
    "is_starcoder2_config": "a StarCoder 2, whose layers in nanotron have no memory model here",
    "is_llamoe_config": "a mixture of experts of nanotron's, which has no memory model here",
    "moe_config.num_experts": "a mixture of experts of nanotron's, which has no memory model here",
    "moe_num_experts": "a mixture of experts of nanotron's, which has no memory model here",
    "z_loss_enabled": "a z-loss on the logits, which is not modelled",
    "flex_attention_mask": "a mask of FlexAttention, which is not modelled",
}
"""Keys below ``model.model_config`` of models without a memory model."""
OTHER_JOBS: dict[str, str] = {
    "doremi.ref_model_resume_checkpoint_path": "training with a reference model",
    "infini_attention.turn_on_memory": "a fork's, whose attention keeps a memory of earlier segments",
}
FUSED = ("optimizer.optimizer_factory.torch_adam_is_fused", "optimizer.torch_adam_is_fused")
"""The key of the fused AdamW, now and in releases up to 0.4."""
KERNELS = ("_fused_rms_norm", "_fused_rotary_emb")
"""Qwen 2's switches of kernels, which are on by default and priced so."""

IRRELEVANT: dict[str, tuple[str, ...]] = {
    "data and checkpoints": (
        "checkpoints.",
        "data_stages",
        "data.",
        "tokenizer.",
        "s3_upload",
        "s3_upload.",
        "doremi.domain_names",
        "tokens.train_steps",
        "tokens.limit_test_batches",
        "tokens.limit_val_batches",
        "tokens.val_check_interval",
    ),
    "names, logs and evaluation elsewhere": (
        "general.",
        "logging.",
        "metrics_logging",
        "metrics_logging.",
        "profiler",
        "profiler.",
        "lighteval",
        "lighteval.",
    ),
    "schedules": (
        "learning_rate_scheduler.",
        "optimizer.learning_rate_scheduler.",
        "optimizer.weight_decay",
        "optimizer.weight_decay_exclude_named_params",
        "optimizer.optimizer_factory.adam_beta1",
        "optimizer.optimizer_factory.adam_beta2",
        "optimizer.optimizer_factory.adam_eps",
        "optimizer.adam_beta1",
        "optimizer.adam_beta2",
        "optimizer.adam_eps",
    ),
    "how the model is made and computes: its tensors are the same": (
        "model.init_method.",
        f"{CONFIG}bos_token_id",
        f"{CONFIG}eos_token_id",
        f"{CONFIG}pad_token_id",
        f"{CONFIG}hidden_act",
        f"{CONFIG}initializer_range",
        f"{CONFIG}pretraining_tp",
        f"{CONFIG}rms_norm_eps",
        f"{CONFIG}use_cache",
        f"{CONFIG}no_rope_layer",
        f"{CONFIG}_use_qkv_packed",
        f"{CONFIG}_use_doc_masking",
        f"{CONFIG}z_loss_coefficient",
        f"{CONFIG}log_attn_probs",
        f"{CONFIG}rope_scaling",
        f"{CONFIG}rope_scaling.",
        "model.ddp_bucket_cap_mb",
        f"{CONFIG}rope_theta",
        f"{CONFIG}rope_seq_len_interpolation_factor",
        f"{CONFIG}sliding_window_size",
    ),
}
UNMODELLED: dict[str, tuple[object, str]] = {}
