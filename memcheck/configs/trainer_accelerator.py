"""``accelerator_config`` of TrainingArguments: how batches are dealt out, and when gradients are reduced. Read at
transformers 5.23.0 (``trainer_pt_utils.py``, AcceleratorConfig; ``trainer.py``, create_accelerator_and_postprocess).
"""

from __future__ import annotations

from memcheck.configs.draft import Draft
from memcheck.configs.trainer_keys import KEYS
from memcheck.configs.trainer_parts import on
from memcheck.configs.trainer_split import STAGE
from memcheck.configs.types import KeyRow
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
