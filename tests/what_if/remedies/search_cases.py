"""Plans whose searches together change every key that a search changes, and the keys that none changes, with reasons."""

from __future__ import annotations

HEAD = "memcheck: 1\nmodel: {model}\nhardware: {{gpu: h100-80gb, gpus_per_node: 8, nodes: {nodes}}}\n"


def plan(training: str, layout: str = "", *, model: str = "llama-3.1-8b", nodes: int = 1, size: int = 4) -> str:
    """A plan for eight GPUs of a node."""
    text = HEAD.format(model=model, nodes=nodes)
    text += f"parallelism: {{{layout}}}\n" if layout else ""
    return f"{text}training: {{micro_batch_size: {size}, sequence_length: 8192, {training}}}\n"


def megatron(options: str, layout: str = "", model: str = "llama-3.1-8b") -> str:
    """Likewise, of Megatron."""
    return plan(f"framework: megatron, options: {{{options}}}", layout, model=model)


SLOW = "transformer_impl: local, attention_backend: local, memory_efficient_layer_norm: false"
APART = "bias_swiglu_fusion: false, apply_rope_fusion: false"
PLANS = {
    "replicas": plan("framework: huggingface, attention: eager, gradient_accumulation_steps: 4"),
    "gemma 2": plan("framework: huggingface, attention: eager", model="gemma-2-9b"),
    "own loop": plan("framework: pytorch, activation_checkpointing: {mode: full, every_n_layers: 2}"),
    "one GPU": plan("framework: pytorch, precision: bf16-pure", size=1)
    .replace("gpus_per_node: 8", "gpus_per_node: 1")
    .replace("8192", "512"),
    "in fp32": plan("framework: pytorch, precision: fp32, optimizer: {implementation: foreach}", "gradient_sync: last"),
    "unsharded": plan(
        "framework: pytorch, gradient_accumulation_steps: 4, loss: {kind: chunked, chunks: 4}",
        "zero_stage: 3, shard_group: 2, reshard_after_forward: false, gradient_sync: last",
    ),
    "a reference": plan(
        "framework: huggingface, objective: dpo, activation_checkpointing: full",
        "zero_stage: 3",
        model="qwen2.5-7b",
        size=1,
    ),
    "flat adapters": plan(
        "framework: huggingface, method: lora, activation_checkpointing: full, loss: fused-linear, "
        "options: {fsdp_version: 1, wraps_adapters: false}",
        "zero_stage: 3",
        size=1,
    ),
    "pictures": plan(
        "framework: huggingface, options: {vit_gradient_checkpointing: false}, "
        "activation_checkpointing: full, images: {per_sample: 4, width: 1280, height: 720}",
        "zero_stage: 3",
        model="qwen2.5-vl-7b",
    ),
    "kept logits": plan("framework: huggingface, evaluation: {micro_batch_size: 32, steps: 16, logits: kept}", size=1),
    "recurrent": plan("framework: pytorch, kernels: {ssm: fallback}", model="mamba-130m"),
    "int8": plan("framework: huggingface, method: lora, base: int8, activation_checkpointing: full"),
    "two constants": plan("framework: huggingface, method: qlora, base: {held_in: nf4, double: false}"),
    "a full state": plan(
        "framework: pytorch, checkpoint: {state_dict: full, offload: none}, activation_checkpointing: full, "
        "loss: chunked",
        "zero_stage: 3",
        model="llama-3.1-70b",
        nodes=8,
        size=1,
    ),
    "made on the GPU": plan(
        "framework: pytorch, initialization: device, activation_checkpointing: full, loss: chunked",
        "zero_stage: 3",
        model="llama-3.1-70b",
        nodes=8,
        size=1,
    ),
    "saved meanwhile": plan(
        "framework: torchtitan, checkpoint: {asynchronous: true}, offload: {parameters: cpu}",
        "zero_stage: 3",
        model="llama-3.1-70b",
    ).replace("gpus_per_node: 8", "gpus_per_node: 8, host_memory_gib: 200"),
    "buckets": plan(
        "framework: deepspeed, options: {reduce_bucket_size: 5000000000, overlap_comm: true}", "zero_stage: 2", size=1
    ),
    "stage 3": plan(
        "framework: deepspeed, options: {stage3_param_persistence_threshold: 500000000}, activation_checkpointing: full, loss: fused-linear",
        "zero_stage: 3",
        size=1,
    ).replace("8192", "16"),
    "tensor ranks": megatron(APART, "tensor: 2, sequence: false"),
    "without TransformerEngine": megatron(SLOW, model="llama-3.2-1b"),
    "stages": plan(
        "framework: megatron, gradient_accumulation_steps: 8, options: {deallocate_pipeline_outputs: false}",
        "pipeline: 4, virtual_stages: 2, pipeline_schedule: interleaved-1f1b",
        size=1,
    ),
    "overlapped": plan(
        "framework: megatron, optimizer: muon, options: {overlap_grad_reduce: true}", "tensor: 2, zero_stage: 1", size=1
    ).replace("8192", "4096"),
    "Megatron-FSDP": plan(
        "framework: megatron, options: {use_megatron_fsdp: true}, activation_checkpointing: full",
        "zero_stage: 3",
        size=1,
    ).replace("8192", "512"),
    "experts": plan("framework: megatron", "expert: 2", model="mixtral-8x7b"),
    "stages of torch": plan(
        "framework: torchtitan, gradient_accumulation_steps: 8", "pipeline: 4, pipeline_schedule: gpipe"
    ),
    "few chunks": plan("framework: torchtitan, loss: {kind: chunked, chunks: 2}", "zero_stage: 3"),
    "nanotron": plan(
        "framework: nanotron, options: {tp_linear_async_communication: false}", "tensor: 4", model="llama-3.2-1b"
    ),
    "a server": HEAD.format(model="llama-3.1-70b", nodes=1) + "inference: {batch_size: 8, context_length: 32768}\n",
    "a server on one GPU": HEAD.format(model="llama-3.1-70b", nodes=1).replace("_node: 8", "_node: 1")
    + "inference: {batch_size: 8, context_length: 32768}\n",
    "a serving engine": HEAD.format(model="llama-3.1-70b", nodes=1).replace("_node: 8", "_node: 1")
    + "inference: {engine: vllm, version: '0.33.0', max_num_seqs: 512}\n",
}


