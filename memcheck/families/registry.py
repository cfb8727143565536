"""From a configuration in Hugging Face's key names, or a plan's ``model``, to an architecture, by its family.

A multimodal model names the language model inside it, who reads its tower, and whether it hears or speaks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from memcheck.catalog.names import ConfigFileError, find_model, parse_config, read_config_bytes
from memcheck.edge.imports import import_module
from memcheck.errors import MemcheckError, closest
from memcheck.models.reader import ArchitectureError, ConfigReader
from memcheck.models.types import Architecture, Moe, Rough
from memcheck.plan.types import ModelSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


FAMILIES: dict[str, str] = {
    "afmoe": "afmoe:read",
    "albert": "albert:read",
    "apertus": "apertus:read",
    "arcee": "arcee:read",
    "aria_text": "aria:read",
    "axk1": "glm4_moe_lite:read_axk1",
    "bailing_hybrid": "bailing_hybrid:read",
    "bamba": "bamba:read",
    "bart": "bart:read",
    "bert": "bert:read",
    "blenderbot": "bart:read_blenderbot",
    "blenderbot-small": "bart:read_blenderbot_small",
    "bloom": "bloom:read",
    "camembert": "bert:read_roberta",
    "codegen": "codegen:read",
    "cohere": "cohere:read",
    "cohere2": "cohere:read_2",
    "cohere2_moe": "cohere:read_moe",
    "cwm": "cwm:read",
    "data2vec-text": "bert:read_data2vec",
    "dbrx": "dbrx:read",
    "deberta": "deberta:read_1",
    "deberta-v2": "deberta:read",
    "deepseek_v2": "deepseek:read_v2",
    "deepseek_v3": "deepseek:read_v3",
    "deepseek_v32": "deepseek_v32:read",
    "deepseek_v4": "deepseek_v4:read",
    "distilbert": "distilbert:read",
    "dots1": "dots1:read",
    "electra": "bert:read_electra",
    "ernie": "bert:read_ernie",
    "ernie4_5": "ernie4_5:read",
    "ernie4_5_moe": "ernie4_5:read_moe",
    "esm": "esm:read",
    "eurobert": "eurobert:read",
    "exaone4": "exaone:read",
    "exaone_moe": "exaone:read_moe",
    "falcon": "falcon:read",
    "falcon_h1": "bamba:read_falcon_h1",
    "falcon_mamba": "mamba:read_falcon",
    "flex_olmo": "olmo:read_flex",
    "gemma": "gemma:read",
    "gemma2": "gemma:read_2",
    "gemma3_text": "gemma:read_3",
    "gemma3n_text": "gemma3n:read",
    "gemma4_text": "gemma4:read",
    "gemma4_unified_text": "gemma4:read_unified",
    "glm": "glm:read",
    "glm4": "glm:read_4",
    "glm4_moe": "glm4_moe:read",
    "glm4_moe_lite": "glm4_moe_lite:read",
    "glm4v_moe_text": "glm4_moe:read_v",
    "glm4v_text": "glm:read_4v",
    "glm_moe_dsa": "deepseek_v32:read_glm",
    "glm_ocr_text": "glm:read_ocr",
    "gpt-sw3": "gpt2:read",
    "gpt2": "gpt2:read",
    "gpt_bigcode": "gpt_bigcode:read",
    "gpt_neo": "gpt_neo:read",
    "gpt_neox": "gpt_neox:read",
    "gpt_oss": "gpt_oss:read",
    "gptj": "gptj:read",
    "granite": "granite:read",
    "granite_swa": "granite:read_swa",
    "granitemoe": "granite:read_moe",
    "granitemoe_swa": "granite:read_moe_swa",
    "granitemoehybrid": "bamba:read_granite",
    "granitemoeshared": "granite:read_shared",
    "gte": "gte:read",
    "helium": "helium:read",
    "hunyuan_v1_dense": "hunyuan:read",
    "hunyuan_v1_moe": "hunyuan:read_moe",
    "hy_v3": "hy_v3:read",
    "hyperclovax": "granite:read_hyperclovax",
    "internlm3": "internlm3:read",
    "iquestcoder": "llama:read",
    "jais2": "jais2:read",
    "jamba": "jamba:read",
    "jina_embeddings_v3": "gte:read_jina",
    "kimi_k2": "deepseek:read_v3",
    "kimi_linear": "kimi_linear:read",
    "lfm2": "lfm2:read",
    "lfm2_moe": "lfm2:read_moe",
    "lfm3": "lfm2:read_3",
    "llama": "llama:read",
    "llama4_text": "llama4:read",
    "longcat_flash": "longcat_flash:read",
    "m2m_100": "bart:read_m2m100",
    "mamba": "mamba:read",
    "mamba2": "mamba2:read",
    "marian": "bart:read_marian",
    "mbart": "bart:read_mbart",
    "megatron-gpt": "gpt2:read",
    "megatron-lm": "megatron_lm:read",
    "mellum": "qwen_moe:read_mellum",
    "mimo_v2_flash": "mimo_v2:read",
    "minicpm3": "minicpm3:read",
    "minimax": "minimax:read",
    "minimax_m2": "minimax:read_m2",
    "minimax_m3_vl_text": "minimax_m3:read",
    "ministral": "ministral:read",
    "ministral3": "ministral:read_3",
    "mistral": "mistral:read",
    "mistral4": "mistral4:read",
    "mixtral": "mixtral:read",
    "mllama_text_model": "mllama:read",
    "modernbert": "modernbert:read",
    "modernbert-decoder": "modernbert:read_decoder",
    "molmo2_text": "qwen:read_molmo2",
    "mpnet": "mpnet:read",
    "mpt": "mpt:read",
    "mt5": "t5:read",
    "muse_glimmer_text": "muse_glimmer:read",
    "nanochat": "nanochat:read",
    "nemotron": "nemotron:read",
    "nemotron_h": "nemotron_h:read",
    "nomic_bert": "gte:read_nomic",
    "olmo": "olmo:read",
    "olmo2": "olmo:read_2",
    "olmo3": "olmo:read_3",
    "olmo_hybrid": "olmo_hybrid:read",
    "olmoe": "olmo:read_moe",
    "opt": "opt:read",
    "paddleocr_vl_text": "ernie4_5:read_paddle",
    "pegasus": "bart:read_pegasus",
    "phi": "phi:read",
    "phi3": "phi3:read",
    "phimoe": "phimoe:read",
    "plbart": "bart:read",
    "qwen2": "qwen:read_2",
    "qwen2_moe": "qwen_moe:read_2",
    "qwen3": "qwen:read_3",
    "qwen3_5_moe_text": "qwen3_next:read_3_5_moe",
    "qwen3_5_text": "qwen3_next:read_3_5",
    "qwen3_moe": "qwen_moe:read_3",
    "qwen3_next": "qwen3_next:read",
    "roberta": "bert:read_roberta",
    "roberta-prelayernorm": "bert:read_prelayernorm",
    "seed_oss": "seed_oss:read",
    "smollm3": "smollm3:read",
    "solar_open": "solar_open:read",
    "stablelm": "stablelm:read",
    "starcoder2": "starcoder2:read",
    "step3p5": "step3p7:read",
    "t5": "t5:read",
    "t5gemma": "t5gemma:read",
    "umt5": "t5:read_umt5",
    "vaultgemma": "gemma:read_vault",
    "whisper": "bart:read_whisper",
    "xlm-roberta": "bert:read_roberta",
    "xlm-roberta-xl": "bert:read_xl",
    "youtu": "youtu:read",
    "zamba2": "zamba2:read",
}
"""``model_type`` -> ``module:function`` in :mod:`memcheck.models.families`."""
NOT_MODELLED = frozenset((
    "axk2", "beam", "bert-generation", "biogpt", "bitnet", "blip-2", "cohere_compass", "cohere_compass_text",
    "cosmos3_edge", "cosmos3_edge_text", "ctrl", "diffllama", "doge", "dots3_note", "dots3_note_text",
    "ernie4_5_vl_moe", "ernie4_5_vl_moe_text", "esmc", "flint", "fuyu", "hrm_text", "hunyuan_vl", "hunyuan_vl_text",
    "hy_v4", "inkling2", "inkling2_text", "inkling_mm_model", "inkling_text", "instructblip", "jetmoe", "kolibri1",
    "laguna", "megatron-bert", "openai-gpt", "perception_lm", "persimmon", "recurrent_gemma", "rembert", "roformer",
    "ultrabert", "xglm", "zamba", "zaya",
))  # fmt: skip
"""Types of transformers' models that memcheck does not model, and of which no family here is a variant."""
CAUSAL = ("ForCausalLM", "LMHeadModel")
"""How the classes for causal language end."""


