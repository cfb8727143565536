"""LitGPT: Lightning's own model code and LoRA layers, on one GPU or under FSDP1.

Sources: Lightning-AI/litgpt 26857050 (``finetune/lora.py``, ``finetune/full.py``, ``lora.py``, ``model.py``,
``utils.py``) and Lightning Fabric, whose precision plugin returns every output of the model in the default dtype, fp32
(``lightning/fabric/plugins/precision/half.py``, ``convert_output``). On several GPUs its scripts take Fabric's
``FSDPStrategy(auto_wrap_policy={Block})``, which is ``FullyShardedDataParallel`` with ``use_orig_params=True``
(``lightning/fabric/strategies/fsdp.py``): one flat parameter for each block, and one for embedding, norm and head.
"""

from __future__ import annotations

from memcheck.autograd.context import Style
from memcheck.autograd.weight_formats import NF4, NF4_SINGLE, WeightFormat
from memcheck.job import recipe as r
from memcheck.job.framework import Adapters, Framework, LoadAndSave, Losses, Optimizers, Parallelism, Precisions
from memcheck.job.lookup import NORM, PARTIAL_ROTARY, Families, parts, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


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


class LitGpt(Framework):
    """LitGPT, whose 4-bit layers Fabric makes."""

    def four_bits(self, options: Mapping[str, object]) -> WeightFormat:
        """NF4 with nested constants, if the option ``quantize`` ends with ``-dq``; else without."""
        return NF4 if str(options.get("quantize", "bnb.nf4")).endswith("-dq") else NF4_SINGLE

    @property
    def quantizes_head(self) -> bool:
        """True: Fabric replaces every nn.Linear (plugins/precision/bitsandbytes.py)."""
        return True

    @property
    def unties_head(self) -> bool:
        """True: lm_head is a module of its own, even if the configuration ties it (model.py, GPT.__init__)."""
        return True

    @property
    def keeps_graph_until_next_loss(self) -> bool:
        """True: the loss is a local variable of the training loop."""
        return True


FRAMEWORK = LitGpt(
    name="litgpt",
    title="LitGPT (its fine-tuning scripts)",
    source="Lightning-AI/litgpt 26857050",
    style=Style(
        folder="litgpt",
        activation_layout="batch-first",
        source="litgpt/model.py and lora.py, torch 2.13 derivatives.yaml, replayed by memcheck.frameworks",
    ),
    families=FAMILIES,
    precisions=Precisions(
        default="bf16-pure",
        recipes={"bf16-pure": r.BF16_PURE, "fp16-pure": r.FP16_PURE, "bf16-mixed": r.AUTOCAST_BF16, "fp32": r.FP32},
        # Fabric reduces in the dtype that it gathers in (fabric/plugins/precision/fsdp.py, mixed_precision_config)
        sharded={"bf16-mixed": r.FSDP2_BF16._replace(reduce="bf16")},
    ),
    optimizers=Optimizers(
        implementation="foreach",
        # 4-bit training steps with bitsandbytes' PagedAdamW, whose kernel updates in place (utils.py,
        # instantiate_bnb_optimizer)
        by_name={"paged-adamw": "fused", "paged-adamw-8bit": "fused", "adamw-8bit": "fused"},
    ),
    losses=Losses(
        default="standard",
        kinds=("standard",),
        keep_logits=True,  # `logits` is a local variable of the training loop
    ),
    parallelism=Parallelism(
        zero_stages=(0, 3),
        # fabric.no_backward_sync(model, enabled=is_accumulating) in each script's training loop, which is FSDP's
        # no_sync (lightning/fabric/strategies/fsdp.py, _FSDPBackwardSyncControl)
        gradient_sync_default="last",
    ),
    methods=("full", "lora", "qlora"),
    default_attention="sdpa",
    attentions=("sdpa", "flash"),
    recompute=("none", "full"),
    options={"quantize": (str,), "lora_dropout": (int, float), "script": (str,)},
    choices={"quantize": ("bnb.nf4", "bnb.nf4-dq", "bnb.fp4", "bnb.fp4-dq"), "script": ("finetune", "pretrain")},
    lacks={
        "parallelism.reshard_after_forward": "its scripts shard fully, and no argument changes that "
        "(litgpt/finetune/full.py, FSDPStrategy)",
        "parallelism.gradient_sync": "its scripts reduce with the last micro-batch, and no argument changes that "
        "(litgpt/finetune/full.py, fabric.no_backward_sync)",
        "parallelism.gradient_as_bucket_view": "its scripts run on one GPU or under FSDP, without "
        "DistributedDataParallel (litgpt/finetune/full.py)",
    },
    adapters=Adapters(
        rank=8, targets=("q_proj", "v_proj"), dtype="params", base_formats=("nf4", "fp4"), are_own_code=True
    ),
    load_and_save=LoadAndSave(
        # init_module(empty_init=world_size > 1), load_raw or mmap; FSDPStrategy(state_dict_type="full")
        initialization=("device", "meta"),
        checkpoint=("full", "full"),
    ),
    data_parallel="fsdp1",
    not_run="LitGPT's own model code is not run",
)
