"""The keys that TRL, LLaMA-Factory and ms-swift take from ``transformers.TrainingArguments`` as they are."""

from __future__ import annotations

from collections.abc import Mapping

from memcheck.configs import trainer_parts as parts
from memcheck.configs.draft import Draft
from memcheck.configs.launch_lines import several, started_by
from memcheck.configs.trainer_adapters import HELD, starts
from memcheck.configs.trainer_parts import KEYS, Division, on, text
from memcheck.configs.trainer_split import STAGE, deepspeed, fsdp, note_units
from memcheck.configs.types import ConfigProblem, KeyRow, Note
from memcheck.frameworks.registry import FRAMEWORKS

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
    own = FRAMEWORKS[str(draft.value("training.framework"))].own_engine
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
