"""transformers.Trainer and what builds on it: TRL, Axolotl, LLaMA-Factory.

Sources: transformers 5.23 ``training_args.py`` (``optim`` is ``adamw_torch_fused`` on torch >= 2.8, ``max_grad_norm``
1.0, ``parallelism_config`` for tensor and context parallelism), ``loss/loss_utils.py`` (logits are cast to fp32),
``trainer.py`` (the outputs are dropped before backward); accelerate ``accelerator.py`` (autocast wrapper) and
``utils/fsdp_utils.py`` (trainable parameters are upcast to fp32 before they are sharded).

transformers' model classes, which several frameworks train: what they build, and how they run.
"""

from __future__ import annotations

from memcheck.autograd.context import Style
from memcheck.autograd.weight_formats import BITSANDBYTES, FourBits, WeightFormat
from memcheck.families.registry import FAMILIES, WRAPPERS
from memcheck.job import recipe as r
from memcheck.job.framework import (
    NO_PACKAGE,
    Adapters,
    Framework,
    LoadAndSave,
    Losses,
    Optimizers,
    Parallelism,
    Precisions,
    TrainerPackage,
)
from memcheck.job.lookup import Families
from memcheck.job.versions import is_before

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.job.types import Layout, Recipe


TRANSFORMERS = Families(
    (*(name for name in FAMILIES if name not in ("megatron-gpt", "megatron-lm")), *WRAPPERS),
    source="transformers models/*/modeling_*.py",
)
"""Every family and every multimodal model, but for Megatron-LM's own GPT."""

ADAPTERS = Adapters(
    variants=("dropout", "dora", "modules_to_save", "target_parameters", "expert_rank"),
    base_formats=("nf4", "fp4", "int8", "gptq-4bit", "gptq-8bit", "awq-4bit", "fp8"),
    can_target_head=True,
)
"""peft's adapters with every key of ``LoraConfig`` that changes what they hold, over each base that transformers loads.
"""

STYLE = Style(
    folder="transformers",
    activation_layout="batch-first",
    source="transformers 5.23 modeling files and torch 2.13 derivatives.yaml (memcheck.frameworks)",
    uses_dtensor=True,
    runs_transformers_modules=True,
)

_EAGER_ALONE = ("sdpa", "flash", "flex")
MISSING_ATTENTIONS = {
    **dict.fromkeys(("bloom", "codegen", "deberta", "deberta-v2", "deepseek_v4", "mpnet", "mpt"), _EAGER_ALONE),
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa", "minimax_m3_vl_text"), ("flash", "flex")),
    **dict.fromkeys(("gpt_neo", "gptj", "mimo_v2_flash"), ("sdpa", "flex")),
    **dict.fromkeys(("gemma2", "gpt_oss", "granite_swa", "granitemoe_swa", "t5gemma", "vaultgemma"), ("sdpa",)),
    **dict.fromkeys(("llama4_text", "mt5", "t5", "umt5"), ("flash",)),
    **dict.fromkeys(
        (
            *("aria_text", "bailing_hybrid", "bamba", "falcon", "falcon_h1", "glm4v_text", "glm_ocr_text", "gpt-sw3"),
            *("gpt2", "gpt_bigcode", "jamba", "kimi_linear", "olmo_hybrid", "olmoe", "qwen3_5_moe_text"),
            *("qwen3_5_text", "qwen3_next", "stablelm"),
        ),
        ("flex",),
    ),
}
"""Kinds of attention that a model type's class does not have, at which ``from_pretrained`` stops where they are stated.

Source: transformers 5.23, ``_supports_sdpa``, ``_supports_flash_attn`` and ``_supports_flex_attn`` of each class.
"""


UNSPLIT = (
    "albert", "deberta", "deberta-v2", "distilbert", "electra", "mpnet", "roberta-prelayernorm",
)  # fmt: skip
"""Model types whose classes have no layers among their ``_no_split_modules``."""
WIDE_SINCE = (0, 27)
"""The TRL whose ``create_model_from_path`` defaults to ``float32``."""


