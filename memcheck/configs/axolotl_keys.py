"""Axolotl's keys, and the plan keys for the same things. Read at axolotl 067b021c of July 2026
(``src/axolotl/utils/schemas/*.py``, ``utils/config/__init__.py``, ``core/builders/base.py``).
"""

from __future__ import annotations

from memcheck.configs.trainer_adapters import AdapterKeys

VERSION = "Axolotl at 067b021c (July 2026)"
TITLE = "Axolotl"

MODEL = "base_model"
EVIDENCE = ((MODEL,), ("micro_batch_size", "sequence_len", "datasets", "adapter", "pretraining_dataset", "num_epochs"))
OVERRIDES = ("model_config", "overrides_of_model_config")
MICRO, STEPS, TOTAL = "micro_batch_size", "gradient_accumulation_steps", "batch_size"
LENGTH = "sequence_len"
DEFAULT_LENGTH = 512

ADAPTERS = AdapterKeys(
    rank="lora_r",
    default_rank=8,
    targets=("lora_target_modules",),
    default_targets=None,
    dropout="lora_dropout",
    default_dropout=0.0,
    saved="lora_modules_to_save",
    dora="peft_use_dora",
    parameters="lora_target_parameters",
)

OF_ADAPTERS = (
    *("peft_init_lora_weights", "peft.loftq_config.loftq_bits", "peft_autocast_adapter_dtype"),
    *("peft_ensure_weight_tying", "qlora_sharded_model_loading"),
)
"""Further keys of adapters. A config that trains no adapters may hold them, and they then change nothing."""

OBJECTIVES = {"dpo": "dpo", "ipo": "ipo", "orpo": "orpo", "kto": "kto", "simpo": "simpo"}
ROLLOUTS = ("grpo", "gdpo", "ebft", "ppo")
"""Reinforcement learning with a rollout engine."""

OLD_ATTENTIONS = {
    "flash_attention": "flash",
    "sdp_attention": "sdpa",
    "flex_attention": "flex",
    "eager_attention": "eager",
    "xformers_attention": "sdpa",
}
"""Switches of the time before ``attn_implementation``."""
CAST_ATTENTIONS = ("flash_attention", "flex_attention", "xformers_attention")
"""Switches of attention kernels for which Axolotl casts upcast norms and embeddings back (``utils/schemas/enums.py``,
ATTN_IMPLS_WITHOUT_DTYPE_CAST)."""
MULTIPLE = 64
"""Tokens of which a row is a multiple, unless ``pad_to_sequence_len`` is false (``core/builders/causal.py``)."""
UNKNOWN_ATTENTIONS = ("sage_attention", "s2_attention")

CCE_PLUGIN = "cut_cross_entropy"
LIGER_FUSED = "liger_fused_linear_cross_entropy"
PLUGINS_REFUSED: dict[str, tuple[str, str]] = {
    "DenseMixerPlugin": ("every expert run for every token (DenseMixer)", "dense_mixer"),
    "GrokfastPlugin": ("a moving average of every gradient (Grokfast)", ""),
    "HatcheryPlugin": ("training on a remote service", ""),
    "LLMCompressorPlugin": ("masks of pruned weights (llmcompressor)", ""),
    "MoraPlugin": ("MoRA's adapters", "use_mora"),
}
"""Plugins without a memory model, and the switch of the config that turns each off (``integrations/*/args.py``)."""
PLUGINS_KNOWN = ("LigerPlugin", "CutCrossEntropyPlugin", "KDPlugin", "SwanLabPlugin", "LMEvalPlugin")

REFUSED: dict[str, str] = {
    "diffusion.": "a diffusion language model",
    "use_onebitllms": "a 1-bit model",
    "layer_offloading": "layers that are kept in host memory",
    "relora": "ReLoRA",
    "loftq_bits": "LoftQ",
    "nvfp4_merge_aware": "adapters on an NVFP4 base",
    "tiled_mlp": "tiled feed-forward networks",
    "ebft.": "energy-based fine-tuning",
    "nemo_gym_enabled": "reinforcement learning",
    "selective_checkpointing": "selective recompute",
    "selective_checkpointing.": "selective recompute",
    "peft_layer_replication": "replicated layers",
    "peft_trainable_token_indices": "trained tokens",
    "lora_rank_pattern.": "ranks by module",
    "peft_layers_to_transform": "adapters on some layers",
    "kd_trainer": "distillation against a teacher's log-probabilities",
    "use_mora": "MoRA's adapters",
    "mora.": "MoRA's adapters",
    "hatchery.": "training on a remote service",
    "lisa_n_layers": "layers that take turns in being trained (LISA)",
    "relora_steps": "ReLoRA",
}
"""Constructs without a memory model: they change what is resident, or what is saved for backward."""

LIGER = {
    "liger_rope": "rope",
    "liger_rms_norm": "rms_norm",
    "liger_glu_activation": "glu",
    "liger_swiglu": "glu",
}
"""Liger's kernels by the key that asks for them, the name of 2024 included."""

