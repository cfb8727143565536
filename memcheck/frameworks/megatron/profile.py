"""Megatron-LM, Megatron Core, NeMo and Megatron-Bridge.

Sources: ``docs/user-guide/features/dist_optimizer.md`` (bf16: 18 bytes per parameter, or 6 + 12/d with the distributed
optimizer; fp16: 20, or 4 + 16/d; fp32: 16, or 8 + 8/d), ``megatron/training/arguments.py``,
``megatron/core/transformer/transformer_config.py``, ``model_parallel_config.py``, ``optimizer/optimizer_config.py``
(``clip_grad`` 1.0), ``distributed/distributed_data_parallel_config.py``, ``tensor_parallel/cross_entropy.py`` (the loss
is vocabulary-parallel at every degree and works on an fp32 copy), read at commit
d98e8a64dd of August 2026. Options bear the names of its arguments with underscores; ``padding_free`` and
``bridge_backend`` are those of ms-swift's launcher of it (swift/megatron/arguments/megatron_args.py at 3602360a);
``transformer_engine_version`` says which library is installed, for what differs between its versions.
"""

from __future__ import annotations

from memcheck.autograd.context import Style
from memcheck.job import recipe as r
from memcheck.job.framework import Adapters, Framework, LoadAndSave, Losses, Optimizers, Parallelism, Precisions
from memcheck.job.lookup import EXPERTS, LATENT, NORM, PARTIAL_ROTARY, Families, parts, words
from memcheck.job.versions import ENGINE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from memcheck.job.lookup import Defaults
    from memcheck.job.types import Recipe


# GPT-OSS's experts with biases, scaled embeddings, ALiBi, soft-capping, layers whose halves are parallel and layers
# that are not attention have no forward pass here.
FAMILIES = Families(
    words(
        "deepseek_v2 deepseek_v3 glm4_moe gpt2 internlm3 kimi_k2 llama megatron-gpt megatron-lm "
        "mistral mixtral nemotron olmoe phi3 qwen2 qwen2_moe qwen3 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text "
        "qwen3_moe qwen3_next qwen3_vl qwen3_vl_moe qwen3_vl_moe_text qwen3_vl_text smollm3 stablelm starcoder2"
    ),
    parts(
        Attention="heads kv_heads head_dim qkv_bias out_bias query_norm key_norm rotary_dim output_gate "
        "dropout tensors",
        LatentAttention=f"{LATENT} dropout",
        Mlp="width gated activation bias tensors",
        Moe=EXPERTS,
        SharedExperts="width gate",
        Mixer="kind heads head_dim state_bytes_per_sequence width tensors key_heads key_dim kernel",
        Block="mixer mlp input_norm mlp_norm mixer_output_norm mlp_output_norm dropout",
        Architecture="embedding_dropout learned_positions",
        Norm=NORM,
    )
    | {PARTIAL_ROTARY},
    # its kernels take `window_size` and keep what they keep without; transformers' eager softmax is not its own
    harmless=parts(Attention="window narrow_weights"),
    own=frozenset({"megatron-lm"}),
    source="megatron/training/arguments.py and Megatron-Bridge's models",
)

_BOOL = (bool,)
_INT = (int,)
_NUMBER = (int, float)
_STR = (str,)

_MIXED = r.BF16_PURE._replace(gradients="fp32", master="fp32", optimizer_states="fp32", reduce="fp32")
"""bf16 forces fp32 main gradients, reduced in fp32, unless main_grads_dtype or grad_reduce_in_bf16 is given."""


