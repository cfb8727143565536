"""Arguments that the scripts of transformers and TRL take. Their parser stops at any other (``HfArgumentParser``): a
launch line that has one runs another script, whatever its name is.

Fields of their dataclasses, over releases: ``TrainingArguments`` of transformers 4.36, 4.57 and 5.23; the configs of
TRL 0.7, 0.9, 0.12, 0.16, 0.20, 0.24 and 1.16 without those that generate (``trl/trainer/*_config.py``);
alignment-handbook's and open-r1's ``configs.py``; what transformers' examples of PyTorch for text add.
"""

from __future__ import annotations


def names(text: str) -> frozenset[str]:
    """A set of words."""
    return frozenset(text.split())


TRAINING_ARGUMENTS = names(
    """
    accelerator_config activation_checkpointing activation_checkpointing_kwargs adafactor adam_beta1 adam_beta2
    adam_epsilon auto_find_batch_size average_tokens_across_devices batch_eval_metrics bf16 bf16_full_eval
    data_seed dataloader_drop_last dataloader_in_order dataloader_multiprocessing_context dataloader_num_workers
    dataloader_persistent_workers dataloader_pin_memory dataloader_prefetch_factor ddp_backend
    ddp_broadcast_buffers ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph ddp_timeout debug
    deepspeed disable_tqdm dispatch_batches do_eval do_predict do_train enable_jit_checkpoint
    eval_accumulation_steps eval_delay eval_do_concat_batches eval_on_start eval_steps eval_strategy
    eval_use_gather_object evaluation_strategy fp16 fp16_backend fp16_full_eval fp16_opt_level fsdp fsdp_config
    fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap full_determinism generation_config
    generation_max_length generation_num_beams gradient_accumulation_steps gradient_checkpointing
    gradient_checkpointing_kwargs greater_is_better group_by_length half_precision_backend hub_always_push
    hub_model_id hub_private_repo hub_revision hub_strategy hub_token ignore_data_skip include_for_metrics
    include_inputs_for_metrics include_num_input_tokens_seen include_tokens_per_second jit_mode_eval label_names
    label_smoothing_factor learning_rate length_column_name liger_kernel_config load_best_model_at_end
    local_rank log_level log_level_replica log_on_each_node logging_dir logging_first_step
    logging_nan_inf_filter logging_steps logging_strategy lr_scheduler_kwargs lr_scheduler_type max_grad_norm
    max_steps metric_for_best_model mp_parameters neftune_noise_alpha no_cuda num_train_epochs optim optim_args
    optim_target_modules output_dir overwrite_output_dir parallelism_config past_index
    per_device_eval_batch_size per_device_train_batch_size per_gpu_eval_batch_size per_gpu_train_batch_size
    predict_with_generate prediction_loss_only project push_to_hub push_to_hub_model_id push_to_hub_organization
    push_to_hub_token ray_scope remove_unused_columns report_to restore_callback_states_from_checkpoint
    resume_from_checkpoint run_name save_on_each_node save_only_model save_safetensors save_steps save_strategy
    save_total_limit seed skip_memory_metrics sortish_sampler split_batches tf32 torch_compile
    torch_compile_backend torch_compile_mode torch_empty_cache_steps torchdynamo tpu_metrics_debug tpu_num_cores
    trackio_bucket_id trackio_space_id trackio_static_space_id train_sampling_strategy use_cache use_cpu
    use_ipex use_legacy_prediction_loop use_liger_kernel use_mps_device warmup_ratio warmup_steps weight_decay
    """
)
TRL = names(
    """
    activation_offloading assistant_only_loss attn_implementation base_model_attribute_name beta
    bnb_4bit_quant_storage bnb_4bit_quant_type center_rewards_coefficient chars_per_token chat_template_path
    completion_only_loss config cpo_alpha dataset_batch_size dataset_config dataset_kwargs dataset_name
    dataset_num_proc dataset_streaming dataset_test_split dataset_text_field dataset_train_split datasets
    desirable_weight disable_dropout discopop_tau dtype eos_token eval_packing f_alpha_divergence_coef
    f_divergence_type force_use_ref_model generate_during_eval gradient_checkpointing_use_reentrant
    ignore_bias_buffers is_encoder_decoder label_pad_token_id label_smoothing ld_alpha lmbda load_in_4bit
    load_in_8bit lora_alpha lora_dropout lora_modules_to_save lora_r lora_target_modules lora_target_parameters
    lora_task_type loss_type loss_weights max_completion_length max_density_ratio max_length max_new_tokens
    max_prompt_length max_seq_length max_target_length min_density_ratio model_adapter_name model_init_kwargs
    model_name_or_path model_revision num_of_sequences packing packing_strategy pad_to_multiple_of pad_token
    padding_free padding_value precompute_ref_batch_size precompute_ref_log_probs prompt_sample_size
    ref_adapter_name ref_model_init_kwargs ref_model_mixup_alpha ref_model_sync_steps reference_free
    router_aux_loss_coef rpo_alpha seq_kd shuffle_dataset simpo_gamma streaming sync_ref_model
    teacher_model_init_kwargs teacher_model_name_or_path temperature test_split_size tools torch_dtype
    truncation_mode trust_remote_code undesirable_weight use_bnb_nested_quant use_dora use_liger use_liger_loss
    use_logits_to_keep use_num_logits_to_keep use_peft use_rslora use_weighting
    """
)
HANDBOOK = names(
    """
    auto_insert_empty_system_msg base_model_revision callbacks chat_template code_eval_scoring_mode
    code_eval_test_batch_size code_language code_provider config cosine_max_len cosine_max_value_correct
    cosine_max_value_wrong cosine_min_value_correct cosine_min_value_wrong dataset_configs dataset_mixer
    dataset_mixer_list dataset_mixture dataset_prompt_column dataset_splits e2b_router_url hub_model_id
    hub_model_revision ioi_provider logging_first_step max_completion_len model_code_revision morph_router_url
    num_completions_to_print overwrite_hub_revision parallel_code_exec_per_proc preprocessing_num_workers
    push_to_hub_revision repetition_max_penalty repetition_n_grams reward_funcs soft_punish_cache system_prompt
    text_column tokenizer_name_or_path truncation_side wandb_entity wandb_log_unique_prompts wandb_project
    wandb_run_group
    """
)
EXAMPLES = names(
    """
    add_prefix_space answer_column attn_implementation block_size cache_dir config_name config_overrides
    context_column dataset_config_name dataset_name do_lower_case do_regression doc_stride dtype
    fim_middle_token fim_prefix_token fim_rate fim_spm_rate fim_suffix_token forced_bos_token
    ignore_mismatched_sizes ignore_pad_token_for_loss keep_linebreaks label_all_tokens label_column_name lang
    language line_by_line low_cpu_mem_usage max_answer_length max_eval_samples max_length max_predict_samples
    max_seq_length max_source_length max_span_length max_target_length max_train_samples metric_name
    mlm_probability model_name_or_path model_revision model_type n_best_size null_score_diff_threshold num_beams
    overwrite_cache pad_to_max_length pad_token plm_probability preprocessing_num_workers question_column
    remove_splits resize_position_embeddings return_entity_level_metrics shuffle_seed shuffle_train_dataset
    source_lang source_prefix streaming summary_column target_lang task_name test_file test_split_name
    text_column text_column_delimiter text_column_name text_column_names token tokenizer_name torch_dtype
    train_file train_language train_split_name truncate_or_pad trust_remote_code use_auth_token
    use_fast_tokenizer val_max_target_length validation_file validation_split_name validation_split_percentage
    version_2_with_negative
    """
)
EXAMPLE_SCRIPTS = names(
    """
    run_classification run_clm run_fim run_glue run_mlm run_ner run_plm run_qa run_qa_beam_search run_seq2seq_qa
    run_summarization run_swag run_translation run_xnli
    """
)
"""transformers' examples for text, which hand their arguments to its Trainer."""