CASTS_BACK = "Axolotl casts norms, embeddings and head back (loaders/model.py)"


class Axolotl(TrainerPackage):
    """Axolotl, which patches transformers, Accelerate and peft."""

    __slots__ = ()

    @property
    def kbit_casts_undone(self) -> str:
        """Casts after peft's preparation, unless ``embeddings_skip_upcast`` says otherwise."""
        return CASTS_BACK

    @property
    def hooks_embedding(self) -> bool:
        """True: before an adapter is loaded (loaders/adapter.py, ``load_adapter``)."""
        return True

    @property
    def own_fsdp2_prepare(self) -> bool:
        """True (monkeypatch/accelerate/fsdp2.py)."""
        return True

    def asks_for_accelerate(self, version: str | None) -> str | None:
        """Return 1.10 before Axolotl 0.13, the first release that asks for 1.11 (requirements.txt)."""
        return "1.10" if is_before(version, (0, 13)) else None


class Trl(TrainerPackage):
    """TRL, which loads the model itself."""

    __slots__ = ()

    def loads_in_fp32(self, version: str | None) -> str:
        """Return why models are loaded in fp32: the default of TRL's loader, or of transformers before 5."""
        if is_before(version, WIDE_SINCE):
            return "transformers before 5, TRL's of that time, loads in fp32 unless told"
        return "TRL loads models in fp32 unless told (trainer/utils.py, since 0.27)"


PACKAGES = {"axolotl": Axolotl(), "trl": Trl()}
"""Packages whose code changes a step in ways that no option says, by the name in ``training.trainer``."""


class TransformersFramework(Framework):
    """A framework whose training loop is transformers' Trainer, or one of a package on top of it."""

    def package_named(self, name: str) -> TrainerPackage:
        """Return the code of one of :data:`PACKAGES`; others change nothing that their options do not say."""
        return PACKAGES.get(name, NO_PACKAGE)


class Trainer(TransformersFramework):
    """transformers.Trainer, whose model Accelerate prepares."""

    def frozen_params(self, recipe: str, trainer: str | None, version: str | None) -> tuple[str, str]:
        """Return the dtype in which frozen parameters are loaded, and the reason in words.

        16 bits as in the checkpoint (``dtype="auto"`` since transformers 5), unless the ``trainer`` loads in fp32.
        ``recipe``: the plan's precision. ``version``: of the ``trainer``.
        """
        why_fp32 = self.package_named(trainer).loads_in_fp32(version) if trainer is not None else ""
        if why_fp32:
            return "fp32", why_fp32
        return "fp16" if recipe == "fp16-mixed" else "bf16", "the frozen base is kept in its checkpoint's 16-bit dtype"

    @property
    def variants(self) -> tuple[str, ...]:
        """unsloth, whose layers, loss and checkpoints are its own."""
        return ("unsloth",)

    def upcasts(self, recipe: Recipe, layout: Layout, fsdp: int = 1, base_format: WeightFormat | None = None) -> bool:
        """Say whether accelerate casts trained parameters to fp32: under FSDP with mixed precision.

        Not under FSDP2 with 4-bit weights in ``base_format``. Source: accelerate 1.15
        accelerator.py, prepare_model; utils/fsdp_utils.py. ``fsdp``: version 1 or 2.
        """
        casts = layout.zero_stage == 3 and recipe.recipe.endswith("-mixed") and not recipe.autocast
        return casts and (fsdp == 1 or not isinstance(base_format, FourBits))

    def made(self, layout: Layout, *, sharded: bool) -> tuple[str, str]:
        """Return where the model is created: the default place, but the meta device with tensor parallelism."""
        if layout.tensor > 1:
            return "meta", "with a tensor-parallel plan from_pretrained reads only the rank's slices"
        return super().made(layout, sharded=sharded)

    def loads_ahead(self, version: str | None) -> bool:
        """Say whether a release is of 5.0 to 5.3, whose worker threads put matrices on the GPU while the main thread
        quantises them, one by one (core_model_loading.py, ``spawn_materialize``; huggingface/transformers#44576).
        """
        stated = self.version_is_transformers and version
        return bool(stated) and not is_before(version, (5, 0)) and is_before(version, (5, 4))

    def keeps_whole_model_while_sharding(self, base_format: WeightFormat | None, fsdp: int) -> bool:
        """Say whether the whole model stays on the GPU until all shards exist: with bitsandbytes' weights under FSDP2.

        Accelerate has their state dict before ``fully_shard`` (1.15 utils/fsdp_utils.py, ``fsdp2_prepare_model``:
        ``original_sd``), and such a model is on the GPU already.
        """
        return base_format in BITSANDBYTES and fsdp == 2

    @property
    def copies_outputs_to_fp32(self) -> bool:
        """True: Accelerate wraps the forward in ``convert_outputs_to_fp32`` (accelerator.py, prepare_model)."""
        return True

    @property
    def unsplit(self) -> tuple[str, ...]:
        """Accelerate wraps the classes of ``_no_split_modules``, unless ``fsdp_transformer_layer_cls_to_wrap`` names
        others.
        """
        return UNSPLIT


