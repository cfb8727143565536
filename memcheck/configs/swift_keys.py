"""ms-swift's keys, and the plan keys for the same things. Read at 3602360a of August 2026 (``swift/arguments/*.py``,
``swift/trainers/arguments.py``, ``swift/config/*.json``).
"""

from __future__ import annotations

import re

from memcheck.configs.config_file import ConfigFile
from memcheck.configs.trainer_adapters import AdapterKeys
from memcheck.configs.trainer_keys import LISTS as LISTED
from memcheck.configs.trainer_script import commands

VERSION = "ms-swift at 3602360a (August 2026)"
TITLE = "ms-swift"

MODELS = ("model", "model_id_or_path", "model_name_or_path")
NAMED = ("model_type",)
"""What alone names a model before 3.0, by a name of ms-swift's own."""
FORMER = {
    "dtype": "torch_dtype",
    "eval_batch_size": "per_device_eval_batch_size",
    "lora_dropout_p": "lora_dropout",
}
"""Arguments of ms-swift 2 and what they are called since."""
TUNERS = ("tuner_type", "train_type", "sft_type")
COMMANDS = ("sft", "pt", "rlhf")
OWN_COMMAND = re.compile(r"[^#]*?(?:^|[\s;&])swift\s+((?:sft|pt|rlhf)-[\w-]+)")
"""A command of a fork, which is called after one of these."""
ADAPTERS = AdapterKeys(
    rank="lora_rank",
    default_rank=8,
    targets=("target_regex", "target_modules", "lora_target_modules"),
    default_targets="all-linear",
    dropout="lora_dropout",
    default_dropout=0.05,
    saved="modules_to_save",
    dora="use_dora",
    parameters="target_parameters",
)
OBJECTIVES = ("dpo", "orpo", "simpo", "kto", "cpo", "gkd")
ROLLOUTS = ("grpo", "ppo")
ENVIRONMENT = {
    "NPROC_PER_NODE": "hardware.gpus_per_node",
    "NNODES": "hardware.nodes",
    "MAX_PIXELS": "",
    "MIN_PIXELS": "",
}
"""Variables before the command: the plan's key for each, or the limits of Qwen's processors (``qwen_vl_utils``)."""
VISION = ("max_pixels", "freeze_aligner", "freeze_llm", "vit_gradient_checkpointing")
HELD_OUT = ("val_dataset", "cached_val_dataset", "eval_dataset")
"""Data of a pass between steps."""
UNFROZEN = ("trainable_parameters", "trainable_parameters_regex")
"""Keys that name parameters which train in addition to the adapters, or although they would be frozen."""
OPTIMIZERS = ("default", "lorap", "multimodal")
"""Values of ``optimizer``, which goes before ``optim``, that set rates by group and keep optim's states
(``swift/optimizers/*.py``).
"""
BINARY_SCALES = frozenset(
    (
        *("", "default", "last_round", "all", "base", "ignore_empty_think", "ignore_think_prefix"),
        *("last_round_with_ignore_empty_think", "all_with_ignore_empty_think"),
    )
)
"""Parts of ``loss_scale`` that only say which tokens count (``swift/loss_scale``); others weigh them."""
LISTS = LISTED | {"callbacks"}
"""Arguments of ms-swift that take several words."""
CALLBACKS = {
    "activation_cpu_offload": "activations that move to the host are priced where they are made: an upper bound",
    "lisa": "",
    "adalora": "",
    "early_stop": None,
    "perf_log": None,
    "deepspeed_elastic": None,
    "graceful_exit": None,
}
"""Values of ``callbacks`` that move memory (``swift/callbacks/mapping.py``): what a note says; empty: refused;
None: moves none.
"""
FROZEN = ("freeze_vit", "freeze_aligner", "freeze_llm")
FSDP2 = {
    "fsdp_config.fsdp_version": 2,
    "fsdp_config.reshard_after_forward": True,
    "fsdp_config.cpu_ram_efficient_loading": True,
    "fsdp_config.state_dict_type": "SHARDED_STATE_DICT",
    "fsdp_config.activation_checkpointing": True,
}
"""``--fsdp fsdp2`` (``swift/config/fsdp2.json``)."""


def recognise(config: ConfigFile) -> str:
    """The key that shows that a config is ms-swift's: the tuner's, where the config also has a model; or the model's,
    in a script with a command of ``swift``. Empty where neither holds.
    """
    model = next((name for name in MODELS if config.has(name)), "")
    tuner = next((name for name in (*TUNERS, "rlhf_type") if config.has(name)), "")
    if model and tuner:
        return tuner
    called = any("swift " in line for line in config.lines) and set(COMMANDS) & set(commands(config))
    return (model or next((name for name in NAMED if config.has(name)), "")) if called else ""


