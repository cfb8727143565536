"""LoRA and quantized bases, as the dialects of TrainingArguments spell them."""

from __future__ import annotations

import re

from memcheck.configs.draft import Draft, speaks
from memcheck.configs.trainer_parts import KEYS, architecture_named, on, say, say_or_note, text, words
from memcheck.configs.types import AdapterKeys, KeyRow
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.job.adapters import reach_of
from memcheck.job.lookup import ResolutionError
from memcheck.job.versions import KBIT
from memcheck.models.module_paths import linear_layers
from memcheck.models.parameters import block_tensors
from memcheck.models.types import Moe

WHOLE = ("lm_head", "embed_tokens", "embed_in", "embed_out", "wte")
"""Layers outside the blocks."""
EVERY_LINEAR = frozenset({"all-linear", "all", "linear"})
_PATTERN = re.compile(r"[\\()|\[\]*+?^$]")


def adapters(draft: Draft, names: AdapterKeys, *, stated: bool = False) -> None:
    """Rank, targets, dropout, whole copies of modules, DoRA.

    ``stated``: the user stated the method in addition to the config, so that nothing more is asked for.
    """
    draft.rows((KeyRow(names.rank, "training.lora.rank", default=names.default_rank),))
    if not stated:
        draft.ask("training.lora.rank", "the adapters' rank", "state it: --set training.lora.rank=16")
    if not stated or any(words(draft, name) for name in names.targets):
        _targets(draft, names)
    if not stated or draft.config.has(names.dropout):
        _dropout(draft, names)
    if names.saved and _said(draft, names.saved, "training.lora.modules_to_save"):
        say(draft, "training.lora.modules_to_save", _in_plan_words(draft, words(draft, names.saved)), names.saved)
    if names.dora and on(draft, names.dora):
        say(draft, "training.lora.dora", True, names.dora)
    if names.parameters and _said(draft, names.parameters, "training.lora.target_parameters"):
        say(draft, "training.lora.target_parameters", words(draft, names.parameters), names.parameters)


def _said(draft: Draft, path: str, key: str) -> bool:
    """Whether the config names modules; a variable that its script does not set is asked for."""
    return bool(words(draft, path)) and not draft.unset(path, draft.config.values.get(path), key)


def _in_plan_words(draft: Draft, names: list[str]) -> list[str]:
    """Modules under the plan's names: a family may call its embedding ``embed_in`` and its head ``embed_out``."""
    known = architecture_named(draft)
    if known is None:
        return names
    paths = ((known.paths.embedding, "embed_tokens"), (known.paths.head, "lm_head"))
    own = {path.rsplit(".", 1)[-1]: said for path, said in paths}
    return [own.get(name, name) for name in names]


def linear_and(draft: Draft, names: list[str]) -> object:
    """Target modules: all linear layers except the head, and those of ``names`` that are in ``WHOLE``.

    ``"all-linear"`` where ``names`` adds nothing, or where the model is not known.
    """
    more = [name for name in names if name in WHOLE]
    known = architecture_named(draft)
    if not more or known is None:
        return "all-linear"
    found = dict.fromkeys(layer.name.rpartition(".")[2] for layer in linear_layers(known))
    return [*(name for name in found if name != known.paths.head.rpartition(".")[2]), *more]


def resumed(draft: Draft, path: str) -> None:
    """Adapters that are there already, which are trained on."""
    if words(draft, path):
        draft.note(path, "rank and modules of the adapters there go before those that are stated here")


PLAIN_STARTS = (True, False, "true", "false", "gaussian", "orthogonal", "default", "lora")


def starts(draft: Draft, path: str, *, off: object = None) -> None:
    """How adapters start: drawn at random, or worked out from the weights (PiSSA, OLoRA, LoftQ, EVA, CorDA, LoRA-GA),
    which PEFT does on the GPU before the first step (peft 0.21 ``tuners/lora/layer.py``, reset_lora_parameters).

    ``off``: the value that turns a switch of one such start off.
    """
    written = draft.config.take(path)
    plain = (off,) if off is not None else PLAIN_STARTS
    word = written.lower() if isinstance(written, str) else written
    if written is not None and str(word) not in map(str, plain):
        draft.note(path, "what working out the adapters' start takes, before the first step, is not modelled")


