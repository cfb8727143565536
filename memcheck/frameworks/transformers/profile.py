"""transformers.Trainer and what builds on it: TRL, Axolotl, LLaMA-Factory.

Sources: transformers 5.23 ``training_args.py`` (``optim`` is ``adamw_torch_fused`` on torch >= 2.8, ``max_grad_norm``
1.0, ``parallelism_config`` for tensor and context parallelism), ``loss/loss_utils.py`` (logits are cast to fp32),
``trainer.py`` (the outputs are dropped before backward); accelerate ``accelerator.py`` (autocast wrapper) and
``utils/fsdp_utils.py`` (trainable parameters are upcast to fp32 before they are sharded).
"""

from __future__ import annotations

from memcheck.frameworks.transformers.classes import STYLE, TRANSFORMERS
from memcheck.job import recipes as r
from memcheck.job.framework import Framework
from memcheck.job.profile import PEFT_VARIANTS, TRANSFORMERS_BASES

UNSPLIT = (
    "albert", "bert-generation", "biogpt", "ctrl", "deberta", "deberta-v2", "distilbert", "electra", "megatron-bert",
    "mpnet", "openai-gpt", "rembert", "roberta-prelayernorm", "roformer",
)  # fmt: skip
"""Model types whose classes have no layers among their ``_no_split_modules``."""

FRAMEWORK = Framework(
    name="huggingface",
    title="transformers.Trainer (TRL, Axolotl, LLaMA-Factory)",
    recipes=dict(r.GENERIC),
    # accelerate's policy gathers and reduces in one dtype (utils/dataclasses.py, set_mixed_precision)
    sharded_recipes={
        "bf16-mixed": r.FSDP2_BF16._replace(reduce="bf16"),
        "fp16-mixed": r.FSDP2_FP16._replace(reduce="fp16"),
        "fp8-mixed": r.FSDP2_FP8._replace(reduce="bf16"),
    },
    default_precision="bf16-mixed",
    default_optimizer="adamw",
    default_implementation="fused",
    default_attention="sdpa",
    default_loss="standard",
    keep_logits=False,
    upcast=True,
    clip_grad_norm=True,
    sequence_parallel=False,
    expandable_segments=False,
    zero_stages=(0, 1, 3),
    parallelisms=("tensor", "context"),
    schedules=(),
    methods=("full", "lora", "qlora"),
    runs_transformers=True,
    lora_variants=PEFT_VARIANTS,
    adapts_head=True,
    bases=TRANSFORMERS_BASES,
    losses=("standard", "chunked", "fused-linear", "in-place"),
    objectives=("sft", "dpo", "ipo", "orpo", "kto", "simpo", "cpo", "reward", "gkd", "distill"),
    heads=("lm", "classification", "token-classification", "reward", "embedding"),
    evaluates=True,
    pads=True,
    collates=True,
    trainers=("transformers", "trl", "axolotl", "llama-factory", "ms-swift", "open-instruct"),
    wide_outputs=True,
    upcasts_trained=True,
    attentions=("sdpa", "flash", "flex", "eager"),
    recompute=("none", "selective", "full"),
    options={
        "bucket_cap_mb": (int, float),
        "torch_empty_cache_steps": (int,),
        "sync_each_batch": (bool,),
        "fsdp_version": (int,),
        "wraps_adapters": (bool,),
        "accelerate_version": (str,),
        "prepare_model_for_kbit_training": (bool,),
        "quantize_experts": (bool,),
        "fp32_embeddings": (bool,),
        "quantizer": (str,),
        "groupsize": (int,),
        "reference_fsdp": (str,),
        "vit_gradient_checkpointing": (bool,),
    },
    choices={"quantizer": ("int8-int4",), "fsdp_version": (1, 2), "reference_fsdp": ("whole_model", "per_layer")},
    fsdp2_since=(5, 10),
    # transformers 4.39 trainer.py, _fsdp_qlora_plugin_updates
    wraps_adapters_since=(4, 39),
    stacks_experts_since=(5, 0),
    # loss/loss_utils.py, ForCausalLMLoss: `logits[..., :-1, :].contiguous()` up to 4.48; up to 4.45 it was written in
    # each model's forward, where `logits = logits.float()` let go of the others
    shifts_labels_since=(4, 49),
    keeps_narrow_logits_since=(4, 46),
    reentrant_before=(5, 0),
    # transformers' own Adafactor and torch's Muon loop over tensors; bitsandbytes updates one tensor in place.
    families=TRANSFORMERS,
    style=STYLE,
    implementations={
        "adafactor": "for-loop",
        "muon": "for-loop",
        "sgd": "foreach",
        "sgd-momentum": "foreach",
    },
    # every micro-batch but the last one runs under accelerator.no_sync, unless sync_each_batch says otherwise
    # (trainer.py, around training_step): DDP's and FSDP1's own no_sync, or FSDP2's set_requires_gradient_sync(False)
    # (accelerate accelerator.py, no_sync)
    gradient_sync="last",
    # from_pretrained without a device map loads into host memory on every rank; fsdp_config's state_dict_type is
    # FULL_STATE_DICT (transformers training_args.py)
    initialization=("host", "host"),
    checkpoint=("full", "full"),
    harmless={
        "bucket_cap_mb": "DDP's buckets hold the gradients together, in however many parts (c10d/reducer.cpp)",
        "torch_empty_cache_steps": "it empties the cache between steps; the peak lies within one (trainer.py)",
    },
    from_pretrained=True,
    loads_slices=True,
    # dtype="auto" since transformers 5
    frozen_dtype="checkpoint",
    other_initializations=("rank0",),
    either_state_dict=True,
    # without `fsdp_transformer_layer_cls_to_wrap` accelerate wraps layers by their class's `_no_split_modules`
    versions_models=True,
    unsplit=UNSPLIT,
    wraps_classes=True,
    source="transformers 5.23.0, accelerate 1.15",
)
