"""What nanotron runs and holds in place of Megatron-core's modules and buffers.

Sources: nanotron ``optim/gradient_accumulator.py`` (FP32GradientAccumulator), ``optim/zero.py``
(ZeroDistributedOptimizer), ``helpers.py`` (init_optimizer_and_grad_accumulator), ``trainer.py`` (_init_model),
``distributed.py`` (all_gather_coalesced), ``parallel/utils.py`` (MemoryBuffer).
"""

from __future__ import annotations

from memcheck.accounts.ranks import Components, ResidentStates
from memcheck.accounts.state import STATES_PER_PARAMETER
from memcheck.autograd.context import Setting
from memcheck.autograd.tensor import ceil_div, rounded
from memcheck.frameworks.megatron.buffers import Counted
from memcheck.frameworks.megatron.own_code import OwnCode
from memcheck.frameworks.megatron.workspaces import ChunkContents, Device
from memcheck.frameworks.nanotron.layers import (
    embedding_forward,
    gathers_again,
    head_forward,
    is_async,
    is_qwen,
    nanotron_layers,
    scatters,
)
from memcheck.frameworks.nanotron.profile import costed_stages
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.models.types import Architecture, Attention

LLAMA_BATCH, QWEN_BATCH = (8, 8, 1, 1), (8, 8, 8, 1)
"""Bytes of a token in each tensor of a micro-batch (``data/clm_collator.py``): ids, labels, masks; positions."""


def accumulates(job: TrainingJob) -> bool:
    """``accumulate_grad_in_fp32``: after each backward, 16-bit gradients are added to an fp32 buffer and freed."""
    return job.recipe.master != "none"


def setting_of(job: TrainingJob, architecture: Architecture, setting: Setting) -> Setting:
    """Adapt Megatron's setting to nanotron: flash attention, and no main gradients.

    Gradients are autograd's own. Each backward makes new ones, unless they stay allocated between backwards. Biases of
    queries, keys and values are Qwen 2's, whose class such a model gets where the plan names none.
    """
    options = setting.options
    if job.option("model_class") is None and architecture.model_type == "qwen2":
        options = (*options, ("model_class", "qwen2"))
    return setting._replace(attention="flash", main_grad_dtype=None, has_grad=not accumulates(job), options=options)


def always(
    _job: TrainingJob, architecture: Architecture, setting: Setting, contents: ChunkContents, _device: Device
) -> Components:
    """Return what stays allocated during the whole step, by component in bytes: rotary tables, gathered rows, the
    batch.

    ``contents``: the rank's layers and tensors. Llama's layers have a second rotary module, of which training uses no
    more than the frequencies. With interleaved pairs, it has the angles of every position
    (RotaryEmbedding.init_rotary_embeddings, which ``trainer.py`` calls).
    """
    tokens, item_bytes = setting.batch * setting.sequence, DTYPE_BYTES[setting.compute_dtype]
    gathered_bytes = rounded(tokens * architecture.hidden_size * item_bytes) if scatters(setting) else 0
    gather_buffers = int(gathers_again(setting)) + int(is_async(setting))  # "allgather" and "allgather2"
    mixer = contents.blocks[0].mixer if contents.blocks else None
    head_dim = mixer.head_dim if isinstance(mixer, Attention) else 0
    fp32_bytes, rotated_pairs = DTYPE_BYTES["fp32"], head_dim // 2
    frequencies_bytes = rounded(rotated_pairs * fp32_bytes)
    cos_bytes = sin_bytes = rounded(setting.sequence * rotated_pairs * item_bytes)
    tables_bytes = cos_bytes + sin_bytes + frequencies_bytes
    if not is_qwen(setting):  # Llama's second rotary module
        if setting.option("rope_interleaved") and architecture.max_position_embeddings:
            tables_bytes += rounded(architecture.max_position_embeddings * head_dim * fp32_bytes)
        else:
            tables_bytes += frequencies_bytes
    batch_bytes = 0
    if contents.has_embedding or contents.has_head:
        batch_bytes = sum(rounded(n * tokens) for n in (QWEN_BATCH if is_qwen(setting) else LLAMA_BATCH))
    return (
        ("communication_buffers", gather_buffers * gathered_bytes),
        ("activations", _layers(contents) * tables_bytes + batch_bytes),
    )


