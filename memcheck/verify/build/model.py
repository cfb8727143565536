"""The plan's model as transformers builds it: its class, its head, and the part that each parameter belongs to."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from inspect import signature
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # as everybody writes it
from torch import nn

from memcheck.job.types import TrainingJob
from memcheck.models.module_types import DenseDispatchMoe
from memcheck.models.parameters import count_parameters
from memcheck.models.reader import synonyms
from memcheck.models.types import Architecture, Attention, Block, LatentAttention, Moe
from memcheck.verify.build.tensors import DTYPES
from memcheck.verify.compare import RefusedStepError, Watch, enter_loss

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
    "mpnet": "MPNetForMaskedLM",
    "blenderbot-small": "BlenderbotSmallForConditionalGeneration",
    "blenderbot": "BlenderbotForConditionalGeneration",
    "data2vec-text": "Data2VecTextForMaskedLM",
    "ernie": "ErnieForMaskedLM",
    "eurobert": "EuroBertForMaskedLM",
    "m2m_100": "M2M100ForConditionalGeneration",
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
    "roberta": "RobertaForMaskedLM",
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
    mixtures = [block.mlp for block, _ in architecture.blocks if isinstance(block.mlp, Moe)]
    if any(not isinstance(mixture, DenseDispatchMoe) for mixture in mixtures):
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
    if any(isinstance(block.mixer, Attention) and not block.mixer.kernels.sdpa for block in blocks):
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
    base, path = base_of(model), architecture.encoder.layers_path
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


PARTS = (
    (
        "projector",
        (
            "visual.merger",
            "visual.deepstack_merger",
            "projector",
            "embed_vision",
            "embed_audio",
            "modality_projection",
            "connector",
            "vision_adapter",
            "vision_projection",
            "visual.downsample",
            "merger",
            "qformer",
            "query_tokens",
            "language_projection",
            "resampler",
            "perceiver",
            "aligner",
            "image_newline",
            "head_linear",
            "head_norm",
            "visual_embeddings_table",
        ),
    ),
    ("audio", ("audio_tower", "audio_encoder", "sound")),
    (
        "vision",
        (
            "visual",
            "vision_tower",
            "vision_model",
            "vision_embed_tokens",
            "image_tower",
            "video_tower",
            "vision_encoder",
            "vqmodel",
            "generation_",
        ),
    ),
)
"""Parts and what their modules' paths contain: the first that fits has it, the language model what is left."""


def part_of_path(name: str) -> str:
    """``vision`` | ``projector`` | ``audio`` | ``language``."""
    for part, words in PARTS:
        if any(word in name for word in words):
            return part
    return "language"


AUTO = {
    "classification": "AutoModelForSequenceClassification",
    "reward": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "embedding": "AutoModel",
}
"""transformers' own choice of a class by the kind of head."""
SCALE = 20.0
"""Factor of similarities (sentence-transformers, losses/multiple_negatives_ranking.py)."""


def class_with_head(job: TrainingJob, config: Any) -> Callable[..., nn.Module]:
    """What builds the model with its head, and tells the configuration how many labels there are."""
    import transformers

    if job.head.labels:
        config.num_labels = job.head.labels
        # what each class finds out by itself, DeBERTa's by reading values of labels
        config.problem_type = "regression" if job.head.labels == 1 else "single_label_classification"
        text = config.get_text_config()
        text.pad_token_id = getattr(text, "pad_token_id", None) or 0  # which rows of a batch are read by
    build: Callable[..., nn.Module] = getattr(transformers, AUTO[job.head.kind]).from_config
    return build


def labels_of(job: TrainingJob, rows: int, tokens: int) -> torch.Tensor:
    """What a micro-batch is compared with: a class of every sequence or token, a number where there is one label."""
    kind, labels = job.head.kind, job.head.labels
    if kind == "embedding":
        return torch.zeros(rows, dtype=torch.int64)
    if kind == "token-classification":
        return torch.randint(0, labels, (rows, tokens))
    if labels == 1:
        return torch.rand(rows, dtype=DTYPES[job.recipe.params])
    return torch.randint(0, labels, (rows,))


def mark_loss(job: TrainingJob, model: nn.Module, watch: Watch) -> None:
    """The loss starts at the matrix to the labels; that of embeddings says so itself."""
    if not job.head.labels:
        return
    matrices = [m for m in model.modules() if isinstance(m, nn.Linear) and m.out_features == job.head.labels]
    matrices[-1].register_forward_pre_hook(lambda *_: enter_loss(watch))


def compared_columns(
    model: nn.Module, watch: Watch, cast: Callable[[torch.Tensor], AbstractContextManager[Any]]
) -> Callable[[torch.Tensor, torch.Tensor, list[Any]], torch.Tensor]:
    """Columns of texts, each embedded by a pass of its own as the mean of its rows, and compared within the batch.

    sentence-transformers 6.2, modules/pooling.py (mean) and losses/multiple_negatives_ranking.py. Each module writes
    into the features that it was given, so that the last hidden states of every column live until the loss is there.
    ``cast``: autocast around each pass, where accelerate puts it.
    """

    def pooled(ids: torch.Tensor, features: dict[str, torch.Tensor]) -> torch.Tensor:
        with cast(ids):
            features["token_embeddings"] = states = model(input_ids=ids).last_hidden_state
            mask = torch.ones_like(ids).unsqueeze(-1).to(states.dtype)
            total = (states * mask).sum(dim=1, dtype=torch.float32)
            rows: torch.Tensor = (total / torch.clamp(mask.sum(dim=1, dtype=torch.float32), min=1e-9)).to(states.dtype)
        return rows

    def loss_of(ids: torch.Tensor, labels: torch.Tensor, kept: list[Any]) -> torch.Tensor:
        columns: list[dict[str, torch.Tensor]] = [{} for _ in ids]  # the trainer's, to the end of its loss
        first, second = (pooled(*each) for each in zip(ids.unbind(0), columns, strict=True))
        enter_loss(watch)
        scores = F.normalize(first, dim=-1) @ F.normalize(second, dim=-1).T * SCALE
        return F.cross_entropy(scores, torch.arange(scores.shape[0]))

    return loss_of
