"""The normal form of a job of a trainer on top of transformers, and the one function that makes a plan of it.

TRL, transformers, Axolotl, LLaMA-Factory, ms-swift and open-instruct say the same things under different keys. A reader
only translates. It yields records in the words of TrainingArguments, of PEFT's LoraConfig with BitsAndBytesConfig, of
the data and of TRL's objectives. ``plan_of`` writes each record into the draft before the reader goes on, so a reader
may ask the draft for what is settled already. A ``path`` is the config's key that says a value; findings point at it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from memcheck.configs import trainer_parts as parts
from memcheck.configs.draft import Draft, speaks
from memcheck.configs.key_table import KeyTable
from memcheck.configs.trainer_adapters import adapters, base, computed, constants, leaves_casts, starts, unused
from memcheck.configs.trainer_arguments import liger_kernels, masked, objective, settle, trainer
from memcheck.configs.trainer_parts import RECOMPUTE, Division
from memcheck.configs.trainer_split import engine_batch
from memcheck.configs.types import AdapterKeys, KeyRow, ReadConfig
from memcheck.record import Record

MICRO, STEPS = "training.micro_batch_size", "training.gradient_accumulation_steps"
LIGER = ("rope", "rms_norm", "glu")
"""Liger's kernels of a decoder's layers (``training.kernels.liger``)."""
EVALUATED = ("per_device_eval_batch_size", "per_gpu_eval_batch_size")
"""TrainingArguments' keys of the batch of the evaluation, now and before 3.0."""


class Said(Record):
    """A value of the job, and who says it."""

    value: Any
    path: str = ""
    """The config's key; a key that the config does not have, or no key, makes the value an assumption."""
    why: str = ""
    """The reason of an assumption; empty for the default of the trainer."""


class Runs(Record):
    """Whose loop runs the job."""

    framework: str
    why: str
    trainer: str
    """The value of ``training.trainer.name``."""


class TuningArguments(Record):
    """Which weights train: ``LoraConfig``, and ``BitsAndBytesConfig`` of the frozen base."""

    method: str
    """``full`` | ``lora`` | ``qlora``."""
    path: str
    adapters: AdapterKeys
    """The keys of the adapters. Of a job that trains none they are only looked at."""
    base: Said = Said("")
    """What the frozen base is held in, if neither in 16 bits nor in NF4 (``training.base.held_in``)."""
    double: Said = Said(True)
    """Whether the constants of 4-bit weights are quantized, too; ``path`` has no value where the trainer decides it."""
    computed: str = ""
    """The key of the dtype in which 4-bit weights are multiplied."""
    casts: str = ""
    """Why norms, embeddings and head of a quantized base stay in 16 bits; empty: PEFT casts them to fp32."""
    asked: str = ""
    """A key that leaves open whether adapters are trained."""


class Starts(Record):
    """How adapters start: ``init_lora_weights``."""

    paths: tuple[str, ...]
    off: object = None
    """The value that turns a switch of one such start off."""


class BatchArguments(Record):
    """``per_device_train_batch_size`` and ``gradient_accumulation_steps``."""

    micro: tuple[str, ...] = (
        "per_device_train_batch_size",
        "per_gpu_train_batch_size",
        "train_batch_size",
        "batch_size",
    )
    """Keys of the sequences per GPU; the first one that has a value counts."""
    default: int = 8
    why: str = ""
    steps: str = STEPS.rpartition(".")[2]
    total: str = ""
    """The key of the sequences per GPU and step, which counts where ``steps`` has no value."""


class RowArguments(Record):
    """How long rows are, in tokens, and whether each is full."""

    paths: tuple[str, ...]
    """Keys of the length; the first one that has a value counts."""
    default: int | None
    packed: bool
    why: str = ""
    full: str = ""
    """Why every row is full, where no key packs rows."""


class PrecisionArguments(Record):
    """``bf16``, ``fp16``, and the dtype in which the model is loaded."""

    path: str
    amp: str
    """The dtype of autocast: bf16 or fp16; empty: none."""
    weights: str
    """The dtype of the loaded weights: bf16, fp16 or fp32."""
    split: Division


