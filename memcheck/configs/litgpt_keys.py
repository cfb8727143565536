"""LitGPT's keys, and the plan keys for the same things. Read at litgpt 26857050 of June 2026 (``litgpt/finetune/*.py``,
``pretrain.py``, ``args.py``, ``utils.py``, ``config.py``).
"""

from __future__ import annotations

from memcheck.configs.config_file import ConfigFile
from memcheck.configs.evidence import all_keys
from memcheck.configs.litgpt_launch import run_of
from memcheck.configs.types import KeyRow

VERSION = "LitGPT at 26857050 (June 2026)"
TITLE = "LitGPT"
CHECKPOINT, NAME = "checkpoint_dir", "model_name"
LENGTH, MICRO, TOTAL = "train.max_seq_length", "train.micro_batch_size", "train.global_batch_size"
QUANTIZE = "quantize"
_in_file = all_keys((MICRO, TOTAL, LENGTH), (CHECKPOINT, NAME, "lora_r", QUANTIZE, "initial_checkpoint_dir"))


def recognise(config: ConfigFile) -> str:
    """The key that shows that a config is LitGPT's; empty where none does.

    A file has ``train:`` with a checkpoint's folder or a model's name; a script has a command that trains.
    """
    return _in_file(config) or ("config" if run_of(config) is not None else "")


SWITCHES: dict[str, bool] = {
    "lora_query": True,
    "lora_key": False,
    "lora_value": True,
    "lora_projection": False,
    "lora_mlp": False,
    "lora_head": False,
}
"""Which matrices get adapters, and the script's defaults (``finetune/lora.py``, setup)."""
RANK = KeyRow("lora_r", "training.lora.rank", default=8)
DROPOUT = "lora_dropout"
PRECISIONS: dict[str, object] = {
    "bf16-true": "bf16-pure",
    "16-true": "fp16-pure",
    "bf16-mixed": "bf16-mixed",
    "32-true": "fp32",
}
BATCH: dict[str, tuple[int, int]] = {"pretrain": (4, 512)}
"""Micro-batch and total batch, in sequences, of a pretraining script that states neither."""
TUNED = (1, 16)
"""Micro-batch and total batch, in sequences, of a fine-tuning script that states neither."""

NAMES: dict[str, str] = {
    "tiny-llama-1.1b": "tinyllama-1.1b",
    "tiny-llama-1.1b-chat": "tinyllama-1.1b",
    "micro-llama-300M": "keeeeenw/MicroLlama",
}
"""LitGPT's own names of models (``config.py``) that no repository has."""
WORDS: dict[str, str] = {"adapter": "adapter", "lora": "lora", "qlora": "lora", "full": "full"}
"""Words in the names of configs of one script or another."""
OTHER_SCRIPTS: dict[str, str] = {
    "adapter": "LLaMA-Adapter's prompts",
    "adapter_v2": "LLaMA-Adapter's prompts, biases and scales",
    "lora_legacy": "adapters under FSDP1",
}
"""Scripts without a memory model, and what they train."""
OF_LLAMA: dict[str, object] = {
    "norm_class_name": "RMSNorm",
    "mlp_class_name": "LLaMAMLP",
    "bias": False,
    "parallel_residual": False,
    "rotary_percentage": 1.0,
}
"""What a ``model_config`` of Llama's kind says: each of LitGPT's defaults is another."""
DIMENSIONS: dict[str, str] = {
    "n_layer": "num_hidden_layers",
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_query_groups": "num_key_value_heads",
    "head_size": "head_dim",
    "intermediate_size": "intermediate_size",
    "padded_vocab_size": "vocab_size",
    "block_size": "max_position_embeddings",
}
NEEDED = frozenset({"n_layer", "n_embd", "n_head", "n_query_groups", "intermediate_size", "padded_vocab_size"})
MODEL_IRRELEVANT = ("name", "hf_config", "norm_eps", "rope_base", "vocab_size", "padding_multiple", "rope_adjustments")
"""What moves none of its tensors, the padded vocabulary being stated."""

UNSUPPORTED = ("train.max_tokens", "train.max_norm", "train.tie_embeddings", "train.lr_warmup_fraction")
"""Arguments at which the scripts that fine-tune stop (``validate_args``)."""

UNMODELLED: dict[str, tuple[object, str]] = {
    "eval.interval": (None, "the validation between steps, which makes all logits at once, is not priced"),
    "train.tie_embeddings": (False, "a table and a head that are one matrix are priced as two: an upper bound"),
}
IRRELEVANT: dict[str, tuple[str, ...]] = {
    "data, on the host": ("data", "data.", "tokenizer_dir", "seed"),
    "a number by which an adapter's result is scaled": ("lora_alpha",),
    "rates, schedules and how long it runs": (
        *("train.lr_warmup_steps", "train.lr_warmup_fraction", "train.epochs", "train.max_tokens", "train.max_steps"),
        *("train.max_time", "train.min_lr"),
        *(f"optimizer.init_args.{name}" for name in ("lr", "betas", "eps", "weight_decay", "maximize", "nesterov")),
        *("optimizer.lr", "optimizer.weight_decay"),
    ),
    "files: the whole state is priced at a checkpoint": (
        *("out_dir", "resume", "initial_checkpoint_dir", "access_token", "train.save_interval"),
    ),
    "logs": ("logger_name", "log.", "log", "train.log_interval"),
    "of validation, which is said by its interval": (
        *("eval.max_new_tokens", "eval.max_iters", "eval.initial_validation", "eval.final_validation"),
        *("eval.evaluate_example", "eval"),
    ),
    "the command's own": ("config", "model_config"),
}
