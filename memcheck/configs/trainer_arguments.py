"""The keys that TRL, LLaMA-Factory and ms-swift take from ``transformers.TrainingArguments`` as they are.

What a trainer's config means as a whole: its objective, its kernels, and what memcheck has no memory model for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from memcheck.configs import trainer_parts as parts
from memcheck.configs.draft import Draft, speaks
from memcheck.configs.launch_lines import several, started_by
from memcheck.configs.pictures import sees, stated
from memcheck.configs.trainer_adapters import HELD, starts
from memcheck.configs.trainer_parts import (
    KEYS,
    Division,
    architecture_named,
    known_architecture,
    on,
    same_dimensions,
    say,
    text,
)
from memcheck.configs.trainer_split import STAGE, deepspeed, fsdp, note_units
from memcheck.configs.types import ConfigProblem, KeyRow, Note, ReadSetting
from memcheck.errors import MemcheckError
from memcheck.families.registry import architecture_of
from memcheck.frameworks.registry import FRAMEWORKS
from memcheck.frameworks.transformers.liger import modelled
from memcheck.job.training import MASKED
from memcheck.models.types import Architecture
from memcheck.models.variants import maskable, unpaddable
from memcheck.plan.types import ModelSpec

SECTION = "accelerator_config"
ACCUMULATION = f"{SECTION}.gradient_accumulation_kwargs"
SYNC, MICRO = "training.options.sync_each_batch", "training.micro_batch_size"


def accelerator(draft: Draft) -> None:
    """Read the section ``accelerator_config``, after the micro-batch and the division over GPUs.

    Keys of the section that memcheck does not know stay unread, so that the reading lists them.
    """
    config, split = draft.config, f"{SECTION}.split_batches"
    if on(draft, split):
        draft.settings.pop(MICRO, None)
        message = f"`{split}`: each batch of the loader is cut over all GPUs, so that its size is no micro-batch"
        draft.refuse(split, message, f"state what one GPU gets: --set {MICRO}=1", (MICRO,))
    steps = f"{ACCUMULATION}.num_steps"
    if draft.value("training.gradient_accumulation_steps") in (None, 1):
        draft.rows((KeyRow(steps, "training.gradient_accumulation_steps"),))
    synchronised(draft, f"{ACCUMULATION}.sync_each_batch")
    config.see(SECTION, split, steps, *(f"{SECTION}.{name}" for name in KEYS.inside[SECTION]))
    if isinstance(config.values.get(SECTION), str):
        draft.note(SECTION, "the file that it names is not read")


def synchronised(draft: Draft, path: str) -> None:
    """Gradients that are reduced with every micro-batch, where shards depend on it; DeepSpeed does so by itself."""
    own = FRAMEWORKS[str(draft.value("training.framework"))].has_sharding_engine
    if on(draft, path) and draft.value(STAGE) == 3 and not own:
        draft.set(SYNC, True, path)


def one_job(draft: Draft) -> bool:
    """A script that starts several jobs, which differ in what was read so far, is none of them: whether it is one."""
    unread = set(draft.config.unread())
    jobs = several(draft.config, [name for name in draft.config.values if name not in unread])
    draft.problems += [] if jobs is None else [jobs.problem]
    return jobs is None


def other_jobs(draft: Draft) -> None:
    """Report that a script starts several jobs which differ in arguments that memcheck does not know.

    A problem where the argument names a model; else a note, because the last job's arguments are read.
    """
    jobs = several(draft.config, draft.config.unread())
    if jobs is None:
        return
    if "model" in jobs.name:
        draft.problems.append(jobs.problem)
    else:
        draft.notes.append(Note(jobs.problem.location, f"{jobs.problem.message}: the last one's are read"))


def split(
    draft: Draft, world: int | None, shipped: Mapping[str, Mapping[str, object]] | None = None, version: int = 0
) -> Division:
    """DeepSpeed, FSDP, or a whole copy on every GPU."""
    version = version or (1 if parts.older(draft, 5, 10) else 2)
    found = _engine(draft, world, shipped) or fsdp(draft, "fsdp", "fsdp_config", version=version)
    old = "fsdp_transformer_layer_cls_to_wrap"  # before it was a key of the section
    if draft.config.has(old) and found is not None and found.sharded:
        note_units(draft, old, text(draft, old))
    draft.config.see(old)
    if found is None:
        launched = draft.config.has("config_file")
        script, at = started_by(draft.config)
        if not launched and at is not None:
            message = f"`{script}` starts the job, and how it splits it is not read from here"
            draft.problems.append(ConfigProblem(at, message, f"state it: --set {STAGE}=3", keys=(STAGE,)))
        elif not launched:
            draft.assume(STAGE, 0, "neither deepspeed nor fsdp: every GPU holds the whole state")
        return Division()
    return found


def _engine(draft: Draft, world: int | None, shipped: Mapping[str, Mapping[str, object]] | None) -> Division | None:
    """Read DeepSpeed's config: ``deepspeed FILE``, or DeepSpeed's own switch with ``deepspeed_config FILE``
    (``deepspeed/__init__.py``, add_config_arguments).
    """
    switch = "deepspeed"
    file = f"{switch}_config"
    own = isinstance(draft.config.values.get(file), str)
    if not parts.on(draft, switch) and (draft.config.has(switch) or draft.config.section(switch)):
        return deepspeed(draft, switch, world, shipped)
    if own:
        return deepspeed(draft, file, world, shipped)
    if draft.config.has("zero_stage"):  # of scripts in the way of DeepSpeed-Chat's, which make the engine's config
        draft.config.see(switch)
        draft.derive("training.framework", "deepspeed", "the config has `zero_stage`")
        draft.rows((KeyRow("zero_stage", STAGE),))
        draft.note("zero_stage", "the script makes the engine's config itself: its offload and buckets are not known")
        return Division(engine=True)
    if not draft.config.has(switch):
        draft.config.see(switch)
        return None
    draft.derive("training.framework", "deepspeed", f"the config has `{switch}`")
    message = f"`{switch}` and no file: the script makes the engine's config itself"
    draft.refuse(switch, message, f"state how the job is split: --set {STAGE}=3", (STAGE,))
    return Division(engine=True)


def step(draft: Draft, split: Division) -> None:
    """Optimizer, clipping, compilation, what is saved, and what is not modelled."""
    default, why = parts.default_optimizer(draft)
    if not draft.config.has("optim") and "training.optimizer.name" in draft.settings:
        draft.config.see("optim")  # DeepSpeed's own, which its config names
    else:
        parts.optimizer(draft, "optim", default, why)
    if split.engine:
        draft.settings.pop("training.optimizer.implementation", None)
    parts.clipping(draft, "max_grad_norm")
    for name in ("torch_compile", "torchdynamo", "torch_compile_backend", "torch_compile_mode"):
        parts.compiled(draft, name)  # any of them turns it on (training_args.py, __post_init__)
    accelerator(draft)
    for name in ("use_cpu", "no_cuda"):
        if parts.on(draft, name):
            draft.refuse(name, f"`{name}`: the job runs on no GPU")
    parts.saved(draft)
    smoothed = "label_smoothing_factor"  # trainer_pt_utils.py, LabelSmoother
    if str(draft.config.take(smoothed) or 0) not in ("0", "0.0"):
        message = f"`{smoothed}`: a loss of its own, on log-probabilities of whole logits, has no memory model here"
        draft.refuse(smoothed, message, keys=("training.loss",))
    _divided(draft)
    draft.unmodelled(KEYS.unmodelled)
    for name in ("init_lora_weights", "lora_init"):
        starts(draft, name)
    draft.harmless(("torch_empty_cache_steps", "group_by_length", "length_column_name"))


def _divided(draft: Draft) -> None:
    """``parallelism_config``: degrees that the Trainer hands on to Accelerate."""
    section = "parallelism_config"
    below = [key for key in draft.config.values if key == section or key.startswith(f"{section}.")]
    draft.config.see(*below)
    stated = next((key for key in below if draft.config.has(key)), "")
    if stated:
        message = f"`{section}`: degrees of the Trainer's own are not read"
        help = "state them: --set parallelism.tensor=2"
        draft.refuse(stated, message, help, ("parallelism.tensor", "parallelism.context", "parallelism.data"))


def evaluates(draft: Draft, data: tuple[str, ...] = ()) -> bool:
    """Whether there is a pass between steps: a strategy, or ``do_eval``, or data for it."""
    strategy = text(draft, "eval_strategy").lower() or text(draft, "evaluation_strategy").lower()
    draft.config.see("eval_strategy", "evaluation_strategy", "do_eval", *data)
    if strategy:
        return strategy not in ("no", "none", "false")
    return draft.config.values.get("do_eval") in parts.TRUE


def mixed(draft: Draft) -> tuple[str, str]:
    """The dtype of autocast and the key that says it; empty without one."""
    for name in ("bf16", "fp16"):
        if parts.on(draft, name):
            draft.config.see("bf16", "fp16", "mixed_precision")
            return name, name
    draft.config.see("bf16", "fp16", "bf16_full_eval", "fp16_full_eval")
    launched = "mixed_precision"  # of accelerate launch, which the Trainer leaves as it is
    return (word, launched) if (word := text(draft, launched).lower()) in ("bf16", "fp16") else ("", "")


FORMER = "what transformers 4 loads without a dtype; 5 loads the checkpoint's, bf16 (--framework-version=5)"
"""Why weights are fp32 where neither dtype nor release is stated: the one that never needs less."""


def is_dtype_open(draft: Draft) -> bool:
    """Whether the dtype of the weights depends on the release, which is not stated.

    It does not for a quantised model: weights that are not quantised are in 16 bits there.
    """
    return not (draft.config.version or draft.value("training.method") == "qlora" or HELD in draft.settings)


REFERRED = ("dpo", "ipo", "kto")
"""Objectives that compare with a reference model."""


def trainer(draft: Draft, name: str) -> None:
    """Whose loss and loop run, and which release, where it was stated."""
    if speaks("training.trainer.name", name):
        draft.derive("training.trainer.name", name, f"the config is {draft.title}'s")


def chosen_apart(draft: Draft, path: str) -> None:
    """Refuse a loss of the chosen rows in addition to TRL's DPO loss: ``sft`` in ``loss_type``, or ``rpo_alpha``."""
    written = draft.config.take(path)
    if written is not None and (path == "rpo_alpha" or re.search(r"\bsft\b", str(written))):
        message = f"`{path}`: a cross entropy of the chosen rows, on a copy of their logits, has no memory model here"
        draft.refuse(path, message, keys=("training.objective",))


