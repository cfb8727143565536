"""Megatron-SWIFT's arguments that move no memory of a training step: data, rates, logs, checkpoints, launchers."""

from __future__ import annotations

from memcheck.configs.swift_keys import IRRELEVANT

_OWN = frozenset(
    """
    train_iters num_train_epochs max_epochs manual_gc manual_gc_steps manual_gc_eval seed train_dataloader_shuffle
    dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor
    data_sharding group_by_length te_rng_tracker data_parallel_random_init lr_warmup_init lr lr_decay_style
    lr_decay_iters lr_warmup_iters lr_warmup_fraction min_lr lr_wsd_decay_style lr_wsd_decay_iters weight_decay
    weight_decay_incr_style start_weight_decay end_weight_decay adam_beta1 adam_beta2 adam_eps sgd_momentum
    muon_momentum muon_split_qkv muon_use_nesterov muon_scale_mode muon_fp32_matmul_prec muon_coefficient_type
    muon_num_ns_steps muon_tp_mode muon_extra_scale_factor muon_scalar_optimizer output_dir save save_steps
    no_save_optim no_save_rng mcore_model load no_load_optim no_load_rng finetune perform_initialization
    no_initialization async_save save_total_limit metric_for_best_model greater_is_better save_interval
    use_persistent_ckpt_worker dist_ckpt_save_pre_mcore_014 dist_ckpt_optim_fully_reshardable
    distrib_optim_fully_reshardable_mem_efficient local_rank ddp_timeout ddp_backend batch_p2p_comm overlap_p2p_comm
    align_grad_reduce nccl_comm_warmup report_to logging_steps log_interval tensorboard_dir tensorboard_queue_size
    wandb_project wandb_exp_name swanlab_project swanlab_exp_name eval_iters eval_steps eval_interval
    fp8_amax_history_len fp8_amax_compute_algo moe_aux_loss_coeff moe_token_drop_policy
    mtp_loss_scaling_factor save_safetensors save_missing_weights model_type merge_lora max_shard_size save_strategy
    callbacks calculate_per_token_loss check_model apply_wd_to_qk_layernorm problem_type num_labels
    cp_partition_mode add_version create_checkpoint_symlink load_args dataset num_workers split_dataset_ratio
    streaming lora_alpha use_rslora lora_dtype packing model_author model_name load_safetensors template system
    strict dataset_num_proc vit_lr aligner_lr freeze_vit freeze_aligner freeze_llm vit_gradient_checkpointing
    vit_gradient_checkpointing_kwargs vit_attn_impl cached_val_dataset loss_type
    """.split()  # noqa: SIM905  # a list of a hundred quoted names is harder to read
)
HARMLESS = _OWN | {name for names in IRRELEVANT.values() for name in names}
"""``lora_dtype`` among them: Float16Module casts adapters with the rest of the model. Keys of a tower say nothing of a
model without one, and a model with one is refused by its family.
"""
