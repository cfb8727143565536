"""Micro-batch, length and the pass between steps of an AutoModel recipe."""

from __future__ import annotations

from memcheck.configs import trainer_parts as parts
from memcheck.configs.automodel_layout import PIPELINES, degree_of
from memcheck.configs.draft import Draft
from memcheck.configs.trainer_parts import off, text
from memcheck.configs.trainer_settled import settle
from memcheck.configs.types import KeyRow

LOCAL, GLOBAL = "step_scheduler.local_batch_size", "step_scheduler.global_batch_size"
LENGTHS = (
    "dataset.seq_len",
    "dataset.seq_length",
    "dataset.sequence_length",
    "dataset.max_seq_len",
    "dataset.max_length",
    "dataloader.collate_fn.max_length",
)
PACKS = ("packed_sequence.pack_size", "packed_sequence.max_length")
"""What recipes of pictures call the size of a pack."""
DIVISIBLE = "dataloader.collate_fn.pad_seq_len_divisible"
PACKED, VALIDATION = "packed_sequence.packed_sequence_size", "validation_dataloader.batch_size"
SIZES = (LOCAL, GLOBAL, PACKED, *PACKS, VALIDATION, *LENGTHS, DIVISIBLE)
"""What is read of sections that bear on nothing else."""
FULL = ("mock", "nanogpt", "megatron_dataset")
"""Datasets whose rows are all of the same length."""


def batch(draft: Draft) -> None:
    """``local_batch_size`` is what a GPU takes at once; a pipeline takes it in parts of ``pp_microbatch_size``."""
    micro = KeyRow(LOCAL, "training.micro_batch_size")
    if degree_of(draft, "pipeline") > 1:
        section = next((name for name in PIPELINES if draft.config.section(name)), PIPELINES[0])
        draft.config.see(LOCAL)
        micro = KeyRow(f"{section}.pp_microbatch_size", micro.key)
    parts.whole(draft, micro, 1)
    parts.whole(draft, KeyRow(GLOBAL, "training.global_batch_size"), 32)
    if degree_of(draft, "pipeline") > 1:
        _run(draft)


def _run(draft: Draft) -> None:
    """Set the micro-batches per run of the pipeline schedule. One run takes a local batch, and gradients are reduced
    after it (train_ft.py, ``schedule.step``).
    """
    local, micro = draft.whole(LOCAL), draft.value("training.micro_batch_size")
    each = (local or 1) // micro if isinstance(micro, int) and micro > 0 else 0
    if each:
        at = LOCAL if draft.config.has(LOCAL) else GLOBAL
        draft.set("training.options.micro_batches_per_run", each, at)


def length(draft: Draft) -> None:
    """Packed rows are full, and so are those of datasets that are made up or cut into pieces; others are padded."""
    config = draft.config
    sizes = (draft.whole(path, "training.sequence_length") for path in (PACKED, *PACKS))
    size = next(filter(None, sizes), None)
    paths = (PACKED, *PACKS) if size else LENGTHS
    target = text(draft, "dataset._target_").lower()
    full = any(each in target for each in FULL) or text(draft, "dataset.padding") == "max_length"
    found = tuple(name for name in paths if config.has(name))
    if found:
        parts.length(draft, found, None, bool(size) or full)
        longest, whole = draft.value("training.sequence_length"), draft.whole(DIVISIBLE)
        if not size and isinstance(longest, int) and whole and longest % whole:  # datasets/utils.py, pad_within_micro
            draft.set("training.sequence_length", -(-longest // whole) * whole, DIVISIBLE)
    else:
        help = "state the tokens of the longest row: --sequence-length 4096"
        draft.ask("training.sequence_length", "how long a sequence is", help)
        said = "rows are padded to the longest of a micro-batch: an upper bound"
        parts.assume_if_known(draft, "training.sequences", "padded", said)
    config.see(PACKED, *PACKS, *LENGTHS)


def evaluation(draft: Draft) -> None:
    """Every ``val_every_steps``: loss alone, on the micro-batches of the validation's loader."""
    config, path = draft.config, VALIDATION
    runs = config.section("validation_dataset") and config.has("step_scheduler.val_every_steps")
    key = "training.evaluation"
    if runs and not off(draft, "step_scheduler.val_every_steps"):
        size = draft.whole(path, f"{key}.micro_batch_size") if config.has(path) else draft.whole(LOCAL)
        at = path if config.has(path) else LOCAL if config.has(LOCAL) else "step_scheduler.val_every_steps"
        draft.set(f"{key}.micro_batch_size", size or 1, at)
        draft.assume(f"{key}.logits", "dropped", "the loss alone is kept")
    settle(draft)