class RecomputeArguments(Record):
    """``gradient_checkpointing`` and ``gradient_checkpointing_kwargs``."""

    path: str
    default: bool
    reentrant: bool
    """The default of ``use_reentrant``."""
    kwargs: str = ""
    """The section of the arguments; empty: the trainer has none."""
    why: str = ""


class AttentionArguments(Record):
    """``attn_implementation``."""

    path: str
    default: str = "sdpa"


class LossArguments(Record):
    """The loss of a supervised job, and the layers that run Liger's kernels."""

    kind: Said
    """``standard`` | ``chunked`` | ``fused-linear``."""
    kernels: Mapping[str, str] = {}
    """The config's key by Liger's kernel."""


class ObjectiveArguments(Record):
    """What TRL's trainers optimize in place of the next token."""

    kind: str
    path: str
    precomputed: str = ""
    """The switch for log-probabilities of the reference that are computed once."""
    prompt: str = ""
    """The key of a prompt's longest length."""
    reference: str = ""
    """The key of a reference model of its own."""


class EvaluationArguments(Record):
    """The pass between steps: ``eval_strategy`` and its batch."""

    path: str
    """The key that asks for it."""
    runs: bool
    default: int
    """Sequences per GPU where no key says it."""
    batch: tuple[str, ...] = EVALUATED


class Known(Record):
    """The keys of a format's table that move no memory, or have no place in a plan."""

    table: KeyTable


class Collated(Record):
    """How the collator pads rows, and whether a mask keeps the documents of a packed row apart."""

    multiple: int = 1
    """Tokens: each row is padded to a multiple of this."""
    masked: str = ""
    """The key that packs rows with such a mask; empty: none does."""
    rows: str = "masked"
    why: str = ""


def plan_of(draft: Draft, job: Iterable[Record]) -> ReadConfig:
    """Write each record of a job into the draft as soon as its reader yields it, and finish the draft."""
    for section in job:
        WRITERS[type(section)](draft, section)
    return draft.finish()


def said(draft: Draft, key: str, value: Said) -> None:
    """Write one value under the plan's ``key``: as stated where the config has the path, else as assumed."""
    if draft.config.has(value.path):
        draft.set(key, value.value, value.path)
    else:
        draft.assume(key, value.value, value.why)


def _runs(draft: Draft, runs: Runs) -> None:
    draft.derive("training.framework", runs.framework, runs.why)
    trainer(draft, runs.trainer)


def _tuning(draft: Draft, tuning: TuningArguments) -> None:
    draft.set("training.method", tuning.method, tuning.path)
    if tuning.method == "full":
        unused(draft, tuning.adapters, tuning.asked)
        return
    if tuning.base.value:
        base(draft, tuning.base.value, tuning.base.path)
    constants(draft, tuning.double.path, default=tuning.double.value)
    if tuning.computed:
        computed(draft, tuning.computed)
    if tuning.casts:
        leaves_casts(draft, tuning.casts)
    adapters(draft, tuning.adapters)


def _starts(draft: Draft, started: Starts) -> None:
    for path in started.paths:
        starts(draft, path, off=started.off)


