"""NeMo AutoModel's keys, and the plan keys for the same things. Read at NVIDIA-NeMo/Automodel 36044ad3 of August 2026
(``components/distributed/config.py``, ``recipes/_dist_utils.py``, ``components/training/step_scheduler.py``,
``components/optim/optimizer.py``, ``components/_peft/lora.py``, ``components/models/common/utils.py``).
"""

from __future__ import annotations

from memcheck.configs.model_overrides import SIZELESS

TITLE = "NeMo AutoModel"

EVIDENCE = (
    "step_scheduler.",
    "recipe_args.target_model_name_or_path",
    "flow_matching.",
    "model.pipeline_spec.transformer_cls",
)

LANGUAGE = ("TrainFinetuneRecipeForNextTokenPrediction", "FinetuneRecipeForNextTokenPrediction")
BENCHMARK = "BenchmarkingRecipeForNextTokenPrediction"
PICTURES = "FinetuneRecipeForVLM"
SEEN_DATA = "components.datasets.vlm."
SEEN = (
    "nemo_automodel.components.datasets.vlm.datasets.make_rdr",
    "nemo_automodel.components.datasets.vlm.datasets.make_cord",
    "nemo_automodel.components.datasets.vlm.datasets.make_medpix",
    "nemo_automodel.components.datasets.vlm.datasets.make_llava",
    "nemo_automodel.components.datasets.vlm.datasets.make_tulu3",
    "nemo_automodel.components.datasets.vlm.datasets.make_unimm",
    "nemo_automodel.components.datasets.vlm.datasets.make_shopify",
    "nemo_automodel.components.datasets.vlm.mock.",
)
"""Datasets of pictures and text, without sound."""
DRAWN = "mock.build_mock_vlm_dataset"
FROZEN = {"vision": "vision_tower", "audio": "audio_tower", "language": "language_model"}
"""``freeze_config.freeze_...``, of which the first is on by default; ``freeze_embeddings`` does nothing
(``components/utils/model_utils.py``, apply_parameter_freezing)."""
CLASSES = "TrainFinetuneRecipeForSequenceClassification"
JOBS: dict[str, str] = {
    "KnowledgeDistillation": "distillation: a teacher with FSDP2 in this loop",
    "Eagle": "a draft model for speculative decoding, trained together with its target",
    "PEagle": "a draft model for speculative decoding, trained together with its target",
    "DSpark": "a draft model for speculative decoding, trained together with its target",
    "DFlash": "a draft model for speculative decoding, trained together with its target",
    "Domino": "a draft model for speculative decoding, trained together with its target",
    "JetSpec": "a draft model for speculative decoding, trained together with its target",
    "Vispec": "a draft model for speculative decoding, trained together with its target",
    "ViSpec": "a draft model for speculative decoding, trained together with its target",
    "MSD": "a draft model for speculative decoding, trained together with its target",
    "Diffusion": "diffusion",
    "BiEncoder": "retrieval: pairs of texts and a contrastive loss",
    "CrossEncoder": "retrieval: scores of pairs of texts",
    "EmbeddingDistill": "distillation of embeddings",
    "Embedding": "embeddings and a contrastive loss",
    "Multimodal": "pictures and text that are both generated",
}
"""Parts of a recipe's name, and the job that it is."""
SECTIONS: dict[str, str] = {
    "dllm": "a diffusion language model",
    "flow_matching": "diffusion",
    "dflash": "a draft model for speculative decoding, trained together with its target",
    "recipe_args": "a draft model for speculative decoding, trained together with its target",
    "teacher_model": "distillation: a teacher with FSDP2 in this loop",
}
"""Sections that no recipe of language modeling has."""