def _causal_class(config: Mapping[str, Any]) -> str | None:
    """Return the class for causal language modelling that an encoder's file names; None if it names none."""
    named = config.get("architectures")
    found = named[0] if isinstance(named, list) and len(named) == 1 else None
    return found if isinstance(found, str) and found.endswith(CAUSAL) else None


def _model_type(config: Mapping[str, Any]) -> str:
    """Return the ``model_type`` of a configuration, if memcheck has a reader for it.

    Raises:
        ArchitectureError: it is missing, no text, or unknown; the help has close names and families of like structure.
    """
    model_type = config.get("model_type")
    if model_type is None:
        raise ArchitectureError("model_type is missing", "state it: it names the family, such as llama", "model_type")
    if not isinstance(model_type, str):
        raise ArchitectureError(f"model_type must be a string, not {model_type!r}", key="model_type")
    if model_type in NOT_MODELLED:
        message = f"memcheck does not model the family {model_type!r}"
        raise ArchitectureError(message, "`model: {rough: ...}` takes the number of parameters", "model_type")
    if model_type not in FAMILIES:
        close = closest(model_type.lower(), FAMILIES, 3, 0.5)
        help = f"close names: {', '.join(close)}; " if close else ""
        help += _near_by_structure(config)
        raise ArchitectureError(f"memcheck does not know model_type {model_type!r}", help, "model_type")
    return model_type