UNMODELLED: dict[str, tuple[object, str]] = {
    "padding_free": (False, "rows without padding are priced as padded ones: an upper bound"),
    "enable_dft_loss": (False, "the loss of DFT is priced as the standard one"),
    "enable_channel_loss": (False, "losses by channel are not modelled"),
    "use_logits_to_keep": (None, "logits of the answers alone are priced as all of them: an upper bound"),
    "experts_impl": (None, "another dispatch of experts is priced as transformers' own"),
    "tuner_backend": ("peft", "unsloth's own kernels are not modelled"),
    "router_aux_loss_coef": (0.0, "the router's logits, which the loss keeps, are not modelled"),
    "bnb_4bit_quant_storage": (None, "another storage of the 4-bit weights is not modelled"),
    "adapters": (None, "rank and modules of the adapters there go before those that are stated here"),
    "ref_adapters": (None, "adapters of the reference are not modelled"),
    "new_special_tokens": (None, "added tokens enlarge the vocabulary"),
    "device_map": (None, "a model laid over the GPUs of one process is not modelled"),
    "max_memory": (None, "limits of memory by device are not modelled"),
    "external_plugins": (None, "what the file registers, a model or a loss of its own, is not read"),
    "custom_register_path": (None, "what the file registers, a model or a template of its own, is not read"),
}
GALORE = (
    *("cos_threshold", "gamma_proj", "optim_per_parameter", "proj_bits", "proj_group_size", "proj_quant", "proj_type"),
    *("quantization", "queue_size", "rank", "scale", "target_modules", "update_proj_gap", "with_embedding"),
)
SWANLAB = (
    *("email_language", "exp_name", "mode", "notification_method", "project", "receiver_email", "secret"),
    *("sender_email", "smtp_port", "smtp_server", "token", "webhook_url", "workspace"),
)
IRRELEVANT: dict[str, tuple[str, ...]] = {
    "data and templates": (
        "val_dataset",
        "custom_dataset_path",
        "dataset_shuffle",
        "val_dataset_shuffle",
        "dataset_num_proc",
        "dataset_sample",
        "train_dataset_sample",
        "cached_dataset",
        "load_from_cache_file",
        "strict",
        "lazy_tokenize",
        "truncation_strategy",
        "template_type",
        "template_backend",
        "agent_template",
        "loss_scale",
        "norm_bbox",
        "use_chat_template",
        "padding_side",
        "response_prefix",
        "enable_thinking",
        "self_cognition_sample",
        "packing_num_proc",
        "train_dataloader_shuffle",
        "check_dataset_strategy",
        "packing_strategy",
        "interleave_prob",
        "stopping_strategy",
        "shuffle_buffer_size",
        "download_mode",
        "disable_auto_column_mapping",
        "custom_dataset_info",
        "preserve_thinking",
        "add_non_thinking_prefix",
        "disable_ignore_empty_think",
        "is_binary_loss_scale",
        "load_data_args",
        "ignore_args_error",
        "columns",
    ),
    "details of what is refused or off": (
        *(f"galore_{name}" for name in GALORE),
        "lisa_step_interval",
    ),
    "names, hubs and logs": (
        *(f"swanlab_{name}" for name in SWANLAB),
        "model_type",
        "model_author",
        "model_name",
        "model_revision",
        "use_hf",
        "hub_token",
        "add_version",
        "add_output_dir_suffix",
        "create_checkpoint_symlink",
        "check_model",
        "check_model_is_latest",
        "ddp_backend",
        "self_cognition_sample",
        "acc_strategy",
        "safe_serialization",
        "max_shard_size",
        "load_args",
        "temperature",
        "top_k",
        "top_p",
        "repetition_penalty",
        "max_model_len",
        "rope_scaling",
        "early_stop_interval",
        "max_new_tokens",
        "use_flash_ckpt",
        "local_repo_path",
        "resume_only_model",
        "max_epochs",
        "logging_steps",
        "metric",
        "model_author",
    ),
    "adapters and losses: weights and starts": (
        "lorap_lr_ratio",
        "aligner_lr",
        "vit_lr",
        "bnb_4bit_quant_type",
        "label_smoothing",
        "rpo_alpha",  # on log-probabilities that are there (swift/rlhf_trainers/dpo_trainer.py, nll_loss)
        "sft_alpha",
        "center_rewards_coefficient",
        "discopop_tau",
        "problem_type",
        "lmbda",
        "seq_kd",
    ),
}