def weighted(draft: Draft, path: str) -> None:
    """WPO's weights of pairs (TRL ``trainer/dpo_trainer.py``, use_weighting)."""
    if on(draft, path):
        message = f"`{path}`: weights that are worked out of all probabilities have no memory model here"
        draft.refuse(path, message, keys=("training.objective",))


def _reference(draft: Draft, path: str) -> None:
    """A model of its own: of the policy's dimensions, as a plan's is, or refused."""
    own, other = architecture_named(draft), known_architecture(text(draft, path))
    if own is not None and other is not None and not same_dimensions(own, other):
        message = f"`{path}`: a reference of other dimensions than the model's has no memory model here"
        draft.refuse(path, message, keys=("training.reference",))
        return
    draft.set("training.reference", "resident", path)
    if other is None:
        draft.note(path, "estimated with the dimensions of the model that is trained")


def objective(
    draft: Draft, kind: str, path: str, *, precomputed: str = "", prompt: str = "", reference: str = ""
) -> None:
    """``training.objective`` and what it compares with.

    ``precomputed`` is the switch for log-probabilities that are computed once, ``prompt`` the key of a prompt's length,
    ``reference`` the key of a reference model of its own.
    """
    if not say(draft, "training.objective.name", kind, path):
        return
    if kind in REFERRED:
        adapted = draft.value("training.method") in ("lora", "qlora")
        if precomputed and on(draft, precomputed):
            draft.set("training.reference", "precomputed", precomputed)
        elif reference and draft.config.has(reference):
            _reference(draft, reference)
        elif adapted:
            draft.assume("training.reference", "adapter-off", "the base without its adapters is the reference")
        else:
            draft.assume("training.reference", "resident", "a second copy of the model is the reference")
    if kind == "reward":
        say(draft, "training.head", "reward", path)
    if prompt and draft.config.has(prompt):
        length = draft.whole(prompt, "training.objective.prompt_length")
        if length:
            draft.set("training.objective.prompt_length", length, prompt)
    draft.config.see(*filter(None, (precomputed, prompt, reference)))