def _near_by_structure(config: Mapping[str, Any]) -> str:
    """Return the help for an unknown model type: families that read its keys, and ways to describe it by hand."""
    from memcheck.families.nearest import described, nearest

    near = nearest(config, FAMILIES, _family)
    families = f"nearest by structure: {described(near)}; " if near else ""
    return (
        f"{families}if one of them is this model's code, describe it by `model: {{architecture: {{model_type: ...}}}}` "
        "with its keys; else `model: {rough: ...}` takes the number of parameters"
    )


def _family(model_type: str) -> Callable[[ConfigReader], Architecture]:
    """Import and return the reader of a family, on first use."""
    module, function = FAMILIES[model_type].split(":")
    family: Callable[[ConfigReader], Architecture] = getattr(
        import_module("memcheck.models.families." + module), function
    )
    return family


def read_family(
    config: Mapping[str, Any], *, strict: bool = False, written: frozenset[str] = frozenset()
) -> Architecture:
    """Read the configuration of a family that :data:`FAMILIES` names; see :func:`read_architecture`.

    Raises:
        ArchitectureError: an unknown ``model_type``, a missing key, a wrong type, an unread key.
    """
    reader = ConfigReader(config, _model_type(config))
    architecture = _family(reader.model_type)(reader)
    for key in ("quantization_config", "quantization"):
        if reader.raw(key) is not None:
            reader.note(f"{key} describes how the checkpoint is stored; the plan states how weights are held")
    reader.ignore("rope_scaling", "rope_parameters")
    if not architecture.logit_casts.in_loss and (named := _causal_class(config)):
        architecture = architecture._replace(logit_casts=architecture.logit_casts._replace(in_loss=True))
        reader.note(f"architectures names {named}, the class for causal language: its loss takes logits in fp32")
    if reader.unread():
        from memcheck.models.leftovers import check_leftovers

        check_leftovers(reader, architecture, written=frozenset(config) if strict else written)
    if any(isinstance(block.mlp, Moe) for block, _ in architecture.blocks):
        from memcheck.models.variants import with_names

        architecture = architecture._replace(blocks=with_names(architecture.blocks, reader.model_type))
    return architecture._replace(notes=architecture.notes + tuple(reader.notes)) if reader.notes else architecture


LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers")
LAYER_LISTS = ("layer_types", "no_rope_layers")


def architecture_of(model: ModelSpec, base_dir: str = ".") -> Architecture | Rough:
    """Resolve ``model.name``, ``model.config`` (relative to ``base_dir``), ``model.architecture`` or ``model.rough``.

    Raises:
        UnknownNameError: the catalog has no such model.
        ConfigFileError: the ``config.json`` cannot be read.
        ArchitectureError: the configuration, or an override, cannot be used.
    """
    if model.rough is not None:
        return Rough(*model.rough)
    if model.architecture is not None:
        return read_architecture(
            part_of(merged_config(model.architecture, model.overrides or {}), model.part), strict=True
        )
    if model.config is not None:
        data, path = read_config_bytes(model.config, base_dir)
        read = _read_config_bytes(data, path, model.part, _Overrides(model.overrides or {}))
        if isinstance(read, MemcheckError):
            raise read.with_traceback(None)
        return read
    if model.name is None:
        raise ArchitectureError("the plan names no model", "write `model: llama-3.1-8b`")
    if not model.overrides:
        return catalog_architecture(model.name, model.part or "whole")

    entry = find_model(model.name)
    return _with_note(_read_with_overrides(part_of(entry.config, model.part), model.overrides), entry.read_as)


class _Overrides:
    """``model.overrides`` as a hashable key of a cache, compared by their text: 1, 1.0 and true are equal in Python."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self._said = repr(values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Overrides) and self._said == other._said

    def __hash__(self) -> int:
        return hash(self._said)


@lru_cache(maxsize=8)
def _read_config_bytes(data: bytes, path: str, part: str | None, overrides: _Overrides) -> Architecture | MemcheckError:
    """Read the bytes of a ``config.json``, and return its architecture, or the error that reading it raises.

    Results are cached, since many plans name the same file. ``lru_cache`` does not cache what is raised, so an error is
    returned, for the caller to raise. ``path``: of the file, for messages. ``part``: ``language`` for the language
    model alone; None: all of it.
    """
    try:
        return _read_with_overrides(part_of(parse_config(data, path), part), overrides.values)
    except (ConfigFileError, ArchitectureError) as error:
        return error


@lru_cache(maxsize=512)
def catalog_architecture(name: str, part: str = "whole") -> Architecture:
    """Return the architecture of a model in the catalog, read once. ``part``: ``whole``, or ``language`` for that
    alone.

    Raises:
        UnknownNameError: the catalog has no such model.
    """
    entry = find_model(name)
    return _with_note(read_architecture(part_of(entry.config, part)), entry.read_as)


def part_of(config: Mapping[str, Any], part: str | None) -> Mapping[str, Any]:
    """Return the configuration of a part of the model: ``language`` switches the towers of a multimodal model off.

    Any other ``part`` is the whole model.
    """
    if part != "language":
        return config
    from memcheck.families.multimodal import thinker_of

    config = thinker_of(config)
    if str(config.get("model_type")) not in WRAPPERS:
        return config
    from memcheck.families.multimodal import text_of

    return text_of(config)[0]


def merged_config(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Merge ``overrides`` into ``config``: nested mappings are merged, all other values replaced, null included."""
    merged = dict(config)
    for key, value in overrides.items():
        below = merged.get(key)
        nested = isinstance(below, Mapping) and isinstance(value, Mapping)
        merged[key] = merged_config(below, value) if nested else value  # type: ignore[arg-type]
    return merged