def _names(names: str) -> tuple[str, ...]:
    return tuple(names.split())


def _of(prefix: str, names: str) -> tuple[str, ...]:
    return tuple(f"{prefix}.{name}" for name in names.split())


ROUGH = "rough.activation_multiplier rough.hidden_size rough.layers rough.parameters rough.vocab_size"
UNSEARCHED: dict[str, tuple[str, ...]] = {
    "it names the plan and moves no memory": ("memcheck", "name", "description", "extends", "training.steps"),
    "another engine, version or demand is another server": _of(
        "inference",
        "engine version pipeline block_size kv_cache_bytes graphs_gib prefix_caching images demand.sequences "
        "demand.length",
    ),
    "no search changes how long a prefill without an engine is": _of("inference", "chunk"),
    "it says where values come from": _of(
        "source",
        "accelerate automodel axolotl deepspeed litgpt llamafactory megatron megatron-swift ms-swift nanotron "
        "torchtitan torchtune transformers trl vllm python keys",
    ),
    "it says which model is trained": (
        *_of("model", f"architecture config name overrides part {ROUGH}"),
        *_of("training.head", "kind labels"),
    ),
    "another teacher teaches something else": _of(
        "training.teacher.model", f"architecture config name overrides part {ROUGH}"
    ),
    "it describes what a GPU or a node is": (
        *_of("hardware.gpu", "memory_gib bf16_tflops fp16_tflops fp8_tflops hbm_gbs nvlink_gbs"),
        "hardware.host_memory_gib",
    ),
    "it judges a plan and does not change it": _of(
        "policy", "fail_above warn_above waste_below overhead uncertain unpacked"
    ),
    "it follows from the other degrees": ("parallelism.data",),
    "it follows from the micro-batch": ("training.gradient_accumulation_steps", "training.global_batch_size"),
    "it says what is installed, which no plan changes": (
        "training.framework",
        "training.framework_version",
        "training.torch_version",
        *_of("training.trainer", "name version"),
    ),
    "it says what the loss is, which no remedy changes": _of("training.objective", "name beta prompt_length"),
    "another value trains something else, and the search offers other methods": (
        "training.freeze",
        "training.clip_grad_norm",
        *_of("training.lora", "rank expert_rank target_modules target_parameters parts modules_to_save"),
        *_of("training.lora", "dtype dropout dora"),
        *_of("training.precision", "params gradients master optimizer_states reduce"),
        "training.loss.upcast",
    ),
    "it says what the data are": (
        "training.target_length",
        "training.longest_row",
        "training.sequences",
        *_of("training.images", "per_sample width height frames patches tokens max_pixels min_pixels"),
    ),
    "it is measured and cannot be set": ("training.expert_imbalance",),
    "other batches measure something else": _of("training.evaluation", "sequence_length steps"),
    "it says in which dtype the files of a checkpoint are": ("training.initialization.weights",),
    "FSDP takes only one value of it, which a rule demands": ("training.base.storage",),
    "the modes of recompute cover it": ("training.activation_checkpointing.modules",),
    "nobody knows before a run whether a model compiles": ("training.compile",),
}
"""Keys of the plan that no search changes, by the reason."""

