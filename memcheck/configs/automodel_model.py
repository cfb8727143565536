"""Which model an AutoModel recipe trains, and with which kernels."""

from __future__ import annotations

import re

from memcheck.configs import automodel_keys as keys
from memcheck.configs import trainer_parts as parts
from memcheck.configs.automodel_keys import KEYS
from memcheck.configs.draft import Draft
from memcheck.configs.liger import liger_kernels
from memcheck.configs.model_overrides import changed, sized
from memcheck.configs.trainer_parts import on, text
from memcheck.errors import MemcheckError
from memcheck.families.architecture import architecture_of
from memcheck.models.types import Architecture
from memcheck.plan.types import ModelSpec

CONFIG = "model.config."

GATHERED = "what gathers all tokens instead, and needs more: --set training.options.dispatcher=torch"


def model(draft: Draft) -> None:
    """The repository's id, what of its configuration is changed, or a configuration that is written out."""
    config = draft.config
    path = next((name for name in KEYS.names["models"] if config.has(name)), "")
    sizeless = keys.NO_OVERRIDES | set(KEYS.names["prediction"])
    altered = changed(draft, CONFIG, sizeless)
    written = _class_of(text(draft, "model.config._target_"))
    if path:
        parts.model(draft, path)
        if altered:
            draft.set("model.overrides", altered, next(key for key in config.values if sized(key, CONFIG, sizeless)))
    elif altered and written:
        draft.set("model.architecture", {"model_type": written, **altered}, "model.config._target_")
    config.see(*KEYS.names["models"], *(key for key in config.values if key.startswith(CONFIG)))
    for name in (f"{section}.{key}" for section in ("model", "model.text_config") for key in KEYS.names["sized"]):
        if path and config.has(name):
            message = f"`{name}`: a dimension among the arguments of `from_pretrained` is not read"
            draft.refuse(name, message, "write it below `model.config`", ("model.overrides",))
    target = text(draft, "model._target_")
    if target and not any(each in target for each in KEYS.names["builders"]):
        message = f"`{target}`: memcheck has no memory model of what this builds"
        draft.refuse("model._target_", message)


def predicts(draft: Draft, found: Architecture | None) -> None:
    """Layers for further tokens, each of which takes a loss of its own over the whole vocabulary.

    AutoModel's own classes of some models build those of the checkpoint's configuration unless the recipe says none.
    """
    sections = ("model", "model.config", "model.text_config", "model.config.text_config")
    paths = [f"{section}.{name}" for section in sections for name in KEYS.names["prediction"]]
    said = [path for path in paths if draft.config.has(path)]
    draft.config.see(*paths, "model.mtp_use_repeated_layer")
    at = next((path for path in said if str(draft.config.values[path]) != "0"), "")
    if not said and found is not None and not on(draft, "model.force_hf") and _predicting(draft, found.model_type):
        at = next((name for name in KEYS.names["models"] if draft.config.has(name)), "model._target_")
    if at:
        message = f"`{at}: {draft.config.values.get(at)}`: layers that predict further tokens have no memory model here"
        help = "AutoModel trains without them with `model.num_nextn_predict_layers: 0`"
        draft.refuse(at, message, help, ("model.overrides",))


def _predicting(draft: Draft, kind: str) -> bool:
    """Whether AutoModel's class builds such layers, and the model's own configuration, as far as known, has some."""
    from memcheck.catalog.models import find_model

    if kind not in KEYS.words["predicting"]:
        return False
    name = _text_of(draft, "model.name")
    config = (_mapping_of(draft, "model.architecture") or {}) if name is None else find_model(name).config
    inside = config.get("text_config")
    sections = (config, inside) if isinstance(inside, dict) else (config,)
    found = [section[each] for section in sections for each in KEYS.names["prediction"] if each in section]
    return bool(found[0] if found else KEYS.words["predicting"][kind])


def _class_of(target: str) -> str:
    """``qwen3_moe`` of ``transformers.models.qwen3_moe.configuration_qwen3_moe.Qwen3MoeConfig``."""
    found = re.match(r"(?:transformers|nemo_automodel\.components)\.models\.(\w+)\.", target)
    return "" if found is None else found[1]


def architecture(draft: Draft) -> Architecture | None:
    """The model that was read, if the catalog knows it; whose classes run is said."""
    spec = ModelSpec(
        name=_text_of(draft, "model.name"),
        overrides=_mapping_of(draft, "model.overrides"),
        architecture=_mapping_of(draft, "model.architecture"),
    )
    if spec.name is None and spec.architecture is None:
        return None
    try:
        found = architecture_of(spec)
    except MemcheckError:
        return None
    if not isinstance(found, Architecture):
        return None
    if found.model_type in KEYS.names["own"] and not on(draft, "model.force_hf"):
        why = f"AutoModel's loop; its own classes of {found.model_type} are priced as transformers', which keep more"
        draft.derive("training.framework", "pytorch", why)
    return found


