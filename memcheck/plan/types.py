"""The typed plan: exactly the schema's fields, one ``...Spec`` a section. ``None``: the plan does not state the key."""

from __future__ import annotations

from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class RoughSpec(Record):
    """``model.rough``: nothing else is known."""

    parameters: int
    layers: int
    hidden_size: int
    activation_multiplier: float
    vocab_size: int | None = None


class ModelSpec(Record):
    """``model``: exactly one of name, config, architecture, rough; overrides with the first two."""

    name: str | None = None
    config: str | None = None
    architecture: dict[str, Any] | None = None
    rough: RoughSpec | None = None
    overrides: dict[str, Any] | None = None
    part: str | None = None


class GpuSpec(Record):
    """``hardware.gpu``: a catalog name, or a name with what the catalog does not know."""

    name: str
    memory_gib: float | None = None
    bf16_tflops: float | None = None
    fp16_tflops: float | None = None
    fp8_tflops: float | None = None
    hbm_gbs: float | None = None
    nvlink_gbs: float | None = None


class HardwareSpec(Record):
    """``hardware``."""

    gpu: GpuSpec
    gpus_per_node: int | None = None
    nodes: int | None = None
    host_memory_gib: float | None = None


class ParallelismSpec(Record):
    """``parallelism``. ``data`` and ``shard_group``: None also stands for ``auto``."""

    tensor: int | None = None
    sequence: bool | None = None
    context: int | None = None
    pipeline: int | None = None
    pipeline_schedule: str | None = None
    virtual_stages: int | None = None
    expert: int | None = None
    expert_tensor: int | None = None
    data: int | None = None
    zero_stage: int | None = None
    shard_group: int | None = None
    reshard_after_forward: bool | None = None
    gradient_sync: str | None = None
    gradient_as_bucket_view: bool | None = None


class LoraSpec(Record):
    """``training.lora``."""

    rank: int | None = None
    target_modules: str | tuple[str, ...] | None = None
    dtype: str | None = None
    dropout: float | None = None
    dora: bool | None = None
    modules_to_save: tuple[str, ...] | None = None
    target_parameters: tuple[str, ...] | None = None
    expert_rank: int | None = None
    parts: tuple[str, ...] | None = None


class ImagesSpec(Record):
    """``training.images``: of one sample."""

    per_sample: int | str | None = None
    width: int | None = None
    height: int | None = None
    patches: int | tuple[int, ...] | None = None
    tokens: int | None = None
    frames: int | None = None
    max_pixels: int | None = None
    min_pixels: int | None = None


class PrecisionSpec(Record):
    """``training.precision``: a recipe name, and what deviates from it."""

    recipe: str | None = None
    params: str | None = None
    gradients: str | None = None
    master: str | None = None
    optimizer_states: str | None = None
    reduce: str | None = None


class OptimizerSpec(Record):
    """``training.optimizer``."""

    name: str | None = None
    implementation: str | None = None
    offload: str | None = None
    in_backward: bool | None = None


class ActivationCheckpointingSpec(Record):
    """``training.activation_checkpointing``."""

    mode: str | None = None
    reentrant: bool | None = None
    every_n_layers: int | None = None
    modules: tuple[str, ...] | None = None
    offload: str | None = None


class LossSpec(Record):
    """``training.loss``."""

    kind: str | None = None
    chunks: int | None = None
    upcast: bool | None = None
    keep_logits: bool | None = None


class OffloadSpec(Record):
    """``training.offload``."""

    parameters: str | None = None


class InitializationSpec(Record):
    """``training.initialization``."""

    place: str | None = None
    weights: str | None = None


class CheckpointSpec(Record):
    """``training.checkpoint``."""

    state_dict: str | None = None
    optimizer: bool | None = None
    offload: str | None = None
    asynchronous: bool | None = None


class TrainerSpec(Record):
    """``training.trainer``."""

    name: str | None = None
    version: str | None = None