def unused(draft: Draft, names: AdapterKeys, asked: str = "") -> None:
    """Keys of adapters in a config that trains none. ``asked``: that which leaves open whether it does."""
    listed = (names.rank, *names.targets, names.dropout, names.saved, names.dora, names.parameters)
    for name in filter(None, listed):
        if asked and name != asked and draft.config.has(name):
            draft.note(name, "state it with the method: training.lora")
        draft.config.see(name)


def _targets(draft: Draft, names: AdapterKeys) -> None:
    key = "training.lora.target_modules"
    path = next((name for name in names.targets if words(draft, name)), "")
    if not path:
        if names.default_targets is not None:
            draft.assume(key, names.default_targets)
        else:
            help = "state them: --set training.lora.target_modules=all-linear"
            draft.refuse("", "the config does not say which modules get an adapter", help, (key,))
        return
    found = words(draft, path)
    if draft.unset(path, draft.config.values.get(path), key):
        return
    if not EVERY_LINEAR.isdisjoint(each.lower() for each in found):
        draft.set(key, linear_and(draft, found), path)
    elif isinstance(draft.config.values[path], str) and len(found) == 1 and _PATTERN.search(found[0]):
        expanded, why = expand(found[0]), _unmatched(draft, str(draft.config.values[path]))
        if expanded and (why or _reaches_as_much(draft, found[0], expanded)):
            draft.set(key, _present(draft, expanded, path), path)
        elif why:
            draft.refuse(path, why, "name them: --set training.lora.target_modules=[q_proj, v_proj]", (key,))
        else:
            draft.set(key, draft.config.values[path], path)
    else:
        draft.set(key, _present(draft, found, path), path)
    draft.config.see(*names.targets)


def _unmatched(draft: Draft, pattern: str) -> str:
    """Why a pattern of paths is no target of the model's adapters; empty where it is one."""
    known = architecture_named(draft)
    if known is None:
        return f"the modules of the pattern `{pattern}` are those of a model that is not known"
    try:
        reach_of(pattern, known)
    except ResolutionError as error:
        return error.problems[0].message
    return ""


def _reaches_as_much(draft: Draft, pattern: str, names: list[str]) -> bool:
    """Whether names of layers, wherever they are, reach no more of a known model than the pattern itself."""
    known = architecture_named(draft)
    if known is None:
        return True
    reached = {(part, name) for part, found in reach_of(pattern, known) for name in found}
    layers = {(layer.part, layer.name) for layer in linear_layers(known)}
    return {each for each in layers if each[1].rpartition(".")[2] in names} <= reached


def _present(draft: Draft, names: list[str], path: str) -> list[str]:
    """The names of linear layers that the model has, where it has some: PEFT passes over the others.

    Names that PEFT takes for stacked experts' matrices, and of towers' layers, are left to the plan's own check.
    """
    known = architecture_named(draft)
    if known is None or known.vision is not None:
        return names
    stacked = any(isinstance(block.mlp, Moe) and not block.mlp.adaptable for block, _ in known.blocks)
    if stacked and any(name.rpartition(".")[2] not in ATTENTION for name in names):
        return names
    tensors = [tensor for block, _ in known.blocks for tensor in block_tensors(block) if tensor.linear]
    modules = [f".{tensor.name.removesuffix('.weight')}" for tensor in tensors]
    found = [name for name in names if name in WHOLE or any(each.endswith(f".{name}") for each in modules)]
    for name in (each for each in names if found and each not in found):
        draft.note(path, f"the model has no linear layer `{name}`, and PEFT passes over it")
    return found or names


ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
"""Names that no experts' matrices have."""
_LAST = re.compile(
    r"(?:\.|\\\.)?"
    r"(?:\(?(?:\?:)?(?:mlp|self_attn|cross_attn|attention|linear_attn)(?:\|(?:mlp|self_attn|cross_attn|attention|linear_attn))*\)?)"
    r"(?:\.|\\\.)"
    r"\((?:\?:)?([a-z_]+(?:\|[a-z_]+)*)\)(_proj)?\Z"
)
_LAYERS = re.compile(
    r"layers(?:\.|\\\.)(?:\[\\?d\]|\[0-9\]|\\d|\d)\+?(?:\.|\\\.)|layers(?:\.|\\\.)\[\\d\]\+(?:\.|\\\.)"
)