def _text_of(draft: Draft, key: str) -> str | None:
    value = draft.value(key)
    return value if isinstance(value, str) else None


def _mapping_of(draft: Draft, key: str) -> dict[str, object] | None:
    value = draft.value(key)
    return value if isinstance(value, dict) else None


def backend(draft: Draft, found: Architecture | None) -> None:
    """The kernel of attention, and which kernels run linear layers, norms and experts."""
    config, key = draft.config, "training.attention"
    own = found is not None and found.model_type in KEYS.names["own"] and not on(draft, "model.force_hf")
    names = ["model.attn_implementation", "model.config.attn_implementation"]
    names.insert(0 if own else len(names), "model.backend.attn")
    path = next((name for name in names if config.has(name)), "")
    config.see(*names)
    written = str(config.values.get(path) or "").lower()
    context = draft.value("parallelism.context")
    if isinstance(context, int) and context > 1 and not own:
        draft.assume(key, "sdpa", "AutoModel takes sdpa where a sequence is divided")
    elif not written:
        draft.assume(key, "flash", "Transformer Engine's or flash-attention's kernels, where they are installed")
    elif written in KEYS.words["attentions"]:
        draft.set(key, KEYS.words["attentions"][written], path)
    else:
        message = f"the attention kernel `{path}: {written}` has no memory model"
        draft.refuse(path, message, parts.STATE_IT.format(key), (key,))
    _experts(draft)
    if own and found is not None and found.model_type in KEYS.names["fused_norms"]:
        why = f"the norms of AutoModel's own classes of {found.model_type} are one kernel each"
        draft.derive("training.options.fused_norms", True, why)
    kernels = ("linear", "rms_norm", "gate_precision", "enable_fsdp_optimizations")
    config.see(*(f"model.backend.{name}" for name in kernels))


def returned(draft: Draft, found: Architecture | None) -> None:
    """``output_hidden_states``, which the fused loss asks for: AutoModel's own classes return the last of them, or
    inputs of layers that their norms keep anyway; layers that run again keep their inputs, too.
    """
    recomputed = draft.value("training.activation_checkpointing.mode") == "full"
    for name in ("model.output_hidden_states", "model.text_config.output_hidden_states"):
        own = found is not None and found.model_type in KEYS.names["own"] and not on(draft, "model.force_hf")
        if on(draft, name) and not own and not recomputed:
            draft.note(name, "the hidden states of every layer, which are kept to the end of a step, are not priced")
        draft.config.see(name)


def liger(draft: Draft, found: Architecture | None) -> None:
    """``use_liger_kernel`` patches transformers' classes alone (``_transformers/auto_model.py``)."""
    name = "model.use_liger_kernel"
    if (
        on(draft, name)
        and found is not None
        and (found.model_type not in KEYS.names["own"] or on(draft, "model.force_hf"))
    ):
        liger_kernels(draft, dict.fromkeys(("rope", "rms_norm", "glu"), name))
    draft.config.see(name)


def _experts(draft: Draft) -> None:
    """How tokens reach experts on other ranks (``components/models/common/utils.py``, BackendConfig)."""
    config, key, path = draft.config, "training.options.dispatcher", "model.backend.dispatcher"
    config.see(path, "model.backend.experts", "model.backend.dispatcher_async_dispatch")
    config.see(*(name for name in config.values if name.startswith("model.backend.mok")))
    degree = draft.value("parallelism.expert")
    if not isinstance(degree, int) or degree == 1:
        return
    written, kernel = text(draft, path), text(draft, "model.backend.experts")
    if kernel == "torch" and written in ("", "torch"):
        what = "a loop over experts keeps the gathered tokens of each layer, which are not in the estimate"
        draft.note("model.backend.experts", what)  # components/moe/experts.py, _forward_loop: `x.gather` saves x
    if written in KEYS.names["dispatchers"]:
        draft.set(key, written, path)
    elif written:
        message = f"`{path}: {written}`: what it holds of tokens on their way has no memory model here"
        draft.refuse(path, message, GATHERED, (key,))
    elif kernel in ("gmm", "te"):
        draft.set(key, "deepep", "model.backend.experts")
    else:
        draft.assume(key, "torch", "AutoModel takes DeepEP where it is installed; without it all tokens are gathered")
