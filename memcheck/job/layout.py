"""From ``hardware`` and ``parallelism`` to how the job is cut over ranks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from memcheck.job.framework import Framework
from memcheck.job.lookup import PLAN_DEFAULT, Defaults
from memcheck.job.types import Layout
from memcheck.plan.types import HardwareSpec, ParallelismSpec
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STRATEGIES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""Megatron-FSDP's words for ZeRO stages (``data_parallel_sharding_strategy``)."""


class Implied(Record):
    """A key's value that follows from an option of the framework."""

    option: str
    value: Any

    @property
    def why(self) -> str:
        """The option as the reason of an assumption."""
        return f"options.{self.option}"


def zero_stage(options: Mapping[str, object]) -> Implied | None:
    """Return the value of ``parallelism.zero_stage`` that Megatron's options imply; None where no option does."""
    strategy = options.get("data_parallel_sharding_strategy")
    if isinstance(strategy, str) and strategy in STRATEGIES:
        return Implied("data_parallel_sharding_strategy", STRATEGIES[strategy])
    if options.get("use_megatron_fsdp") is True:
        return Implied("use_megatron_fsdp", 3)
    distributed = options.get("use_distributed_optimizer")
    return Implied("use_distributed_optimizer", int(distributed)) if isinstance(distributed, bool) else None


def reshards(options: Mapping[str, object], pipeline: int) -> Implied | None:
    """Return the value of ``parallelism.reshard_after_forward`` that torchtitan's option implies; None without it.

    Its ``default`` reshards unless there are several ``pipeline`` stages.
    """
    policy = options.get("fsdp_reshard_after_forward")
    if policy not in ("always", "never", "default"):
        return None
    return Implied("fsdp_reshard_after_forward", policy == "always" or (policy == "default" and pipeline == 1))


def synchronises(options: Mapping[str, object]) -> Implied | None:
    """Return the value of ``parallelism.gradient_sync`` that Accelerate's option implies; None without it."""
    each_batch = options.get("sync_each_batch")
    return None if each_batch is None else Implied("sync_each_batch", "every" if each_batch else "last")


def parameter_offload(stated: str | None, options: Mapping[str, object], defaults: Defaults) -> str:
    """Return where parameters are stored between their uses: ``none`` (the GPU), ``cpu`` or ``nvme``.

    ``stated``: the plan's ``training.offload.parameters``. torchtitan's option ``enable_cpu_offload`` may say it
    instead.
    """
    chosen = options.get("enable_cpu_offload")
    if not isinstance(chosen, bool):
        return stated or "none"
    device = "cpu" if chosen else "none"
    return defaults.stated_or("training.offload.parameters", stated, device, "options.enable_cpu_offload")


def recomputes(options: Mapping[str, object]) -> Implied | None:
    """Return the mode of activation checkpointing that Megatron's or torchtitan's option implies; None without one."""
    granularity = options.get("recompute_granularity")
    if isinstance(granularity, str):
        return Implied("recompute_granularity", granularity)
    return Implied("selective_ac_option", "selective") if options.get("selective_ac_option") == "op" else None


NO_OPTIONS: Mapping[str, object] = MappingProxyType({})
SHARDED = 2
"""The first ZeRO stage at which torch's FSDP wraps the model."""
EACH = "Accelerate before 1.11 reduces every micro-batch under FSDP2"


