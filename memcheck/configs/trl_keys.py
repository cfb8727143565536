"""Keys of TRL and of what is built on it, and the plan keys for them. Read at trl f2cd5771 of July 2026
(``trl/trainer/base_config.py``, ``model_config.py``, ``sft_config.py``, ``dpo_config.py``), alignment-handbook's
``src/alignment/configs.py`` and open-instruct's ``finetune.py``.
"""

from __future__ import annotations

import re

from memcheck.configs.config_file import ConfigFile
from memcheck.configs.evidence import all_keys, any_key
from memcheck.configs.trainer_adapters import AdapterKeys
from memcheck.configs.trainer_fields import EXAMPLE_SCRIPTS, EXAMPLES, TRAINING_ARGUMENTS, TRL
from memcheck.configs.trainer_script import commands, objectives_named, recipe

VERSION = "TRL 1.9 (July 2026)"
TITLE = "TRL"

EVIDENCE = (
    ("model_name_or_path",),
    (
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "gradient_checkpointing",
        "learning_rate",
        "num_train_epochs",
        "dataset_mixer.",
        "dataset_mixture.",
        "dataset_name",
        "dataset_mixer_list",
    ),
)
TRAINED = frozenset(
    {
        *(
            "gradient_accumulation_steps",
            "per_device_train_batch_size",
            "learning_rate",
            "num_train_epochs",
            "max_steps",
        ),
        *("gradient_checkpointing", "optim", "lr_scheduler_type", "warmup_ratio", "warmup_steps", "weight_decay"),
        *("save_steps", "save_strategy", "save_total_limit", "do_train", "fsdp", "max_grad_norm", "packing"),
    }
)
"""Arguments that only a training has, of which a launch line may state any."""
FILES = (".yaml", ".yml", ".json", ".toml")
"""Files that hold keys: the name of a script in them starts nothing."""
TRL_ALONE = (
    "max_length",
    "max_seq_length",
    "dataset_mixer.",
    "dataset_mixture.",
    "dataset_name",
    "packing",
    "beta",
    "max_prompt_length",
    "use_peft",
    "lora_r",
    "precompute_ref_log_probs",
    "loss_type",
    "dataset_test_split",
    "dataset_train_split",
    "trl",
)
"""Keys that transformers' own examples have not."""


def recognise(config: ConfigFile) -> str:
    """The key that shows that a config is TRL's, next to TrainingArguments and a model; empty where none does."""
    key = recognise_arguments(config)
    if not key:
        return _launched(config)
    if any(re.search(r"\btrl\s+[a-z]", line) for line in config.lines if not line.lstrip().startswith("#")):
        return key
    return key if _alone(config) or objectives_named(config, SCRIPTS) else ""


def recognise_arguments(config: ConfigFile) -> str:
    """A model's name and an argument that only a training has; or a script of TRL's or transformers' name, a model and
    any further argument of theirs.
    """
    key = _arguments(config)
    if key or config.path.endswith(FILES):
        return key
    stated = {name.replace("-", "_"): name for name in config.values}
    names = commands(config)
    if not names or "model_name_or_path" not in stated:
        return ""
    known = bool(objectives_named(config, SCRIPTS)) or any(f"run_{name}" in EXAMPLE_SCRIPTS for name in names)
    further = set(stated) & (TRAINING_ARGUMENTS | TRL | EXAMPLES) - {"model_name_or_path"} if known else ()
    return stated["model_name_or_path"] if further or not TRAINED.isdisjoint(stated) else ""


def _launched(config: ConfigFile) -> str:
    """A launch line that leaves all to a recipe: ``accelerate launch scripts/run_sft.py recipe.yaml``."""
    if not objectives_named(config, SCRIPTS) or config.path.endswith(FILES):
        return ""
    if any(re.search(r"\b(?:swift|llamafactory)\b", line) for line in config.lines):
        return ""
    return "config" if config.has("config") or recipe(config)[0] else ""


_arguments = all_keys(*EVIDENCE)
_alone = any_key(*TRL_ALONE)