def expand(pattern: str) -> list[str]:
    r"""The modules of ``model.layers.[\d]+.(mlp|self_attn).(up|down|q|v)_proj``; none for any other form.

    Python's ``re`` never runs it: what a file says is matched against this one shape.
    """
    layers = _LAYERS.search(pattern)
    if layers is None or len(pattern) > 300:
        return []
    rest = pattern[layers.end() :].replace("(_checkpoint_wrapped_module.)?", "")
    found = _LAST.fullmatch(rest)
    if found is None:
        return []
    return [f"{name}{found[2] or ''}" for name in found[1].split("|")]


def _dropout(draft: Draft, names: AdapterKeys) -> None:
    key = "training.lora.dropout"
    written = draft.config.take(names.dropout)
    value = names.default_dropout
    if written is not None:
        try:
            value = float(str(written))
        except ValueError:
            draft.refuse(names.dropout, f"`{names.dropout}: {written}` is no number", keys=(key,))
            return
    if value is None:
        draft.ask(key, "the adapters' dropout", "state it: --set training.lora.dropout=0.0")
        return
    if not value and not speaks(key):
        return
    effect = "dropout on the adapters' inputs keeps a mask and a copy of each, which are not in the estimate"
    if draft.config.has(names.dropout) or not speaks(key):
        say_or_note(draft, key, value, names.dropout, effect)
    else:
        draft.assume(key, value)


HELD = "training.base.held_in"


def base(draft: Draft, held: str, path: str) -> bool:
    """What a frozen base is held in, apart from NF4, which is the method qlora."""
    return say(draft, HELD, held, path)


PREPARES = f"training.options.{KBIT}"


def leaves_casts(draft: Draft, why: str) -> None:
    """The trainer leaves norms, embeddings and head of a base that bitsandbytes quantises in 16 bits.

    ``why``: where that is written.
    """
    quantised = draft.value("training.method") == "qlora" or draft.value(HELD) == "int8"
    if quantised and KBIT in FRAMEWORKS[str(draft.value("training.framework"))].options:
        draft.derive(PREPARES, False, why)


def computed(draft: Draft, path: str) -> None:
    """In which dtype 4-bit weights are multiplied; no model's but one of 16 bits has a memory model."""
    if draft.value("training.method") == "qlora" and KEYS.words["dtypes"].get(text(draft, path)) == "fp32":
        draft.note(path, "4-bit weights that are dequantized to fp32 are estimated as in 16 bits")
    draft.config.see(path)


def constants(draft: Draft, path: str, *, default: bool) -> None:
    """Whether the constants of 4-bit weights are quantised once more; a plan's default is that they are."""
    if draft.value("training.method") != "qlora":
        draft.config.see(path)
        return
    double = on(draft, path) if draft.config.has(path) else default
    if double:
        draft.config.see(path)
    elif draft.config.has(path):
        draft.set(HELD, "nf4", path)
        draft.set("training.base.double", False, path)
    else:
        why = f"not in the config: {draft.title}'s default"
        draft.assume(HELD, "nf4", why)
        draft.assume("training.base.double", False, why)


def usual_targets(draft: Draft) -> list[str] | None:
    """What PEFT takes where a LoraConfig names no target: query and value of most families."""
    known = architecture_named(draft)
    if known is None:
        return None
    names = {layer.name.rpartition(".")[2] for layer in linear_layers(known)}
    for found in (["q_proj", "v_proj"], ["query_key_value"], ["c_attn"], ["qkv_proj"]):
        if names >= set(found):
            return found
    return None
