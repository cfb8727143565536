"""What unsloth makes of a script's arguments: its own defaults, and what it puts in their place.

Read at unsloth 2026.8: ``models/loader.py`` (FastLanguageModel, FastModel), ``models/llama.py`` (get_peft_model),
``models/rl.py`` (the defaults of its copies of TRL's configs, ``max_length_check``, ``mixed_precision``).
"""

from __future__ import annotations

from memcheck.configs import trainer_parts as parts
from memcheck.configs.draft import Draft
from memcheck.configs.python_values import UNKNOWN, PythonValue, plain
from memcheck.configs.trainer_parts import on, text
from memcheck.configs.types import ConfigProblem, Note
from memcheck.plan.finding import Location

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.configs.python_library import LoadedModel, StatedGpu


TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
LENGTH = 2048
"""``max_seq_length`` of ``from_pretrained``."""
DEFAULTS = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "optim": "adamw_8bit",
    "per_device_eval_batch_size": 4,
}
"""Defaults of its copies of TRL's configs; TrainingArguments keep their own."""
WIDE = (
    "gemma3",
    "gemma-3",
    "gemma3n",
    "gemma4",
    "gemma-4",
    "glm4_moe",
    "glm-4.",
    "gpt-oss",
    "gpt_oss",
    "qwen3_5",
    "qwen3.5",
    "a3b",
)
"""Models that it computes in fp32 where the GPU has no bf16 (FORCE_FLOAT32)."""
WHY = "unsloth's prepare_model_for_training leaves all but the adapters in 16 bits"


def complete(values: dict[str, PythonValue], model: LoadedModel, machine: StatedGpu, *, trl: bool) -> None:
    """Put unsloth's values in place of those of a script, by the names of TRL's command line.

    ``trl``: the arguments are TRL's, or the trainer makes them itself.
    """
    at = model.at
    whole = plain(model.keywords.get("full_finetuning")) is True
    narrow = any(plain(model.keywords.get(name)) is True for name in ("load_in_8bit", "load_in_16bit", "load_in_fp8"))
    if whole or narrow:
        values["load_in_4bit"] = PythonValue(False, at)
    values.setdefault("load_in_4bit", PythonValue(True, at))
    named = values.get("model_name_or_path")
    if values["load_in_4bit"].of is False and named is not None and isinstance(named.of, str):
        # the name of a 4-bit copy stands for the model itself (loader_utils.py, INT_TO_FLOAT_MAPPER)
        whole_name = named.of.removesuffix("-bnb-4bit").removesuffix("-unsloth")
        values["model_name_or_path"] = named._replace(of=whole_name)
    values["use_bnb_nested_quant"] = PythonValue(True, at)
    if whole:
        values.pop("use_peft", None)
        model.adapter = None
    _length(values, model, at)
    _precision(values, model, machine, whole=whole)
    if trl:
        for name, default in DEFAULTS.items():
            values.setdefault(name, PythonValue(default, at))
    _evaluation(values, at)
    if model.adapter is not None and not whole:
        values.setdefault("lora_r", PythonValue(16, at))
        values.setdefault("lora_target_modules", PythonValue([PythonValue(each, at) for each in TARGETS], at))
        _embedding(values, at)
    switch = model.recompute if model.recompute is not None and not whole else None
    switch = switch or model.keywords.get("use_gradient_checkpointing") or PythonValue("unsloth", at)
    values["gradient_checkpointing"] = switch
    values.pop("gradient_checkpointing_kwargs", None)


def _evaluation(values: dict[str, PythonValue], at: Location) -> None:
    """An evaluation batch of 8, which is the default, is no larger than the training's (``eval_changes``)."""
    train, said = (
        values.get("per_device_train_batch_size", PythonValue(8, at)),
        values.get("per_device_eval_batch_size"),
    )
    if isinstance(train.of, int) and train.of < 8 and (said is None or said.of == 8):
        values["per_device_eval_batch_size"] = train


def _embedding(values: dict[str, PythonValue], at: Location) -> None:
    """An embedding among the targets is trained whole, as if it stood in ``modules_to_save``."""
    targets, saved, name = values["lora_target_modules"], values.get("lora_modules_to_save"), "embed_tokens"
    listed = targets.of if isinstance(targets.of, list) else []
    if not any(plain(each) == name for each in listed):
        return
    values["lora_target_modules"] = targets._replace(of=[each for each in listed if plain(each) != name])
    others = saved.of if saved is not None and isinstance(saved.of, list) else []
    values["lora_modules_to_save"] = PythonValue([*others, PythonValue(name, at)], at)


