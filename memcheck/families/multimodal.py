"""Configurations of several parts: a language model, a vision tower with its projector, perhaps an audio tower."""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.edge.imports import import_module
from memcheck.errors import closest
from memcheck.families.registry import FAMILIES, HEARING, THINKERS, TOWERS, WRAPPERS, read_family
from memcheck.models.leftovers import may_carry_size
from memcheck.models.reader import ArchitectureError, ConfigReader, shown
from memcheck.models.types import Architecture, Attention, LogitCasts, Modalities, Qwen2AudioModel
from memcheck.models.variants import with_names, with_pictures
from memcheck.models.vision import IdleTowers, Vision
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TOKENS = frozenset(
    """
    audio_token_id audio_token_index boa_token_id boa_token_index boi_token_id boi_token_index eoa_token_id
    eoa_token_index eoi_token_id eoi_token_index image_token_id image_token_index video_token_id video_token_index
    vision_start_token_id vision_end_token_id vision_token_id image_start_token_id image_end_token_id
    video_start_token_id video_end_token_id
    """.split()  # noqa: SIM905  # a list of quoted names is harder to read
)
"""Ids of the tokens that stand for pictures and sounds."""
TIED = (
    "aya_vision", "cohere2_vision", "deepseek_vl", "deepseek_vl_hybrid", "gemma3", "gemma3n",
    "gemma4", "gemma4_unified", "glmasr", "got_ocr2", "granite_speech", "granite_speech_plus", "hyperclovax_vision_v2",
    "internvl", "janus", "kimi_k25", "lfm2_vl", "lfm3_vl", "lighton_ocr", "minicpm_ocr", "mistral3",
    "moss_transcribe_diarize", "ovis2", "paddleocr_vl", "paligemma", "pp_chart2table", "qwen3_asr",
)  # fmt: skip
"""Classes whose default is that the head is the embedding."""
FORWARDED = (
    "audioflamingo3", "fast_vlm", "llava", "llava_onevision", "minimax_m3_vl", "musicflamingo", "qwen2_5_vl",
    "qwen2_audio", "qwen2_vl", "video_llama_3", "voxtral",
)  # fmt: skip
"""Classes that take what ``text_config`` says of it."""
TIED_UNLESS_FALSE = ("shieldgemma2",)
"""Classes whose head is the embedding if either says so; the language model's does where it is silent."""
TIES_OF_TEXT_CONFIG = ("nemotron_h_omni",)
"""Classes that build a whole causal language model, whose own configuration says whether its head is the embedding."""
BIDIRECTIONAL_PICTURES = ("gemma3", "gemma4_unified", "molmo2", "paligemma", "shieldgemma2")
"""Classes that let the tokens of a picture see each other (``token_type_ids``)."""
LABEL_COPYING = ("qwen2_audio",)
"""Classes whose own loss takes a copy of the logits but the last, in their dtype."""
LANGUAGE, TEXT, BARE = "model.language_model.", "model.text_model.", "model."
DEFAULTS_OF_TEXT = {"gemma2": {"sliding_window": 4096}, "opt": {"max_position_embeddings": 2048}}
"""What released files leave to the class of the language model (configuration_gemma2.py, configuration_opt.py)."""
TEXT_MODEL_PATHS = ("idefics2", "idefics3", "smolvlm")
"""Classes that call their language model ``text_model``."""
TOWER_IN_TEXT_MODEL = ("phi4_multimodal",)
"""Classes whose towers are modules of the language model."""


class TowerContext(Record):
    """What a tower's reader is given in addition to the tower's own section."""

    outer: ConfigReader
    """The configuration around it."""
    language: Architecture


def switched_off(config: Mapping[str, Any]) -> bool:
    """Whether the configuration says ``vision_config: null``: the language model alone."""
    return "vision_config" in config and config["vision_config"] is None


