"""What cannot be run in plain PyTorch, and what is run in its place.

A stand-in keeps what can be checked (model, activations, loss, optimizer states) and leaves out what the plan's own
stack adds. It is a plan of its own: prediction and observation are then both of that one, and the report says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from memcheck.job.types import InferenceJob, TrainingJob
from memcheck.models.types import Architecture, Rough
from memcheck.record import Record
from memcheck.verify.compare import UntraceableError


class StandIn(Record):
    """One replacement."""

    key: str
    """The plan key that asks for what cannot be run."""
    asked: str
    instead: str
    why: str
    changes: dict[str, Any]
    """Plan keys and values that ask for what is run."""


def stand_ins(job: TrainingJob | InferenceJob) -> tuple[StandIn, ...]:
    """What has to be replaced in the plan.

    Raises:
        UntraceableError: nothing that can be run here stands for it.
    """
    if isinstance(job, InferenceJob):
        raise UntraceableError("verify runs training steps; this plan states inference", "use memcheck estimate")
    if isinstance(job.architecture, Rough):
        raise UntraceableError(
            "model.rough says too little to build a model", "name a model, a config.json or an architecture"
        )
    if job.option("quantizer"):
        why = "the layers of quantization-aware training are torchao's, which verify does not build"
        raise UntraceableError(why, "leave the quantizer out: --set training.options={}")
    return tuple(found for look in LOOKS for found in look(job))


def runs_torchtitan(job: TrainingJob) -> bool:
    """Whether torchtitan's own code can run the job: it can be imported, and has all that the plan asks for."""
    from importlib.util import find_spec

    return (
        job.framework.verify_runs_package
        and find_spec("torchtitan") is not None
        and job.layout.zero_stage == 3
        and job.method == "full"
        and not job.freeze
        and job.recipe.recipe == "bf16-mixed"
    )


PLAIN_STAGE = {0: "replicated", 1: "with ZeroRedundancyOptimizer", 3: "with FSDP2"}


def _framework(job: TrainingJob) -> Iterator[StandIn]:
    why = job.framework.not_run
    if not why or runs_torchtitan(job):
        return
    layout, stage = job.layout, job.layout.zero_stage
    if stage == 2:
        stage = 3
    if layout.pipeline * layout.tensor > 1 and stage == 1:
        stage = 3  # ZeroRedundancyOptimizer is DDP's
    asked = f"{job.framework.name}, zero_stage {layout.zero_stage}"
    kind = job.loss.kind if job.loss.kind != "vocab-parallel" or layout.tensor > 1 else "standard"
    changes: dict[str, Any] = {
        "training.framework": "pytorch",
        "training.options": {},
        "training.precision": job.recipe.recipe,
        "training.clip_grad_norm": job.clip_grad_norm,
        "training.optimizer": _torch_optimizer(job),
        "training.loss": {**job.loss.stated(), "kind": kind, "keep_logits": False},
        "training.attention": job.attention,
        "parallelism.zero_stage": stage,
        "parallelism.sequence": layout.sequence,
    }
    if stage != layout.zero_stage:
        changes["parallelism.shard_group"] = "auto"
    instead = f"transformers' model in plain PyTorch, {PLAIN_STAGE[stage]}"
    yield StandIn("training.framework", asked, instead, why=why, changes=changes)


OPTIMIZERS = {
    "adamw-8bit": ("adamw", "bitsandbytes' kernels need CUDA"),
    "paged-adamw": ("adamw", "bitsandbytes' kernels need CUDA"),
    "paged-adamw-8bit": ("adamw", "bitsandbytes' kernels need CUDA"),
    "lion-8bit": ("sgd-momentum", "bitsandbytes' kernels need CUDA"),
    "adamw-torchao-8bit": ("adamw", "torchao's subclasses have no fake kernels here"),
    "adamw-torchao-4bit": ("adamw", "torchao's subclasses have no fake kernels here"),
    "adamw-torchao-fp8": ("adamw", "torchao's subclasses have no fake kernels here"),
    "flash-adamw": ("adamw", "flashoptim's kernels need CUDA"),
    "flash-adamw-32": ("adamw", "flashoptim's kernels need CUDA"),
    "te-fused-adam": ("adamw", "TransformerEngine's kernels need CUDA"),
    "lion": ("sgd-momentum", "torch has no Lion; momentum is one state per parameter, too"),
}
"""The optimizer of torch with as many states per parameter."""