MODELS = (
    "model.pretrained_model_name_or_path",
    "model.config.pretrained_model_name_or_path",
    "model.config.name_or_path",
    "model.config",
)
DTYPES = ("model.torch_dtype", "model.dtype", "model.config.torch_dtype", "model.config.dtype")
NO_OVERRIDES = (
    SIZELESS
    | {"_target_", "pretrained_model_name_or_path", "name_or_path", "torch_dtype", "dtype"}
    | {"kda_mode", "kda_unpad_inputs", "kda_use_fused_gate", "kda_use_qk_l2norm_in_kernel"}
)
"""Keys of ``model.config`` that set no size. Those of Kimi Delta Attention fuse its gate and norms, which keeps less
than its separate products do, as which they are priced (``components/models/kimi_linear/config.py``).
"""
SIZED = (
    "hidden_size",
    "head_dim",
    "intermediate_size",
    "moe_intermediate_size",
    "num_attention_heads",
    "num_experts",
    "num_hidden_layers",
    "num_key_value_heads",
    "num_local_experts",
    "vocab_size",
)
"""Dimensions, which ``from_pretrained`` takes as arguments, too."""
PREDICTION = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
PREDICTING = {
    "qwen3_5": 1, "qwen3_5_text": 1, "qwen3_5_moe": 1, "qwen3_5_moe_text": 1, "deepseek_v4": 1, "nemotron_h": 0,
}  # fmt: skip
"""AutoModel's own classes that train the layers for further tokens which a checkpoint's configuration has, by model
type; how many there are where the catalog's copy of it is silent (every published Qwen3.5 and 3.6 has one, as has
DeepSeek V4; ``models/*/model.py``, build_mtp_config_from_hf).
"""
PAST_ADAPTERS, PAST = ("falcon_h1", "nemotron_h"), "out_proj"
"""Models whose Mamba layers hand this module's weight to one kernel while they train (``outproj_weight`` in
transformers' modeling_falcon_h1.py and AutoModel's ``nemotron_v3/layers.py``). PEFT stops at it, AutoModel does not.
"""
BUILDERS = ("NeMoAutoModelFor", "transformers.", "ForCausalLM.", "ForConditionalGeneration.")
"""Starts of names of classes and functions that build the model that a recipe names, and nothing else."""

OWN = frozenset(
    (
        "baichuan",
        "bailing_moe",
        "bailing_moe_v2",
        "deepseek_v3",
        "kimi_k2",
        "deepseek_v32",
        "deepseek_v4",
        "ernie4_5_moe",
        "glm4_moe",
        "glm4_moe_lite",
        "glm_moe_dsa",
        "gemma4",
        "gemma4_text",
        "gpt_oss",
        "hunyuan_v3",
        "kimi_linear",
        "llama",
        "minimax_m2",
        "mimo_v2_flash",
        "ministral3",
        "mistral4",
        "mistral3",
        "nemotron_h",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "qwen3_next",
        "qwen3_5",
        "qwen3_5_text",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "qwen3_vl",
        "qwen3_vl_moe",
        "step3p5",
    )
)
"""Values of ``model_type`` whose classes are AutoModel's own (``_transformers/registry.py``, MODEL_ARCH_MAPPING)."""
FUSED_NORMS = frozenset(
    (
        "deepseek_v3",
        "kimi_k2",
        "ernie4_5_moe",
        "glm4_moe",
        "glm4_moe_lite",
        "gpt_oss",
        "llama",
        "minimax_m2",
        "qwen2",
        "qwen3_moe",
    )
)
"""Values of ``model_type`` whose norms come from the backend (``initialize_rms_norm_module``). Each norm is one kernel:
compiled, Transformer Engine's, or torch.nn.RMSNorm."""
PARTS = ("self_attn", "mlp", "input_layernorm", "post_attention_layernorm")
"""What ``activation_checkpointing: true`` wraps of a layer that is AutoModel's own, each apart
(``components/distributed/activation_checkpointing.py``, apply_submodule_checkpointing).
"""

