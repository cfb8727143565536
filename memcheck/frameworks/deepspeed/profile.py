"""transformers with the DeepSpeed engine.

Sources: ``deepspeed/runtime/zero/config.py`` (bucket sizes 5e8 elements, ``sub_group_size`` 1e9, live-parameter caps),
``deepspeed/runtime/engine.py`` (bf16 parameters and gradients with an fp32 master and fp32 Adam states),
``deepspeed/runtime/zero/stage_1_and_2.py``, ``stage3.py``; FusedAdam is the engine's Adam. Tensor parallelism is AutoTP
(``tensor_parallel.autotp_size``), context parallelism is Ulysses. Its pipeline engine needs models rewritten as
``PipelineModule``, which transformers' classes are not.
"""

from __future__ import annotations

from memcheck.frameworks.transformers.profile import (
    ADAPTERS,
    MISSING_ATTENTIONS,
    STYLE,
    TRANSFORMERS,
    TransformersFramework,
)
from memcheck.job import recipe as r
from memcheck.job.framework import LoadAndSave, Losses, Optimizers, Parallelism, Precisions


class DeepSpeed(TransformersFramework):
    """transformers' trainer with DeepSpeed's engine."""

    def puts_whole_model_on_gpu(self, place: str) -> str:
        """Return how the engine puts the whole model on each GPU, or "" if ``deepspeed.zero.Init`` divided it when
        made.

        ``place``: the device on which the model's tensors are created; ``meta`` under ``zero.Init``.

        Source: ``runtime/engine.py``, ``_configure_distributed_model`` (0.7 to 0.19): the module is cast to the
        recipe's dtype and moved with ``module.to(device)``, also where ``offload_param`` takes its shards away after.
        """
        return "" if place == "meta" else "moving the whole model, made without zero.Init, to every GPU"


