"""Reads a DeepSpeed JSON config, the engine's part of a job.

Read at DeepSpeed 0.19.8: ``deepspeed/runtime/config.py``, ``constants.py``, ``zero/config.py``,
``zero/offload_config.py``, ``precision_config.py``, ``activation_checkpointing/config.py``. transformers'
``integrations/deepspeed.py`` fills in every ``auto`` from its TrainingArguments.
"""

from __future__ import annotations

from memcheck.configs.config_file import ConfigFile, any_key
from memcheck.configs.draft import Draft, Reader
from memcheck.configs.key_table import key_table
from memcheck.configs.trainer_parts import third_state
from memcheck.configs.types import ReadConfig

KEYS = key_table("deepspeed")

ZERO = "zero_optimization"


REMOVED = ("training.options.mics_shard_size",)
"""Read, because older releases have it; not written: the engine refuses it now."""

MICRO = "train_micro_batch_size_per_gpu"
STEPS = "gradient_accumulation_steps"
TOTAL = "train_batch_size"
CLIP = "gradient_clipping"
FP16 = "fp16.enabled"
OPTIMIZER = "optimizer.type"
ELASTIC = "elasticity.enabled"
ELASTIC_SIZES = "elasticity.micro_batch_sizes"
MOMENTUM = "optimizer.params.momentum"
TORCH_ADAM = "optimizer.params.torch_adam"


_OWN = any_key(*KEYS.irrelevant, *KEYS.irrelevant, "amp.", CLIP, OPTIMIZER)


def recognise(config: ConfigFile) -> str:
    """The key that shows that a config is DeepSpeed's; empty where none does.

    It is a key that only DeepSpeed has, or the total batch. Other frameworks also state a total batch, so that it
    counts only as the one key of a config, or with other keys of DeepSpeed.
    """
    found = any_key(*KEYS.evidence[0])(config)
    return found or (TOTAL if TOTAL in config.values and (len(config.values) == 1 or _OWN(config)) else "")


TRAINER = "TrainingArguments fills it in"


def read_deepspeed(config: ConfigFile, world: int | None) -> ReadConfig:
    """The settings of one engine. ``world``: how many GPUs run it, where that is known."""
    draft = Draft(config, "deepspeed", KEYS.title)
    draft.derive("training.framework", "deepspeed", "the config is DeepSpeed's")
    _old_zero(draft)
    draft.unmodelled(KEYS.unmodelled)
    _left_open(draft)
    draft.rows(KEYS.rows["rows"])
    below_stage_three(draft, KEYS.row("zero_optimization.offload_param.device").path)
    _batch(draft, world)
    _precision(draft)
    _optimizer(draft)
    _clipping(draft)
    if _auto(config.take("tensor_parallel.autotp_size")):
        draft.settings.pop("parallelism.tensor", None)
    draft.assume("training.activation_checkpointing", "none", "TrainingArguments says; its default")
    draft.irrelevant(KEYS.irrelevant)
    return draft.finish()


def _auto(value: object) -> bool:
    return isinstance(value, str) and value.lower() == "auto"


def _left_open(draft: Draft) -> None:
    """Drop the ZeRO keys that are ``auto`` and that no trainer fills in: the engine takes its own defaults.

    Source: ``runtime/config_utils.py``. Accelerate fills in the key for saving from ``zero3_save_16bit_model``: nothing
    is gathered unless that is on.
    """
    for row in KEYS.rows["rows"]:
        for name in (row.path, *row.aliases):
            if name.startswith(f"{ZERO}.") and not row.words.get("auto") and _auto(draft.config.values.get(name)):
                draft.config.values[name] = None
                draft.config.see(name)


def _old_zero(draft: Draft) -> None:
    """``"zero_optimization": true`` was stage 1; ``cpu_offload: true`` was ``offload_optimizer``."""
    config = draft.config
    if isinstance(config.values.get(ZERO), bool):
        draft.set(KEYS.row("zero_optimization.stage").key, 1 if config.take(ZERO) else 0, ZERO)
    for name, key in KEYS.words["old_offload"].items():
        if config.take(name) is True:
            draft.set(key, "cpu", name)


def below_stage_three(draft: Draft, path: str) -> None:
    """Parameters are offloaded by stage 3 alone, to which the engine hands that section (``runtime/engine.py``)."""
    key = KEYS.row("zero_optimization.offload_param.device").key
    if draft.value(key) in (None, "none") or draft.value(KEYS.row("zero_optimization.stage").key) not in (0, 1, 2):
        return
    del draft.settings[key]
    draft.note(path, "parameters are offloaded by stage 3 alone: here they stay on the GPU")