OPTIMIZERS: dict[str, tuple[str, str]] = {
    "Adam": ("adam", "foreach"),
    "AdamW": ("adamw", "foreach"),
    "FusedAdam": ("adamw", "fused"),
    "SGD": ("sgd", "foreach"),
    "AdamW8bit": ("adamw-8bit", ""),
    "PagedAdamW8bit": ("paged-adamw-8bit", ""),
    "AdamWFp8": ("adamw-torchao-fp8", ""),
    "FlashAdamW": ("flash-adamw", ""),
    "adam": ("adam", "foreach"),
    "adamw": ("adamw", "foreach"),
    "fused_adam": ("adamw", "fused"),
}
"""The last part of ``optimizer._target_``: the plan's optimizer and its implementation."""

LOSSES: dict[str, tuple[str, str]] = {
    "MaskedCrossEntropy": ("standard", ""),
    "TokenMaskedCrossEntropy": ("standard", ""),
    "FusedLinearCrossEntropy": ("fused-linear", ""),
    "TEParallelCrossEntropy": ("in-place", ""),
    "ChunkedCrossEntropy": (
        "standard",
        "it casts one chunk of the logits at a time: priced as the standard loss, an upper bound",
    ),
}
"""By the last part of ``loss_fn._target_``: the plan's loss, and a note about it; empty for none."""

ATTENTIONS = {
    "te": "flash",
    "flash": "flash",
    "flash_attention_2": "flash",
    "flash_attention_3": "flash",
    "flash_attention_4": "flash",
    "sdpa": "sdpa",
    "flex": "flex",
    "flex_attention": "flex",
    "eager": "eager",
}
"""``model.attn_implementation`` and ``model.backend.attn``. Transformer Engine runs FlashAttention or cuDNN's kernels,
which save what FlashAttention saves.
"""

DISPATCHERS = ("torch", "deepep", "uccl_ep", "hybridep")
"""``model.backend.dispatcher`` with a memory model: all tokens are gathered, or sent through a library's buffers."""

SCHEDULES = {
    "1f1b": "1f1b",
    "gpipe": "gpipe",
    "interleaved1f1b": "interleaved-1f1b",
    "interleaved_1f1b": "interleaved-1f1b",
    "interleavedzerobubble": "zero-bubble",
    "zero_bubble": "zero-bubble",
    "zbvzerobubble": "dualpipe",  # a V of stages, too
    "dualpipev": "dualpipe",
}
LOOPED = ("interleaved-1f1b", "zero-bubble", "dualpipe")

REFUSED: dict[str, str] = {
    "qat": "quantization-aware training",
    "ema": "an exponential moving average of the weights",
}
"""Sections without a memory model."""

UPPER: dict[str, str] = {
    "model.backend.compile_attn": "the compiled attention keeps",
}

UNMODELLED: dict[str, tuple[object, str]] = {
    "distributed.enable_fsdp2_prefetch": (False, "explicit prefetch, more gathered layers, is not modelled"),
    "distributed.enable_async_tensor_parallel": (False, "symmetric memory of tensor parallelism is not modelled"),
    "distributed.autocast_dtype": (None, "copies that autocast keeps in addition to FSDP's casts are not modelled"),
    "distributed.activation_checkpointing_scope": ("all", "recompute of some parts of the model is not modelled"),
    "distributed.multimodal": (None, "another sharding of frozen towers is not modelled"),
    "distributed.tp_plan": (None, "a plan of tensor parallelism of its own is not read"),
    "distributed.moe.lm_head_precision": (None, "a head in another precision is not modelled"),
    "distributed.moe.mp_policy": (None, "another precision of the experts is not read"),
    "neftune": (None, "the noise on embeddings, one more copy of them, is not modelled"),
    "model.backend.te_fp8": (None, "products in fp8 are priced as those in 16 bits"),
    "model.backend.cuda_graph": (None, "CUDA graphs, whose pools stay, are not modelled"),
    "tool_call_eval": (None, "generation between steps is not modelled"),
}

