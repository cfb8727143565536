"""LLaMA-Factory's keys, and the plan keys for the same things. Read at ff6d4d12 of August 2026
(``src/llamafactory/hparams/*.py``, ``model/adapter.py``, ``model/model_utils/checkpointing.py``,
``model/model_utils/liger_kernel.py``; the second generation: ``src/llamafactory/v1/config/*.py``,
``v1/core/base_trainer.py``).
"""

from __future__ import annotations

from memcheck.configs.config_file import ConfigFile
from memcheck.configs.trainer_adapters import AdapterKeys

VERSION = "LLaMA-Factory at ff6d4d12 (August 2026)"
TITLE = "LLaMA-Factory"

SECOND = ("dist_config.", "kernel_config.", "peft_config.", "train_dataset", "model_class")
"""Keys of the second generation alone."""


IDLE = ("do_predict", "export_dir", "infer_backend")
"""What a file is for that does not say ``do_train``."""
TRAINED = ("per_device_train_batch_size", "learning_rate", "num_train_epochs", "max_steps")
"""Any of them stands in a file for a training."""


def recognise(config: ConfigFile) -> str:
    """A training of either generation; a chat or an export has neither a stage nor data."""
    if config.has("model_name_or_path"):
        return next((key for key in ("finetuning_type", "cutoff_len", "stage") if config.has(key)), "")
    if config.has("stage") and config.has("finetuning_type"):
        return "finetuning_type"  # the model is its first release's own
    if config.has("model"):
        return next((key for key in config.values if key.startswith(SECOND)), "")
    return ""


ADAPTERS = AdapterKeys(
    rank="lora_rank",
    default_rank=8,
    targets=("lora_target",),
    default_targets="all-linear",
    dropout="lora_dropout",
    default_dropout=0.0,
    saved="additional_target",
    dora="use_dora",
)
SECOND_ADAPTERS = AdapterKeys(
    rank="peft_config.r",
    default_rank=8,
    targets=("peft_config.target_modules",),
    default_targets="all-linear",
    dropout="peft_config.lora_dropout",
    default_dropout=0.05,
    saved="peft_config.modules_to_save",
    dora="peft_config.use_dora",
)
STAGES = {"pt": "sft", "sft": "sft", "rm": "reward", "dpo": "dpo", "kto": "kto"}
PREFERENCES = {"sigmoid": "dpo", "hinge": "dpo", "ipo": "ipo", "kto_pair": "dpo", "orpo": "orpo", "simpo": "simpo"}

_MEGATRON = "Megatron's parallelism (mcore_adapter, Megatron-Bridge)"
REFUSED: dict[str, str] = {
    "tensor_model_parallel_size": _MEGATRON,
    "pipeline_model_parallel_size": _MEGATRON,
    "expert_model_parallel_size": _MEGATRON,
    "use_distributed_optimizer": _MEGATRON,
    "use_galore": "GaLore's optimizer",
    "use_apollo": "APOLLO's optimizer",
    "use_badam": "BAdam's optimizer",
    "use_adam_mini": "Adam-mini",
    "use_unsloth": "unsloth's own kernels",
    "use_kt": "KTransformers' experts on the host",
    "use_mca": "Megatron-Core under LLaMA-Factory",
    "use_megatron_bridge": "Megatron-Bridge under LLaMA-Factory",
    "use_hyper_parallel": "HyperParallel",
    "use_llama_pro": "LLaMA Pro's new blocks",
    "shift_attn": "shifted attention",
    "mixture_of_depths": "mixture of depths",
    "train_mm_proj_only": "a projector that is trained alone",
    "use_asft_loss": "the loss of ASFT, with a second model",
    "fp8": "fp8, whose products are not in the config",
}
GROWS = ("resize_vocab", "add_tokens", "add_special_tokens", "new_special_tokens_config")
"""What makes the vocabulary larger (``hparams/model_args.py``)."""
OLD_PIXELS = "image_resolution"
VISION = (OLD_PIXELS, "image_max_pixels", "video_max_pixels", "freeze_language_model", "freeze_vision_tower")

PIXELS = {"image_min_pixels": 32 * 32, "image_max_pixels": 768 * 768}
"""Default limits of a picture's size, in pixels (``src/llamafactory/hparams/model_args.py``, ProcessorArguments)."""
FROZEN = ("freeze_vision_tower", "freeze_multi_modal_projector", "freeze_language_model")