FRAMEWORK = Trainer(
    name="huggingface",
    title="transformers.Trainer (TRL, Axolotl, LLaMA-Factory)",
    source="transformers 5.23.0, accelerate 1.15",
    style=STYLE,
    # transformers' own Adafactor and torch's Muon loop over tensors; bitsandbytes updates one tensor in place.
    families=TRANSFORMERS,
    precisions=Precisions(
        default="bf16-mixed",
        recipes=dict(r.GENERIC),
        # accelerate's policy gathers and reduces in one dtype (utils/dataclasses.py, set_mixed_precision)
        sharded={
            "bf16-mixed": r.FSDP2_BF16._replace(reduce="bf16"),
            "fp16-mixed": r.FSDP2_FP16._replace(reduce="fp16"),
            "fp8-mixed": r.FSDP2_FP8._replace(reduce="bf16"),
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
    ),
    losses=Losses(default="standard", kinds=("standard", "chunked", "fused-linear", "in-place")),
    parallelism=Parallelism(
        zero_stages=(0, 1, 3),
        degrees=("tensor", "context"),
        # every micro-batch but the last one runs under accelerator.no_sync, unless sync_each_batch says otherwise
        # (trainer.py, around training_step): DDP's and FSDP1's own no_sync, or FSDP2's
        # set_requires_gradient_sync(False) (accelerate accelerator.py, no_sync)
        gradient_sync_default="last",
    ),
    methods=("full", "lora", "qlora"),
    default_attention="sdpa",
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
    harmless={
        "bucket_cap_mb": "DDP's buckets hold the gradients together, in however many parts (c10d/reducer.cpp)",
        "torch_empty_cache_steps": "it empties the cache between steps; the peak lies within one (trainer.py)",
    },
    adapters=ADAPTERS,
    load_and_save=LoadAndSave(
        # from_pretrained without a device map loads into host memory on every rank; fsdp_config's state_dict_type is
        # FULL_STATE_DICT (transformers training_args.py)
        initialization=("host", "host"),
        other_places=("rank0",),
        checkpoint=("full", "full"),
        either_state_dict=True,
    ),
    clip_grad_norm=True,
    objectives=("sft", "dpo", "ipo", "orpo", "kto", "simpo", "cpo", "reward", "gkd", "distill"),
    trainers=("transformers", "trl", "axolotl", "llama-factory", "ms-swift", "open-instruct", "unsloth"),
    since={
        "FSDP2": (5, 10),
        # transformers 4.39 trainer.py, _fsdp_qlora_plugin_updates
        "adapter units": (4, 39),
        # loss/loss_utils.py, ForCausalLMLoss: `logits[..., :-1, :].contiguous()` up to 4.48; up to 4.45 it was
        # written in each model's forward, where `logits = logits.float()` let go of the others
        "shifted labels": (4, 49),
        "own loss": (4, 46),
        "non-reentrant": (5, 0),
    },
    missing_attentions=MISSING_ATTENTIONS,
    runs_transformers=True,
    stack="transformers",
)
