"""The model of an AutoModel recipe, its adapters and experts, and the launch that names the recipe."""

from __future__ import annotations

import re
from collections.abc import Callable

from memcheck.catalog.names import find_model
from memcheck.configs import trainer_parts as parts
from memcheck.configs.arguments import without_comment
from memcheck.configs.config_file import ConfigFile, any_key, load_yaml
from memcheck.configs.detect import SIZELESS, changed, sized
from memcheck.configs.draft import Draft
from memcheck.configs.key_table import key_table
from memcheck.configs.trainer_adapters import base, constants
from memcheck.configs.trainer_arguments import liger_kernels
from memcheck.configs.trainer_parts import on, say, text, words
from memcheck.configs.trainer_split import load_named
from memcheck.configs.types import ConfigError, KeyRow, Note
from memcheck.errors import MemcheckError
from memcheck.families.registry import architecture_of
from memcheck.models.parameters import block_tensors, tower_runs
from memcheck.models.types import Architecture, Moe
from memcheck.plan.types import ModelSpec

KEYS = key_table("automodel")


BENCHMARK = "BenchmarkingRecipeForNextTokenPrediction"
PICTURES = "FinetuneRecipeForVLM"
SEEN_DATA = "components.datasets.vlm."
DRAWN = "mock.build_mock_vlm_dataset"
CLASSES = "TrainFinetuneRecipeForSequenceClassification"

NO_OVERRIDES = (
    SIZELESS
    | {"_target_", "pretrained_model_name_or_path", "name_or_path", "torch_dtype", "dtype"}
    | {"kda_mode", "kda_unpad_inputs", "kda_use_fused_gate", "kda_use_qk_l2norm_in_kernel"}
)
"""Keys of ``model.config`` that set no size. Those of Kimi Delta Attention fuse its gate and norms, which keeps less
than its separate products do, as which they are estimated (``components/models/kimi_linear/config.py``).
"""
PAST_ADAPTERS, PAST = ("falcon_h1", "nemotron_h"), "out_proj"
"""Models whose Mamba layers hand this module's weight to one kernel while they train (``outproj_weight`` in
transformers' modeling_falcon_h1.py and AutoModel's ``nemotron_v3/layers.py``). PEFT stops at it, AutoModel does not.
"""


_COMMAND = re.compile(r"\bautomodel\b|nemo_automodel|recipes/\w+/|finetune\.py|train_ft|benchmark\.py")
_FILE = re.compile(
    r"""(?:^|\s)(?:-c|--config)[ =]["']?([^\s"']+\.ya?ml)\b|\bautomodel\s+(?:\w+\s+){0,2}([^\s"'-]\S*\.ya?ml)\b"""
)
_OWN = any_key(*KEYS.evidence[0])


def recognise(config: ConfigFile) -> str:
    """A recipe's own key, or a launch that names a recipe."""
    own = _OWN(config)
    if own or config.path.lower().endswith((".yaml", ".yml", ".json")):
        return own
    return recipe_of(config)


def recipe_of(config: ConfigFile) -> str:
    """The file that a launch names; empty for a recipe itself."""
    code = re.sub(r"\\\n", " ", "\n".join(without_comment(line)[:2000] for line in config.lines))
    for line in code.split("\n"):
        found = _FILE.search(line) if _COMMAND.search(line) else None
        if found is not None:
            return found[1] or found[2]
    return ""


def launched(config: ConfigFile) -> ConfigFile:
    """The recipe that a launch names, with what the launch says in place of its own values; any other config as it is.

    Raises:
        ConfigError: the file is not there, or is no YAML.
    """
    name = "" if config.path.lower().endswith((".yaml", ".yml", ".json")) else recipe_of(config)
    if not name:
        return config
    found = load_named(config, name, load_yaml)
    if found is None:
        raise ConfigError(f"{config.path}: there is no `{name}`, which the command names", "mend the path")
    found.inside, found.read, found.version = config.inside, config.read, config.version
    found.gpus_per_node = config.gpus_per_node
    bare = {each.key for each in config.positionals}
    for key, value in config.values.items():
        if key in bare or key in ("config", "c") or key in key_table("transformers").inside["launcher"]:
            continue
        plain = key.replace("-", "_") if key.replace("-", "_") in key_table("transformers").words["launcher"] else key
        found.adopt(plain, _scalar(value), config.at(key))
    return found


def overlooked(config: ConfigFile) -> list[Note]:
    """Overrides without dashes, which AutoModel's parser passes over (``_arg_parser.py``, parse_cli_argv)."""
    return [
        Note(each.location, f"`{each.text}`: AutoModel passes over a word without dashes; write --{each.text}")
        for each in config.positionals
        if each.key
    ]