def resolve_layout(
    hardware: HardwareSpec,
    stated: ParallelismSpec,
    framework: Framework | None,
    defaults: Defaults,
    *,
    routed: bool = False,
    options: Mapping[str, object] = NO_OPTIONS,
    reduces_each: bool = False,
) -> Layout:
    """Return the parallel layout of a plan with every degree as a number.

    ``stated``: the plan's ``parallelism``. ``framework``: None for inference. ``routed``: the model has experts.
    ``options``: the framework's options in the plan. ``reduces_each``: FSDP reduces gradients in every micro-batch,
    whatever the plan states.

    ``world = tensor * context * pipeline * data``. If the degrees do not divide the GPUs, ``data`` is rounded down to
    at least 1, and rule MEM201 reports it.
    """
    gpus_per_node = defaults.stated_or("hardware.gpus_per_node", hardware.gpus_per_node, 1)
    nodes = defaults.stated_or("hardware.nodes", hardware.nodes, 1)
    tensor, context, pipeline = stated.tensor or 1, stated.context or 1, stated.pipeline or 1
    data = stated.data
    if data is None:
        data = max(1, gpus_per_node * nodes // (tensor * context * pipeline))
        world = gpus_per_node * nodes
        many = "GPU" if world == 1 else "GPUs"
        defaults.note("parallelism.data", data, f"{world} {many} / (tensor * context * pipeline)")
    layout = Layout(
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        tensor=tensor,
        context=context,
        pipeline=pipeline,
        expert=stated.expert or 1,
        data=data,
    )
    layout = layout._replace(expert_tensor=_expert_tensor(stated, layout, framework, defaults, routed=routed))
    if framework is None:
        return layout
    schedule = _schedule(stated, pipeline, defaults)
    layout = layout._replace(
        sequence=_sequence(stated, layout, framework, defaults),
        pipeline_schedule=schedule.name,
        virtual_stages=schedule.virtual_stages,
    )
    return _sharding(stated, layout, framework, defaults, options, reduces_each=reduces_each)


def _expert_tensor(
    stated: ParallelismSpec, layout: Layout, framework: Framework | None, defaults: Defaults, *, routed: bool
) -> int:
    """Return the tensor-parallel degree of experts: 1 unless stated, as for every degree of a plan.

    ``routed``: the model has experts. Megatron itself would take the tensor degree (``model_parallel_config.py``,
    __post_init__), which the assumption in ``defaults`` says.
    """
    own_degree = framework is not None and framework.has_expert_tensor_groups
    has_sharded_experts = layout.expert > 1 or (routed and own_degree)
    if stated.expert_tensor is not None or layout.tensor == 1 or not has_sharded_experts:
        return stated.expert_tensor or 1
    why = "default"
    if own_degree:
        why = (
            f"default; Megatron-LM itself takes the tensor degree, {layout.tensor}, "
            "unless given --expert-tensor-parallel-size 1"
        )
    return defaults.stated_or("parallelism.expert_tensor", None, 1, why)


def _sequence(stated: ParallelismSpec, layout: Layout, framework: Framework, defaults: Defaults) -> bool:
    """Return whether sequence parallelism is on; the framework's default holds with tensor parallelism."""
    if layout.tensor == 1:
        return bool(stated.sequence)
    why = f"default of {framework.name} with tensor > 1"
    return defaults.stated_or("parallelism.sequence", stated.sequence, framework.parallelism.sequence_default, why)


class PipelineSchedule(Record):
    """The order of a pipeline's passes."""

    name: str
    virtual_stages: int
    """Stages (model chunks) per pipeline rank."""


def _schedule(stated: ParallelismSpec, pipeline: int, defaults: Defaults) -> PipelineSchedule:
    """Return the pipeline schedule: the plan's, or the usual one for the number of virtual stages.

    Defaults are noted if there is a pipeline.
    """
    usual_stages = 2 if stated.pipeline_schedule == "dualpipe" else 1  # one from each end (torch's ScheduleDualPipeV)
    virtual_stages = stated.virtual_stages or usual_stages
    usual_name = "interleaved-1f1b" if virtual_stages > 1 else "1f1b"
    if pipeline == 1:
        return PipelineSchedule(stated.pipeline_schedule or usual_name, virtual_stages)
    virtual_stages = defaults.stated_or("parallelism.virtual_stages", stated.virtual_stages, usual_stages)
    name = defaults.stated_or("parallelism.pipeline_schedule", stated.pipeline_schedule, usual_name)
    return PipelineSchedule(name, virtual_stages)


def _sharding(
    stated: ParallelismSpec,
    layout: Layout,
    framework: Framework,
    defaults: Defaults,
    options: Mapping[str, object],
    *,
    reduces_each: bool,
) -> Layout:
    """Return the layout with the settings of data parallelism, stated or assumed.

    They are the ZeRO stage, the sharding group, FSDP's resharding after forward, when gradients are synchronised, and
    DDP's bucket views. ``reduces_each``: FSDP reduces gradients in every micro-batch.
    """
    replicas = layout.data * layout.context
    stage = stated.zero_stage or 0
    if replicas > 1:
        implied = zero_stage(options)
        usual, why = (0, PLAN_DEFAULT) if implied is None else (implied.value, implied.why)
        stage = defaults.stated_or("parallelism.zero_stage", stated.zero_stage, usual, why)
    group = 1  # ranks over which a state is divided
    if stage:
        group = stated.shard_group or replicas
        if stated.shard_group is None and replicas > 1:
            defaults.note("parallelism.shard_group", group, "data * context")
    reshard, sync, view = stated.reshard_after_forward, stated.gradient_sync, stated.gradient_as_bucket_view
    if stage == 3:
        usual, why = layout.pipeline == 1 or framework.fsdp2.gathers_stages_again, PLAN_DEFAULT
        implied = reshards(options, layout.pipeline)
        if implied is not None:
            usual, why = implied.value, implied.why
        reshard = defaults.stated_or("parallelism.reshard_after_forward", reshard, usual, why)
    if reduces_each and stage >= SHARDED and group > 1:
        sync = defaults.stated_or("parallelism.gradient_sync", None, "every", EACH)
    elif replicas > 1:
        sync = _synchronised(sync, framework, defaults, synchronises(options))
    if stage == 0 and replicas > 1:
        view = defaults.stated_or("parallelism.gradient_as_bucket_view", view, False)
    return layout._replace(
        zero_stage=stage,
        shard_group=group,
        reshard_after_forward=True if reshard is None else reshard,
        gradient_sync=sync or "every",
        gradient_as_bucket_view=bool(view),
    )


def _synchronised(stated: str | None, framework: Framework, defaults: Defaults, implied: Implied | None) -> str:
    """Return ``parallelism.gradient_sync``: ``every`` or ``last``. ``implied``: its value by an option of the plan."""
    key = "parallelism.gradient_sync"
    if implied is not None:
        value: str = implied.value
        return defaults.stated_or(key, stated, value, implied.why)
    why = "default" if framework.parallelism.gradient_sync_default == "every" else f"default of {framework.name}"
    return defaults.stated_or(key, stated, framework.parallelism.gradient_sync_default, why)