def with_overrides(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merged configuration.

    If the overrides state fewer layers than a list has entries, the list keeps the first ones.
    """
    merged = merged_config(config, overrides)
    count = next((overrides[k] for k in LAYER_COUNTS if k in overrides), None)
    if isinstance(count, int):
        # a list with one entry per layer describes the model as it was
        for key in LAYER_LISTS:
            if key not in overrides and isinstance(merged.get(key), list):
                merged[key] = merged[key][:count]
    return merged


def _read_with_overrides(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> Architecture:
    """Read with overrides, whose every key must be one that is read: ``config.json`` may carry others, a person not."""
    return read_architecture(with_overrides(config, overrides), written=frozenset(overrides))


def _with_note(architecture: Architecture, note: str) -> Architecture:
    return architecture._replace(notes=(note, *architecture.notes)) if note else architecture


def read_architecture(
    config: Mapping[str, Any], *, strict: bool = False, written: frozenset[str] = frozenset()
) -> Architecture:
    """Read a configuration.

    ``strict``: every key has to be known (a mapping that a person wrote); ``written`` names such keys among others.
    Elsewhere an unknown key is refused only when it could carry a size or looks like a misspelt key, and is mentioned
    in ``Architecture.notes`` when it could not: a ``config.json`` carries whatever its authors' tools wrote.

    Raises:
        ArchitectureError: an unknown ``model_type``, a missing key, a wrong type, an unread key.
    """
    if str(config.get("model_type")) not in FAMILIES:
        if str(config.get("model_type")) in THINKERS:
            from memcheck.families.multimodal import thinker_of

            inner = thinker_of(config)
            architecture = read_architecture(inner, strict=strict, written=written & frozenset(inner))
            return architecture._replace(notes=(MUTE, *architecture.notes))
        if str(config.get("model_type")) in WRAPPERS:
            from memcheck.families.multimodal import language_model, read

            off = "vision_config" in config and config["vision_config"] is None
            if str(config["model_type"]) in TOWERS and not off:
                return read(config, strict=strict, written=written)
            config = language_model(config)
    return read_family(config, strict=strict, written=written)


WRAPPERS: dict[str, str] = {
    "aria": "aria_text",
    "audioflamingo3": "qwen2",
    "aya_vision": "cohere2",
    "cohere2_vision": "cohere2",
    "cosmos3_omni": "qwen3",
    "deepseek_vl": "llama",
    "deepseek_vl_hybrid": "llama",
    "exaone4_5": "exaone4",
    "fast_vlm": "qwen2",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "glm46v": "glm4v_text",
    "glm4v": "glm4v_text",
    "glm4v_moe": "glm4v_moe_text",
    "glm_ocr": "glm_ocr_text",
    "glmga": "glm4v_text",
    "glmasr": "llama",
    "got_ocr2": "qwen2",
    "granite_speech": "granite",
    "granite_speech_plus": "granite",
    "hyperclovax_vision_v2": "hyperclovax",
    "idefics2": "mistral",
    "idefics3": "llama",
    "internvl": "qwen2",
    "janus": "llama",
    "kimi_k25": "deepseek_v3",
    "kimi_vl": "deepseek_v3",
    "lfm2_vl": "lfm2",
    "lfm3_vl": "lfm3",
    "lighton_ocr": "qwen3",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "llama",
    "llava_next_video": "llama",
    "llava_onevision": "qwen2",
    "minicpm_ocr": "qwen3_5_text",
    "minicpmv4_6": "qwen3_5_text",
    "minicpmv4_7": "qwen3_5_text",
    "minimax_m3_vl": "minimax_m3_vl_text",
    "mistral3": "mistral",
    "mllama": "mllama_text_model",
    "molmo2": "molmo2_text",
    "moss_transcribe_diarize": "qwen3",
    "muse_glimmer": "muse_glimmer_text",
    "musicflamingo": "qwen2",
    "nemotron_h_omni": "nemotron_h",
    "ovis2": "qwen2",
    "paddleocr_vl": "paddleocr_vl_text",
    "paligemma": "gemma",
    "phi4_multimodal": "phi3",
    "pp_chart2table": "qwen2",
    "qianfan_ocr": "qwen3",
    "qwen2_5_omni_thinker": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen2_audio": "qwen2",
    "qwen2_vl": "qwen2",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_asr": "qwen3",
    "qwen3_omni_moe_thinker": "qwen3_moe",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "shieldgemma2": "gemma3_text",
    "smolvlm": "llama",
    "step3p7": "step3p5",
    "video_llama_3": "qwen2",
    "video_llava": "llama",
    "vipllava": "llama",
    "voxtral": "llama",
}
"""Multimodal models: the ``model_type`` of the language model inside; its own says it where that is a family."""


THINKERS: dict[str, str] = {
    "qwen2_5_omni": "qwen2_5_omni_thinker",
    "qwen3_omni_moe": "qwen3_omni_moe_thinker",
}
"""Models that speak: the ``model_type`` of the part in ``thinker_config``, which understands and is trained."""


MUTE = "the estimate is of the thinker; a run that loads the talker holds its weights, too"


TOWERS: dict[str, str] = {
    "aria": "aria:read",
    "audioflamingo3": "audio:read_flamingo",
    "aya_vision": "cohere:read_aya",
    "cohere2_vision": "cohere:read_cohere2",
    "cosmos3_omni": "qwen:read_3",
    "deepseek_vl": "siglip:read_deepseek",
    "gemma3": "siglip:read_gemma3",
    "gemma3n": "gemma3n:read",
    "gemma4": "gemma4:read",
    "gemma4_unified": "gemma4:read_unified",
    "glm46v": "glm4v:read",
    "glm4v": "glm4v:read",
    "glm4v_moe": "glm4v:read",
    "glm_ocr": "glm4v:read_ocr",
    "glmga": "glm4v:read",
    "glmasr": "audio:read_glm",
    "got_ocr2": "got_ocr2:read",
    "idefics2": "idefics2:read",
    "idefics3": "siglip:read_idefics3",
    "internvl": "internvl:read",
    "kimi_k25": "kimi:read",
    "lfm2_vl": "lfm2:read",
    "lighton_ocr": "pixtral:read_lighton",
    "llama4": "llama4:read",
    "llava": "llava:read",
    "llava_next": "llava:read_next",
    "llava_next_video": "llava:read_next_video",
    "llava_onevision": "llava:read_onevision",
    "minicpm_ocr": "minicpm:read_ocr",
    "minicpmv4_6": "minicpm:read",
    "minicpmv4_7": "minicpm:read",
    "minimax_m3_vl": "minimax_m3:read",
    "mistral3": "pixtral:read_mistral3",
    "mllama": "mllama:read",
    "molmo2": "molmo2:read",
    "moss_transcribe_diarize": "audio:read_moss",
    "muse_glimmer": "muse_glimmer:read",
    "musicflamingo": "audio:read_music",
    "nemotron_h_omni": "radio:read",
    "ovis2": "ovis2:read",
    "paddleocr_vl": "paddleocr:read_paddle",
    "paligemma": "siglip:read_paligemma",
    "phi4_multimodal": "phi4:read",
    "pp_chart2table": "got_ocr2:read",
    "qwen2_5_omni_thinker": "omni:read_2_5",
    "qwen2_5_vl": "qwen:read_2_5",
    "qwen2_audio": "audio:read_qwen2",
    "qwen2_vl": "qwen:read_qwen2",
    "qwen3_5": "qwen:read_3",
    "qwen3_5_moe": "qwen:read_3",
    "qwen3_asr": "audio:read_qwen3",
    "qwen3_omni_moe_thinker": "omni:read_3",
    "qwen3_vl": "qwen:read_3",
    "qwen3_vl_moe": "qwen:read_3",
    "shieldgemma2": "siglip:read_gemma3",
    "smolvlm": "siglip:read_idefics3",
    "step3p7": "step3p7:read",
    "video_llava": "llava:read_video",
    "voxtral": "audio:read_voxtral",
}
"""Multimodal models whose towers are read -> ``module:function`` in :mod:`memcheck.families.towers`."""


HEARING: dict[str, str] = {
    "audioflamingo3": "audio_config",
    "glmasr": "audio_config",
    "moss_transcribe_diarize": "audio_config",
    "musicflamingo": "audio_config",
    "qwen2_audio": "audio_config",
    "qwen3_asr": "audio_config",
    "voxtral": "audio_config",
}
"""Model types with an audio tower, and the config key of the tower's section."""
