"""DeepSpeed configs that frameworks ship and jobs name: what of them decides memory.

Read at axolotl 067b021c (``deepspeed_configs/``), LLaMA-Factory ff6d4d12 (``./examples/deepspeed/``) and ms-swift
3602360a (``swift/config/``).
"""

from __future__ import annotations

from collections.abc import Mapping

_AUTO: dict[str, object] = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16.enabled": "auto",
    "fp16.enabled": "auto",
}


def _engine(stage: int, **options: object) -> Mapping[str, object]:
    zero = {f"zero_optimization.{name.replace('__', '.')}": value for name, value in options.items()}
    return {**_AUTO, "zero_optimization.stage": stage, **zero}


_STAGE_3: dict[str, object] = {
    "contiguous_gradients": True,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
}
_AXOLOTL_3: dict[str, object] = {
    **_STAGE_3,
    "overlap_comm": True,
    "sub_group_size": 0,
    "max_live_parameters": 0,
    "max_reuse_distance": 0,
    "gather_16bit_weights_on_model_save": True,
}
_WHOLE_3: dict[str, object] = {
    **_STAGE_3,
    "overlap_comm": False,
    "sub_group_size": 1_000_000_000,
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
    "stage3_gather_16bit_weights_on_model_save": True,
}
_BUCKETS: dict[str, object] = {
    "allgather_bucket_size": 500_000_000,
    "reduce_bucket_size": 500_000_000,
    "overlap_comm": False,
    "contiguous_gradients": True,
    "round_robin_gradients": True,
}
_CPU: dict[str, object] = {"device": "cpu", "pin_memory": True}
_OPTIMIZER: dict[str, object] = {f"offload_optimizer__{name}": value for name, value in _CPU.items()}
_PARAMETERS: dict[str, object] = {f"offload_param__{name}": value for name, value in _CPU.items()}
_BF16: dict[str, object] = {"bf16.enabled": True}

AXOLOTL: dict[str, Mapping[str, object]] = {
    "zero1": _engine(1, overlap_comm=True),
    "zero1_torch_compile": _engine(1, overlap_comm=True),
    "zero2": _engine(2, offload_optimizer__device="cpu", contiguous_gradients=True, overlap_comm=True),
    "zero2_torch_compile": _engine(2, offload_optimizer__device="cpu", contiguous_gradients=True, overlap_comm=True),
    "zero3": _engine(3, **_AXOLOTL_3),
    "zero3_bf16": {**_engine(3, **_AXOLOTL_3), **_BF16},
    "zero3_bf16_cpuoffload_all": {**_engine(3, **_AXOLOTL_3, **_OPTIMIZER, **_PARAMETERS), **_BF16},
    "zero3_bf16_cpuoffload_params": {**_engine(3, **_AXOLOTL_3, **_PARAMETERS), **_BF16},
}
_FP8_BUCKETS: dict[str, object] = {
    "reduce_bucket_size": 12_845_056,
    "stage3_prefetch_bucket_size": 11_560_550,
    "stage3_param_persistence_threshold": 35_840,
}
LLAMA_FACTORY: dict[str, Mapping[str, object]] = {
    "ds_z0_config": _engine(0, **_BUCKETS),
    "ds_z2_config": _engine(2, **_BUCKETS),
    "ds_z2_offload_config": _engine(2, **_BUCKETS, **_OPTIMIZER),
    "ds_z2_autotp_config": {**_engine(2, **_BUCKETS), "tensor_parallel.autotp_size": 2},
    "ds_z3_config": _engine(3, **_WHOLE_3),
    "ds_z3_offload_config": _engine(3, **_WHOLE_3, **_OPTIMIZER, **_PARAMETERS),
    "ds_z3_fp8_config": {
        **_engine(3, **{**_WHOLE_3, **_FP8_BUCKETS, "offload_optimizer__device": "cpu"}),
        "fp16.enabled": False,
    },
}
_SWIFT_BUCKETS: dict[str, object] = {
    "allgather_bucket_size": 200_000_000,
    "reduce_bucket_size": 200_000_000,
    "overlap_comm": False,
    "contiguous_gradients": True,
}
SWIFT: dict[str, Mapping[str, object]] = {
    "zero0": _engine(0, **_SWIFT_BUCKETS),
    "zero1": _engine(1, **_SWIFT_BUCKETS),
    "zero2": _engine(2, **_SWIFT_BUCKETS),
    "zero2_offload": _engine(2, **_SWIFT_BUCKETS, **_OPTIMIZER),
    "zero3": _engine(3, **_WHOLE_3),
    "zero3_offload": _engine(3, **_WHOLE_3, **_OPTIMIZER, **_PARAMETERS),
}