UNMODELLED: dict[str, tuple[object, str]] = {
    "pissa_init": (False, "what working out the adapters' start takes, before the first step, is not modelled"),
    "crop_to_patches": (False, "more pieces of a picture are not modelled"),
    "image_do_pan_and_scan": (False, "more pieces of a picture are not modelled"),
    "use_audio_in_video": (False, "the sound of videos is not modelled"),
    "ref_model_adapters": (None, "adapters of the reference are not modelled"),
    "ref_model_quantization_bit": (None, "a reference that is quantized is priced as it is otherwise: an upper bound"),
    "upcast_layernorm": (False, "norms held in fp32 are not modelled"),
    "upcast_lmhead_output": (False, "the logits' early copy in fp32 is not modelled"),
    "resize_vocab": (False, "a vocabulary of another size is not modelled"),
    "add_special_tokens": (None, "added tokens enlarge the vocabulary"),
    "new_special_tokens_config": (None, "added tokens enlarge the vocabulary"),
    "add_tokens": (None, "added tokens enlarge the vocabulary"),
    "moe_aux_loss_coef": (None, "the router's logits, which the loss keeps, are not modelled"),
    "use_dft_loss": (False, "the loss of DFT is priced as the standard one"),
    "use_eaft_loss": (False, "the loss of EAFT is priced as the standard one"),
    "compute_accuracy": (False, "what accuracy keeps while evaluating is not modelled"),
    "use_v1_kernels": (None, "the second generation's kernels are priced as transformers' own"),
    "fp8_backend": (None, "fp8 is not modelled"),
}
IRRELEVANT: dict[str, tuple[str, ...]] = {
    "data": (
        "dataset_dir",
        "media_dir",
        "eval_dataset",
        "val_size",
        "mix_strategy",
        "interleave_probs",
        "buffer_size",
        "mask_history",
        "tokenized_path",
        "tool_format",
        "default_system",
        "enable_thinking",
        "preserve_thinking",
        "data_shared_file_system",
        "disable_shuffling",
        "eval_on_each_dataset",
        "train_dataset",
        "eval_num_beams",
        "split_special_tokens",
        "init_special_tokens",
        "custom_chat_template",
    ),
    "adapters: how they start and scale": (
        "adapter_name_or_path",
        "adapter_folder",
        "create_new_adapter",
        "loraplus_lr_ratio",
        "loraplus_lr_embedding",
        "use_rslora",
        "pissa_iter",
        "pissa_convert",
        "peft_config.lora_alpha",
        "peft_config.name",
        "peft_config.use_rslora",
        "init_config.name",
    ),
    "weights of losses": (
        "pref_beta",
        "pref_bco_weight",
        "pref_ftx",  # on log-probabilities that are there
        "dpo_ftx",
        "dpo_beta",
        "kto_ftx",
        "kto_beta",
        "orpo_beta",
        "simpo_gamma",
        "dpo_label_smoothing",
        "kto_chosen_weight",
        "kto_rejected_weight",
        "ld_alpha",
        "asft_alpha",
        "eaft_alpha",
    ),
    "details of what is refused or off": (
        *("hyper_parallel_args", "hyper_parallel_cp_size", "megatron_bridge_args"),
        *("kt_expert_checkpoint_path", "kt_lora_expert_intermediate_size", "kt_lora_expert_num"),
        *("kt_use_lora_experts", "ppo_buffer_size", "ppo_epochs", "ppo_score_norm", "ppo_target"),
        *("ppo_whiten_rewards", "reward_model", "reward_model_adapters", "reward_model_quantization_bit"),
        *("reward_model_type", "audio_sampling_rate"),
        "galore_target",
        "galore_rank",
        "galore_update_interval",
        "galore_scale",
        "galore_proj_type",
        "galore_layerwise",
        "apollo_target",
        "apollo_rank",
        "apollo_update_interval",
        "apollo_scale",
        "apollo_proj",
        "apollo_proj_type",
        "apollo_scale_type",
        "apollo_layerwise",
        "apollo_scale_front",
        "badam_mode",
        "badam_start_block",
        "badam_switch_mode",
        "badam_switch_interval",
        "badam_update_ratio",
        "badam_mask_mode",
        "badam_verbose",
        "oft_rank",
        "oft_block_size",
        "oft_target",
        "module_dropout",
        "kt_config.",
        "kt_cpu_activation",
        "kt_weight_path",
        "kt_non_expert_weight_path",
        "fp8_enable_fsdp_float8_all_gather",
        "video_fps",
        "video_maxlen",
        "image_min_pixels",
        "video_min_pixels",
        "video_resolution",
    ),
    "serving and sampling next to the training": (
        *("vllm_config", "vllm_enforce_eager", "vllm_gpu_util", "vllm_max_lora_rank", "vllm_maxlen"),
        *("sglang_config", "sglang_lora_backend", "sglang_maxlen", "sglang_mem_fraction", "sglang_tp_size"),
        *("export_device", "export_hub_model_id", "export_legacy_format", "export_quantization_bit"),
        *("export_quantization_dataset", "export_quantization_maxlen", "export_quantization_nsamples", "export_size"),
        "infer_dtype",
        "infer_backend",
        "use_kv_cache",
        "offload_folder",
        "sample_backend",
        "max_new_tokens",
        "export_dir",
    ),
    "hosts, logs and hubs": (
        *("swanlab_lark_secret", "swanlab_lark_webhook_url", "enable_torch_profiler", "profile_modules"),
        *("profiler_active_steps", "profiler_output_dir", "profiler_profile_memory", "profiler_record_shapes"),
        *("profiler_repeat", "profiler_wait_steps", "profiler_warmup_steps", "profiler_with_stack"),
        *("compute_dtype", "device_map", "model_max_length", "block_diag_attn"),  # which it works out itself
        "hf_hub_token",
        "ms_hub_token",
        "om_hub_token",
        "print_param_status",
        "ray_init_kwargs",
        "ray_init_kwargs.",
        "ray_run_name",
        "ray_storage_path",
        "ray_storage_filesystem",
        "placement_strategy",
        "resources_per_worker.",
        "master_addr",
        "master_port",
        "use_swanlab",
        "swanlab_project",
        "swanlab_workspace",
        "swanlab_run_name",
        "swanlab_mode",
        "swanlab_api_key",
        "swanlab_logdir",
        "include_effective_tokens_per_second",
        "early_stopping_steps",
        "rope_scaling",
        "train_from_scratch",
        "quantization_device_map",
        "model_class",
        "dist_config.dcp_path",
        "dist_timeout",
        "batching_workers",
        "save_epochs",
        "save_ckpt_as_hf",
        "lr_scheduler_config.",
        "cp_mode",
    ),
}