KEY = "training.kernels.liger"
UPPER = "Liger's other kernels keep less than transformers' own: an upper bound"


def liger_kernels(draft: Draft, paths: Mapping[str, str]) -> None:
    """Set the kernels that memcheck prices, and note the others. ``paths``: the config's key by kernel.

    The model, the layout and ``torch.compile`` have been read. Liger leaves families that it does not know alone.
    """
    able = _able(draft)
    found = [name for name in paths if name in able]
    if found:
        draft.set(KEY, found, paths[found[0]])
    for path in dict.fromkeys(paths.values()):
        draft.config.see(path)
        if any(at == path and name not in able for name, at in paths.items()):
            draft.note(path, UPPER)


def _able(draft: Draft) -> tuple[str, ...]:
    name, tensor = draft.value("model.name"), draft.value("parallelism.tensor")
    if not isinstance(name, str) or draft.value("training.compile") or (isinstance(tensor, int) and tensor > 1):
        return ()
    try:
        found = architecture_of(ModelSpec(name=name))
    except MemcheckError:
        return ()
    return modelled(found) if isinstance(found, Architecture) else ()


ROWS, TRAINER, PLACE = "training.sequences", "training.trainer.name", "training.initialization.place"
EVALUATION = "training.evaluation."
CUTS = ("parallelism.tensor", "parallelism.context", "parallelism.pipeline")


