"""torchtune's recipes.

Sources: pytorch/torchtune 1814feb17 of November 2024 (``recipes/full_finetune_single_device.py``,
``recipes/lora_finetune_single_device.py``, ``modules``, ``training/_compile.py``): one dtype for parameters, gradients
and states, bf16 unless told otherwise; adapters in it too; ``del logits`` before backward; LinearNF4 of torchao.
"""

from __future__ import annotations

from memcheck.autograd.style import Style
from memcheck.job import recipes as r
from memcheck.job.families import NORM, Families, parts, words
from memcheck.job.framework import Framework

FAMILIES = Families(
    words("gemma gemma2 llama mistral phi3 qwen2 qwen3"),
    parts(
        Attention="heads kv_heads head_dim qkv_bias out_bias query_norm key_norm rotary_dim softcap tensors",
        Mlp="width gated activation bias tensors",
        Block="mixer mlp input_norm mlp_norm mixer_output_norm mlp_output_norm",
        Architecture="embedding_scale final_softcap",
        Norm=NORM,
    ),
    harmless=parts(Attention="window"),  # Gemma 2's builder alone has one (torchtune/models/*/_model_builders.py)
    source="torchtune/models",
)

FRAMEWORK = Framework(
    name="torchtune",
    title="torchtune's recipes",
    recipes={"bf16-pure": r.BF16_PURE, "fp32": r.FP32},
    sharded_recipes={},
    default_precision="bf16-pure",
    default_optimizer="adamw",
    default_implementation="fused",  # `fused: True` in the configurations
    default_attention="flex",
    default_loss="chunked",
    keep_logits=False,
    upcast=True,
    clip_grad_norm=False,
    sequence_parallel=False,
    expandable_segments=False,
    zero_stages=(0, 3),
    parallelisms=(),
    schedules=(),
    methods=("full", "lora", "qlora"),
    bases=("nf4",),
    objectives=("sft", "dpo", "distill"),  # recipes/{full,lora}_dpo_*.py, knowledge_distillation_*.py
    own_objectives=True,
    losses=("standard", "chunked", "fused-linear"),
    chunks_fused_loss=True,
    steps_in_backward=True,
    attentions=("sdpa", "flex"),
    recompute=("none", "full"),
    options={
        "custom_sharded_layers": (list,),  # torchtune/training/_distributed.py, get_shard_conditions
        "quantizer": (str,),  # recipes/qat_distributed.py, qat_lora_finetune_distributed.py
        "groupsize": (int,),
    },
    choices={"quantizer": ("Int8DynActInt4WeightQATQuantizer",)},
    families=FAMILIES,
    # compile_loss replaces a method of the losses in chunks, and drops the compiled form of any other (_compile.py)
    style=Style(
        folder="torchtune",
        layout="batch-first",
        source="torchtune/modules and torch 2.13 derivatives.yaml, replayed by memcheck.frameworks",
        compiles_blocks=True,
        compiled_losses=("chunked", "fused-linear"),
        caps_hidden=True,
    ),
    own_adapters=True,
    adapts_head=True,
    lora_variants=("dropout",),  # modules/peft/lora.py; DoRA's products come in another order than peft's
    splits_fused=True,  # torchtune/models/phi3/_component_builders.py, and the converters of its checkpoints
    implementations={"paged-adamw": "fused", "paged-adamw-8bit": "fused", "adamw-8bit": "fused"},
    lora_rank=8,
    lora_targets=("q_proj", "v_proj"),
    lora_dtype="params",
    lacks={
        "parallelism.gradient_sync": "its recipes reduce every micro-batch (recipes/full_finetune_distributed.py)",
        "parallelism.gradient_as_bucket_view": "its recipes run on one GPU or under FSDP2, without "
        "DistributedDataParallel (torchtune/training/_distributed.py)",
        "training.precision.reduce": "its recipes shard without a MixedPrecisionPolicy "
        "(torchtune/training/_distributed.py, shard_model)",
    },
    # recipes/full_finetune_distributed.py: meta device; gather_cpu_state_dict at save
    initialization=("device", "meta"),
    checkpoint=("full", "full"),
    data_parallel="fsdp",
    not_run="torchtune's own model code is not run",
    source="pytorch/torchtune 1814feb17",
)