def _scalar(value: object) -> object:
    """A word of the command line as YAML reads it (``translate_value``)."""
    if not isinstance(value, str):
        return value
    words = {"true": True, "false": False, "none": None, "null": None}
    if value.lower() in words:
        return words[value.lower()]
    if re.fullmatch(r"-?\d{1,18}", value):
        return int(value)
    listed = re.fullmatch(r"\[([^\[\]]*)\]", value)
    return [each.strip(" \"'") for each in listed[1].split(",") if each.strip()] if listed else value


CONFIG = "model.config."

GATHERED = "what gathers all tokens instead, and needs more: --set training.options.dispatcher=torch"


def model(draft: Draft) -> None:
    """The repository's id, what of its configuration is changed, or a configuration that is written out."""
    config = draft.config
    path = next((name for name in KEYS.names["models"] if config.has(name)), "")
    sizeless = NO_OVERRIDES | set(KEYS.names["prediction"])
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


def predicts(draft: Draft, model: Architecture | None) -> None:
    """Layers for further tokens, each of which takes a loss of its own over the whole vocabulary.

    AutoModel's own classes of some models build those of the checkpoint's configuration unless the recipe says none.
    """
    sections = ("model", "model.config", "model.text_config", "model.config.text_config")
    paths = [f"{section}.{name}" for section in sections for name in KEYS.names["prediction"]]
    said = [path for path in paths if draft.config.has(path)]
    draft.config.see(*paths, "model.mtp_use_repeated_layer")
    at = next((path for path in said if str(draft.config.values[path]) != "0"), "")
    if not said and model is not None and not on(draft, "model.force_hf") and _predicting(draft, model.model_type):
        at = next((name for name in KEYS.names["models"] if draft.config.has(name)), "model._target_")
    if at:
        message = f"`{at}: {draft.config.values.get(at)}`: layers that predict further tokens have no memory model here"
        help = "AutoModel trains without them with `model.num_nextn_predict_layers: 0`"
        draft.refuse(at, message, help, ("model.overrides",))


def _predicting(draft: Draft, kind: str) -> bool:
    """Whether AutoModel's class builds such layers, and the model's own configuration, as far as known, has some."""
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
        why = f"AutoModel's loop; its own classes of {found.model_type} are estimated as transformers', which keep more"
        draft.derive("training.framework", "pytorch", why)
    return found


def _text_of(draft: Draft, key: str) -> str | None:
    value = draft.value(key)
    return value if isinstance(value, str) else None


def _mapping_of(draft: Draft, key: str) -> dict[str, object] | None:
    value = draft.value(key)
    return value if isinstance(value, dict) else None


def backend(draft: Draft, model: Architecture | None) -> None:
    """The kernel of attention, and which kernels run linear layers, norms and experts."""
    config, key = draft.config, "training.attention"
    own = model is not None and model.model_type in KEYS.names["own"] and not on(draft, "model.force_hf")
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
    if own and model is not None and model.model_type in KEYS.names["fused_norms"]:
        why = f"the norms of AutoModel's own classes of {model.model_type} are one kernel each"
        draft.derive("training.options.fused_norms", True, why)
    kernels = ("linear", "rms_norm", "gate_precision", "enable_fsdp_optimizations")
    config.see(*(f"model.backend.{name}" for name in kernels))


def returned(draft: Draft, model: Architecture | None) -> None:
    """``output_hidden_states``, which the fused loss asks for: AutoModel's own classes return the last of them, or
    inputs of layers that their norms keep anyway; layers that run again keep their inputs, too.
    """
    recomputed = draft.value("training.activation_checkpointing.mode") == "full"
    for name in ("model.output_hidden_states", "model.text_config.output_hidden_states"):
        own = model is not None and model.model_type in KEYS.names["own"] and not on(draft, "model.force_hf")
        if on(draft, name) and not own and not recomputed:
            draft.note(name, "the hidden states of every layer, which are kept to the end of a step, are not estimated")
        draft.config.see(name)


