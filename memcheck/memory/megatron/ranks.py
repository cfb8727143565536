"""All pipeline ranks of a Megatron job."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache

from memcheck.architecture.types import Architecture, Block
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.memory.megatron import buffers, fsdp
from memcheck.memory.megatron.schedule import Event, events
from memcheck.memory.megatron.setting import megatron_setting
from memcheck.memory.megatron.stages import Chunk, stages
from memcheck.memory.megatron.units import all_tensors, chunk_units
from memcheck.memory.megatron.walk import Rank, walk
from memcheck.memory.megatron.workspaces import ANY_DEVICE, Device, Held, workspaces
from memcheck.memory.pipeline import fullest
from memcheck.memory.state import LocalTensor
from memcheck.memory.tape.tensor import rounded
from memcheck.memory.types import RankEstimate


@lru_cache(maxsize=512)
def megatron_ranks(
    job: TrainingJob,
    architecture: Architecture,
    device: Device = ANY_DEVICE,
    *,
    inventory: bool = False,
    every_rank: bool = True,
) -> tuple[RankEstimate, ...]:
    """One estimate per pipeline rank, or per rank that may be the worst.

    Raises:
        UnsupportedError: activations are offloaded, or the pipeline layout does not fit the ranks.
    """
    held = stages(architecture.num_layers, job)
    wanted = range(len(held)) if every_rank else fullest(job, [_content(architecture, c) for c in _placed(held)])
    return tuple(_rank(job, architecture, held[rank], rank, device, inventory=inventory) for rank in wanted)


def _placed(held: list[list[Chunk]]) -> list[tuple[bool, bool, list[Chunk]]]:
    """Every rank's chunks with whether it is the first or the last: those lack a neighbour."""
    return [(rank == 0, rank == len(held) - 1, chunks) for rank, chunks in enumerate(held)]


def _content(architecture: Architecture, placed: tuple[bool, bool, list[Chunk]]) -> Hashable:
    """What tells pipeline ranks apart, beside the micro-batches that they hold."""
    first, last, chunks = placed
    layers = architecture.layers()
    return first, last, tuple((c.embedding, c.head, c.mtp, tuple(id(layers[i]) for i in c.layers)) for c in chunks)


def _rank(
    job: TrainingJob, a: Architecture, chunks: list[Chunk], rank: int, device: Device, *, inventory: bool
) -> RankEstimate:
    setting = megatron_setting(job, a, device.arch)
    embedding, head = any(c.embedding for c in chunks), any(c.head for c in chunks)
    shares = a.tie_word_embeddings and embedding and head
    units = [chunk_units(job, a, c, setting, shares=shares, embeds=embedding, inventory=inventory) for c in chunks]
    flat = [u for chunk in units for u in chunk]
    tensors: list[LocalTensor] = all_tensors(flat)
    layers = a.layers()
    blocks: list[Block] = [layers[i] for c in chunks for i in c.layers]
    side = workspaces(job, a, setting, Held(blocks, tensors, embedding, head), device)
    pipelined = job.layout.pipeline > 1
    boundary = _boundary(job, a) if pipelined else 0
    several = len(chunks) > 1
    sharded = fsdp.is_sharded(job)
    record = Rank(
        chunks=tuple(tuple(u) for u in units),
        resting=fsdp.resting(job, tensors) if sharded else buffers.resting(job, tensors),
        always=(*side.components(), ("communication_buffers", fsdp.root_bytes(job, flat) if sharded else 0)),
        forward_only=_attention_mask(job) if embedding or head else 0,
        input_gradient=boundary if rank > 0 or several else 0,
        output_gradient=boundary if rank < job.layout.pipeline - 1 or several else 0,
        cached_output=boundary if job.option("deallocate_pipeline_outputs") is False and not head else 0,
        step_temporaries=buffers.step_temporaries(job, tensors),
        extras=tuple(tuple(fsdp.extras(job, u)) for u in units) if sharded else (),
    )
    timeline = walk(record, _events(job, rank, len(chunks)))
    instants = timeline.instants()
    parameters = sum(t.numel for t in tensors)
    if not inventory:
        return RankEstimate(rank, instants, parameters)
    from memcheck.memory.formulas import training_formulas
    from memcheck.memory.training import largest_tensors

    peak = max(instants, key=lambda i: i.allocated_bytes)
    high = timeline.unit_high(peak.name)
    formulas = training_formulas(job, flat, peak, high, "megatron")
    return RankEstimate(rank, instants, parameters, largest_tensors(job, flat, peak, high), formulas)


def _events(job: TrainingJob, rank: int, chunks: int) -> list[Event]:
    layout, micro_batches = job.layout, job.gradient_accumulation_steps
    if layout.pipeline_schedule == "gpipe":
        return [Event(True, 0)] * micro_batches + [Event(False, 0)] * micro_batches
    # overlap_moe_expert_parallel_comm runs a layer's backward beside the next micro-batch's forward of another layer
    # (combined_1f1b.py): one layer's activations die as another's are made, so as many live as without
    group = int(str(job.option("microbatch_group_size_per_virtual_pipeline_stage") or layout.pipeline))
    return events(rank, layout.pipeline, chunks, micro_batches, group)


def _boundary(job: TrainingJob, a: Architecture) -> int:
    """Hidden states between pipeline stages (schedules.py, get_tensor_shapes)."""
    tokens = job.micro_batch_size * (job.sequence_length // job.layout.context)
    if job.layout.sequence and job.layout.tensor > 1:
        tokens //= job.layout.tensor
    return rounded(tokens * a.hidden_size * DTYPE_BYTES[job.recipe.compute])


def _attention_mask(job: TrainingJob) -> int:
    """The dense causal mask of the data loader, one byte per pair of tokens (create_attention_mask_in_dataloader)."""
    if not job.option("create_attention_mask_in_dataloader"):
        return 0
    return rounded(job.micro_batch_size * job.sequence_length * job.sequence_length)