LIGER_LAYER_NORM = "liger_layer_norm"
UPPER: dict[str, str] = {
    "liger_rms_norm_gated": "Liger's gated RMSNorm",
    LIGER_LAYER_NORM: "Liger's LayerNorm",
    "liger_cross_entropy": "Liger's cross entropy",
    "lora_mlp_kernel": "the fused LoRA kernel of the feed-forward network",
    "lora_qkv_kernel": "the fused LoRA kernel of query, key and value",
    "lora_o_kernel": "the fused LoRA kernel of the output projection",
    "lora_embedding_kernel": "the fused LoRA kernel of the embedding",
    "fused_attn_kernel": "the fused attention kernel",
    "use_scattermoe": "ScatterMoE",
    "use_sonicmoe": "SonicMoE",
    "flash_attn_cross_entropy": "flash-attention's cross entropy",
    "flash_attn_fuse_mlp": "flash-attention's feed-forward network",
    "use_kernels": "kernels of the hub",
}
"""Kernels that keep less than transformers' own code, as which they are priced."""
EXPERT_KERNELS = ("use_scattermoe", "use_sonicmoe")

QAT, QAT_GROUP = "qat", 32
"""Quantization-aware training, and how many weights share a scale by default (``utils/schemas/quantization.py``)."""
QUANTIZATION = "model_quantization_config"
DEQUANTIZES = "model_quantization_config_kwargs.dequantize"
DEQUANTIZED = "Mxfp4Config"
"""The quantization whose experts are loaded in 16 bits with ``dequantize: true``: where a GPU is too small for a tensor
on its way, it is converted in host memory (transformers 5.23 ``integrations/mxfp4.py``, convert_moe_packed_tensors).
"""

UNMODELLED: dict[str, tuple[object, str]] = {
    "label_smoothing_factor": (0, "a smoothed loss keeps a shifted copy of all logits and two of their logarithms"),
    "neftune_noise_alpha": (None, "the noise on embeddings, one more copy of them, is not modelled"),
    "use_eaft": (False, "the loss of EAFT is priced as the standard one"),
    "fp32_norms": (False, "norms held in fp32 are not modelled"),
    "overrides_of_model_kwargs": (None, "arguments of the model's loading are not read"),
    "resize_token_embeddings_to_32x": (False, "a vocabulary rounded up to 32 is not modelled"),
    "tokens": ([], "added tokens enlarge the vocabulary"),
    "auto_find_batch_size": (False, "the batch may become smaller than what is judged"),
    "experts_implementation": (None, "another dispatch of experts is priced as transformers' own"),
    "bnb_config_kwargs": (None, "arguments of bitsandbytes are not read"),
    "torch_compile_backend": ("inductor", "another backend of torch.compile is not modelled"),
    "torch_compile_mode": ("default", "graphs of another mode of torch.compile are not modelled"),
    "torch_compile_options": (None, "options of torch.compile are not modelled"),
    "llama4_linearized_experts": (False, "experts as separate linear layers are not modelled"),
    "deepcompile": (False, "DeepCompile's own schedule of gathers is not modelled"),
    "scaling_softmax": (False, "a scaled softmax is not modelled"),
    "reinit_weights": (False, "weights are made anew: another way of loading them"),
    "max_memory": (None, "limits of memory by device are not modelled"),
    "gpu_memory_limit": (None, "limits of memory by device are not modelled"),
    "lora_on_cpu": (False, "adapters in host memory while they load are not modelled"),
    "generate_samples": (False, "generation between steps is not modelled"),
    "do_causal_lm_eval": (False, "generation while evaluating is not modelled"),
    "do_bench_eval": (False, "benchmarks between steps are not modelled"),
    "eval_table_size": (0, "generation while evaluating is not modelled"),
    "dsv4_fp4_grouped_mode": (None, "DeepSeek-V4's own kernels are not modelled"),
    "use_dsv4_kernels": (None, "DeepSeek-V4's own kernels are not modelled"),
    "use_glm_dsa_kernels": (None, "kernels of sparse attention are not modelled"),
    "batch_flattening": (None, "a batch flattened into one row is priced as padded rows"),
    "dpo_padding_free": (False, "rows without padding are priced as padded ones: an upper bound"),
    "dpo_use_liger_kernel": (False, "Liger's loss of preferences is priced as TRL's own: an upper bound"),
    "peft_ensure_weight_tying": (False, "tied copies of the embedding are priced as two: an upper bound"),
    "processor_kwargs": (None, "another size of pictures than the processor's own is not modelled"),
    "special_tokens.additional_special_tokens": (None, "added tokens enlarge the vocabulary"),
    "trainer_cls": (None, "a trainer of one's own is priced as Axolotl's"),
    "optim_args": (None, "arguments of the optimizer are not read"),
    "low_cpu_mem_usage": (True, "before transformers 5, another copy of the weights in host memory while they load"),
    "qlora_sharded_model_loading": (False, "quantized weights that are loaded shard by shard are priced as whole ones"),
    "device_map": (None, "a model laid over the GPUs of one process is not modelled"),
    "ddp_bucket_cap_mb": (None, "another size of DDP's buckets is not modelled"),
}