def _layers(contents: ChunkContents) -> int:
    """Count the layers of the rank, by their products of query, key and value."""
    return sum(count for t, count in contents.tensors if t.name == "self_attention.linear_qkv.weight")


def resident(job: TrainingJob, tensors: list[Counted]) -> ResidentStates:
    """Return the bytes that one rank keeps between steps, by component, and those that the optimizer's step adds.

    ``tensors``: the rank's parameters before ZeRO divides them. ZeRO-1 divides each tensor's elements over the
    data-parallel ranks, and gathers updated parameters through flat copies of all shards. With fp32 sums of gradients
    it runs without DDP (before 7bc99232 of June 2025; since then it raises NotImplementedError in DDP's hook). DDP's
    buckets are not views of the gradients.
    """
    recipe, layout = job.recipe, job.layout
    parameter_item_bytes, state_item_bytes = DTYPE_BYTES[recipe.params], DTYPE_BYTES[recipe.optimizer_states]
    numel = sum(t.numel * t.times for t in tensors)
    shards_optimizer = layout.zero_stage == 1
    shard_ranks = layout.data if shards_optimizer else 1
    has_ddp = layout.data > 1 and not (shards_optimizer and accumulates(job))
    shards = [(ceil_div(t.numel, shard_ranks), t.times) for t in tensors]
    shard_numel = sum(shard * times for shard, times in shards)
    parameter_bytes = sum(rounded(t.numel * parameter_item_bytes) * t.times for t in tensors)
    one_state_bytes = sum(rounded(n * state_item_bytes) * times for n, times in shards)
    state_bytes = STATES_PER_PARAMETER[job.optimizer.name] * one_state_bytes
    components = (
        ("parameters", parameter_bytes),
        ("gradients", rounded(numel * DTYPE_BYTES["fp32"]) if accumulates(job) else parameter_bytes),
        ("communication_buffers", rounded(numel * parameter_item_bytes) if has_ddp else 0),
        ("master_weights", rounded(shard_numel * DTYPE_BYTES["fp32"]) if accumulates(job) else 0),
        ("optimizer_states", state_bytes),
    )
    gathering_bytes = stepping_bytes = 0
    if shard_ranks > 1:  # a flat copy of the rank's own shards, and of those of all ranks
        gathering_bytes = (1 + shard_ranks) * rounded(shard_numel * parameter_item_bytes)
    if job.optimizer.implementation != "fused" and job.optimizer.name != "sgd":
        stepping_bytes = max((rounded(n * state_item_bytes) for n, _ in shards), default=0)
    return ResidentStates(components, f"{job.optimizer.name} step", max(stepping_bytes, gathering_bytes))


def first_rows(job: TrainingJob, setting: Setting) -> int:
    """The embedding's rows, which a variable of Qwen 2's model holds while its layers run; the norm in pieces keeps
    none.

    Where layers are checkpointed, the first of them keeps the rows anyway.
    """
    if not is_qwen(setting) or job.checkpointing.mode != "none":
        return 0
    rows = setting.batch * setting.sequence // (setting.tensor_parallel if scatters(setting) else 1)
    return rounded(rows * setting.hidden * DTYPE_BYTES[setting.compute_dtype])


CODE = OwnCode(
    layers=nanotron_layers,
    embedding=embedding_forward,
    head=head_forward,
    setting=setting_of,
    side_buffers=always,
    forward_only=first_rows,
    resident=resident,
    position=lambda job, position: position._replace(all_forwards_first=job.layout.pipeline_schedule == "gpipe"),
    remaps=False,
    holds_inputs=False,
    cut_chunks=costed_stages,
)
