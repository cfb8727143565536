"""The plan's model as transformers builds it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from itertools import chain
from typing import Any

import torch
from torch import nn

from memcheck.job.types import TrainingJob
from memcheck.models.keys import synonyms
from memcheck.models.parameters import count_parameters
from memcheck.models.types import Architecture, Attention, Block, LatentAttention, Moe
from memcheck.verify.build.dtypes import DTYPES
from memcheck.verify.errors import RefusedStepError

STORAGE_KEYS = (
    "architectures",
    "auto_map",
    "dtype",
    "model_type",
    "quantization_config",
    "torch_dtype",
    "transformers_version",
)
"""How a checkpoint is stored, or code in its repository that is never run."""
SAME_CODE = {"kimi_k2": "deepseek_v3", "megatron-gpt": "gpt2"}
"""Types that transformers does not know under that name."""


CLASSES = {
    "camembert": "CamembertForMaskedLM",
    "deberta": "DebertaForMaskedLM",
    "deberta-v2": "DebertaV2ForMaskedLM",
    "distilbert": "DistilBertForMaskedLM",
    "gte": "GteForMaskedLM",
    "electra": "ElectraForMaskedLM",
    "modernbert": "ModernBertForMaskedLM",
    "albert": "AlbertForMaskedLM",
    "jina_embeddings_v3": "JinaEmbeddingsV3ForMaskedLM",
    "esm": "EsmForMaskedLM",
    "xlm-roberta-xl": "XLMRobertaXLForMaskedLM",
    "bert": "BertForMaskedLM",
    "plbart": "PLBartForConditionalGeneration",
    "megatron-bert": "MegatronBertForMaskedLM",
    "mpnet": "MPNetForMaskedLM",
    "blenderbot-small": "BlenderbotSmallForConditionalGeneration",
    "blenderbot": "BlenderbotForConditionalGeneration",
    "data2vec-text": "Data2VecTextForMaskedLM",
    "ernie": "ErnieForMaskedLM",
    "esmc": "EsmcForMaskedLM",
    "eurobert": "EuroBertForMaskedLM",
    "m2m_100": "M2M100ForConditionalGeneration",
    "ultrabert": "UltrabertForMaskedLM",
    "umt5": "UMT5ForConditionalGeneration",
    "marian": "MarianMTModel",
    "nomic_bert": "NomicBertForMaskedLM",
    "roberta-prelayernorm": "RobertaPreLayerNormForMaskedLM",
    "bart": "BartForConditionalGeneration",
    "mbart": "MBartForConditionalGeneration",
    "mistral4": "Mistral4ForCausalLM",
    "mt5": "MT5ForConditionalGeneration",
    "pegasus": "PegasusForConditionalGeneration",
    "t5": "T5ForConditionalGeneration",
    "t5gemma": "T5GemmaForConditionalGeneration",
    "whisper": "WhisperForConditionalGeneration",
    "rembert": "RemBertForMaskedLM",
    "roberta": "RobertaForMaskedLM",
    "roformer": "RoFormerForMaskedLM",
    "xlm-roberta": "XLMRobertaForMaskedLM",
}
"""Classes of types that AutoModelForCausalLM does not build."""


def class_of(model_type: str) -> Any:
    """What builds a model of this type from its configuration, as ``from_config`` of transformers' classes does."""
    import transformers

    named = CLASSES.get(model_type)
    if named is None:
        return transformers.AutoModelForCausalLM.from_config
    return getattr(transformers, named)._from_config  # noqa: SLF001


def _builder(job: TrainingJob, architecture: Architecture, name: str, config: Any) -> Any:
    if architecture.vision is not None or architecture.embedders:
        import transformers

        return transformers.AutoModelForImageTextToText.from_config
    if job.head.kind == "lm":
        return class_of(name)
    from memcheck.verify.build.task import class_with_head

    return class_with_head(job, config)


def build_model(job: TrainingJob, architecture: Architecture, config: Mapping[str, Any]) -> nn.Module:
    """A new model on the present default device, in the dtype in which the plan's parameters are stored, ready to
    train.

    Values do not matter, so weights are not initialised; tied weights are tied.

    Raises:
        RefusedError: transformers has no such model type, or refuses the configuration.
    """
    from transformers import AutoConfig

    model_type = str(config.get("model_type"))
    name = SAME_CODE.get(model_type, model_type)
    try:
        real = AutoConfig.for_model(name, **_own_names(type(AutoConfig.for_model(name)), config))
    except Exception as error:  # each version of transformers has validation errors of its own
        raise RefusedStepError(f"transformers cannot read the configuration of {model_type}: {error}") from error
    real.use_cache = False
    if architecture.encoder is not None:
        real.decoder_start_token_id = getattr(real, "decoder_start_token_id", None) or 0
        real.pad_token_id = getattr(real, "pad_token_id", None) or 0
    text = real.get_text_config()
    text.use_cache = False
    if getattr(text, "pad_token_id", None) is not None and text.pad_token_id >= text.vocab_size:
        text.pad_token_id = None  # a reduced vocabulary has no row for it
    if any(isinstance(block.mlp, Moe) and not block.mlp.dense_dispatch for block, _ in architecture.blocks):
        # the eager loop over experts depends on where tokens go; the grouped product is transformers' default on a GPU
        (real if architecture.vision is None else text)._experts_implementation = "grouped_mm"  # noqa: SLF001
    outside = torch.get_default_dtype()
    torch.set_default_dtype(DTYPES[job.recipe.params])
    try:
        with _no_initialisation():
            model = _builder(job, architecture, name, real)(real, **_attention(job, architecture))
            model.tie_weights()
            _as_loaded(model, DTYPES[job.recipe.params])
            if job.option("fp32_embeddings", default=False):
                _upcast(model)
    finally:
        torch.set_default_dtype(outside)
    model.config.use_cache = False
    built, said = sum(p.numel() for p in model.parameters()), count_parameters(architecture)
    if built != said:
        raise RefusedStepError(
            f"transformers builds {model_type} with {built:,} parameters, and memcheck counts {said:,}",
            "some key of the configuration means something else to this version of transformers",
        )
    return model.train()