IRRELEVANT: dict[str, tuple[str, ...]] = {
    "data and templates": (
        *("bench_dataset", "bench_split", "is_preprocess", "preprocess_iterable", "num_dataset_shards_to_save"),
        "role_boundaries",
        "test_datasets",
        "pretraining_dataset",
        "pretraining_dataset.",
        "val_set_size",
        "dataset_shard_num",
        "dataset_shard_idx",
        "dataset_exact_deduplication",
        "dataset_keep_in_memory",
        "push_dataset_to_hub",
        "shuffle_merged_datasets",
        "shuffle_before_merging_datasets",
        "skip_prepare_dataset",
        "streaming_multipack_buffer_size",
        "pretrain_multipack_buffer_size",
        "pretrain_multipack_attn",
        "multipack_real_batches",
        "sample_packing_group_size",
        "sample_packing_bin_size",
        "sample_packing_sequentially",
        "sample_packing_mp_start_method",
        "sample_packing_eff_est",
        "total_num_tokens",
        "total_supervised_tokens",
        "min_sample_len",
        "excess_length_strategy",
        "curriculum_sampling",
        "group_by_length",
        "pad_to_sequence_len",
        "eval_sample_packing",
        "eot_tokens",
        "default_system_message",
        "tokenizer_use_mistral_common",
        "tokenizer_legacy",
        "tokenizer_save_jinja_files",
        "added_tokens_overrides.",
        "hf_use_auth_token",
        "memory_preprocess",
        "max_prompt_len",
    ),
    "which class and revision": (
        "model_type",
        "base_model_ignore_patterns",
        "revision_of_model",
        "is_falcon_derived_model",
        "is_llama_derived_model",
        "is_mistral_derived_model",
        "is_qwen_derived_model",
        "strict",
        "test_value",
    ),
    "adapters: how they start and scale": (
        "lora_model_dir",
        "lora_fan_in_fan_out",
        "lora_alpha_pattern.",
        "peft_use_rslora",
        "loraplus_lr_ratio",
        "loraplus_lr_embedding",
        "merge_lora",
        "merge_method",
        "gptq_groupsize",
        "gptq_model_v1",
        "torchdistx_path",
    ),
    "schedules": (
        *("dion_lr", "dion_momentum", "jagged_restart_steps", "jagged_restart_warmup_steps"),
        "jagged_restart_anneal_steps",
        "cosine_min_lr_ratio",
        "cosine_constant_lr_ratio",
        "lr_quadratic_warmup",
        "lr_div_factor",
        "lr_groups",
        "eta_min",
        "embedding_lr",
        "embedding_lr_scale",
        "adam_epsilon2",
        "loss_watchdog_threshold",
        "loss_watchdog_patience",
        "orpo_alpha",
        "rl_beta",
        "kto_desirable_weight",
        "kto_undesirable_weight",
        "dpo_label_smoothing",
        "dpo_loss_weights",
        "center_rewards_coefficient",
        "curriculum_sampling",
        "eaft_alpha",
        "eaft_k",
    ),
    "logs": (
        *("comet_api_key", "comet_experiment_config", "comet_experiment_key", "comet_mode", "comet_online"),
        *("comet_project_name", "comet_workspace", "use_comet", "use_trackio", "wandb_mode", "mlflow_run_name"),
        "hf_mlflow_log_artifacts",
        "use_wandb",
        "use_mlflow",
        "mlflow_tracking_uri",
        "mlflow_experiment_name",
        "use_tensorboard",
        "use_swanlab",
        "swanlab_project",
        "swanlab_experiment_name",
        "swanlab_description",
        "swanlab_mode",
        "swanlab_workspace",
        "swanlab_log_completions",
        "use_otel_metrics",
        "otel_metrics_host",
        "otel_metrics_port",
        "trackio_project_name",
        "trackio_run_name",
        "trackio_space_id",
        "project_name",
        "profiler_steps",
        "profiler_steps_start",
        "include_tkps",
        "eval_max_new_tokens",
        "eval_causal_lm_metrics",
    ),
    "launchers and clouds": (
        *("resources_per_worker", "world_size", "device"),
        *("gradio_max_new_tokens", "gradio_server_name", "gradio_server_port", "gradio_share"),
        *("gradio_temperature", "gradio_title"),
        "ddp",
        "use_ray",
        "ray_run_name",
        "resources_per_worker.",
        "save_first_step",
        "auto_resume_from_checkpoints",
        "fix_untrained_tokens",
        "gc_steps",
        "gc_collect_steps",
        "torch_empty_cache_steps",
        "flex_attn_compile_kwargs.",
        "heads_k_stride",
        "ring_attn_func",
        "timeout_preprocess",
        "axolotl_config_path",
        "env_capabilities.",
    ),
}
