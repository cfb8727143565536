"""Traces one step of a plan, rank by rank of its pipeline, and says what lives at each moment, by component."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from memcheck.accounts.estimate import Instant, TensorGroup
from memcheck.frameworks.torch.data_parallel import mixes_adapters, outside_gradient_dtype, uses_flat_parameters
from memcheck.frameworks.torch.flat_shard import rank_with_most_updates
from memcheck.frameworks.torch.resident import divides_optimizer, fullest_share
from memcheck.frameworks.torch.tower_tensors import model_tensors
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, Attention, Mixer
from memcheck.record import Record
from memcheck.verify.build.pictures import sees
from memcheck.verify.build.stage import build_stage
from memcheck.verify.build.step import DevicePlacement, StepParts, build_single, micro_batches
from memcheck.verify.build.tensors import plain_tensors, short
from memcheck.verify.build.torchtitan import build_torchtitan, configure
from memcheck.verify.build.wrap import local_elements, make_mesh
from memcheck.verify.compare import TRACED, Observation, RankObservation
from memcheck.verify.observe import Interrupts, Progress, versions
from memcheck.verify.replay.runs import AllocationSequence
from memcheck.verify.trace.tracer import Account, LiveStorage, Tracer
from memcheck.verify.trace.world import fake_ranks, fake_tensors
from memcheck.verify.trace.wrappers import exchanges, flat_parameters, on_the_cpu, recorded_streams, settle

TOP = 12
"""Groups that are kept."""


class Picture(Record):
    """Live bytes at one moment."""

    total: int
    components: dict[str, int]
    largest: tuple[TensorGroup, ...]


def take(account: Account, parts: StepParts) -> Picture:
    """Who owns what right now. Names of components are those of the estimate."""
    owners = _owners(parts)
    components: dict[str, int] = {}
    groups: dict[tuple[str, str, str], list[int]] = {}
    for key, entry in list(account.live.items()):
        if not entry.block:
            continue
        name, component = owners.get(key) or _born(entry)
        components[component] = components.get(component, 0) + entry.block
        shape = f"[{', '.join(map(str, entry.shape))}] {short(entry.dtype)}"
        group = groups.setdefault((name, shape, component), [0, 0])
        group[0] += 1
        group[1] += entry.block
    rows = sorted(groups.items(), key=lambda row: -row[1][1])[:TOP]
    largest = tuple(TensorGroup(name=k[0], shape=k[1], copies=v[0], bytes=v[1], component=k[2]) for k, v in rows)
    return Picture(account.total, components, largest)


def _born(entry: LiveStorage) -> tuple[str, str]:
    """The component of a storage without an owner: autograd, an operator or a collective holds it."""
    where = f" in {generic(entry.module)}" if entry.module else ""
    name = f"{entry.operation}{where}"
    if entry.region:
        return f"{entry.operation} ({entry.region.replace('_', '-')})", "communication_buffers"
    if entry.phase in ("init", "forward"):
        return name, "activations"
    if entry.phase == "loss":
        return name, "logits_and_loss"
    if entry.recomputed:
        return f"{name}, recomputed", "activations"
    return f"{name} ({entry.phase})", "temporaries"


def generic(name: str) -> str:
    """``layers.7.mlp`` and ``layers.8.mlp`` as one."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _owners(parts: StepParts) -> dict[int, tuple[str, str]]:
    """Storage identity -> (name, component), read from the model, the optimizers and the inputs themselves."""
    found: dict[int, tuple[str, str]] = {}

    def put(tensors: object, name: str, component: str) -> None:
        for tensor in plain_tensors(tensors):
            found.setdefault(tensor.untyped_storage()._cdata, (name, component))  # noqa: SLF001

    gathered = set()
    for name, sharded in _fsdp_parameters(parts.inner):
        resting = _resting(name)
        put(getattr(sharded, "_sharded_param_data", None), name, resting)
        shard, whole = getattr(sharded, "sharded_param", None), getattr(sharded, "_unsharded_param", None)
        if shard is not None:
            put(shard, name, resting)
            put(shard.grad, f"{name}.grad", "gradients")
        if whole is not None:
            gathered.add(id(whole))
            put(whole.grad, f"{name}.grad (unsharded)", "gradients")
        put(getattr(sharded, "unsharded_accumulated_grad", None), f"{name}.grad (unsharded)", "gradients")
        put(getattr(sharded, "all_gather_outputs", None), f"{name} (gathered)", "communication_buffers")
        put(whole, f"{name} (gathered)", "communication_buffers")
    for name, parameter in parts.inner.named_parameters():
        name = generic(name)
        unsharded = id(parameter) in gathered
        put(parameter, name, "communication_buffers" if unsharded else _resting(name))
        put(parameter.grad, f"{name}.grad", "gradients")
    for optimizer in parts.optimizers:
        for inner in (optimizer, getattr(optimizer, "optim", None)):
            for states in inner.state.values() if inner is not None else ():
                for kind, value in states.items():
                    put(value, f"optimizer's {kind}", "optimizer_states")
    put(parts.received(), "pipeline receive buffers", "communication_buffers")
    put(parts.inputs, parts.brought, "activations")
    for name, buffer in parts.inner.named_buffers():
        put(buffer, generic(name), "activations")
    return found


