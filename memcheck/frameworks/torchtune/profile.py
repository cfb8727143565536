"""torchtune's recipes.

Sources: pytorch/torchtune 1814feb17 of November 2024 (``recipes/full_finetune_single_device.py``,
``recipes/lora_finetune_single_device.py``, ``modules``, ``training/_compile.py``): one dtype for parameters, gradients
and states, bf16 unless told otherwise; adapters in it too; ``del logits`` before backward; LinearNF4 of torchao.
"""

from __future__ import annotations

from memcheck.autograd.context import Style
from memcheck.autograd.weight_formats import NF4, NF4_TORCHAO, WeightFormat
from memcheck.job import recipe as r
from memcheck.job.framework import Adapters, Framework, LoadAndSave, Losses, Optimizers, Parallelism, Precisions
from memcheck.job.lookup import NORM, Families, parts, words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.models.types import Architecture


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
"""Models that torchtune builds and that have a memory model."""


class Torchtune(Framework):
    """torchtune, whose modules and losses are its own."""

    def built(self, architecture: Architecture) -> Architecture:
        """Return the model with layers of their own for query, key and value, gate and up, whatever transformers fuses
        (torchtune/models/phi3/_component_builders.py, and the converters of its checkpoints).
        """
        from memcheck.models.variants import unfused

        return unfused(architecture)

    @property
    def caps_hidden_states(self) -> bool:
        """True: Gemma 2's cap is a part of its final norm (Gemma2FinalNorm)."""
        return True

    def chunks(self, loss: str) -> bool:
        """Both losses that contain the head run on chunks of the tokens."""
        return loss in ("chunked", "fused-linear")

    def stored_as(self, base_format: WeightFormat) -> WeightFormat:
        """NF4 is torchao's NF4Tensor, whose constants are quantised once more (torchtune/modules/peft/lora.py)."""
        return NF4_TORCHAO if base_format == NF4 else base_format


FRAMEWORK = Torchtune(
    name="torchtune",
    title="torchtune's recipes",
    source="pytorch/torchtune 1814feb17",
    # compile_loss replaces a method of the losses in chunks, and drops the compiled form of any other (_compile.py)
    style=Style(
        folder="torchtune",
        activation_layout="batch-first",
        source="torchtune/modules and torch 2.13 derivatives.yaml, replayed by memcheck.frameworks",
        compiles_blocks=True,
        compiled_losses=("chunked", "fused-linear"),
    ),
    families=FAMILIES,
    precisions=Precisions(default="bf16-pure", recipes={"bf16-pure": r.BF16_PURE, "fp32": r.FP32}),
    optimizers=Optimizers(
        implementation="fused",  # `fused: True` in the configurations
        by_name={"paged-adamw": "fused", "paged-adamw-8bit": "fused", "adamw-8bit": "fused"},
        in_backward=True,
    ),
    losses=Losses(default="chunked", kinds=("standard", "chunked", "fused-linear")),
    parallelism=Parallelism(zero_stages=(0, 3)),
    methods=("full", "lora", "qlora"),
    default_attention="flex",
    attentions=("sdpa", "flex"),
    recompute=("none", "full"),
    options={
        "custom_sharded_layers": (list,),  # torchtune/training/_distributed.py, get_shard_conditions
        "quantizer": (str,),  # recipes/qat_distributed.py, qat_lora_finetune_distributed.py
        "groupsize": (int,),
    },
    choices={"quantizer": ("Int8DynActInt4WeightQATQuantizer",)},
    lacks={
        "parallelism.gradient_sync": "its recipes reduce every micro-batch (recipes/full_finetune_distributed.py)",
        "parallelism.gradient_as_bucket_view": "its recipes run on one GPU or under FSDP2, without "
        "DistributedDataParallel (torchtune/training/_distributed.py)",
        "training.precision.reduce": "its recipes shard without a MixedPrecisionPolicy "
        "(torchtune/training/_distributed.py, shard_model)",
    },
    adapters=Adapters(
        rank=8,
        targets=("q_proj", "v_proj"),
        dtype="params",
        variants=("dropout",),  # modules/peft/lora.py; DoRA's products come in another order than peft's
        base_formats=("nf4",),
        can_target_head=True,
        are_own_code=True,
    ),
    load_and_save=LoadAndSave(
        # recipes/full_finetune_distributed.py: meta device; gather_cpu_state_dict at save
        initialization=("device", "meta"),
        checkpoint=("full", "full"),
    ),
    objectives=("sft", "dpo", "distill"),  # recipes/{full,lora}_dpo_*.py, knowledge_distillation_*.py
    data_parallel="fsdp2",
    not_run="torchtune's own model code is not run",
)
