"""Buffers that a Megatron rank holds in addition to its model, from its first step on.

Sources: TransformerEngine ``pytorch/cpp_extensions/gemm.py`` (get_cublas_workspace: 32 MiB from Hopper on, else 4 MiB;
one per stream for grouped products), ``module/base.py`` (get_dummy_wgrad); Megatron-core ``core/utils.py``
(GlobalMemoryBuffer), ``models/common/embeddings/rotary_pos_embedding.py`` (cached fp32 frequencies); torch
``aten/src/ATen/cuda/CublasHandlePool.cpp`` (a workspace per handle and stream: the forward and the autograd thread have
one each; 32 MiB from Hopper on, 8.125 MiB before, or what CUBLAS_WORKSPACE_CONFIG says; Blackwell had 8.125 MiB before
pytorch/pytorch#175344 of February 2026).
"""

from __future__ import annotations

from memcheck.accounts.state import LocalTensor
from memcheck.autograd.context import Setting
from memcheck.autograd.tensor import ITEM_BYTES, ceil_div, rounded
from memcheck.frameworks.megatron.core_attention import has_fused_softmax
from memcheck.frameworks.megatron.linear import fuses_wgrad, quantizes, uses_te
from memcheck.frameworks.megatron.setting import is_old
from memcheck.frameworks.megatron.tensors import padded_vocabulary
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.models.types import Architecture, Attention, Block, LatentAttention, Moe
from memcheck.record import Record

MIB = 2**20
TE_WORKSPACE = 32 * MIB + 1024
"""Bytes of TransformerEngine's cuBLAS workspace from Hopper on (``get_cublas_workspace_size_bytes``)."""
TE_WORKSPACE_OLD = 4 * MIB
"""Bytes of that workspace before Hopper."""
TE_GROUPED_STREAMS = 4
"""``tex.get_num_cublas_streams()`` (common/util/multi_stream.cpp)."""
CUBLAS_WORKSPACE = 8 * MIB + 128 * 1024
"""Bytes of torch's workspace per handle before Hopper: ``:4096:2:16:8``, two of 4,096 KiB and eight of 16 KiB."""
CUBLAS_WORKSPACE_HOPPER = 32 * MIB
"""Bytes of torch's workspace per handle from Hopper on: ``:4096:8``, eight of 4,096 KiB."""
TORCH_THREADS = 2
"""Threads with a cuBLAS handle of their own: that of the forward and autograd's."""
TE_OVERLAP_STREAMS = 3
"""``_NUM_MAX_UB_STREAMS``: products that overlap with communication have a workspace of their own."""
YARN_POSITIONS = 4096
"""``original_max_position_embeddings`` of MLATransformerConfig."""


class Workspaces(Record):
    """Bytes of buffers that Megatron keeps on one rank in addition to the model, from the first step on."""

    cublas: int = 0
    """Workspaces of matrix products, TransformerEngine's and torch's."""
    global_buffer: int = 0
    """Megatron's global memory buffer, which gathered inputs share."""
    dummy_gradients: int = 0
    """Unused weight gradients that fused products return to autograd, one for each shape."""
    rotary_tables: int = 0
    """Cached tables of rotary frequencies."""
    causal_mask: int = 0
    """The causal mask that TE's unfused softmax caches."""
    batch_inputs: int = 0
    """The input of one micro-batch: token ids, labels, positions and loss mask."""
    deferred_logit_gradients: int = 0
    """Logit gradients and inputs that wait for the deferred gradient of the output layer's weight."""
    fp8_weights: int = 0
    """fp8 copies of TE's weights."""

    def components(self) -> tuple[tuple[str, int], ...]:
        """Return bytes by component."""
        return (
            ("temporaries", self.cublas + self.dummy_gradients),
            ("parameters", self.fp8_weights),
            ("communication_buffers", self.global_buffer),
            ("activations", self.rotary_tables + self.causal_mask + self.batch_inputs),
            ("logits_and_loss", self.deferred_logit_gradients),
        )


class ChunkContents(Record):
    """What a rank holds of the model."""

    blocks: list[Block]
    """One block per layer."""
    tensors: list[tuple[LocalTensor, int]]
    """Each kind of tensor, and how many are of it."""
    has_embedding: bool
    """The rank holds the embedding."""
    has_head: bool
    """The rank holds the output layer."""
    chunks: int = 1
    """Model chunks, each of which makes rotary tables of its own."""


class Device(Record):
    """The GPU and its environment."""

    arch: str | None = None
    """``sm_90``...; None is taken for a recent one."""
    cublas_workspace: int | None = None
    """Bytes that CUBLAS_WORKSPACE_CONFIG asks for, per handle and stream; None: torch's default."""


ANY_DEVICE = Device()
"""A GPU of which nothing is known."""