class Megatron(Framework):
    """Megatron, whose layers, pipelines and experts have rules of their own."""

    def note_releases(
        self, version: str | None, options: Mapping[str, object], recipe: Recipe, defaults: Defaults
    ) -> None:
        """List the release of TransformerEngine, where the plan's loss or states depend on it."""
        if ENGINE in options:
            return
        key, states = f"training.options.{ENGINE}", recipe.optimizer_states == "bf16"
        if options.get("cross_entropy_loss_fusion") is True and options.get("cross_entropy_fusion_impl") == "te":
            why = "unknown: 2.18 makes the gradient of the loss in fp32, other releases in the dtype of the logits"
            defaults.note(key, "2.18 for the loss" if states else "2.18", why)
        elif states:
            defaults.note(key, "before 2.14", "unknown: its Adam makes fp32 copies of states in bf16")

    @property
    def adapter_modules(self) -> tuple[str, ...]:
        """The names of Megatron-Bridge's layers (peft/lora.py, class LoRA), with those of latent attention."""
        latent = ("linear_q_proj", "linear_q_up_proj", "linear_q_down_proj", "linear_kv_up_proj", "linear_kv_down_proj")
        return ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2", *latent)

    @property
    def resident_towers(self) -> tuple[str, str]:
        """The bridge of ms-swift's launcher that keeps a tower on the ranks of the first stage."""
        return ("bridge_backend", "mcore-bridge")

    @property
    def has_expert_tensor_groups(self) -> bool:
        """True; "Bias in Moe is only supported when ETP==1" (transformer_config.py)."""
        return True

    @property
    def copies_kv_heads(self) -> bool:
        """True; "num_query_groups must be a multiple or divisor of tensor_model_parallel_size"
        (transformer_config.py).
        """
        return True

    @property
    def has_even_stages(self) -> bool:
        """True: the number of layers is a multiple of the number of stages."""
        return True