def text_of(config: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the language model's own configuration, and the prefix of its keys.

    The prefix is ``text_config.``, or empty where the keys lie next to ``vision_config``, as in files of Qwen2-VL.

    Raises:
        ArchitectureError: ``text_config`` is no mapping, or memcheck does not know its model type.
    """
    outer_type = str(config["model_type"])
    inner_type = WRAPPERS[outer_type]
    text = config.get("text_config")
    if text is None and "hidden_size" in config:
        flat = {k: v for k, v in config.items() if k not in TOKENS and not k.endswith("_config")}
        return {**flat, "model_type": inner_type or outer_type}, ""
    if not isinstance(text, Mapping):
        raise ArchitectureError(f"{outer_type}: text_config must be a mapping, not {shown(text)}", key="text_config")
    stated_type = text.get("model_type")
    if stated_type in FAMILIES:
        inner_type = stated_type
    tied = {"tie_word_embeddings": _tie_word_embeddings(config, text)}
    if not inner_type:
        raise ArchitectureError(
            f"{outer_type}: memcheck does not know model_type {shown(stated_type)} of its language model",
            "state text_config.model_type: it names the family, such as llama",
            "text_config.model_type",
        )
    return {**DEFAULTS_OF_TEXT.get(inner_type, {}), **text, **tied, "model_type": inner_type}, "text_config."


def _tie_word_embeddings(config: Mapping[str, Any], text: Mapping[str, Any]) -> Any:
    """Say whether the head is the embedding.

    The outer configuration decides (the one around ``text_config``); if it does not say, its class's default.
    """
    model_type, in_text_config = str(config["model_type"]), text.get("tie_word_embeddings")
    stated = config.get("tie_word_embeddings")
    if model_type in TIES_OF_TEXT_CONFIG:
        return False if in_text_config is None else in_text_config
    if model_type in TIED_UNLESS_FALSE:
        return bool(stated) or in_text_config is not False
    if model_type in FORWARDED:
        return bool(stated) or bool(in_text_config)
    return model_type in TIED if stated is None else stated


def read(config: Mapping[str, Any], *, strict: bool, written: frozenset[str]) -> Architecture:
    """Read a multimodal model's configuration: the language model's architecture with its towers.

    ``strict``: refuse every unread key of the language model. ``written``: keys that the plan's author wrote, of which
    an unread one is refused, too.

    Raises:
        ArchitectureError: a part cannot be read, or a key that may be a size was not.
    """
    text, prefix = text_of(config)
    text_written = bool(prefix) and "text_config" in written
    language = _read_language_model(text, prefix, strict=strict or text_written, written=written)
    outer = ConfigReader(config, str(config["model_type"]))
    outer.ignore(*TOKENS, "text_config", "model_type", "tie_word_embeddings", *(() if prefix else text))
    key = _tower_key(outer)
    tower_config = outer.section(key)
    found = _tower(outer.model_type)(tower_config, TowerContext(outer, language))
    vision = found if isinstance(found, Vision) else None
    if (
        vision is not None
        and vision.rows_per_tile
        and not (vision.tokens_per_tile or vision.tokens_per_picture or vision.text_layers_that_read_images)
    ):
        outer.fail(
            key, f"a tile of {vision.rows_per_tile} patches makes no image token", "check how many patches become one"
        )
    _check_leftovers(outer, text if prefix else {}, strict=strict, written=written)
    # Gemma 4's larger sizes say this, and mean their sliding layers
    pictures_see_themselves = text.get("use_bidirectional_attention") == "vision"
    return _inside_class(language, outer.model_type, vision, windows_see_pictures=pictures_see_themselves)._replace(
        modalities=Modalities(
            vision=vision._replace(other_towers=()) if vision is not None else None,
            other_towers=found.other_towers,
            embedders=() if isinstance(found, Vision) else found.embedders,
        ),
        notes=language.notes + tuple(outer.notes) + tuple(tower_config.notes),
    )


def _read_language_model(
    text: Mapping[str, Any], prefix: str, *, strict: bool, written: frozenset[str]
) -> Architecture:
    """Read the language model's own configuration; errors name its keys with ``prefix``, ``text_config.`` or empty."""
    try:
        return read_family(text, strict=strict, written=written)
    except ArchitectureError as error:
        raise ArchitectureError(error.message, error.help, prefix + error.key if error.key else "") from None


def _tower_key(outer: ConfigReader) -> str:
    """Return the key of the tower's section: ``vision_config``, or ``audio_config`` of a model that hears.

    Raises:
        ArchitectureError: the configuration has no such section.
    """
    key = HEARING.get(outer.model_type, "vision_config")
    if key not in outer.config and outer.model_type == "molmo2" and "vit_config" in outer.config:
        key = "vit_config"  # in the released files
    if not isinstance(outer.config.get(key), Mapping):
        alone = "`model: {part: language}`" if outer.model_type in HEARING else "vision_config: null"
        outer.fail(
            key,
            f"{key} is missing: the tower's dimensions are in it",
            f"state it, or {alone} for the language model alone",
        )
    return key


def _inside_class(
    language: Architecture, model_type: str, vision: Vision | None, *, windows_see_pictures: bool
) -> Architecture:
    """Return the language model as the multimodal class ``model_type`` builds it: layers, masks, loss, module paths.

    ``vision``: its tower; None for a model that hears. ``windows_see_pictures``: tokens of a picture see each other in
    layers with a window.
    """
    if vision is not None and vision.text_layers_that_read_images:
        language = with_pictures(language, vision.text_layers_that_read_images)
    if model_type in LABEL_COPYING:
        language = Qwen2AudioModel(*language)._replace(logit_casts=LogitCasts(in_model=False, in_loss=False))
    path = TEXT if model_type in TEXT_MODEL_PATHS else BARE if model_type in TOWER_IN_TEXT_MODEL else LANGUAGE
    sees_everywhere = model_type in BIDIRECTIONAL_PICTURES
    blocks = []
    for block, count in language.blocks:
        mixer = block.mixer
        if isinstance(mixer, Attention) and (sees_everywhere or (windows_see_pictures and mixer.window is not None)):
            block = block._replace(mixer=mixer._replace(row_masks="images"))
        blocks.append((block, count))
    return language._replace(
        model_type=model_type,
        blocks=with_names(tuple(blocks), model_type),
        paths=language.paths._replace(layers=path + "layers", embedding=path + "embed_tokens"),
    )


REPEATED = ("hidden_size", "vocab_size")
"""Keys that files have around ``text_config``, too, where no class reads them."""


def _check_leftovers(outer: ConfigReader, text: Mapping[str, Any], *, strict: bool, written: frozenset[str]) -> None:
    """Refuse unread keys of the tower and around it, if a person wrote them or they may be sizes.

    ``text``: what ``text_config`` has, where the language model's keys are nested in it.
    """
    for key in REPEATED if written else ():
        if key in written and outer.raw(key) != text.get(key, outer.raw(key)):
            help = f"write `text_config: {{{key}: ...}}`: the language model's is nested there"
            outer.fail(key, f"{key} outside text_config decides nothing", help)
    for key, value in outer.unread():
        if value is None:
            continue
        if strict or key.partition(".")[0] in written:
            near = closest(key.rpartition(".")[2], outer.known_keys(), 1, 0.75)
            help = f"did you mean {near[0]!r}?" if near else "remove it"
            nested = _in_text(text, key, value)
            if nested:
                help = f"write `text_config: {{{nested}: ...}}`: the language model's keys are nested there"
            outer.fail(key, f"unknown key {key}", help)
        if may_carry_size(value):
            outer.fail(key, f"{key} = {shown(value)} was not read, and may decide sizes", "remove it if it does not")
        outer.note(f"{key} was not read")


def _in_text(text: Mapping[str, Any], key: str, value: object) -> str:
    """Return the language model's key that ``key`` is, or nearly is; an empty text if there is none.

    ``key`` is an unknown key next to ``text_config``, where its user may have meant one inside.
    """
    if not text or "." in key:
        return ""
    if key not in text:
        try:
            read_family({**text, key: value}, written=frozenset((key,)))
        except ArchitectureError:
            near = closest(key, frozenset(text), 1, 0.8)
            return near[0] if near else ""
    return key


def _tower(model_type: str) -> Callable[[ConfigReader, TowerContext], Vision | IdleTowers]:
    """Import and return the reader of a model type's tower."""
    module, function = TOWERS[model_type].split(":")
    found: Callable[[ConfigReader, TowerContext], Vision | IdleTowers] = getattr(
        import_module("memcheck.families.towers." + module), function
    )
    return found


def thinker_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the configuration of the part that understands (``thinker_config``) of a model that also speaks.

    Other configurations are returned unchanged.
    """
    kind = THINKERS.get(str(config.get("model_type")))
    if kind is None:
        return config
    inner = config.get("thinker_config")
    if not isinstance(inner, Mapping):
        raise ArchitectureError(
            f"{config['model_type']}: thinker_config is missing: the dimensions are in it",
            f"state it, or write its keys next to model_type: {kind}",
            "thinker_config",
        )
    return {**inner, "model_type": kind}


def language_model(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the language model's configuration: ``text_config`` of a multimodal model, else the configuration itself.

    Raises:
        ArchitectureError: a multimodal model whose towers are not switched off by ``vision_config: null``.
    """
    outer_type = str(config.get("model_type"))
    if outer_type not in WRAPPERS:
        return config
    if not switched_off(config):
        hears = outer_type in HEARING
        raise ArchitectureError(
            f"{outer_type}: memcheck has no model of its {'audio' if hears else 'vision'} tower here",
            "for the language model alone write `model: {name: NAME, part: language}`"
            + ("" if hears else ", or vision_config: null"),
            HEARING.get(outer_type, "vision_config"),
        )
    return text_of(config)[0]