IRRELEVANT: dict[str, tuple[str, ...]] = {
    "data, on the host": (
        "dataset",
        "dataset.",
        "dataloader",
        "dataloader.",
        "validation_dataset",
        "validation_dataset.",
        "validation_dataloader",
        "validation_dataloader.",
        "_validation_dataset.",
        "_validation_dataloader.",
        "packed_sequence",
        "packed_sequence.",
        "tokenizer.",
        "processor.",
        "prefetch.",
    ),
    "rates, schedules and how long it runs": (
        "step_scheduler.",
        "lr_scheduler.",
        "optimizer.lr",
        "optimizer.betas",
        "optimizer.eps",
        "optimizer.weight_decay",
        "optimizer.adam_w_mode",
        "optimizer.bias_correction",
        "optimizer.capturable",
        "optimizer.param_group_overrides",
        "loss_fn.reduction",
        "loss_fn.ignore_index",
        "loss_fn.logit_softcapping",
        "peft.alpha",
        "peft.lora_A_init",
        "peft.dropout_position",
        "seed",
        "rng.",
        "clip_grad_norm.norm_type",
        "temperature",
    ),
    "processes and their network": (
        "dist_env.",
        "distributed.backend",
        "distributed.world_size",
        "distributed.timeout_minutes",
        "distributed.find_unused_parameters",
        "distributed.static_graph",
        "distributed.broadcast_buffers",
        "skypilot.",
        "slurm.",
        "k8s.",
        "nemo_run.",
        "launcher.",
        "ci.",
    ),
    "logs, profiles and checkpoints": (
        "wandb",
        "wandb.",
        "mlflow.",
        "comet.",
        "benchmark.",
        "checkpoint.",
        "performance.",
        "nvtx",
        "moe_metrics.",
        "mfu.",
        "autonvtx",
        "logger.",
        "prewarm.",
    ),
    "a graph of the whole model, which FSDP2 leaves out (_transformers/infrastructure.py)": ("compile.",),
    "the adapters' own function, which keeps their input, as theirs without it do, and saves a product as wide as the "
    "rank (components/_peft/lora.py, LoRATritonFunction)": ("peft.use_triton", "peft.use_memory_efficient_lora"),
    "which kernels scaled_dot_product_attention may choose from": ("model.use_sdpa_patching", "model.sdpa_method"),
    "which class and how it starts": (
        "recipe",
        "recipe._target_",
        "model._target_",
        "model.config._target_",
        "model.trust_remote_code",
        "model.config.trust_remote_code",
        "model.cache_dir",
        "model.revision",
        "model.use_cache",
        "model.text_config.use_cache",
        "model.router_aux_loss_coef",
        "model.mtp_loss_scaling_factor",
        "model.load_base_model",
        "model.low_cpu_mem_usage",
        "model.force_hf",
        "model.is_meta_device",
        "model.device_map",
        "model.backend",
        "model.backend._target_",
        "model.backend.enable_hf_state_dict_adapter",
        "model.backend.fake_balanced_gate",
        "model.backend.fake_gate_noise",
        "model.backend.enable_deepep",
        "model.backend.rope_fusion",
        "model.backend.rope",
        "model.backend.dispatcher_num_sms",
        "model.backend.dispatcher_share_token_dispatcher",
        "peft._target_",
        "loss_fn._target_",
        "quantization._target_",
    ),
    "what the plan has by other keys, or FSDP does by itself": (
        "distributed._target_",
        "distributed.dp_size",
        "distributed.moe.wrap_outer_model",
        "distributed.moe.ignore_router_for_ac",
        "distributed.patch_is_packed_sequence",
        "distributed.fsdp2_backward_prefetch_depth",
        "distributed.fsdp2_forward_prefetch_depth",
        "distributed.mp_policy.cast_forward_inputs",
        "distributed.mp_policy._target_",
        "distributed.moe._target_",
        "distributed.pipeline.",
        "autopipeline.",
        "parallelizer._target_",
    ),
}