def workspaces(
    job: TrainingJob, architecture: Architecture, setting: Setting, contents: ChunkContents, device: Device = ANY_DEVICE
) -> Workspaces:
    """Estimate the persistent bytes that a rank holds in addition to its model, from its first step on."""
    return Workspaces(
        cublas=_cublas(setting, contents, device),
        global_buffer=_global_buffer(setting, contents.blocks, head=contents.has_head),
        dummy_gradients=_dummy_gradients(setting, contents),
        rotary_tables=_rotary(job, contents),
        causal_mask=_masks(setting, contents),
        batch_inputs=_batch(job, read=contents.has_embedding or contents.has_head),
        deferred_logit_gradients=_deferred(job, architecture, setting) if contents.has_head else 0,
        fp8_weights=_fp8_weights(job, setting, contents.tensors),
    )


def _cublas(setting: Setting, contents: ChunkContents, device: Device) -> int:
    """Estimate the bytes of the cuBLAS workspaces of TransformerEngine and of torch.

    TE has one, and one more per stream of grouped products and of overlapped communication. torch has one for each of
    the forward and the autograd thread.
    """
    routed = any(isinstance(b.mlp, Moe) for b in contents.blocks)
    total = 0
    if uses_te(setting) or routed:  # the router's gating product is TE's under every spec
        te_workspace = TE_WORKSPACE_OLD if is_old(device.arch) else TE_WORKSPACE
        total += rounded(te_workspace)
        if routed and setting.option("moe_grouped_gemm", default=True):
            total += TE_GROUPED_STREAMS * rounded(te_workspace)
        if setting.sequence_parallel and setting.option("tp_comm_overlap"):
            total += rounded(TE_OVERLAP_STREAMS * te_workspace)
    if contents.has_head or not uses_te(setting):  # the output layer's torch.matmul
        torch_workspace = device.cublas_workspace
        if torch_workspace is None:
            torch_workspace = CUBLAS_WORKSPACE if is_old(device.arch) else CUBLAS_WORKSPACE_HOPPER
        total += TORCH_THREADS * rounded(torch_workspace)
    return total


def _global_buffer(setting: Setting, blocks: list[Block], *, head: bool) -> int:
    """Estimate the bytes of the global memory buffer "mpu", which is as large as its largest use.

    Its uses are inputs gathered by local column-parallel layers, scores of local attention, and the tokens of the
    all-gather dispatcher.
    """
    element_bytes = DTYPE_BYTES[setting.compute_dtype]
    sizes = [0]
    if setting.sequence_parallel and (head or not uses_te(setting)):
        sizes.append(setting.batch * setting.sequence * setting.hidden)
    tokens = setting.batch * setting.sequence
    for block in blocks:
        if setting.attention == "local" and isinstance(block.mixer, (Attention, LatentAttention)):
            sizes.append(tokens * setting.sequence * ceil_div(block.mixer.heads, setting.tensor_parallel))
        if isinstance(block.mlp, Moe) and _gathers_tokens(setting):
            expert_ranks = setting.expert_parallel * setting.expert_tensor_parallel
            local_tokens = tokens // setting.tensor_parallel if setting.sequence_parallel else tokens
            sizes.append(local_tokens * expert_ranks * setting.hidden)
    return rounded(max(sizes) * element_bytes)


def _gathers_tokens(setting: Setting) -> bool:
    kind = setting.option("moe_token_dispatcher_type", "allgather")
    return kind == "allgather" and setting.expert_parallel * setting.expert_tensor_parallel > 1


def _dummy_gradients(setting: Setting, contents: ChunkContents) -> int:
    """Estimate the bytes of TE's dummy weight gradients (``get_dummy_wgrad``): one tensor per shape of a weight.

    Linear layers that add dW to main_grad in their product return such a tensor to autograd. A tied table is one of
    them if the output layer is on its rank (tensor_parallel/layers.py).
    """
    if not fuses_wgrad(setting):
        return 0
    trained = [t for t, _ in contents.tensors if t.matrix and t.trained]
    fusing_names = ["linear", "output_layer"]
    if contents.has_head and not any("output_layer" in t.name for t, _ in contents.tensors):
        fusing_names.append("word_embeddings")
    shapes = {t.shape for name in fusing_names for t in trained if name in t.name}
    element_bytes = DTYPE_BYTES[setting.param_dtype]
    return sum(rounded(rows * columns * element_bytes) for rows, columns in shapes)