def _as_loaded(model: nn.Module, dtype: torch.dtype) -> None:
    """Every parameter in the dtype in which ``from_pretrained`` loads it: that which is asked for, whatever its class
    makes it in (Zamba's decays), but for ``_keep_in_fp32_modules_strict`` of the class, and in fp16
    ``_keep_in_fp32_modules``, too (modeling_utils.py, ``_get_dtype_plan``; core_model_loading.py).
    """
    from transformers.core_model_loading import build_glob_alternation

    for parameter in model.parameters():
        if parameter.is_floating_point() and parameter.dtype != dtype:
            parameter.data = parameter.data.to(dtype)
    plan = model._get_dtype_plan(dtype)  # noqa: SLF001
    if not plan:
        return
    kept, *_ = build_glob_alternation(list(plan))
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        if kept.search(name):
            tensor.data = tensor.data.float()


def _upcast(model: nn.Module) -> None:
    """Axolotl's ``_convert_embedding_modules_dtype`` after loading, for a model that it trains whole."""
    special = {"gpt_neox": ["embed_in", "embed_out"], "falcon": ["word_embeddings", "lm_head"]}
    ends = special.get(model.config.model_type, ["embed_tokens", "lm_head"])
    for name, module in model.named_modules():
        if "norm" in name or name.endswith(".gate") or (any(end in name for end in ends) and hasattr(module, "weight")):
            for tensor in chain(module.parameters(), module.buffers()):
                tensor.data = tensor.data.float()


def _own_names(kind: type, config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration in the family's own key names: others' names of the same quantity are understood in plans."""
    others = getattr(kind, "attribute_map", {})
    known = {*signature(kind).parameters, *others}
    found = {}
    for key, value in config.items():
        if key in STORAGE_KEYS:
            continue
        missing = (k for k in synonyms(key) if k in known and k not in config and others.get(k) not in config)
        own = next(missing, key)
        found[own if key not in known else key] = _numbers(value)
    return found


NUMBER = re.compile(r"[-+]?[0-9.]+[eE][-+]?[0-9]+|[-+]?Infinity")


def _numbers(value: Any) -> Any:
    """Numbers that YAML takes for words, for there is no point in ``1e-05``."""
    if isinstance(value, Mapping):
        return {key: _numbers(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_numbers(inner) for inner in value]
    return float(value) if isinstance(value, str) and NUMBER.fullmatch(value) else value


def _attention(job: TrainingJob, architecture: Architecture) -> dict[str, str]:
    """What the class is asked for; of several parts each takes what it has, unless the plan says eager."""
    name = attention_of(job, architecture)
    return {} if architecture.vision is not None and name == "sdpa" else {"attn_implementation": name}


def attention_of(job: TrainingJob, architecture: Architecture) -> str:
    """transformers' name of the attention code; eager for families without another one."""
    if job.attention == "eager":
        return "eager"
    blocks: list[Block] = [block for block, _ in architecture.blocks]
    if not any(isinstance(block.mixer, (Attention, LatentAttention)) for block in blocks):
        return "eager"  # all that the classes without attention know
    if any(isinstance(block.mixer, (Attention, LatentAttention)) and not block.mixer.sdpa for block in blocks):
        return "eager"
    return "flash_attention_2" if job.attention == "flash" else "sdpa"


def _no_initialisation() -> AbstractContextManager[None]:
    try:
        from transformers.initialization import no_init_weights
    except ImportError:  # transformers 4
        from transformers import modeling_utils

        no_init_weights = getattr(modeling_utils, "no_init_weights", nullcontext)
    manager: AbstractContextManager[None] = no_init_weights()
    return manager


def base_of(model: nn.Module) -> Any:
    """transformers' own model inside peft's wrapper."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def encoder_blocks_of(model: nn.Module, architecture: Architecture) -> list[nn.Module]:
    """The layers of the encoder in front of the stack; none: there is no encoder."""
    if architecture.encoder is None:
        return []
    base, path = base_of(model), architecture.encoder.path
    if not hasattr(base, base.base_model_prefix):
        path = path.removeprefix(f"{base.base_model_prefix}.")
    return list(base.get_submodule(path).children())


def blocks_of(model: nn.Module, architecture: Architecture) -> nn.ModuleList:
    """The stack of layers."""
    base, path = base_of(model), architecture.paths.layers
    if architecture.vision is not None:  # some classes have a whole causal language model inside
        decoder = base.get_decoder()
        while not hasattr(decoder, "layers"):
            decoder = getattr(decoder, "model", None) or decoder.decoder
        return nn.ModuleList(decoder.layers) if not isinstance(decoder.layers, nn.ModuleList) else decoder.layers
    if not hasattr(base, base.base_model_prefix):  # it is the body of other classes (AutoModel)
        path = path.removeprefix(f"{base.base_model_prefix}.")
    layers: nn.ModuleList = base.get_submodule(path)
    return layers


def body_of(model: nn.Module) -> Any:
    """The model without its head."""
    base = base_of(model)
    found = getattr(base, base.base_model_prefix, None)
    if found is None:  # JinaEmbeddingsV3ForMaskedLM calls it otherwise
        found = next(child for child in base.children() if hasattr(child, "base_model_prefix"))
    return found


def head_of(model: nn.Module) -> Any:
    """The language-model head."""
    return base_of(model).get_output_embeddings()