OTHER_TITLE = "transformers"
"""Whose defaults a script has that is none of TRL's."""
OPEN_INSTRUCT = ("dataset_mixer_list", "use_slow_tokenizer", "exp_name", "dpo_beta", "dpo_loss_type")
ADAPTED = ("use_peft", "use_lora", "use_qlora", "use_peft_lora", "lora_enable", "q_lora", "lora", "qlora")
"""Switches of adapters: TRL's, open-instruct's, those of the scripts of PEFT's examples, LLaVA, FastChat, LLMBox."""
NO_SWITCH = ("lora_rank", "lora_dim", "train_mode", "trainable")
"""Adapters' arguments that neither TRL nor alignment-handbook has: of scripts that turn them on in their own way."""
RANKS = ("lora_rank", "lora_dim", "lora_r")
UNSWITCHED = ("lora_r", "lora_target_modules")
"""Adapter arguments of TRL, which have no effect without `use_peft`. A launch without `use_peft` may be of a script
that needs no such switch."""
ADAPTER_WORDS = frozenset({"lora", "qlora", "peft", "adapter", "adapters", "bits", "quant", "quantize", "quantization"})
"""Words in the names or values of adapter arguments (``--tuning lora``) of scripts that memcheck does not know."""
FOUR_BITS = ("load_in_4bit", "use_qlora", "q_lora", "qlora", "use_4bit_quantization", "use_4bit", "use_q_lora")
EIGHT_BITS = ("load_in_8bit", "use_8bit_quantization", "use_8bit")
TOWER_WORDS = frozenset({"vision", "visual", "vit", "image", "images", "video", "videos", "mm", "audio", "speech"})
"""Words in argument names of scripts that add a vision or audio tower to a language model (LLaVA and the like)."""
HELD_WORDS = frozenset({"fix", "fixed", "freeze", "frozen", "lock", "tune", "tunable", "train", "unfreeze"})
"""Switches that say of a tower whether it trains: one that is off is still there."""
MORE_WORDS = frozenset({"medusa", "eagle", "moe", "experts"})
"""What is in those of scripts that add heads or experts to the model that they name."""
RETRIEVAL = ("train_group_size", "query_max_len", "passage_max_len", "negatives_cross_device")
"""Arguments of scripts that train on a question and its passages (FlagEmbedding's and its kin)."""
OBJECTIVE_WORDS = ("dpo", "ipo", "kto", "orpo", "simpo", "cpo", "ppo", "grpo", "rlhf")
"""What is in the names of switches that scripts have for what they optimize."""

ADAPTERS = AdapterKeys(
    rank="lora_r",
    default_rank=16,
    targets=("lora_target_modules",),
    default_targets=None,
    dropout="lora_dropout",
    default_dropout=0.05,
    saved="lora_modules_to_save",
    dora="use_dora",
    parameters="lora_target_parameters",
)
OTHER_ADAPTERS = ADAPTERS._replace(default_rank=None, default_dropout=None)
"""Names of the adapter arguments of an unknown script, without defaults: its defaults are not known."""
OPEN_ADAPTERS = ADAPTERS._replace(
    rank="lora_rank",
    default_rank=64,
    targets=("lora_target_modules",),
    default_targets=["q_proj", "o_proj", "v_proj", "k_proj", "gate_proj", "up_proj", "down_proj"],
    default_dropout=0.1,
)

OLMO_CORE = re.compile(r"^[^#]*\b(open_instruct/(?:olmo_core_finetune|dpo)\.py)")
"""open-instruct's scripts that are no loop over transformers' classes."""

DATA = ("dataset_name", "dataset", "datasets", "dataset_mixer_list")
"""Names of data sets, some of which say that they hold pictures."""
UNCUT = ("sft_vlm", "sft_video")
"""Scripts whose own collator cuts no row, or that turn the limit off: TRL's for pictures and their kin."""

HEADS = {"glue": "classification", "classification": "classification", "xnli": "classification"}
HEADS |= {"ner": "token-classification", "qa": "token-classification"}
"""What the models of transformers' examples end in, by the script; those of others over the vocabulary. ``run_qa.py``
scores two labels per token: where an answer starts, and where it ends."""
CHOICES = ("swag", "hellaswag", "multiple_choice")
"""Examples whose rows are several choices of one question."""