def _rotary(job: TrainingJob, contents: ChunkContents) -> int:
    """Estimate the bytes of the cached rotary frequencies in fp32: whole sequence and this rank's slice, per model
    chunk.

    Latent attention caches them in each layer, and cos and sin as well (multi_latent_attention.py with ``rope_type``
    yarn, its default). yarn_rotary_pos_embedding.py makes cos and sin for 4,096 positions in fp32. A fused kernel that
    asks for more positions, or for another dtype, gets tables of those.
    """
    fp32_bytes = DTYPE_BYTES["fp32"]
    rotary_dims = [b.mixer.rotary_dim for b in contents.blocks if isinstance(b.mixer, Attention)]
    frequencies = rounded(job.sequence_length * max(rotary_dims, default=0) * fp32_bytes) * contents.chunks
    latent_dims = [b.mixer.qk_rope_head_dim for b in contents.blocks if isinstance(b.mixer, LatentAttention)]
    cos_sin = 0
    if latent_dims:
        layers = sum(times for t, times in contents.tensors if t.name.endswith("linear_kv_down_proj.weight"))
        fused = bool(job.option("apply_rope_fusion", default=True)) and job.option("transformer_impl") != "local"
        remakes_tables = fused and (job.recipe.compute != "fp32" or job.sequence_length > YARN_POSITIONS)
        positions = job.sequence_length if remakes_tables else YARN_POSITIONS
        frequencies += layers * rounded(job.sequence_length * latent_dims[0] * fp32_bytes)
        one_table = rounded(positions * latent_dims[0] * DTYPE_BYTES[job.recipe.compute])
        cos_sin = layers * 2 * one_table
    if job.layout.context > 1:
        frequencies += frequencies // job.layout.context  # this rank's slice
    return cos_sin + frequencies


def _masks(setting: Setting, contents: ChunkContents) -> int:
    """Estimate the bytes of the causal mask that TE's unfused softmax caches: one byte for each pair of positions.

    dot_product_attention/softmax.py, _default_causal_mask.
    """
    if setting.attention not in ("unfused", "eager"):
        return 0
    mixers = [b.mixer for b in contents.blocks if isinstance(b.mixer, (Attention, LatentAttention))]
    all_fused = all(has_fused_softmax(setting, mixer.heads // setting.tensor_parallel) for mixer in mixers)
    return 0 if all_fused else rounded(setting.sequence * setting.sequence)


def _batch(job: TrainingJob, *, read: bool) -> int:
    """Return the bytes of one micro-batch's input on the first and last stage.

    Token ids, labels and positions are int64, the loss mask fp32.
    """
    if not read:
        return 0
    tokens = job.micro_batch_size * job.sequence_length
    return 3 * rounded(tokens * ITEM_BYTES["int64"]) + rounded(tokens * ITEM_BYTES["fp32"])


def _deferred(job: TrainingJob, architecture: Architecture, setting: Setting) -> int:
    """Estimate the bytes of logit gradients and inputs that are kept until the deferred dW of the output layer.

    Each micro-batch that defers keeps the gradient of this rank's logits, [tokens, vocabulary / tp], and the layer's
    input, [this rank's tokens, hidden]. ``wgrad_deferral_limit`` is the number of such micro-batches (0: all). The
    result is 0 without ``defer_embedding_wgrad_compute``. Source: tensor_parallel/layers.py,
    pipeline_parallel/schedules.py (finish_embedding_wgrad_compute).
    """
    if not job.option("defer_embedding_wgrad_compute"):
        return 0
    micro_batches = job.gradient_accumulation_steps
    limit = int(str(job.option("wgrad_deferral_limit") or 0))
    if limit:
        micro_batches = min(limit, micro_batches)
    element_bytes = DTYPE_BYTES[setting.compute_dtype]
    tokens = setting.batch * setting.sequence
    input_tokens = tokens // setting.tensor_parallel if setting.sequence_parallel else tokens
    vocab_shard = padded_vocabulary(architecture.vocab_size, job) // setting.tensor_parallel
    logit_gradients = rounded(tokens * vocab_shard * element_bytes)
    return micro_batches * (logit_gradients + rounded(input_tokens * setting.hidden * element_bytes))


def _fp8_weights(job: TrainingJob, setting: Setting, tensors: list[tuple[LocalTensor, int]]) -> int:
    """Estimate the bytes of the fp8 copies of TE's weights, which are cached for all micro-batches of a step.

    Each weight of a linear layer has two copies of one byte per element: by rows, and by columns. ``tensors``: the
    rank's tensors, each with the number of equal ones. Source: ``module/base.py`` (quantize_weight, cache).

    0 if TE does not multiply in fp8, or with ``fp8_param_gather``: the two copies then replace the bf16 parameter, and
    take its two bytes per element.
    """
    if not quantizes(setting) or job.option("fp8_param_gather"):
        return 0
    one_copy = sum(count * rounded(t.numel) for t, count in tensors if t.matrix and "linear" in t.name)
    return 2 * one_copy  # by rows and by columns