FRAMEWORK = Megatron(
    name="megatron",
    title="Megatron-LM / Megatron Core (NeMo, Megatron-Bridge)",
    source="NVIDIA/Megatron-LM d98e8a64dd",
    style=Style(
        folder="megatron",
        activation_layout="sequence-first",
        source="Megatron-core transformer/ and TransformerEngine modules, replayed by memcheck.frameworks",
    ),
    families=FAMILIES,
    precisions=Precisions(
        default="bf16-mixed",
        recipes={
            "fp32": r.FP32,
            "bf16-mixed": _MIXED._replace(recipe="bf16-mixed"),
            "fp16-mixed": r.FP16_PURE._replace(recipe="fp16-mixed", master="fp32", optimizer_states="fp32"),
            "fp8-mixed": _MIXED._replace(recipe="fp8-mixed"),
        },
    ),
    optimizers=Optimizers(
        implementation="fused",
        # core/optimizer/__init__.py
        own_kernels=True,
        bitsandbytes=False,
    ),
    losses=Losses(default="vocab-parallel", kinds=("standard", "vocab-parallel"), vocab_parallel_when="always"),
    parallelism=Parallelism(
        zero_stages=(0, 1, 2, 3),
        degrees=("tensor", "sequence", "context", "pipeline", "expert", "expert_tensor"),
        schedules=("1f1b", "interleaved-1f1b"),
        sequence_default=True,
        # --make-vocab-size-divisible-by, times the tensor degree (training/arguments.py)
        pads_vocabulary=True,
    ),
    methods=("full", "lora"),
    default_attention="flash",
    attentions=("flash", "sdpa", "eager"),
    recompute=("none", "selective", "full"),
    selective_recompute="modules",
    options={
        "transformer_impl": _STR,
        "attention_backend": _STR,
        "recompute_granularity": _STR,
        "recompute_modules": (list, str),
        "recompute_method": _STR,
        "recompute_num_layers": _INT,
        "moe_layer_recompute": _BOOL,
        "distribute_saved_activations": _BOOL,
        "cross_entropy_loss_fusion": _BOOL,
        "cross_entropy_fusion_impl": _STR,
        "fp16_lm_cross_entropy": _BOOL,
        "moe_permute_fusion": _BOOL,
        "moe_router_fusion": _BOOL,
        "moe_router_dtype": _STR,
        "moe_router_padding_for_quantization": _BOOL,
        "moe_router_load_balancing_type": (list, str),
        "moe_z_loss_coeff": _NUMBER,
        "create_attention_mask_in_dataloader": _BOOL,
        "moe_grouped_gemm": _BOOL,
        "moe_token_dispatcher_type": _STR,
        "moe_flex_dispatcher_backend": _STR,
        "moe_enable_deepep": _BOOL,
        "moe_pad_expert_input_to_capacity": _BOOL,
        "moe_expert_capacity_factor": _NUMBER,
        "moe_expert_rank_capacity_factor": _NUMBER,
        "moe_shared_expert_overlap": _BOOL,
        "moe_apply_probs_on_input": _BOOL,
        "moe_paged_stash": _BOOL,
        "overlap_moe_expert_parallel_comm": _BOOL,
        "cp_comm_type": (str, list),
        "hierarchical_context_parallel_sizes": (list,),
        "use_distributed_optimizer": _BOOL,
        "num_distributed_optimizer_instances": _INT,
        "use_precision_aware_optimizer": _BOOL,
        "store_param_remainders": _BOOL,
        "main_grads_dtype": _STR,
        "main_params_dtype": _STR,
        "exp_avg_dtype": _STR,
        "exp_avg_sq_dtype": _STR,
        "grad_reduce_in_bf16": _BOOL,
        "accumulate_allreduce_grads_in_fp32": _BOOL,
        "optimizer_cpu_offload": _BOOL,
        "optimizer_offload_fraction": _NUMBER,
        "use_megatron_fsdp": _BOOL,
        "data_parallel_sharding_strategy": _STR,
        "outer_dp_sharding_strategy": _STR,
        "fsdp_double_buffer": _BOOL,
        "megatron_fsdp_main_params_dtype": _STR,
        "megatron_fsdp_main_grads_dtype": _STR,
        "megatron_fsdp_grad_comm_dtype": _STR,
        "suggested_communication_unit_size": _INT,
        "overlap_grad_reduce": _BOOL,
        "overlap_param_gather": _BOOL,
        "align_param_gather": _BOOL,
        "ddp_bucket_size": _INT,
        "ddp_num_buckets": _INT,
        "ddp_pad_buckets_for_high_nccl_busbw": _BOOL,
        "ddp_average_in_collective": _BOOL,
        "gradient_accumulation_fusion": _BOOL,
        "defer_embedding_wgrad_compute": _BOOL,
        "wgrad_deferral_limit": _INT,
        "delay_wgrad_compute": _BOOL,
        "empty_unused_memory_level": _INT,
        "make_vocab_size_divisible_by": _INT,
        "account_for_embedding_in_pipeline_split": _BOOL,
        "account_for_loss_in_pipeline_split": _BOOL,
        "num_layers_in_first_pipeline_stage": _INT,
        "num_layers_in_last_pipeline_stage": _INT,
        "decoder_first_pipeline_num_layers": _INT,
        "decoder_last_pipeline_num_layers": _INT,
        "pipeline_model_parallel_layout": (str, list),
        "num_layers_per_virtual_pipeline_stage": _INT,
        "microbatch_group_size_per_virtual_pipeline_stage": _INT,
        "overlap_p2p_communication": _BOOL,
        "deallocate_pipeline_outputs": _BOOL,
        "mtp_num_layers": _INT,
        "mtp_use_repeated_layer": _BOOL,
        "bias_swiglu_fusion": _BOOL,
        "bias_gelu_fusion": _BOOL,
        "bias_dropout_fusion": _BOOL,
        "masked_softmax_fusion": _BOOL,
        "apply_rope_fusion": _BOOL,
        "fused_single_qkv_rope": _BOOL,
        "persist_layer_norm": _BOOL,
        "memory_efficient_layer_norm": _BOOL,
        "activation_func_fp8_input_store": _BOOL,
        "attention_softmax_in_fp32": _BOOL,
        "apply_query_key_layer_scaling": _BOOL,
        "hidden_dropout": _NUMBER,
        "attention_dropout": _NUMBER,
        "tp_comm_overlap": _BOOL,
        "fp8_format": _STR,
        "fp8_recipe": _STR,
        "fp8_param_gather": _BOOL,
        "keep_fp8_transpose_cache": _BOOL,
        "first_last_layers_bf16": _BOOL,
        "num_layers_at_start_in_bf16": _INT,
        "num_layers_at_end_in_bf16": _INT,
        "cpu_offloading": _BOOL,
        "cpu_offloading_num_layers": _INT,
        "cpu_offloading_activations": _BOOL,
        "cpu_offloading_weights": _BOOL,
        "fine_grained_activation_offloading": _BOOL,
        "offload_modules": (list,),
        "cuda_graph_impl": _STR,
        "cuda_graph_scope": (str, list),
        "nccl_ub": _BOOL,
        "use_te_rng_tracker": _BOOL,
        "disable_parameter_transpose_cache": _BOOL,
        "sequence_packing": _BOOL,
        "padding_free": _BOOL,
        "bridge_backend": _STR,
        "transformer_engine_version": _STR,
    },
    choices={
        "transformer_impl": ("local", "transformer_engine", "inference_optimized"),
        "attention_backend": ("flash", "fused", "unfused", "local", "auto"),
        "recompute_granularity": ("full", "selective"),
        "recompute_method": ("uniform", "block"),
        "cross_entropy_fusion_impl": ("native", "te"),
        "moe_token_dispatcher_type": ("allgather", "alltoall", "flex"),
        "moe_flex_dispatcher_backend": ("deepep", "hybridep", "ncclep"),
        "moe_router_dtype": ("fp32", "fp64"),
        "cp_comm_type": ("p2p", "all_gather", "a2a", "a2a+p2p"),
        "main_grads_dtype": ("fp32", "bf16"),
        "main_params_dtype": ("fp32", "fp16"),
        "exp_avg_dtype": ("fp32", "bf16", "fp16", "fp8"),
        "exp_avg_sq_dtype": ("fp32", "bf16", "fp16", "fp8"),
        "data_parallel_sharding_strategy": ("no_shard", "optim", "optim_grads", "optim_grads_params"),
        "outer_dp_sharding_strategy": ("no_shard", "optim"),
        "megatron_fsdp_main_params_dtype": ("fp32", "bf16", "fp16", "auto"),
        "megatron_fsdp_main_grads_dtype": ("fp32", "bf16", "fp16", "auto"),
        "megatron_fsdp_grad_comm_dtype": ("fp32", "bf16", "fp16", "auto"),
        "fp8_format": ("e4m3", "hybrid"),
        "fp8_recipe": ("tensorwise", "delayed", "mxfp8", "blockwise", "custom"),
        "bridge_backend": ("mcore-bridge", "megatron-bridge"),
    },
    harmless={
        "fp16_lm_cross_entropy": "GPTModel stores it and never reads it (models/gpt/gpt_model.py)",
        "moe_router_fusion": "one kernel for what two do, next to tensors of [tokens, experts] (moe/moe_utils.py)",
        "moe_router_padding_for_quantization": "at most 31 rows more for each local expert (moe/moe_utils.py)",
        "moe_enable_deepep": "the old word for moe_flex_dispatcher_backend deepep, its default here",
        "align_param_gather": "when gathers start, not what they gather (param_and_grad_buffer.py)",
        "ddp_bucket_size": "buckets are parts of one buffer; their ends are padded by less than 1 KiB a rank",
        "ddp_num_buckets": "the same",
        "ddp_average_in_collective": "where gradients are divided, not what they are",
        "empty_unused_memory_level": "it empties the cache between steps; the peak lies within one (training.py)",
        "persist_layer_norm": "another kernel, which saves the same tensors (fusions/fused_layer_norm.py)",
        "apply_query_key_layer_scaling": "it scales the scores; their softmax is in fp32 anyway",
        "cpu_offloading_activations": "a detail of cpu_offloading, which has no model itself",
        "cpu_offloading_weights": "the same",
        "offload_modules": "a detail of fine_grained_activation_offloading, which has no model itself",
        "cuda_graph_scope": "a detail of cuda_graph_impl, which has no model itself",
        "use_te_rng_tracker": "states of random number generators, some KiB",
        "sequence_packing": "samples are packed into sequences of the length that the plan states",
        "accumulate_allreduce_grads_in_fp32": "main gradients are fp32 unless the plan says otherwise (MEM409)",
    },
    unmodelled={
        "moe_apply_probs_on_input": (False, "multiplies the routed tokens instead of the experts' outputs"),
        "outer_dp_sharding_strategy": ("no_shard", "divides the optimizer over the outer replicas, too"),
        "fused_single_qkv_rope": (False, "rotates the queries and keys of one buffer, without their copies"),
        "keep_fp8_transpose_cache": (False, "keeps the transposed fp8 weights of Megatron-FSDP"),
        "disable_parameter_transpose_cache": (False, "quantizes weights again instead of keeping their fp8 forms"),
        "cpu_offloading_num_layers": (0, "moves the activations of some layers to the host"),
    },
    lacks={
        "training.lora.dtype": "adapters are cast to the model's dtype (Megatron-Bridge peft/utils.py, "
        "ParallelLinearAdapter)",
        "parallelism.reshard_after_forward": "at zero_stage 3 Megatron-FSDP frees each layer after its forward, at "
        "zero_stage 2 parameters stay (megatron_fsdp.py, data_parallel_sharding_strategy)",
        "parallelism.gradient_sync": "gradients are added up and reduced with the last micro-batch, those of "
        "Megatron-FSDP with every one (megatron/core/distributed/distributed_data_parallel.py, megatron_fsdp.py)",
        "parallelism.gradient_as_bucket_view": "gradients always are views of contiguous buffers "
        "(megatron/core/distributed/param_and_grad_buffer.py)",
        "training.precision.reduce": "gradients are reduced in the dtype of their buffer, `precision.gradients`, those "
        "of Megatron-FSDP in that of `megatron_fsdp_grad_comm_dtype` (param_and_grad_buffer.py)",
        "training.precision.params": "parameters have the dtype of `--bf16` or `--fp16`, which the recipe says; "
        "fp8 weights are the option `fp8_param_gather` (megatron/training/arguments.py, params_dtype)",
        "training.precision.master": "16-bit parameters always have main ones; the dtype of those is the option "
        "`main_params_dtype`, in Megatron-FSDP `megatron_fsdp_main_params_dtype` (optimizer/optimizer.py, "
        "Float16OptimizerWithFloat16Params)",
        "training.precision.optimizer_states": "its own keys are the options `exp_avg_dtype` and `exp_avg_sq_dtype` of "
        "`use_precision_aware_optimizer` (optimizer/optimizer_config.py)",
        "training.activation_checkpointing.offload": "what checkpoints keep stays on the GPU; its own offloading are "
        "the options `cpu_offloading` and `fine_grained_activation_offloading` (transformer_config.py)",
        "training.loss.upcast": "its loss always takes an fp32 copy of the logits "
        "(megatron/core/tensor_parallel/cross_entropy.py)",
        "training.loss.keep_logits": "its model returns the loss alone, and no loop holds the logits "
        "(megatron/core/models/gpt/gpt_model.py)",
        "training.optimizer.implementation": "Adam and SGD are the fused ones of TransformerEngine or Apex, and no "
        "argument chooses others (megatron/core/optimizer/__init__.py)",
    },
    adapters=Adapters(
        # NVIDIA-NeMo/Megatron-Bridge peft/lora.py, class LoRA
        rank=32,
        targets=("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
        dtype="params",
        variants=("dropout",),
    ),
    load_and_save=LoadAndSave(
        # layers are made on the GPU unless --use-cpu-initialization; --ckpt-format is torch_dist (training_config.py)
        initialization=("device", "device"),
        # --use-cpu-initialization
        other_places=("host",),
        checkpoint=("sharded", "sharded"),
        asynchronous=True,
    ),
    clip_grad_norm=True,
    allocators=("default",),
    data_parallel="distributed-optimizer",
    measured_as="megatron",
    errors_by_model=True,
    stack="megatron",
    timing="megatron",
    not_run="Megatron-Core's and TransformerEngine's kernels need CUDA",
)
