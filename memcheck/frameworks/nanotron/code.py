"""What nanotron runs and holds in place of Megatron-core's modules and buffers.

Sources: nanotron ``optim/gradient_accumulator.py`` (FP32GradientAccumulator), ``optim/zero.py``
(ZeroDistributedOptimizer), ``helpers.py`` (init_optimizer_and_grad_accumulator), ``trainer.py`` (_init_model),
``distributed.py`` (all_gather_coalesced), ``parallel/utils.py`` (MemoryBuffer).
"""

from __future__ import annotations

from memcheck.accounts.ranks import Components, ResidentStates
from memcheck.accounts.state import STATES_PER_PARAMETER
from memcheck.autograd.context import Setting
from memcheck.autograd.tensor import rounded
from memcheck.frameworks.megatron.counted import Counted
from memcheck.frameworks.megatron.own_code import OwnCode
from memcheck.frameworks.megatron.workspaces import ChunkContents, Device
from memcheck.frameworks.nanotron.ends import embedding_forward, head_forward
from memcheck.frameworks.nanotron.layers import is_qwen, nanotron_layers
from memcheck.frameworks.nanotron.linear import gathers_again, is_async, scatters
from memcheck.frameworks.nanotron.stages import costed_stages
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.models.types import Architecture, Attention

LLAMA_BATCH, QWEN_BATCH = (8, 8, 1, 1), (8, 8, 8, 1)
"""Bytes of a token in each tensor of a micro-batch (``data/clm_collator.py``): ids, labels, masks; positions."""


def accumulates(job: TrainingJob) -> bool:
    """``accumulate_grad_in_fp32``: after each backward, 16-bit gradients are added to an fp32 buffer and freed."""
    return job.recipe.master != "none"


def setting_of(job: TrainingJob, architecture: Architecture, setting: Setting) -> Setting:
    """Gradients are autograd's own: new ones in each backward, unless they rest between backwards.

    Biases of queries, keys and values are Qwen 2's, whose class such a model gets where the plan names none.
    """
    options = setting.options
    if job.option("model_class") is None and architecture.model_type == "qwen2":
        options = (*options, ("model_class", "qwen2"))
    return setting._replace(attention="flash", main_grad_dtype=None, has_grad=not accumulates(job), options=options)


def always(
    _job: TrainingJob, architecture: Architecture, setting: Setting, held: ChunkContents, _device: Device
) -> Components:
    """Tables of each layer, the gathered rows, the micro-batch.

    Llama's layers have a second rotary module, of which training uses no more than the frequencies; where pairs are
    interleaved it has the angles of every position (RotaryEmbedding.init_rotary_embeddings, ``trainer.py`` calls it).
    """
    tokens, item = setting.batch * setting.sequence, DTYPE_BYTES[setting.compute_dtype]
    gathered = rounded(tokens * architecture.hidden_size * item) if scatters(setting) else 0
    buffers = gathers_again(setting) + is_async(setting)  # "allgather" and "allgather2"
    mixer = held.blocks[0].mixer if held.blocks else None
    dim = mixer.head_dim if isinstance(mixer, Attention) else 0
    half = setting.sequence * dim // 2
    tables = 2 * rounded(half * item) + rounded(4 * dim // 2)
    if not is_qwen(setting):
        positions = architecture.max_position_embeddings if setting.option("rope_interleaved") else 0
        tables += rounded(4 * dim * positions) if positions else rounded(4 * dim // 2)
    columns = QWEN_BATCH if is_qwen(setting) else LLAMA_BATCH
    batch = sum(rounded(n * tokens) for n in columns) if held.embedding or held.head else 0
    return (
        ("communication_buffers", buffers * gathered),
        ("activations", _layers(held) * tables + batch),
    )


def _layers(held: ChunkContents) -> int:
    """Layers of the rank: each has one product of query, key and value."""
    return sum(count for t, count in held.tensors if t.name == "self_attention.linear_qkv.weight")


def resident(job: TrainingJob, tensors: list[Counted]) -> ResidentStates:
    """Parameters, the gradient buffer, DDP's buckets, and what of the optimizer is this rank's.

    ZeRO-1 divides each tensor's elements over the data-parallel ranks. With fp32 sums it runs without DDP (before
    7bc99232 of June 2025; since then it raises NotImplementedError in DDP's hook). Updated parameters are gathered
    through flat copies of all parts. DDP's buckets are no views of the gradients.
    """
    recipe, layout = job.recipe, job.layout
    parameter, state = DTYPE_BYTES[recipe.params], DTYPE_BYTES[recipe.optimizer_states]
    numel = sum(t.numel * t.times for t in tensors)
    divided = layout.zero_stage == 1
    ways = layout.data if divided else 1
    wraps = layout.data > 1 and not (divided and accumulates(job))
    shares = [(-(-t.numel // ways), t.times) for t in tensors]
    mine = sum(share * times for share, times in shares)
    parameters = sum(rounded(t.numel * parameter) * t.times for t in tensors)
    states = STATES_PER_PARAMETER[job.optimizer.name] * sum(rounded(n * state) * times for n, times in shares)
    components = (
        ("parameters", parameters),
        ("gradients", rounded(4 * numel) if accumulates(job) else parameters),
        ("communication_buffers", rounded(numel * parameter) if wraps else 0),
        ("master_weights", rounded(4 * mine) if accumulates(job) else 0),
        ("optimizer_states", states),
    )
    gathering = rounded(mine * parameter) + ways * rounded(mine * parameter) if ways > 1 else 0
    largest = max((rounded(n * state) for n, _ in shares), default=0)
    stepping = 0 if job.optimizer.implementation == "fused" or job.optimizer.name == "sgd" else largest
    return ResidentStates(components, f"{job.optimizer.name} step", max(stepping, gathering))


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
    always=always,
    forward_only=first_rows,
    resident=resident,
    place=lambda job, place: place._replace(forwards_first=job.layout.pipeline_schedule == "gpipe"),
    remaps=False,
    holds_inputs=False,
    cut=costed_stages,
)
