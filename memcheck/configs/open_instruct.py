"""What open-instruct's own scripts set up themselves: DeepSpeed by switches, the optimizer, clipping. Read at e6c3044a
of August 2026 (``open_instruct/finetune.py``, ``dpo_tune_cache.py``, ``dpo_utils.py``; ``mason.py`` starts jobs).
"""

from __future__ import annotations

from memcheck.configs import trl_keys as keys
from memcheck.configs.draft import Draft
from memcheck.configs.trainer_parts import off, on
from memcheck.configs.trainer_split import STAGE
from memcheck.configs.types import KeyRow

COPIES = "zero_hpz_partition_size"


def own_engine(draft: Draft) -> None:
    """``zero_stage`` and its switches, as the engine's config that ``build_deepspeed_config`` makes of them."""
    config, path = draft.config, "zero_stage"
    stage = draft.whole(path, STAGE)
    if "hardware.gpus_per_node" not in draft.settings:
        draft.rows((KeyRow("gpus", "hardware.gpus_per_node"),))
    config.see(path, "offload_optimizer", "offload_param", "gpus", *([COPIES] if config.has(path) else []))
    if stage is None:
        return
    found: dict[str, object] = {"stage": stage, "overlap_comm": True, "contiguous_gradients": True}
    found["reduce_bucket_size"] = "auto"
    if stage == 3:
        found |= {"sub_group_size": 10**9, "stage3_max_live_parameters": 10**9, "stage3_max_reuse_distance": 10**9}
        found |= {"stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"}
        found |= {"stage3_gather_16bit_weights_on_model_save": True, COPIES: draft.whole(COPIES) or 8}
    for name in ("offload_optimizer", "offload_param"):
        if on(draft, name):
            found |= {f"{name}.device": "cpu", f"{name}.pin_memory": True}
    for name, value in found.items():
        config.adopt(f"deepspeed.zero_optimization.{name}", value, config.at(path))


def own_loop(draft: Draft, *, engine: bool) -> None:
    """Read optimizer, gradient clipping and sequence parallelism of open-instruct's own training loop into ``draft``.

    The optimizer is AdamW, fused if ``fused_optimizer`` is on. QLoRA, and DPO with ``dpo_use_paged_optimizer``, take
    bitsandbytes' paged AdamW; ``use_8bit_optimizer`` stores its states in 8 bits. ``clip_grad_norm: -1`` disables
    clipping. ``engine``: DeepSpeed runs the step. A script of OLMo-core is refused.
    """
    config = draft.config
    for line in config.lines:
        named = keys.OLMO_CORE.search(line)
        if named is not None:
            draft.refuse("", f"`{named[1]}` runs OLMo-core's model and loop, which has no memory model here")
            break
    path = next((name for name in ("use_qlora", "dpo_use_paged_optimizer") if on(draft, name)), "")
    if path:
        eight = on(draft, "use_8bit_optimizer")
        draft.set("training.optimizer.name", "paged-adamw-8bit" if eight else "paged-adamw", path)
    elif off(draft, "fused_optimizer"):
        draft.set("training.optimizer.name", "adamw", "fused_optimizer")
        draft.set("training.optimizer.implementation", "foreach", "fused_optimizer")
    config.see("use_8bit_optimizer", "fused_optimizer", "dpo_use_paged_optimizer")
    clip = config.take("clip_grad_norm")
    if clip is not None:
        draft.set("training.clip_grad_norm", str(clip) not in ("-1", "-1.0", "0"), "clip_grad_norm")
    elif not engine and not config.has("max_grad_norm"):
        draft.assume("training.clip_grad_norm", False)
    sequence = draft.whole("sequence_parallel_size", "parallelism.context")
    if sequence and sequence > 1:
        draft.set("parallelism.context", sequence, "sequence_parallel_size")
