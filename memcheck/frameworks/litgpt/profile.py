"""LitGPT: Lightning's own model code and LoRA layers, on one GPU or under FSDP1.

Sources: Lightning-AI/litgpt 26857050 (``finetune/lora.py``, ``finetune/full.py``, ``lora.py``, ``model.py``,
``utils.py``) and Lightning Fabric, whose precision plugin returns every output of the model in the default dtype, fp32
(``lightning/fabric/plugins/precision/half.py``, ``convert_output``). On several GPUs its scripts take Fabric's
``FSDPStrategy(auto_wrap_policy={Block})``, which is ``FullyShardedDataParallel`` with ``use_orig_params=True``
(``lightning/fabric/strategies/fsdp.py``): one flat parameter for each block, and one for embedding, norm and head.
"""

from __future__ import annotations

from memcheck.autograd.style import Style
from memcheck.job import recipes as r
from memcheck.job.families import NORM, PARTIAL_ROTARY, Families, parts, words
from memcheck.job.framework import Framework

# Its mixtures of experts and latent attention have no forward pass here.
FAMILIES = Families(
    words("falcon gemma gemma2 gpt_neox llama mistral olmo olmo2 phi phi3 qwen2 qwen3 stablelm"),
    parts(
        Attention="heads kv_heads head_dim qkv_bias out_bias query_norm key_norm rotary_dim window softcap tensors",
        Mlp="width gated activation bias tensors",
        Block="mixer mlp input_norm mlp_norm mixer_output_norm mlp_output_norm parallel",
        Architecture="embedding_scale head_bias final_softcap",
        Norm=NORM,
    )
    | {PARTIAL_ROTARY},
    harmless=parts(Attention="dropout", Block="dropout", Architecture="embedding_dropout"),  # model.py has none
    source="litgpt/config.py",
)

FRAMEWORK = Framework(
    name="litgpt",
    title="LitGPT (its fine-tuning scripts)",
    recipes={"bf16-pure": r.BF16_PURE, "fp16-pure": r.FP16_PURE, "bf16-mixed": r.AUTOCAST_BF16, "fp32": r.FP32},
    # Fabric reduces in the dtype that it gathers in (fabric/plugins/precision/fsdp.py, mixed_precision_config)
    sharded_recipes={"bf16-mixed": r.FSDP2_BF16._replace(reduce="bf16")},
    default_precision="bf16-pure",
    default_optimizer="adamw",
    default_implementation="foreach",
    default_attention="sdpa",
    default_loss="standard",
    keep_logits=True,  # `logits` is a local variable of the training loop
    upcast=True,
    clip_grad_norm=False,
    sequence_parallel=False,
    expandable_segments=False,
    zero_stages=(0, 3),
    parallelisms=(),
    schedules=(),
    methods=("full", "lora", "qlora"),
    bases=("nf4", "fp4"),
    losses=("standard",),
    attentions=("sdpa", "flash"),
    recompute=("none", "full"),
    options={"quantize": (str,), "lora_dropout": (int, float), "script": (str,)},
    choices={"quantize": ("bnb.nf4", "bnb.nf4-dq", "bnb.fp4", "bnb.fp4-dq"), "script": ("finetune", "pretrain")},
    families=FAMILIES,
    # lm_head is a module of its own, even if the config ties it (model.py, GPT.__init__)
    style=Style(
        folder="litgpt",
        layout="batch-first",
        source="litgpt/model.py and lora.py, torch 2.13 derivatives.yaml, replayed by memcheck.frameworks",
        unties_head=True,
        keeps_graph=True,
    ),
    own_adapters=True,
    flattens_units=True,
    # Fabric replaces every nn.Linear (plugins/precision/bitsandbytes.py)
    quantizes_head=True,
    default_quantization="bnb.nf4",
    # 4-bit training steps with bitsandbytes' PagedAdamW, whose kernel updates in place (utils.py,
    # instantiate_bnb_optimizer)
    implementations={"paged-adamw": "fused", "paged-adamw-8bit": "fused", "adamw-8bit": "fused"},
    # fabric.no_backward_sync(model, enabled=is_accumulating) in each script's training loop, which is FSDP's no_sync
    # (lightning/fabric/strategies/fsdp.py, _FSDPBackwardSyncControl)
    gradient_sync="last",
    lora_rank=8,
    lora_targets=("q_proj", "v_proj"),
    lora_dtype="params",
    lacks={
        "parallelism.reshard_after_forward": "its scripts shard fully, and no argument changes that "
        "(litgpt/finetune/full.py, FSDPStrategy)",
        "parallelism.gradient_sync": "its scripts reduce with the last micro-batch, and no argument changes that "
        "(litgpt/finetune/full.py, fabric.no_backward_sync)",
        "parallelism.gradient_as_bucket_view": "its scripts run on one GPU or under FSDP, without "
        "DistributedDataParallel (litgpt/finetune/full.py)",
    },
    # init_module(empty_init=world_size > 1), load_raw or mmap; FSDPStrategy(state_dict_type="full")
    initialization=("device", "meta"),
    checkpoint=("full", "full"),
    data_parallel="fsdp",
    not_run="LitGPT's own model code is not run",
    source="Lightning-AI/litgpt 26857050",
)