def liger(draft: Draft, model: Architecture | None) -> None:
    """``use_liger_kernel`` patches transformers' classes alone (``_transformers/auto_model.py``)."""
    name = "model.use_liger_kernel"
    if (
        on(draft, name)
        and model is not None
        and (model.model_type not in KEYS.names["own"] or on(draft, "model.force_hf"))
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


Fits = Callable[[str], bool]
"""Whether the module of a name is adapted."""
PARAMETERS, RANK = "training.lora.target_parameters", "training.lora.expert_rank"
BACKEND = ("model.backend.dispatcher", "model.backend.experts")
SENDING = ("deepep", "hybridep", "uccl_ep")
SCALED = "peft.moe_rank_scaling"


def adapted_experts(draft: Draft, model: Architecture, fits: Fits, path: str) -> str:
    """State the adapters of experts, if a pattern names them; what has no memory model of them, else nothing."""
    matched, names, choices = set[bool](), dict[str, None](), set[int]()
    for index, block in enumerate(model.layers()):
        m = block.mlp
        if not isinstance(m, Moe):
            continue
        stacked = [t for t in m.tensors if t.group == "experts" and not t.name.endswith("_bias")]
        modules = {stacked[0].name.rpartition(".")[0], "mlp.experts"}  # whatever transformers calls their parent
        matched |= {fits(f"model.layers.{index}.{module}") for module in modules}
        names.update(dict.fromkeys(t.name for t in stacked if len(t.shape) == 3))
        choices.add(m.experts_per_token)
    if True not in matched:
        return ""
    if False in matched or len(choices) > 1 or not names:
        return "some routed experts"
    degree = draft.value("parallelism.expert")
    if not isinstance(degree, int) or degree == 1:
        return "routed experts that every rank has (ep_size: 1)"
    if why := _unable(draft):
        return why
    draft.set(PARAMETERS, list(names), path)
    _rank(draft, choices.pop())
    return ""


def _unable(draft: Draft) -> str:
    """Classes of experts that are not adapted by grouped products; empty for the others."""
    dispatcher, experts = (text(draft, name) for name in BACKEND)
    sends = dispatcher in SENDING or not dispatcher
    if experts == "te" and sends:
        return "routed experts of Transformer Engine, which AutoModel does not adapt either,"
    if experts == "torch":
        return "routed experts that a loop goes through (model.backend.experts: torch)"
    if experts == "gmm" and sends:
        what = "grouped_gemm takes the adapters' ranks unpadded: estimated as torch's, padded to 16 bytes"
        draft.note(BACKEND[1], what)
    return ""


def _rank(draft: Draft, choices: int) -> None:
    """``moe_rank_scaling``: the rank is divided by the experts of a token."""
    whole = draft.value("training.lora.rank")
    if not on(draft, SCALED) or not isinstance(whole, int):
        return
    if whole < choices:
        message = f"`{SCALED}`: a rank of {whole} for {choices} experts of a token is below 1, at which AutoModel stops"
        draft.refuse(SCALED, message, "raise `peft.dim`", (RANK,))
    else:
        draft.set(RANK, whole // choices, SCALED)


TARGETS = "training.lora.target_modules"
_PLAIN = re.compile(r"[\w.*]{1,120}")


def method(draft: Draft, model: Architecture | None) -> bool:
    """Whether adapters are trained instead of the model."""
    config = draft.config
    bits4, bits8 = on(draft, "quantization.load_in_4bit"), on(draft, "quantization.load_in_8bit")
    quantized = "quantization.load_in_4bit" if bits4 else "quantization.load_in_8bit"
    if not config.section("peft"):
        draft.set("training.method", "full", "peft")
        if bits4 or bits8:
            draft.refuse(quantized, f"`{quantized}` without adapters: a quantized base is not trained whole")
        return False
    at = next(key for key in ("peft._target_", *config.values) if config.has(key) and key.startswith("peft."))
    draft.set("training.method", "qlora" if bits4 else "lora", quantized if bits4 else at)
    if bits4:
        options = "training.options.prepare_model_for_kbit_training"
        draft.assume(options, False, "AutoModel quantizes without PEFT's preparation")
    elif bits8:
        base(draft, "int8", quantized)
    constants(draft, "quantization.bnb_4bit_use_double_quant", default=True)
    config.see(*(key for key in config.values if key.startswith("quantization.")))
    draft.rows((KeyRow("peft.dim", "training.lora.rank", default=8),))
    _dtype(draft)
    _targets(draft, model)
    if on(draft, "peft.use_dora"):
        say(draft, "training.lora.dora", True, "peft.use_dora")
    if str(config.values.get("peft.dropout") or 0) not in ("0", "0.0"):
        draft.rows((KeyRow("peft.dropout", "training.lora.dropout", "number"),))
    config.see("peft.dropout", "peft.use_dora", "peft.moe_rank_scaling", *BACKEND)
    return True


def _dtype(draft: Draft) -> None:
    """The adapters' dtype: that of the layer which is adapted, or the quantized base's compute dtype."""
    written = key_table("transformers").words["dtypes"].get(text(draft, "peft.lora_dtype").lower(), "")
    key = "training.lora.dtype"
    if written:
        draft.set(key, written, "peft.lora_dtype")
        return
    names = ("model.torch_dtype", "model.dtype")
    held = next(
        (
            key_table("transformers").words["dtypes"][word]
            for name in names
            if (word := text(draft, name).lower()) in key_table("transformers").words["dtypes"]
        ),
        "bf16",
    )
    draft.assume(key, held, "the dtype of the layer that is adapted")


def _targets(draft: Draft, model: Architecture | None) -> None:
    config = draft.config
    target, excluded, every = "peft.target_modules", "peft.exclude_modules", "peft.match_all_linear"
    names, left_out, whole = words(draft, target), words(draft, excluded), on(draft, every)
    help = parts.STATE_IT.format(TARGETS)
    config.see(every, excluded)
    linear = whole or bool(left_out and not names)
    path = every if whole else excluded if linear else target
    patterns = ([] if whole else left_out) if linear else names or ["*_proj"]
    if any(_PLAIN.fullmatch(each) is None or each.count("*") > 5 for each in patterns):
        draft.refuse(path, f"the modules of the pattern `{patterns[0]}` are not told apart here", help, (TARGETS,))
        return
    if model is None:
        return
    fits = _fitting(patterns, linear=linear)
    chosen, beyond = _chosen(model, fits)
    if model.model_type in PAST_ADAPTERS and PAST in chosen:
        chosen.remove(PAST)
        size = _resting(model, draft.whole("peft.dim") or 8)
        what = f"Mamba's kernel reads the weight of `{PAST}` past its adapters, which rest without a gradient"
        note = f"{what}: {size / 2**20:.0f} MiB that are not in the estimate"
        draft.note(path if config.has(path) else "peft._target_", note)
    written = f"`{path}: {', '.join(patterns)}`" if patterns else f"`{path}`"
    if not linear and not beyond and model.model_type in KEYS.names["own"] and not on(draft, "model.force_hf"):
        beyond = adapted_experts(draft, model, fits, path)
    if beyond:
        message = f"adapters on {beyond} have no memory model here"
        draft.refuse(path, f"{written}: {message}", help, (TARGETS,))
    elif not chosen:
        draft.refuse(path, f"{written} fits no linear layer of the model", help, (TARGETS,))
    elif config.has(path):
        draft.set(TARGETS, chosen, path)
    else:
        draft.assume(TARGETS, chosen, "no target_modules: *_proj")


def _fitting(patterns: list[str], *, linear: bool) -> Fits:
    """Whether a module's whole name is adapted. ``linear``: all linear layers are but those that a pattern names, the
    head with them and no stacked experts, which are none (``ModuleMatcher.match``).
    """
    expressions = [re.compile(".*".join(re.escape(part) for part in each.split("*"))) for each in patterns]

    def fits(name: str) -> bool:
        last = name.rpartition(".")[2]
        named = any(each == last for each in patterns) or any(each.fullmatch(name) for each in expressions)
        return named != linear

    return fits


def _chosen(model: Architecture, fits: Fits) -> tuple[list[str], str]:
    """Names of the linear layers that every layer of the model has adapted, and what else would be."""
    matched: dict[str, set[bool]] = {}
    for index, block in enumerate(model.layers()):
        for tensor in block_tensors(block):
            name = f"model.layers.{index}.{tensor.name.removesuffix('.weight')}"
            if tensor.group != "experts" and tensor.linear and len(tensor.shape) == 2:
                matched.setdefault(name.rpartition(".")[2], set()).add(fits(name))
    if any(len(each) > 1 for each in matched.values()):
        return [], "some layers and not on others"
    chosen = [name for name, each in matched.items() if True in each]
    beside = [t.name.removesuffix(".weight") for run, _, _ in tower_runs(model) for t in run if t.linear]
    leaves = dict.fromkeys(_leaf(name) for name in beside if fits(f"model.visual.{name}"))
    chosen += [name for name in leaves if name not in chosen]
    return [*chosen, *(["lm_head"] if model.head and fits("lm_head") else [])], ""


def _resting(model: Architecture, rank: int) -> int:
    """Bytes of adapters of 16 bits that nothing reads."""
    tensors = (tensor for block in model.layers() for tensor in block_tensors(block))
    read = (sum(tensor.shape) for tensor in tensors if tensor.name.endswith(f"{PAST}.weight"))
    return 2 * rank * sum(read)


def _leaf(name: str) -> str:
    """The last part of a module's name, with the one before it where that is a place in a sequence (``mlp.0``)."""
    above, _, last = name.rpartition(".")
    return f"{above.rpartition('.')[2]}.{last}" if last.isdigit() else last


def excludes_tower(draft: Draft) -> bool:
    """Whether the patterns keep adapters out of the vision tower, under each name that a family gives the tower."""
    return {"*vision*", "*visual*"} <= set(words(draft, "peft.exclude_modules"))