UNSEARCHED_OPTIONS: dict[str, tuple[str, ...]] = {
    "it says what is installed or which code runs": _names(
        "accelerate_version transformers_version transformer_engine_version bridge_backend module script "
        "components model_class rope_interleaved dispatcher moe_flex_dispatcher_backend transformer_impl "
        "attention_backend fsdp_version use_megatron_fsdp nccl_ub cuda_graph_impl cross_entropy_fusion_impl"
    ),
    "a key of the plan says the same": _names(
        "sync_each_batch use_distributed_optimizer data_parallel_sharding_strategy optimizer_cpu_offload "
        "optimizer_offload_fraction enable_cpu_offload recompute_granularity recompute_method "
        "recompute_modules recompute_num_layers moe_layer_recompute selective_ac_option "
        "fsdp_reshard_after_forward num_layers_per_virtual_pipeline_stage num_distributed_optimizer_instances "
        "quantize lora_dropout"
    ),
    "another value changes the results": _names(
        "activation_func_fp8_input_store attention_dropout attention_softmax_in_fp32 hidden_dropout "
        "communication_data_type grad_accum_dtype grad_reduce_in_bf16 exp_avg_dtype exp_avg_sq_dtype "
        "main_grads_dtype main_params_dtype megatron_fsdp_grad_comm_dtype megatron_fsdp_main_grads_dtype "
        "megatron_fsdp_main_params_dtype store_param_remainders use_precision_aware_optimizer "
        "first_last_layers_bf16 num_layers_at_end_in_bf16 num_layers_at_start_in_bf16 fp8_format "
        "fp8_param_gather fp8_recipe fp32_embeddings prepare_model_for_kbit_training quantize_experts "
        "quantizer groupsize moe_expert_capacity_factor moe_expert_rank_capacity_factor "
        "moe_pad_expert_input_to_capacity moe_router_dtype moe_router_load_balancing_type moe_z_loss_coeff "
        "mtp_num_layers mtp_use_repeated_layer"
    ),
    "it says what the data or the vocabulary are": _names(
        "padding_free make_vocab_size_divisible_by create_attention_mask_in_dataloader"
    ),
    "which value needs less depends on the plan, by a percent or two": _names(
        "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split "
        "decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers "
        "num_layers_in_first_pipeline_stage num_layers_in_last_pipeline_stage pipeline_model_parallel_layout "
        "pipeline_parallel_first_stage_less_layers pipeline_parallel_last_stage_less_layers "
        "moe_token_dispatcher_type moe_permute_fusion moe_grouped_gemm bias_dropout_fusion bias_gelu_fusion "
        "overlap_p2p_communication tp_comm_overlap contiguous_gradients custom_sharded_layers "
        "use_multi_rank_bucket_allreduce reduce_scatter sub_group_size pin_memory buffer_count buffer_size "
        "stage3_model_persistence_threshold stage3_max_reuse_distance round_robin_gradients ddp_pad_buckets_for_high_nccl_busbw moe_shared_expert_overlap gradient_accumulation_fusion "
        "stage3_prefetch_bucket_size masked_softmax_fusion "
        "tp_recompute_allgather cross_entropy_loss_fusion "
        "overlap_param_gather hierarchical_context_parallel_sizes cp_comm_type"
    ),
    "what another value costs in time has no model": _names(
        "micro_batches_per_run microbatch_group_size_per_virtual_pipeline_stage defer_embedding_wgrad_compute "
        "wgrad_deferral_limit delay_wgrad_compute overlap_moe_expert_parallel_comm moe_paged_stash "
        "distribute_saved_activations cpu_offloading fine_grained_activation_offloading"
    ),
    "it decides in which form a checkpoint is written": ("stage3_gather_16bit_weights_on_model_save",),
}
"""Options of the frameworks that no search changes, by the reason."""