def _length(values: dict[str, PythonValue], model: LoadedModel, at: Location) -> None:
    """The shorter of the model's length and of ``max_seq_length``; ``max_length`` is written over with it."""
    own = model.keywords.get("max_seq_length") or (model.arguments[1] if len(model.arguments) > 1 else None)
    own = own or PythonValue(LENGTH, at)
    said = values.get("max_seq_length")
    values.pop("max_length", None)
    if said is not None and isinstance(said.of, int) and isinstance(own.of, int):
        own = said if said.of < own.of else own
    elif said is not None and said.of is not None and not isinstance(own.of, int):
        own = said
    values["max_seq_length"] = own


def _precision(values: dict[str, PythonValue], model: LoadedModel, machine: StatedGpu, *, whole: bool) -> None:
    """16 bits of the kind that the GPU computes in, for weights and autocast, unless the file says it.

    A model that is trained whole is in fp32 under autocast.
    """
    at = model.at
    bf16 = machine.bf16
    said = [name for name in ("bf16", "fp16") if plain(values.get(name)) not in (None, False)]
    named = plain(values.get("dtype"))
    unknown = PythonValue(UNKNOWN, at, why="`is_bf16_supported`, of the GPU", by_gpu=True)
    if named is None and all(values.get(name) is None or values[name].known for name in ("dtype", "bf16", "fp16")):
        values["dtype"] = unknown if bf16 is None else PythonValue("bfloat16" if bf16 else "float16", at)
    if not said and all(values.get(name) is None or values[name].known for name in ("bf16", "fp16")):
        if bf16 is None:
            values["bf16"] = unknown
        else:
            values["bf16" if bf16 else "fp16"] = PythonValue(True, at)
    if whole and plain(model.keywords.get("float32_mixed_precision")) is not False:
        values["dtype"] = PythonValue("float32", at)


def recomputed(draft: Draft) -> None:
    """Set which layers are computed again, and where their inputs wait: on the host for ``"unsloth"``."""
    name, key = "gradient_checkpointing", parts.RECOMPUTE
    said = draft.config.values.get(name)
    if said in (False, None):
        if draft.config.has(name):
            draft.set(f"{key}.mode", "none", name)
        return
    draft.set(f"{key}.mode", "full", name)
    draft.set(f"{key}.reentrant", True, name)
    if str(said) == "unsloth":
        draft.set(f"{key}.offload", "cpu", name)


def note_checkpoint(draft: Draft, at: Location) -> None:
    """Note that unsloth loads a 4-bit copy of a model, of which it leaves some matrices in 16 bits."""
    name = str(draft.config.values.get("model_name_or_path", "")).lower()
    plain_copy = name.endswith("-bnb-4bit") and not name.endswith("-unsloth-bnb-4bit")
    if draft.config.values.get("load_in_4bit") is True and not plain_copy:
        message = (
            "since 2024.12 unsloth loads its `-unsloth-bnb-4bit` copy of most models, which keeps some matrices in 16"
            " bits: up to a fifth more than is estimated, which the interval has"
        )
        draft.notes.append(Note(at, message))


def refuse_what_is_not_modelled(
    draft: Draft, model: LoadedModel, objective: str, machine: StatedGpu, *, sharded: bool
) -> bool:
    """Add a problem for a job of unsloth's that has no memory model; returns whether there is one.

    ``sharded``: DeepSpeed or FSDP splits it.
    """
    key, name = "training.trainer.name", str(draft.config.values.get("model_name_or_path", "")).lower()
    message = ""
    if sharded:
        message = "unsloth's model under DeepSpeed or FSDP has no memory model here"
    elif objective not in ("", "sft"):
        message = f"unsloth's loss of `{objective}` has no memory model here"
    elif machine.bf16 and text(draft, "dtype") == "bfloat16" and on(draft, "fp16") and not on(draft, "bf16"):
        recipe = "training.precision.recipe"
        message = "unsloth loads the model in bf16 on this GPU, and stops at `fp16`"
        help = f"leave `fp16` out: --set {recipe}=bf16-mixed"
        draft.problems.append(ConfigProblem(model.at, message, help, keys=(recipe,)))
        return False
    elif machine.bf16 is False and any(each in name for each in WIDE):
        message = "unsloth computes this model in fp32 on a GPU without bf16, which has no memory model here"
    if message:
        help = f"for an upper bound, estimate it with TRL's own kernels: --set {key}=trl"
        draft.problems.append(ConfigProblem(model.at, message, help, keys=(key,)))
    return bool(message)