def _optimizer(job: TrainingJob) -> Iterator[StandIn]:
    if job.optimizer.name in OPTIMIZERS:
        name, why = OPTIMIZERS[job.optimizer.name]
        changes = {"training.optimizer": _torch_optimizer(job)}
        yield StandIn("training.optimizer.name", job.optimizer.name, name, why=why, changes=changes)


def _torch_optimizer(job: TrainingJob) -> dict[str, str]:
    """On the GPU, as torch has it."""
    name, _ = OPTIMIZERS.get(job.optimizer.name, (job.optimizer.name, ""))
    implementation = "foreach" if name == "sgd-momentum" != job.optimizer.name else job.optimizer.implementation
    return {"name": name, "implementation": implementation}


def _offload(job: TrainingJob) -> Iterator[StandIn]:
    why = "memory of host and GPU cannot be told apart on fake tensors"
    if job.optimizer.offload != "none":
        changes: dict[str, Any] = {"training.optimizer": _torch_optimizer(job)}
        yield StandIn("training.optimizer.offload", job.optimizer.offload, "kept on the GPU", why=why, changes=changes)
    if job.parameter_offload != "none":
        yield StandIn(
            "training.offload", job.parameter_offload, "kept on the GPU", why=why, changes={"training.offload": None}
        )
    if job.checkpointing.offload != "none":
        stated = {"mode": job.checkpointing.mode, "reentrant": job.checkpointing.reentrant}
        changes = {"training.activation_checkpointing": stated}
        key = "training.activation_checkpointing.offload"
        yield StandIn(key, job.checkpointing.offload, "kept on the GPU", why=why, changes=changes)


def _trainer(job: TrainingJob) -> Iterator[StandIn]:
    if job.objective.name == "sft" and (job.objective.loss_in_model or job.objective.reads_logits):
        why = "the loss of TRL's trainer, which takes it from hidden states or reads the logits, is not run"
        changes = {"training.trainer": None}
        yield StandIn("training.trainer", "TRL's loss", "the model's own", why=why, changes=changes)


def _method(job: TrainingJob) -> Iterator[StandIn]:
    if job.base_format:
        key, asked = (
            ("training.base", job.base_format.name) if job.method == "lora" else ("training.method", job.method)
        )
        why = "quantised weights need CUDA"
        changes = {"training.method": "lora", "training.base": None}
        yield StandIn(key, asked, "lora on the base as it is", why=why, changes=changes)


def _precision(job: TrainingJob) -> Iterator[StandIn]:
    if job.recipe.recipe == "fp8-mixed":
        why = "fp8 matrix products need TransformerEngine or torchao on a GPU"
        changes = {"training.precision": "bf16-mixed"}
        yield StandIn("training.precision", "fp8-mixed", "bf16-mixed", why=why, changes=changes)


def _compile(job: TrainingJob) -> Iterator[StandIn]:
    if job.compile:
        why = "what a compiler fuses is decided for a device"
        yield StandIn("training.compile", "true", "eager mode", why=why, changes={"training.compile": False})