FRAMEWORK = DeepSpeed(
    name="deepspeed",
    title="transformers with the DeepSpeed engine",
    source="deepspeedai/DeepSpeed 1b88ac366",
    style=STYLE,
    families=TRANSFORMERS,
    precisions=Precisions(
        default="bf16-mixed",
        recipes={
            "fp32": r.FP32,
            "bf16-mixed": r.BF16_PURE._replace(recipe="bf16-mixed", master="fp32", optimizer_states="fp32"),
            "fp16-mixed": r.FP16_PURE._replace(recipe="fp16-mixed", master="fp32", optimizer_states="fp32"),
            # bf16.bf16_master_weights_and_grads with bf16.bf16_optimizer_states (runtime/constants.py): the master copy
            # stays, in bf16.
            "bf16-pure": r.BF16_PURE._replace(master="bf16"),
        },
    ),
    optimizers=Optimizers(
        implementation="fused",
        by_name={
            "adafactor": "for-loop",
            "muon": "for-loop",
            "sgd": "foreach",
            "sgd-momentum": "foreach",
        },
        # ops/adam/fused_adam.py, ops/lion/fused_lion.py, ops/adam/cpu_adam.py
        own_kernels=True,
    ),
    losses=Losses(default="standard", kinds=("standard", "chunked", "fused-linear", "in-place")),
    parallelism=Parallelism(zero_stages=(0, 1, 2, 3), degrees=("tensor", "context")),
    methods=("full", "lora", "qlora"),
    default_attention="sdpa",
    attentions=("sdpa", "flash", "flex", "eager"),
    recompute=("none", "full"),
    options={
        "reduce_bucket_size": (int, str),
        "allgather_bucket_size": (int, str),
        "stage3_prefetch_bucket_size": (int, str),
        "stage3_param_persistence_threshold": (int, str),
        "stage3_model_persistence_threshold": (int,),
        "stage3_max_live_parameters": (int,),
        "stage3_max_reuse_distance": (int,),
        "stage3_module_granularity_threshold": (int,),
        "stage3_allgather_sequential": (bool,),
        "stage3_gather_16bit_weights_on_model_save": (bool,),
        "sub_group_size": (int,),
        "overlap_comm": (bool,),
        "contiguous_gradients": (bool,),
        "reduce_scatter": (bool,),
        "allgather_partitions": (bool,),
        "round_robin_gradients": (bool,),
        "use_multi_rank_bucket_allreduce": (bool,),
        "grad_accum_dtype": (str,),
        "communication_data_type": (str,),
        "zero_hpz_partition_size": (int,),
        "zero_quantized_weights": (bool,),
        "zero_quantized_nontrainable_weights": (bool,),
        "zero_quantized_gradients": (bool,),
        "mics_shard_size": (int,),
        "memory_efficient_linear": (bool,),
        "vit_gradient_checkpointing": (bool,),
        "pin_memory": (bool,),
        "buffer_count": (int,),
        "buffer_size": (int,),
        "ratio": (int, float),
        "partition_activations": (bool,),
        "cpu_checkpointing": (bool,),
        "contiguous_memory_optimization": (bool,),
        "number_checkpoints": (int,),
        "bf16_master_weights_and_grads": (bool,),
        "bf16_optimizer_states": (bool,),
        "transformers_version": (str,),
    },
    choices={
        "grad_accum_dtype": ("fp32", "bf16", "fp16"),
        "communication_data_type": ("fp32", "bf16", "fp16"),
        # Hugging Face fills "auto" from the hidden size (transformers/integrations/deepspeed.py).
        "reduce_bucket_size": ("auto",),
        "allgather_bucket_size": ("auto",),
        "stage3_prefetch_bucket_size": ("auto",),
        "stage3_param_persistence_threshold": ("auto",),
    },
    harmless={
        "allgather_bucket_size": "updated parameters are gathered in place: they are views of one flat buffer",
        "allgather_partitions": "updated parameters are gathered in place: they are views of one flat buffer",
        "stage3_allgather_sequential": "a flat buffer for several parameters is counted, an upper bound",
        "partition_activations": "of deepspeed.checkpointing, which transformers' models do not call",
        "cpu_checkpointing": "of deepspeed.checkpointing, which transformers' models do not call",
        "contiguous_memory_optimization": "of deepspeed.checkpointing, which transformers' models do not call",
        "number_checkpoints": "of deepspeed.checkpointing, which transformers' models do not call",
        "bf16_master_weights_and_grads": "a plan says it with `precision: bf16-pure`; without, fp32 is counted",
        "bf16_optimizer_states": "a plan says it with `precision: bf16-pure`; without, fp32 is counted",
    },
    unmodelled={
        "zero_hpz_partition_size": (1, "keeps a second copy of the parameters in every node"),
        "zero_quantized_weights": (False, "gathers parameters in 8 bits, with buffers of its own"),
        "zero_quantized_nontrainable_weights": (False, "keeps frozen parameters in 8 bits"),
        "zero_quantized_gradients": (False, "reduces gradients in 4 bits, with buffers of its own"),
        "mics_shard_size": (-1, "shards over a part of the ranks, with MiCS's own gathers"),
        "stage3_module_granularity_threshold": (0, "gathers small modules whole, ahead of their parts"),
        "memory_efficient_linear": (True, "lets torch's own linear save gathered weights for backward"),
        "ratio": (1.0, "leaves a share of the optimizer's states on the GPU"),
    },
    lacks={
        "training.lora.dtype": "the engine casts the whole model, adapters included, to the recipe's dtype "
        "(deepspeed/runtime/engine.py, _configure_distributed_model)",
        "parallelism.reshard_after_forward": "stage 3 lets go of what it gathers by `stage3_max_live_parameters` and "
        "`stage3_max_reuse_distance` (deepspeed/runtime/zero/partitioned_param_coordinator.py)",
        "parallelism.gradient_sync": "stages 0 and 1 reduce with the last micro-batch, 2 and 3 with every one "
        "(deepspeed/runtime/engine.py, allreduce_gradients; zero/stage_1_and_2.py, process_gradients)",
        "parallelism.gradient_as_bucket_view": "the engine reduces through buckets of its own, without "
        "DistributedDataParallel (deepspeed/runtime/engine.py)",
        "training.precision.params": "the engine casts the whole model to the recipe's dtype "
        "(deepspeed/runtime/engine.py, _configure_distributed_model)",
        "training.precision.gradients": "its own key is the option `grad_accum_dtype` (deepspeed/runtime/engine.py, "
        "get_data_types)",
        "training.precision.master": "16-bit parameters always have a master copy, in fp32, or in bf16 with "
        "`precision: bf16-pure` (deepspeed/runtime/zero/stage_1_and_2.py, fp16/fused_optimizer.py)",
        "training.precision.optimizer_states": "states are made like the master copy: fp32, or bf16 with "
        "`precision: bf16-pure` (deepspeed/runtime/zero/stage_1_and_2.py)",
        "training.precision.reduce": "its own key is the option `communication_data_type` "
        "(deepspeed/runtime/engine.py)",
    },
    adapters=ADAPTERS._replace(dtype="params"),
    load_and_save=LoadAndSave(
        # zero.Init with stage 3 (transformers modeling_utils.py, get_init_context), whose weights are not gathered
        # unless stage3_gather_16bit_weights_on_model_save says so; below it Trainer.save_model clones the state dict
        initialization=("host", "meta"),
        other_places=("meta",),
        checkpoint=("full", "sharded"),
    ),
    clip_grad_norm=True,
    objectives=("sft", "dpo", "ipo", "orpo", "kto", "simpo", "cpo", "reward"),
    trainers=("transformers", "trl", "axolotl", "llama-factory", "ms-swift", "open-instruct"),
    data_parallel="zero",
    missing_attentions=MISSING_ATTENTIONS,
    runs_transformers=True,
    stack="deepspeed",
    timing="deepspeed",
    not_run="verify does not run the DeepSpeed engine",
)