def _batch(draft: Draft, batch: BatchArguments) -> None:
    row = KeyRow(batch.micro[0], MICRO, aliases=batch.micro[1:])
    micro = parts.whole(draft, row, batch.default, batch.why)
    total = draft.whole(batch.total, STEPS) if batch.total else None
    if draft.config.has(batch.steps) or not total or not micro:
        parts.whole(draft, KeyRow(batch.steps, STEPS), 1)
    else:
        draft.set(STEPS, max(1, total // micro), batch.total)
    engine_batch(draft)


def _rows(draft: Draft, rows: RowArguments) -> None:
    parts.length(draft, rows.paths, rows.default, rows.packed, rows.why, said=rows.full)


def _precision(draft: Draft, section: PrecisionArguments) -> None:
    """The recipe, and the dtype in which the weights are resident where that is not what the recipe means."""
    recipe = (
        f"{section.amp}-mixed" if section.amp else "fp32" if section.weights == "fp32" else f"{section.weights}-pure"
    )
    draft.set("training.precision.recipe", recipe, section.path)
    trains_all = draft.value("training.method") == "full"
    if not section.amp or section.split.engine or (section.split.sharded and trains_all):
        return
    unlike = section.weights != ("fp32" if trains_all else section.amp)
    if unlike or (not trains_all and draft.value("training.trainer.name") == "trl"):  # whose own default is fp32
        draft.set("training.precision.params", section.weights, section.path)


def _recompute(draft: Draft, section: RecomputeArguments) -> None:
    """Every block is computed again in backward, or every N-th; what it keeps may be held on the host."""
    mode, path, config = f"{RECOMPUTE}.mode", section.path, draft.config
    enabled = config.take(path) not in parts.FALSE if config.has(path) else section.default
    said(draft, mode, Said("full" if enabled else "none", path, section.why))
    option = f"{section.kwargs}.use_reentrant"
    if enabled and section.kwargs and config.has(option):
        draft.set(f"{RECOMPUTE}.reentrant", parts.on(draft, option), option)
    elif enabled:
        draft.assume(f"{RECOMPUTE}.reentrant", section.reentrant, section.why)
    if enabled and section.kwargs:
        draft.rows((KeyRow(f"{section.kwargs}.every_n_layers", f"{RECOMPUTE}.every_n_layers"),))
        if parts.on(draft, f"{section.kwargs}.offload"):
            draft.set(f"{RECOMPUTE}.offload", "cpu", f"{section.kwargs}.offload")
    parts.recomputed(draft, path)


def _attention(draft: Draft, attention: AttentionArguments) -> None:
    parts.attention(draft, attention.path, attention.default)


def _loss(draft: Draft, loss: LossArguments) -> None:
    said(draft, "training.loss.kind", loss.kind)
    if loss.kernels:
        liger_kernels(draft, loss.kernels)


def _objective(draft: Draft, section: ObjectiveArguments) -> None:
    objective(
        draft,
        section.kind,
        section.path,
        precomputed=section.precomputed,
        prompt=section.prompt,
        reference=section.reference,
    )


def _evaluation(draft: Draft, section: EvaluationArguments) -> None:
    """The pass between steps: its batch, and whether its logits are kept."""
    draft.config.see(section.path, *section.batch, "prediction_loss_only")
    if not section.runs:
        return
    name = next((each for each in section.batch if draft.config.has(each)), "")
    key = "training.evaluation.micro_batch_size"
    size = draft.whole(name, key) if name else section.default
    effect = f"the evaluation pass, of {size} sequences at once, is not in the estimate"
    parts.say_or_note(draft, key, size, name or section.path, effect)
    if speaks("training.evaluation.logits", "dropped") and parts.on(draft, "prediction_loss_only"):
        draft.set("training.evaluation.logits", "dropped", "prediction_loss_only")


def _known(draft: Draft, known: Known) -> None:
    draft.unmodelled(known.table.unmodelled)
    parts.irrelevant(draft, known.table.irrelevant)


def _collated(draft: Draft, section: Collated) -> None:
    settle(draft, section.multiple)
    if section.masked:
        masked(draft, section.masked, section.rows, section.why)


WRITERS: dict[type[Record], Callable[[Draft, Any], None]] = {
    Runs: _runs,
    TuningArguments: _tuning,
    Starts: _starts,
    BatchArguments: _batch,
    RowArguments: _rows,
    PrecisionArguments: _precision,
    RecomputeArguments: _recompute,
    AttentionArguments: _attention,
    LossArguments: _loss,
    ObjectiveArguments: _objective,
    EvaluationArguments: _evaluation,
    Known: _known,
    Collated: _collated,
}
"""How each record of the normal form is written into the draft of a plan."""
