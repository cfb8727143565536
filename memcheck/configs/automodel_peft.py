"""The adapters of an AutoModel recipe, and what the base below them is held in.

Source: ``components/_peft/module_matcher.py`` (a pattern is matched with a module's whole name; without any pattern it
is ``*_proj``) and ``components/_peft/lora.py`` (PeftConfig).
"""

from __future__ import annotations

import re

from memcheck.configs import automodel_keys as keys
from memcheck.configs import trainer_parts as parts
from memcheck.configs.automodel_experts import BACKEND, Fits, adapted_experts
from memcheck.configs.automodel_keys import KEYS
from memcheck.configs.draft import Draft
from memcheck.configs.key_table import key_table
from memcheck.configs.trainer_adapters import base, constants
from memcheck.configs.trainer_parts import on, say, text, words
from memcheck.configs.types import KeyRow
from memcheck.models.parameters import block_tensors, tower_runs
from memcheck.models.types import Architecture

TARGETS = "training.lora.target_modules"
_PLAIN = re.compile(r"[\w.*]{1,120}")


def method(draft: Draft, found: Architecture | None) -> bool:
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
    _targets(draft, found)
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


def _targets(draft: Draft, found: Architecture | None) -> None:
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
    if found is None:
        return
    fits = _fitting(patterns, linear=linear)
    chosen, beyond = _chosen(found, fits)
    if found.model_type in keys.PAST_ADAPTERS and keys.PAST in chosen:
        chosen.remove(keys.PAST)
        size = _resting(found, draft.whole("peft.dim") or 8)
        what = f"Mamba's kernel reads the weight of `{keys.PAST}` past its adapters, which rest without a gradient"
        note = f"{what}: {size / 2**20:.0f} MiB that are not in the estimate"
        draft.note(path if config.has(path) else "peft._target_", note)
    written = f"`{path}: {', '.join(patterns)}`" if patterns else f"`{path}`"
    if not linear and not beyond and found.model_type in KEYS.names["own"] and not on(draft, "model.force_hf"):
        beyond = adapted_experts(draft, found, fits, path)
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


def _chosen(found: Architecture, fits: Fits) -> tuple[list[str], str]:
    """Names of the linear layers that every layer of the model has adapted, and what else would be."""
    matched: dict[str, set[bool]] = {}
    for index, block in enumerate(found.layers()):
        for tensor in block_tensors(block):
            name = f"model.layers.{index}.{tensor.name.removesuffix('.weight')}"
            if tensor.group != "experts" and tensor.linear and len(tensor.shape) == 2:
                matched.setdefault(name.rpartition(".")[2], set()).add(fits(name))
    if any(len(each) > 1 for each in matched.values()):
        return [], "some layers and not on others"
    chosen = [name for name, each in matched.items() if True in each]
    beside = [t.name.removesuffix(".weight") for run, _, _ in tower_runs(found) for t in run if t.linear]
    leaves = dict.fromkeys(_leaf(name) for name in beside if fits(f"model.visual.{name}"))
    chosen += [name for name in leaves if name not in chosen]
    return [*chosen, *(["lm_head"] if found.head and fits("lm_head") else [])], ""


def _resting(found: Architecture, rank: int) -> int:
    """Bytes of adapters of 16 bits that nothing reads."""
    tensors = (tensor for block in found.layers() for tensor in block_tensors(block))
    read = (sum(tensor.shape) for tensor in tensors if tensor.name.endswith(f"{keys.PAST}.weight"))
    return 2 * rank * sum(read)


def _leaf(name: str) -> str:
    """The last part of a module's name, with the one before it where that is a place in a sequence (``mlp.0``)."""
    above, _, last = name.rpartition(".")
    return f"{above.rpartition('.')[2]}.{last}" if last.isdigit() else last


def excludes_tower(draft: Draft) -> bool:
    """Whether the patterns keep adapters out of the vision tower, under each name that a family gives the tower."""
    return {"*vision*", "*visual*"} <= set(words(draft, "peft.exclude_modules"))