ROLLOUTS = ("grpo", "rloo", "ppo", "online_dpo", "xpo", "nash_md", "gspo", "dapo", "gfpo", "reinforce", "rlvr")
"""Objectives that generate between their steps."""
SCRIPTS = ("dpo", "orpo", "kto", "cpo", "simpo", "ipo", "reward", "gkd", *ROLLOUTS, "sft")
"""Names of scripts, of commands and of folders that say what is optimized."""
PREFERENCE_KEYS = (
    *("max_prompt_length", "precompute_ref_log_probs", "ref_model_init_kwargs", "beta", "sync_ref_model"),
    *("dpo_beta", "dpo_loss_type"),  # open-instruct's
)
ROLLOUT_KEYS = (
    *("num_generations", "max_completion_length", "use_vllm", "vllm_mode", "reward_funcs"),
    # open-instruct's
    *("num_samples_per_prompt_rollout", "num_unique_prompts_rollout", "vllm_num_engines", "vllm_tensor_parallel_size"),
)
LOSSES = {"ipo": "ipo", "orpo": "orpo", "simpo": "simpo", "cpo": "cpo"}

UNMODELLED: dict[str, tuple[object, str]] = {
    "padding_free": (False, "rows without padding are priced as padded ones: an upper bound"),
    "activation_offloading": (False, "saved activations that are offloaded without recompute are not modelled"),
    "router_aux_loss_coef": (None, "the router's logits, which the loss keeps, are not modelled"),
    "model_init_kwargs": (None, "arguments of the model's loading are not read"),
    "sync_ref_model": (False, "the copy that the reference is mixed from is not modelled"),
    "use_unsloth": (False, "unsloth's own kernels are not modelled"),
    "generate_during_eval": (False, "generation while evaluating is not modelled"),
    "reduce_loss": ("mean", "a sum of the loss, which releases before September 2025 take of a copy, is not modelled"),
    "concatenated_forward": (True, "two passes are priced as one of twice the rows: an upper bound"),
    "load_balancing_loss": (False, "the router's logits, which the loss keeps, are not modelled"),
    "ld_alpha": (None, "the loss of LD-DPO is priced as DPO's"),
    "f_divergence_type": ("reverse_kl", "another divergence is priced as DPO's"),
    "bnb_4bit_quant_storage": (None, "another storage of the 4-bit weights is not modelled"),
}
IRRELEVANT: dict[str, tuple[str, ...]] = {
    "data": (
        "shuffle_dataset",
        "eval_packing",
        "packing_strategy",
        "skip_prepare_dataset",
        "num_proc",
        "dataset_transform_fn",
        "dataset_target_columns",
        "dataset_cache_mode",
        "dataset_local_cache_dir",
        "dataset_config_hash",
        "dataset_skip_cache",
        "dataset_mix_dir",
        "ignore_bias_buffers",
        "is_encoder_decoder",
        "disable_dropout",
        "truncation_mode",
        "max_completion_length",
        "env",
        "env.",
    ),
    "data of scripts of their own (FastChat's, LMFlow's)": (
        *("data_path", "eval_data_path", "dataset_path", "eval_dataset_path", "lazy_preprocess"),
        *("conversation_template",),
    ),
    "weights of losses": (
        "loss_weights",
        "f_alpha_divergence_coef",
        "discopop_tau",
        "reference_free",
        "use_num_logits_to_keep",
        "load_balancing_weight",
    ),
    "adapters: how they start": ("lora_task_type", "bnb_4bit_quant_type", "use_bnb_nested_quant"),
    "open-instruct's jobs": (
        "exp_name",
        "do_not_randomize_output_dir",
        "config_name",
        "final_lr_ratio",
        "save_to_hub",
        "max_train_steps",
        "clean_checkpoints_at_end",
        "wandb_project_name",
        "hf_entity",
        "hf_repo_id",
        "hf_repo_revision",
        "hf_repo_url",
        "hf_metadata_dataset",
        "try_launch_beaker_eval_jobs",
        "try_auto_save_to_beaker",
        "cache_dataset_only",
        "gs_bucket_path",
        "oe_eval_tasks",
        "oe_eval_max_length",
        "verbose",
    ),
    "how mason starts open-instruct's jobs": (
        *("cluster", "workspace", "priority", "preemptible", "image", "pure_docker_mode", "budget", "description"),
        *("task_name", "mixer_list", "max_retries", "no_host_networking", "non_resumable", "eval_workspace"),
        *("eval_priority", "oe_eval_gpu_multiplier", "chat_template_name", "send_slack_alerts", "beaker_datasets"),
        *("max_prompt_token_length", "get_tokenizer_fn", "sft_messages_key", "ground_truths_key"),
    ),
    "how the launcher finds its config": ("config", "config_file", "gpu_ids"),
}
