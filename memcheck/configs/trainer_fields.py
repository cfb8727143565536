"""Arguments that the scripts of transformers and TRL take. Their parser stops at any other (``HfArgumentParser``): a
launch line that has one runs another script, whatever its name is.

Fields of their dataclasses, over releases: ``TrainingArguments`` of transformers 4.36, 4.57 and 5.23; the configs of
TRL 0.7, 0.9, 0.12, 0.16, 0.20, 0.24 and 1.16 (``trl/trainer/*_config.py``, ``trl/scripts/utils.py``);
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
    accelerator_kwargs activation_offloading adap_kl_ctrl add_tail_bucket allow_tf32 alpha assistant_only_loss
    async_reward_computation attn_implementation backward_batch_size base_model base_model_attribute_name
    batch_size beta beta1 beta2 bnb_4bit_quant_storage bnb_4bit_quant_type cache_implementation callbacks
    cast_lm_head_to_fp32 center_rewards_coefficient chars_per_token chat_template_kwargs chat_template_path
    cliprange cliprange_value columns compare_steps completion_only_loss config cpo_alpha data_dir data_files
    dataset_batch_size dataset_config dataset_kwargs dataset_name dataset_num_proc dataset_streaming
    dataset_test_split dataset_text_field dataset_train_split datasets delta desirable_weight device
    diagnostics_flat_tolerance diagnostics_warning_interval disable_dropout discopop_tau distillation_add_tail
    distillation_alpha distillation_is_clip distillation_mode distillation_objective distillation_topk
    distillation_weight do_sample dont_reprompt_on_self_success ds3_gather_for_generation dtype early_stopping
    entropy_coef entropy_coef_delta entropy_coef_max entropy_coef_min entropy_target
    environment_feedback_only_without_solution eos_token eos_token_ids eos_tokens epsilon epsilon_high
    eval_packing examples exp_name f_alpha_divergence_coef f_divergence_type feedback_template
    filter_all_incorrect force_use_ref_model fork_threshold_tokens forward_batch_size fraction gamma
    generate_during_eval generate_from_teacher generation_batch_size generation_kwargs
    global_backward_batch_size global_batch_size gpu_memory_utilization gradient_checkpointing_use_reentrant
    heartbeat_stale_after_s horizon ignore_bias_buffers importance_sampling_level include_environment_feedback
    init_kl_coef is_encoder_decoder is_peft_model iw_opd_epsilon iw_opd_gamma judge kl_coef kl_estimator
    kl_penalty label_pad_token_id label_smoothing lam ld_alpha lmbda load_in_4bit load_in_8bit
    local_rollout_forward_batch_size log_completions log_completions_hub_repo log_completions_steps
    log_image_freq log_multimodal log_unique_prompts log_with logdir lora_alpha lora_dropout
    lora_modules_to_save lora_r lora_target_modules lora_target_parameters lora_task_type loss_add_tail
    loss_top_k loss_type loss_weights mask_truncated_completions max_completion_length max_density_ratio
    max_inflight_tasks max_length max_new_tokens max_prompt_length max_reprompt_len max_seq_length max_staleness
    max_target_length max_tool_calling_iterations max_workers min_density_ratio min_p mini_batch_size
    missing_eos_penalty mixed_precision mixture_coef model_adapter_name model_init_kwargs model_name
    model_name_or_path model_revision multi_objective_aggregation name negative_prompts non_eos_penalty
    normalize_advantage normalize_advantages normalize_reward num_beams num_checkpoint_limit
    num_completions_to_print num_epochs num_generations num_generations_eval num_iterations
    num_loss_tokens_to_skip num_mini_batches num_of_sequences num_ppo_epochs num_remains_in_group
    num_sample_generations num_value_samples off_policy_mask_threshold optimize_cuda_cache optimize_device_cache
    packing packing_strategy pad_to_multiple_of pad_token padding_free padding_value path penalty_reward_value
    per_prompt_stat_tracking per_prompt_stat_tracking_buffer_size per_prompt_stat_tracking_min_count ppo_epochs
    precompute_ref_batch_size precompute_ref_log_probs project_kwargs prompt_sample_size
    push_to_hub_if_best_kwargs query_dataset queue_maxsize ratio_threshold ref_adapter_name
    ref_model_init_kwargs ref_model_mixup_alpha ref_model_sync_steps reference_free
    remove_thinking_from_demonstration repetition_penalty replay_buffer_size reprompt_template request_timeout
    response_length resume_from reverse_kl_top_1_mode reward_clip_range reward_model reward_model_path
    reward_weights rloo_k router_aux_loss_coef rpo_alpha sample_batch_size sample_eta sample_guidance_scale
    sample_num_batches_per_epoch sample_num_steps sanity_check sapo_temperature_neg sapo_temperature_pos
    save_folder save_freq scale_rewards score_clip seq_kd sft_model_path shuffle_dataset simpo_gamma
    solution_template split step_separator steps steps_per_generation stop_token stop_token_id streaming
    success_reward_threshold sync_ref_model system_prompt target target_kl task_name teacher_model_init_kwargs
    teacher_model_kind teacher_model_name_or_path teacher_model_revision teacher_model_server_url
    teacher_prompt_template teacher_server_urls teacher_sync_steps teacher_temperature
    teacher_tokenizer_name_or_path teacher_top_k teacher_update_rate temperature test_split_size token_budget
    token_level_kl tools top_entropy_quantile top_k top_p torch_dtype total_episodes tpo_alpha tpo_l_gamma
    tracker_kwargs tracker_project_name train_adam_beta1 train_adam_beta2 train_adam_epsilon
    train_adam_weight_decay train_adv_clip_max train_batch_size train_cfg train_clip_range
    train_gradient_accumulation_steps train_learning_rate train_max_grad_norm train_num_inner_epochs
    train_on_last_step_only train_timestep_fraction train_use_8bit_adam transformers_continuous_batching_config
    truncated_backprop_rand truncated_backprop_timestep truncated_rand_backprop_minmax truncation_mode
    trust_remote_code uld_crossentropy_weight uld_distillation_weight uld_hybrid_matched_weight
    uld_hybrid_unmatched_weight uld_skip_student_eos uld_skip_teacher_eos uld_student_temperature
    uld_teacher_temperature uld_token_merge_strategy uld_use_hybrid_loss undesirable_weight use_adaptive_entropy
    use_bias_correction_kl use_bnb_nested_quant use_dora use_extended_uld use_liger use_liger_loss
    use_logits_to_keep use_num_logits_to_keep use_peft use_rslora use_score_norm use_score_scaling
    use_successful_as_teacher use_teacher_server use_transformers_continuous_batching use_transformers_paged
    use_uld_loss use_vllm use_weighting user vespo_k_neg vespo_k_pos vespo_lambda_neg vespo_lambda_pos vf_coef
    vllm_device vllm_dtype vllm_enable_prefix_caching vllm_enable_sleep_mode vllm_gpu_memory_utilization
    vllm_group_port vllm_guided_decoding_regex vllm_importance_sampling_cap vllm_importance_sampling_clip_max
    vllm_importance_sampling_clip_min vllm_importance_sampling_correction vllm_importance_sampling_mode
    vllm_max_model_len vllm_max_model_length vllm_mode vllm_model_impl vllm_server_base_url vllm_server_host
    vllm_server_port vllm_server_timeout vllm_structured_outputs_regex vllm_sync_frequency
    vllm_tensor_parallel_size wandb_log_unique_prompts weight_sync_steps weight_sync_timeout whiten_rewards
    world_size
    """
)
HANDBOOK = names(
    """
    auto_insert_empty_system_msg base_model_revision benchmarks chat_template code_eval_scoring_mode
    code_eval_test_batch_size code_language code_provider cosine_max_len cosine_max_value_correct
    cosine_max_value_wrong cosine_min_value_correct cosine_min_value_wrong dataset_configs dataset_mixer
    dataset_mixer_list dataset_mixture dataset_prompt_column dataset_splits e2b_router_url hub_model_id
    hub_model_revision id ioi_provider logging_first_step max_completion_len model_code_revision
    morph_router_url overwrite_hub_revision parallel_code_exec_per_proc preprocessing_num_workers
    push_to_hub_revision repetition_max_penalty repetition_n_grams reward_funcs soft_punish_cache text_column
    tokenizer_name_or_path truncation_side wandb_entity wandb_project wandb_run_group weight
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