def _batch(draft: Draft, world: int | None) -> None:
    """micro x accumulation x data = total: whichever one of the three is left out follows from the others."""
    config = draft.config
    sizes = {}
    micro_key, steps_key = "training.micro_batch_size", "training.gradient_accumulation_steps"
    for name, key in ((MICRO, micro_key), (STEPS, steps_key), (TOTAL, "training.global_batch_size")):
        if not _auto(config.take(name)):
            sizes[name] = draft.whole(name, key, *((steps_key,) if name == TOTAL else ()))
    if config.take(ELASTIC) is True:
        sizes = _elastic(draft)
    micro, steps, total = sizes.get(MICRO), sizes.get(STEPS), sizes.get(TOTAL)
    data = None if world is None else max(1, world // (_degree(draft, "tensor") * _degree(draft, "context")))
    if micro is None and total and data:
        micro = max(1, total // data // (steps or 1))
        draft.set(micro_key, micro, TOTAL)
    elif micro is not None:
        draft.set(micro_key, micro, MICRO if config.has(MICRO) else ELASTIC_SIZES)
    if steps is not None:
        draft.set(steps_key, steps, STEPS)
    elif micro and total and data:
        draft.set(steps_key, max(1, total // (micro * data)), TOTAL)
    elif _auto(config.take(STEPS)):
        draft.assume(steps_key, 1, f"auto: {TRAINER}; its default")
    elif not total:
        draft.assume(steps_key, 1)
    micro, steps = micro or _stated(draft, micro_key), steps or _stated(draft, steps_key)
    if micro and steps and total and data and micro * steps * data != total:
        message = f"train_batch_size is {total}, not micro-batch {micro} x accumulation {steps} x data {data}"
        fits = total // (micro * steps)
        help = f"as written it takes {fits} data-parallel GPUs" if fits * micro * steps == total else "mend one of them"
        draft.refuse(TOTAL, message, help, (steps_key,))


def _elastic(draft: Draft) -> dict[str, int | None]:
    """The engine chooses one of the listed micro-batches, and reads no other size (``runtime/config.py``)."""
    listed = draft.config.take(ELASTIC_SIZES)
    sizes = [each for each in listed if type(each) is int] if isinstance(listed, list) else []
    if sizes:
        draft.note(ELASTIC_SIZES, f"the engine chooses one of them: estimated with {max(sizes)}, the largest")
    return {MICRO: max(sizes)} if sizes else {}


def _stated(draft: Draft, key: str) -> int | None:
    value = draft.value(key)
    return value if isinstance(value, int) else None


def _degree(draft: Draft, name: str) -> int:
    return _stated(draft, f"parallelism.{name}") or 1


def _precision(draft: Draft) -> None:
    config = draft.config
    key = "training.precision"
    bf16 = next((name for name in KEYS.names["bf16"] if config.has(name)), KEYS.names["bf16"][0])
    on16, onb16 = config.take(FP16), config.take(bf16)
    if onb16 is True:
        pure = config.values.get("bf16.bf16_master_weights_and_grads") is True
        states = config.values.get("bf16.bf16_optimizer_states") is True
        if pure and not states:
            help = "set bf16_optimizer_states, too, or state the plan's precision: --set training.precision=bf16"
            name = "bf16.bf16_master_weights_and_grads"
            draft.refuse(name, "bf16 master weights with fp32 states have no memory model", help, (key,))
        draft.set(key, "bf16-pure" if pure else "bf16-mixed", bf16)
    elif on16 is True:
        draft.set(key, "fp16-mixed", FP16)
    elif _auto(on16) or _auto(onb16):
        name = bf16 if _auto(onb16) else FP16
        help = "state it: --set training.precision=bf16-mixed (or fp16-mixed, fp32)"
        draft.refuse(name, f"the precision is `auto`: {TRAINER}", help, (key,))
    elif config.has(FP16) or config.has(bf16):
        draft.set(key, "fp32", FP16 if config.has(FP16) else bf16)
    else:
        draft.assume(key, "fp32", "neither bf16 nor fp16 is enabled: DeepSpeed's default")


def _optimizer(draft: Draft) -> None:
    config = draft.config
    key = "training.optimizer.name"
    written = config.take(OPTIMIZER)
    torch_adam, momentum = config.take(TORCH_ADAM), config.take(MOMENTUM)
    if written is None:
        draft.assume(key, "adamw", "not in the config: the default of TrainingArguments")
        return
    name = KEYS.words["optimizers"].get(str(written).lower())
    if name is None:
        help = "state the one that keeps the same states: --set training.optimizer=adamw"
        settles = (key, "training.optimizer")
        draft.refuse(OPTIMIZER, f"the states of `{written}` have no memory model", help, settles)
        return
    if str(written).lower() == "lamb":
        draft.note(OPTIMIZER, "estimated as Adam, with LAMB's two moments; its norms per layer are not modelled")
    third_state(draft, "optimizer.params.amsgrad")
    draft.set(key, "sgd-momentum" if name == "sgd" and momentum else name, OPTIMIZER)
    if torch_adam is True and name in ("adam", "adamw"):
        draft.set("training.optimizer.implementation", "foreach", TORCH_ADAM)


def _clipping(draft: Draft) -> None:
    written = draft.config.take(CLIP)
    key = "training.clip_grad_norm"
    if written is None:
        draft.assume(key, False)
    elif _auto(written):
        draft.set(key, True, CLIP)
    else:
        draft.set(key, bool(written), CLIP)


READER = Reader(recognise=recognise, read=read_deepspeed)