def _resting(name: str) -> str:
    return "adapters" if "lora_" in name else "parameters"


def _fsdp_parameters(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """FSDP2's own records of its parameters."""
    names = {id(m): n for n, m in model.named_modules()}
    for module in model.modules():
        get = getattr(module, "_get_fsdp_state", None)
        if get is None:
            continue
        state = get()
        groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
        for group in groups:
            for sharded in group.fsdp_params if group is not None else ():
                info = sharded._module_info  # noqa: SLF001
                owner = names.get(id(info.module), "")
                yield generic(f"{owner}.{info.param_name}".lstrip(".")), sharded


def resting_tensors(model: nn.Module) -> list[torch.Tensor]:
    """Shards that FSDP2 holds in addition to the module's own parameters."""
    found = []
    for _, sharded in _fsdp_parameters(model):
        found += [sharded.sharded_param, getattr(sharded, "_sharded_param_data", None)]
    return [t for t in found if t is not None]


def trace(
    job: TrainingJob,
    architecture: Architecture,
    config: Mapping[str, Any],
    progress: Progress,
    stages: tuple[int, ...] = (),
) -> Observation:
    """Every pipeline rank (or those of ``stages``), each by its rank 0 of the other dimensions."""
    chosen = stages or tuple(range(job.layout.pipeline))
    per_stage = job.layout.world_size // job.layout.pipeline
    fullest = _fullest(job, architecture)
    found = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # nothing is computed
    try:
        for stage in chosen:
            progress.begin(f"rank {stage * per_stage} of {job.layout.world_size}", architecture.num_layers)
            found.append(_trace_rank(job, architecture, config, progress, stage, stage * per_stage + fullest))
    finally:
        torch.set_num_threads(threads)
        progress.end()
    return Observation(mode=TRACED, versions=versions(), ranks=tuple(found), notes=_notes(job))


def _adds_wholes(job: TrainingJob, architecture: Architecture) -> bool:
    """Whether gradients meet that are most of the peak: of a scan in a Python loop, each token's or chunk's of which is
    as large as all of them together; of scores that a softmax and a logsumexp read; of several streams, of which each
    is picked.
    """
    mixers = [block.mixer for block, _ in architecture.blocks]
    scans = any(isinstance(m, Mixer) and m.kind in ("mamba1", "mamba1-heads", "kimi-delta") for m in mixers)
    loops = scans and job.ssm_kernels == "fallback"
    return loops or architecture.streams > 1 or any(isinstance(m, Attention) and m.sinks == "scale" for m in mixers)


def _notes(job: TrainingJob) -> tuple[str, ...]:
    notes = []
    run = micro_batches(job)
    if job.layout.pipeline == 1 and run < job.gradient_accumulation_steps:
        notes.append(
            f"{run} of {job.gradient_accumulation_steps} micro-batches were run: the others repeat the second one"
        )
    if job.recipe.recipe.startswith("fp16"):
        notes.append("without a gradient scaler, whose tensors are scalars")
    return tuple(notes)


def _fullest(job: TrainingJob, architecture: Architecture) -> int:
    """The rank to look at: FSDP2's shards are largest on rank 0; ZeroRedundancyOptimizer's states may be elsewhere, and
    of FSDP1's flat tensor, in which a frozen tower comes first, the last rank has what is trained. Of one that mixes
    adapters and frozen weights, some rank holds most of the adapters.
    """
    if architecture.vision is not None and uses_flat_parameters(job) and job.freeze and "language" not in job.freeze:
        return job.layout.shard_group - 1
    if mixes_adapters(job):
        return rank_with_most_updates(job)
    if not divides_optimizer(job):
        return 0
    return fullest_share(job, (t for tensors in model_tensors(job, architecture) for t in tensors))[0]


def _trace_rank(
    job: TrainingJob,
    architecture: Architecture,
    config: Mapping[str, Any],
    progress: Progress,
    stage: int,
    rank: int,
) -> RankObservation:
    start = time.monotonic()
    with ExitStack() as stack:
        interrupts = stack.enter_context(Interrupts())
        stack.enter_context(fake_ranks(job.layout.world_size, rank, alone=job.framework.verify_runs_package))
        stack.enter_context(exchanges(job.layout.gpus_per_node))
        ranks = stack.enter_context(_meshes(job, architecture))
        with (
            fake_tensors(masks=job.needs_attention_mask, values=sees(job, architecture)),
            flat_parameters() if uses_flat_parameters(job) else nullcontext(),
        ):
            in_place = outside_gradient_dtype(job) is not None or _adds_wholes(job, architecture)
            tracer = Tracer(interrupts.seen, progress.at, in_place=in_place)
            asked = tracer.account.sequence = AllocationSequence(
                torch.cpu.current_stream
            )  # FSDP2 switches these as CUDA's
            with recorded_streams(tracer.account) if uses_flat_parameters(job) else nullcontext():
                progress.say("building the model")
                parts = _build(job, architecture, config, ranks, tracer, stage)
                tracer.follow(parts.inner)
                tracer.hold([resting_tensors(parts.inner), parts.inputs])
                instants, largest = _steps(tracer, parts, progress)
                parameters = local_elements(list(parts.inner.parameters()))
    return RankObservation(
        pipeline_rank=stage,
        rank=rank,
        instants=instants,
        parameters=parameters,
        largest=largest,
        operators=tracer.account.operators,
        seconds=round(time.monotonic() - start, 1),
        events=tuple(asked.events),
        steps=tuple(asked.steps),
        phases=tuple(asked.phases),
    )


@contextmanager
def _meshes(job: TrainingJob, architecture: Architecture) -> Iterator[Any]:
    """The job's ranks, as plain PyTorch or torchtitan groups them."""
    if not job.framework.verify_runs_package:
        yield make_mesh(job, "cpu")
        return

    with on_the_cpu():
        yield configure(job, architecture)


def _build(
    job: TrainingJob,
    architecture: Architecture,
    config: Mapping[str, Any],
    ranks: Any,
    tracer: Tracer,
    stage: int,
) -> StepParts:
    if job.framework.verify_runs_package:
        return build_torchtitan(job, architecture, ranks, tracer)
    if job.layout.pipeline > 1:
        return build_stage(job, architecture, config, ranks, tracer, stage)
    place = DevicePlacement(ready=lambda model: settle(model, tracer.account))
    return build_single(job, architecture, config, ranks, tracer, place)


def _steps(tracer: Tracer, parts: StepParts, progress: Progress) -> tuple[tuple[Instant, ...], Any]:
    """Step 1 makes optimizer states, step 2 finds the highest points, step 3 looks at what lives there."""
    account = tracer.account
    collect = gc.isenabled()
    gc.collect()
    gc.disable()  # reference counts free what a step drops, as in a real run between collections
    try:
        with tracer:
            progress.say("step 1 of 3")
            parts.step()
            gc.collect()
            progress.say("step 2 of 3")
            account.begin_step()
            tracer.phase = "init"
            tracer.mark("states at rest")
            parts.step()
            gc.collect()
            tops = dict(account.tops)
            progress.say("step 3 of 3")
            pictures: dict[str, Picture] = {}
            account.begin_step()
            pictures["init"] = take(account, parts)
            tracer.targets = {(top.operator, top.bytes): phase for phase, top in tops.items()}

            def look(phase: str) -> None:
                pictures[phase] = take(account, parts)

            tracer.look = look
            parts.step()
            tracer.look = None
    finally:
        if collect:
            gc.enable()
    instants = tuple(
        Instant(
            name=phase,
            operation=top.words,
            allocated_bytes=top.bytes,
            components_bytes=pictures[phase].components if phase in pictures else {},
        )
        for phase, top in tops.items()
    )
    peak = max(instants, key=lambda i: i.allocated_bytes)
    return instants, pictures[peak.name].largest if peak.name in pictures else ()