class ObjectiveSpec(Record):
    """``training.objective``."""

    name: str | None = None
    prompt_length: int | None = None
    beta: float | None = None


class EvaluationSpec(Record):
    """``training.evaluation``."""

    micro_batch_size: int | None = None
    sequence_length: int | None = None
    steps: int | None = None
    logits: str | None = None


class TeacherSpec(Record):
    """``training.teacher``."""

    model: ModelSpec


class HeadSpec(Record):
    """``training.head``."""

    kind: str | None = None
    labels: int | None = None


class BaseSpec(Record):
    """``training.base``."""

    held_in: str | None = None
    double: bool | None = None
    storage: str | None = None


class KernelsSpec(Record):
    """``training.kernels``."""

    ssm: str | None = None
    liger: bool | tuple[str, ...] | None = None


class TrainingSpec(Record):
    """``training``."""

    framework: str | None = None
    framework_version: str | None = None
    torch_version: str | None = None
    trainer: TrainerSpec | None = None
    objective: ObjectiveSpec | None = None
    reference: str | None = None
    head: HeadSpec | None = None
    teacher: TeacherSpec | None = None
    method: str | None = None
    base: BaseSpec | None = None
    lora: LoraSpec | None = None
    freeze: tuple[str, ...] | None = None
    micro_batch_size: int | None = None
    sequence_length: int | None = None
    longest_row: int | None = None
    target_length: int | None = None
    """Tokens of an encoder-decoder's labels."""
    images: ImagesSpec | None = None
    sequences: str | None = None
    evaluation: EvaluationSpec | None = None
    gradient_accumulation_steps: int | None = None
    steps: int | None = None
    """Optimizer steps of the run; no memory depends on it."""
    global_batch_size: int | None = None
    precision: PrecisionSpec | None = None
    optimizer: OptimizerSpec | None = None
    activation_checkpointing: ActivationCheckpointingSpec | None = None
    attention: str | None = None
    loss: LossSpec | None = None
    clip_grad_norm: bool | None = None
    expert_imbalance: float | None = None
    compile: bool | None = None
    expandable_segments: bool | None = None
    """None also stands for ``auto``."""
    offload: OffloadSpec | None = None
    initialization: InitializationSpec | None = None
    checkpoint: CheckpointSpec | None = None
    kernels: KernelsSpec | None = None
    options: dict[str, Any] | None = None


class DemandSpec(Record):
    """``inference.demand``."""

    sequences: int
    length: int


class InferenceSpec(Record):
    """``inference``: without an engine, or with one and its own keys."""

    batch_size: int | None = None
    context_length: int | None = None
    weights: str | None = None
    kv_cache: str | None = None
    chunk: int | None = None
    engine: str | None = None
    version: str | None = None
    tensor: int | None = None
    pipeline: int | None = None
    gpu_memory_utilization: float | None = None
    kv_cache_bytes: int | None = None
    max_model_len: int | str | None = None
    """``auto``: the longest that fits; None: the model's own."""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    enforce_eager: bool | None = None
    graphs_gib: float | None = None
    prefix_caching: bool | None = None
    images: bool | None = None
    demand: DemandSpec | None = None


class PolicySpec(Record):
    """``policy``. Fractions in (0, 1]."""

    fail_above: float | None = None
    warn_above: float | None = None
    waste_below: float | None = None
    overhead: str | float | None = None
    """``modeled`` or a flat fraction."""
    unpacked: str | None = None
    uncertain: str | None = None
    """``warn`` | ``fail``: what an interval that crosses the limit or the capacity does to the plan."""


class Plan(Record):
    """One plan document."""

    memcheck: int
    model: ModelSpec
    hardware: HardwareSpec
    name: str | None = None
    description: str | None = None
    extends: str | None = None
    source: dict[str, str] | None = None
    parallelism: ParallelismSpec = ParallelismSpec()
    training: TrainingSpec | None = None
    inference: InferenceSpec | None = None
    policy: PolicySpec = PolicySpec()
