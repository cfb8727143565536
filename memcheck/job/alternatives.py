"""What else a default might be: other values that people often run, for keys that a plan leaves out.

A plan that passes with a default may not pass with what is really run. Only values that somebody may have meant without
saying so stand here; tests/job/test_alternatives.py lists the keys that have none, and why.
"""

from __future__ import annotations

ALTERNATIVES: dict[str, tuple[object, ...]] = {
    "training.sequences": ("padded", "packed"),
    "parallelism.zero_stage": (1,),
    "training.attention": ("eager",),
    "training.activation_checkpointing.mode": ("full", "none"),
    "parallelism.gradient_sync": ("every", "last"),
    "training.loss.kind": ("fused-linear", "standard"),
    "parallelism.reshard_after_forward": (False, True),
    "training.expandable_segments": (True, False),
    "training.optimizer.name": ("adamw-8bit",),
    "training.precision.recipe": ("bf16-pure", "bf16-mixed"),
    "training.loss.keep_logits": (True, False),
    "training.optimizer.implementation": ("foreach", "fused"),
    "parallelism.sequence": (True, False),
    "training.expert_imbalance": (1.25,),
    "training.reference": ("precomputed", "resident"),
    "training.images.per_sample": (2,),
    "training.lora.target_modules": ("all-linear",),
    "training.lora.rank": (64,),
    "training.lora.dtype": ("bf16", "fp32"),
    "training.lora.dropout": (0.05,),
    "training.options.prepare_model_for_kbit_training": (False, True),
    "training.base.double": (True, False),
    "training.evaluation.logits": ("kept", "dropped"),
    "training.loss.upcast": (True, False),
    "training.gradient_accumulation_steps": (2,),
    "parallelism.virtual_stages": (2,),
    "parallelism.gradient_as_bucket_view": (True,),
    "training.activation_checkpointing.reentrant": (False, True),
    "training.clip_grad_norm": (False, True),
    "training.initialization.place": ("device", "host"),
    "training.initialization.weights": ("fp32",),
    "training.checkpoint.state_dict": ("full", "sharded"),
    "inference.kv_cache": ("fp8",),
    "inference.weights": ("fp8",),
    "training.options.fsdp_version": (1, 2),
}
"""The first value that is not the default is tried. What most often decides, and costs little to
try, comes first."""


def alternative(key: str, value: object) -> object:
    """Another value of a key, or None where no other value is likely to be meant."""
    return next((other for other in ALTERNATIVES.get(key, ()) if other != value), None)