def _context(job: TrainingJob) -> Iterator[StandIn]:
    ways = job.layout.context
    if ways > 1:
        tokens = -(-job.sequence_length // ways)
        instead = f"{tokens} tokens on each rank, which attend to each other alone"
        changes = {
            "parallelism.context": 1,
            "parallelism.data": job.layout.data * ways,
            "training.sequence_length": tokens,
            "training.global_batch_size": None,
            "training.gradient_accumulation_steps": job.gradient_accumulation_steps,
        }
        yield StandIn("parallelism.context", str(ways), instead, why="ring attention needs a GPU", changes=changes)


def _attention(job: TrainingJob) -> Iterator[StandIn]:
    why = {
        "flash": "the flash-attn package needs CUDA; sdpa's kernel keeps the same tensors",
        "flex": "FlexAttention is compiled for a device",
    }.get(job.attention)
    if why is not None:
        yield StandIn("training.attention", job.attention, "sdpa", why=why, changes={"training.attention": "sdpa"})


def _experts(job: TrainingJob) -> Iterator[StandIn]:
    if job.layout.expert * job.layout.expert_tensor > 1 and not (
        runs_torchtitan(job) and job.layout.expert_tensor == 1
    ):
        why = "plain PyTorch does not divide transformers' experts over ranks"
        changes = {"parallelism.expert": 1, "parallelism.expert_tensor": 1, "training.expert_imbalance": 1.0}
        yield StandIn(
            "parallelism.expert", str(job.layout.expert), "every expert on every rank", why=why, changes=changes
        )


def _recompute(job: TrainingJob) -> Iterator[StandIn]:
    parts = job.checkpointing.modules and job.framework.checkpointable_modules
    if job.checkpointing.mode == "selective" and not runs_torchtitan(job) and not parts:
        why = "transformers recomputes whole layers or nothing"
        changes = {"training.activation_checkpointing": "none"}
        yield StandIn("training.activation_checkpointing", "selective", "none", why=why, changes=changes)


def _replicas(job: TrainingJob) -> Iterator[StandIn]:
    layout = job.layout
    ranks = layout.tensor * layout.pipeline
    replicas = layout.data * layout.context
    foreign = bool(job.framework.not_run)
    stage = 3 if layout.zero_stage == 2 or (layout.zero_stage == 1 and foreign) else layout.zero_stage
    if ranks > 1 and replicas > 1 and stage < 3:
        nodes = max(1, ranks // layout.gpus_per_node)
        why = "DistributedDataParallel around tensor or pipeline parallelism is not run"
        changes = {
            "hardware.nodes": nodes,
            "hardware.gpus_per_node": ranks // nodes,
            "parallelism.data": 1,
            "parallelism.zero_stage": 0,
            "training.global_batch_size": None,
            "training.gradient_accumulation_steps": job.gradient_accumulation_steps,
        }
        yield StandIn("parallelism.data", str(layout.data), f"one replica, of {ranks} ranks", why=why, changes=changes)


LOOKS: tuple[Callable[[TrainingJob], Iterator[StandIn]], ...] = (
    _framework,
    _trainer,
    _method,
    _precision,
    _optimizer,
    _offload,
    _compile,
    _context,
    _attention,
    _experts,
    _recompute,
    _replicas,
)

SCHEDULES = ("1f1b", "gpipe", "interleaved-1f1b")


def refuse(job: TrainingJob, architecture: Architecture) -> None:
    """Stop where nothing stands for what the plan asks.

    Raises:
        UntraceableError: naming the keys to change.
    """
    for refused, message, help in _refusals(job, architecture):
        if refused:
            raise UntraceableError(message, f"verify with {help}")


def _refusals(job: TrainingJob, architecture: Architecture) -> Iterator[tuple[bool, str, str]]:
    layout, kind = job.layout, job.loss.kind
    split = layout.tensor * layout.pipeline > 1
    own = job.framework.verify_runs_package
    yield (
        layout.pipeline > 1 and layout.pipeline_schedule not in SCHEDULES and not own,
        f"the schedule {layout.pipeline_schedule} is not run",
        "--set parallelism.pipeline_schedule=1f1b --set parallelism.virtual_stages=1",
    )
    yield (
        job.objective.name != "sft",
        f"the loss of {job.objective.name} is its trainer's, which is not run",
        "--set training.objective=sft",
    )
    yield layout.zero_stage == 2, "plain PyTorch has no zero_stage 2", "--set parallelism.zero_stage=3"
    yield (
        layout.tensor > 1 and layout.pipeline > 1 and not own,
        "tensor parallelism inside a pipeline is not run",
        "--set parallelism.tensor=1 or --set parallelism.pipeline=1",
    )
    yield (
        job.method != "full" and split,
        "adapters under tensor or pipeline parallelism are not run",
        "--set parallelism.tensor=1 --set parallelism.pipeline=1",
    )
    yield kind == "in-place", "the in-place loss is a Triton kernel, which is not run", "--set training.loss=standard"
    yield (
        kind not in ("standard", "vocab-parallel") and split and not own,
        f"the {kind} loss under tensor or pipeline parallelism is not run",
        "--set training.loss=standard",
    )