def settle(draft: Draft, multiple: int = 1) -> None:
    """Padding, the pass between steps, the trainer and the loading, as far as they can be estimated; else that is said.

    ``multiple``: tokens. The collator pads each row to a multiple of this, also a row that is alone in its batch.
    """
    profile = FRAMEWORKS[str(draft.value("training.framework"))]
    stated(draft)
    if draft.value(TRAINER) not in profile.trainers:
        draft.settings.pop(TRAINER, None)
    if draft.value(ROWS) == "padded":
        why = _as_full(draft, multiple)
        if why:
            draft.settings[ROWS] = ReadSetting("unpacked", why, assumed=True)
        elif _alone(draft):
            why = f"a row is padded to a multiple of {multiple} tokens, with a mask"
            draft.settings[ROWS] = ReadSetting("unpacked-masked", why, assumed=True)
    cut = any(isinstance(degree := draft.value(key), int) and degree > 1 for key in CUTS)
    if _passes_less(draft) and (not profile.runs_transformers or cut or sees(draft) is not None):
        for key in [key for key in draft.settings if key.startswith(EVALUATION)]:
            del draft.settings[key]  # it holds what a step's forward does, and neither a graph nor gradients
    elif not profile.runs_transformers or cut:
        _drop_evaluation(draft, "the evaluation pass is not in the estimate of a job that is split like this")
    _packed(draft, profile.adapters.base_formats)
    if draft.value("training.method") == "qlora" and draft.value(PLACE) not in (None, "device"):
        setting = draft.settings.pop(PLACE)
        _note(draft, setting, "a quantized model that one rank loads is estimated as if every process quantized it")


PACKED = {
    "-gptq-int8": "gptq-8bit",
    "-gptq-8bit": "gptq-8bit",
    "-gptq": "gptq-4bit",
    "-awq": "awq-4bit",
    "-bnb-4bit": "nf4",
    "-bnb-8bit": "int8",
    **dict.fromkeys(("-nvfp4", "-mxfp4", "-fp8", "-w4a16", "-w8a8", "-w8a16"), "compressed"),
    **dict.fromkeys(("-int4", "-int8", "-hqq", "-aqlm", "-eetq", "-quantized"), "compressed"),
}
"""What a repository's files hold, by what its name ends in or goes on with."""


def _packed(draft: Draft, bases: tuple[str, ...]) -> None:
    """Adapters over a repository of packed weights: the base is held in them, where that is what can be estimated."""
    name, stage = str(draft.value("model.name")).lower(), draft.value("parallelism.zero_stage")
    held = next((word for part, word in PACKED.items() if part in name), "")
    sharded = isinstance(stage, int) and stage > 1
    if draft.value("training.method") != "lora" or not held or HELD in draft.settings:
        return
    if held in bases and not sharded:
        draft.derive(HELD, held, "the files of that repository hold packed weights")
    else:
        message = f"the files hold packed weights ({held}), which are estimated in 16 bits here: an upper bound"
        _note(draft, draft.settings["model.name"], message)


def masked(draft: Draft, path: str, rows: str, why: str) -> None:
    """Packed rows whose documents a mask keeps apart, where the kernel cannot. ``rows``: how they lie then."""
    if draft.value("training.attention") not in MASKED:
        return
    if sees(draft) is None and _masks(draft):
        draft.derive(ROWS, rows, why)
    else:
        draft.note(path, "the mask that it hands to layers without FlashAttention is not in the estimate")


def _masks(draft: Draft) -> bool:
    """Whether masks of this model's rows have a memory model."""
    known = architecture_named(draft)
    pads = FRAMEWORKS[str(draft.value("training.framework"))].runs_transformers
    whole = draft.value("parallelism.context") in (None, 1)
    return pads and whole and (known is None or maskable(known))


def _alone(draft: Draft) -> bool:
    """Whether a micro-batch is one row."""
    return draft.value("training.micro_batch_size") == 1 and "training.objective.name" not in draft.settings


def _as_full(draft: Draft, multiple: int) -> str:
    """Why rows of varying length are estimated as full ones; empty where padding is estimated."""
    if _alone(draft) and multiple == 1:
        return "one row at a time: nothing is padded, and sequence_length is the longest"
    single = _alone(draft) and sees(draft) is not None
    if not (draft.value("training.attention") in MASKED or _unpads(draft)) or single or not _masks(draft):
        return "padded rows are estimated as full ones: what takes the padding out and in again is not in the estimate"
    return ""


def _unpads(draft: Draft) -> bool:
    """Whether FlashAttention takes padding out of several rows of a model where that has a memory model."""
    known = architecture_named(draft)
    several = not _alone(draft)
    return draft.value("training.attention") == "flash" and several and known is not None and unpaddable(known)


def _passes_less(draft: Draft) -> bool:
    """Whether the pass between steps takes no more rows than a step, and keeps no logits."""
    rows, most = draft.value(f"{EVALUATION}micro_batch_size"), draft.value("training.micro_batch_size")
    kept = draft.value(f"{EVALUATION}logits") == "kept"
    return isinstance(rows, int) and isinstance(most, int) and rows <= most and not kept


def _drop_evaluation(draft: Draft, message: str) -> None:
    found = [key for key in draft.settings if key.startswith(EVALUATION)]
    settings = [draft.settings.pop(key) for key in found]
    if settings:
        _note(draft, settings[0], message)


def _note(draft: Draft, setting: ReadSetting, message: str) -> None:
    at = setting.location or draft.config.at("")
    draft.notes.append(Note(at, message))
