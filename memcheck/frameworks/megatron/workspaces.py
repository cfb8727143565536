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
from memcheck.autograd.tensor import rounded
from memcheck.frameworks.megatron.core_attention import has_fused_softmax
from memcheck.frameworks.megatron.linear import fuses_wgrad, quantizes, uses_te
from memcheck.frameworks.megatron.setting import is_old
from memcheck.frameworks.megatron.tensors import padded_vocabulary
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.models.types import Architecture, Attention, Block, LatentAttention, Moe
from memcheck.record import Record

MIB = 2**20
TE_WORKSPACE = 32 * MIB + 1024
TE_WORKSPACE_OLD = 4 * MIB
TE_GROUPED_STREAMS = 4
"""``tex.get_num_cublas_streams()`` (common/util/multi_stream.cpp)."""
CUBLAS_WORKSPACE = 8 * MIB + 128 * 1024
CUBLAS_WORKSPACE_HOPPER = 32 * MIB
TE_OVERLAP_STREAMS = 3
"""``_NUM_MAX_UB_STREAMS``: products that overlap with communication have a workspace of their own."""
YARN_POSITIONS = 4096
"""``original_max_position_embeddings`` of MLATransformerConfig."""


class Workspaces(Record):
    """Persistent bytes in addition to the model, by what they are."""

    cublas: int = 0
    global_buffer: int = 0
    dummy_gradients: int = 0
    rotary: int = 0
    masks: int = 0
    batch: int = 0
    deferred: int = 0
    fp8_weights: int = 0

    def components(self) -> tuple[tuple[str, int], ...]:
        """Bytes by component."""
        return (
            ("temporaries", self.cublas + self.dummy_gradients),
            ("parameters", self.fp8_weights),
            ("communication_buffers", self.global_buffer),
            ("activations", self.rotary + self.masks + self.batch),
            ("logits_and_loss", self.deferred),
        )


class ChunkContents(Record):
    """What a rank holds of the model."""

    blocks: list[Block]
    tensors: list[tuple[LocalTensor, int]]
    """Each kind of tensor, and how many are of it."""
    embedding: bool
    head: bool
    chunks: int = 1
    """Model chunks, each of which makes rotary tables of its own."""


class Device(Record):
    """The GPU and its environment."""

    arch: str | None = None
    """``sm_90``...; None is taken for a recent one."""
    cublas_workspace: int | None = None
    """Bytes that CUBLAS_WORKSPACE_CONFIG asks for, per handle and stream; None: torch's default."""


ANY_DEVICE = Device()


def workspaces(
    job: TrainingJob, architecture: Architecture, setting: Setting, held: ChunkContents, device: Device = ANY_DEVICE
) -> Workspaces:
    """Everything a rank holds in addition to its model."""
    return Workspaces(
        cublas=_cublas(setting, held, device),
        global_buffer=_global_buffer(setting, held.blocks, head=held.head),
        dummy_gradients=_dummy_gradients(setting, held),
        rotary=_rotary(job, held),
        masks=_masks(setting, held),
        batch=_batch(job, read=held.embedding or held.head),
        deferred=_deferred(job, architecture, setting) if held.head else 0,
        fp8_weights=_fp8_weights(job, setting, held.tensors),
    )


def _cublas(setting: Setting, held: ChunkContents, device: Device) -> int:
    routed = any(isinstance(b.mlp, Moe) for b in held.blocks)
    found = 0
    if uses_te(setting) or routed:  # the router's gating product is TE's under every spec
        one = rounded(TE_WORKSPACE_OLD if is_old(device.arch) else TE_WORKSPACE)
        grouped = routed and bool(setting.option("moe_grouped_gemm", True))
        overlaps = setting.sequence_parallel and bool(setting.option("tp_comm_overlap"))
        found += one * ((TE_GROUPED_STREAMS if grouped else 0) + 1)
        found += rounded(TE_OVERLAP_STREAMS * (TE_WORKSPACE_OLD if is_old(device.arch) else TE_WORKSPACE)) * overlaps
    if held.head or not uses_te(setting):
        # torch.matmul of the output layer, in the forward and in the autograd thread
        default = CUBLAS_WORKSPACE if is_old(device.arch) else CUBLAS_WORKSPACE_HOPPER
        found += 2 * rounded(default if device.cublas_workspace is None else device.cublas_workspace)
    return found


def _global_buffer(setting: Setting, blocks: list[Block], *, head: bool) -> int:
    """One buffer named "mpu", as large as its largest use.

    Inputs gathered by local column-parallel layers, scores of local attention, tokens of the all-gather dispatcher.
    """
    item = DTYPE_BYTES[setting.compute]
    sizes = [0]
    if setting.sequence_parallel and (head or not uses_te(setting)):
        sizes.append(setting.batch * setting.sequence * setting.hidden)
    tokens = setting.batch * setting.sequence
    for block in blocks:
        if setting.attention == "local" and isinstance(block.mixer, (Attention, LatentAttention)):
            sizes.append(tokens * setting.sequence * -(-block.mixer.heads // setting.tensor))
        if isinstance(block.mlp, Moe) and _gathers_tokens(setting):
            ways = setting.expert * setting.expert_tensor
            mine = tokens // setting.tensor if setting.sequence_parallel else tokens
            sizes.append(mine * ways * setting.hidden)
    return rounded(max(sizes) * item)


def _gathers_tokens(setting: Setting) -> bool:
    kind = setting.option("moe_token_dispatcher_type", "allgather")
    return kind == "allgather" and setting.expert * setting.expert_tensor > 1


def _dummy_gradients(setting: Setting, held: ChunkContents) -> int:
    """One dummy per shape of the weights whose gradient the product adds to main_grad.

    A tied table is one of them where the output layer is on its rank (tensor_parallel/layers.py).
    """
    if not fuses_wgrad(setting):
        return 0
    trained = [t for t, _ in held.tensors if t.matrix and t.trained]
    words = ["linear", "output_layer"]
    if held.head and not any("output_layer" in t.name for t, _ in held.tensors):
        words.append("word_embeddings")
    shapes = {t.shape for t in trained if any(word in t.name for word in words)}
    item = DTYPE_BYTES[setting.params]
    return sum(rounded(rows * columns * item) for rows, columns in shapes)


def _rotary(job: TrainingJob, held: ChunkContents) -> int:
    """cos and sin's fp32 arguments over the whole sequence, and this rank's slice of them, once a model chunk.

    Latent attention has them in each layer, and cos and sin as well (multi_latent_attention.py with ``rope_type`` yarn,
    its default; yarn_rotary_pos_embedding.py: for 4,096 positions in fp32 until a kernel asks for more, or for another
    dtype, of those that it takes).
    """
    attends = [b.mixer.rotary_dim for b in held.blocks if isinstance(b.mixer, Attention)]
    whole = rounded(4 * job.sequence_length * max(attends, default=0)) * held.chunks
    latent = [b.mixer.qk_rope_head_dim for b in held.blocks if isinstance(b.mixer, LatentAttention)]
    made = 0
    if latent:
        layers = sum(times for t, times in held.tensors if t.name.endswith("linear_kv_down_proj.weight"))
        fused = bool(job.option("apply_rope_fusion", True)) and job.option("transformer_impl") != "local"
        asks = fused and (job.recipe.compute != "fp32" or job.sequence_length > YARN_POSITIONS)
        positions = job.sequence_length if asks else YARN_POSITIONS
        whole += layers * rounded(4 * job.sequence_length * latent[0])
        made = 2 * layers * rounded(positions * latent[0] * DTYPE_BYTES[job.recipe.compute])
    return made + whole + (whole // job.layout.context if job.layout.context > 1 else 0)


def _masks(setting: Setting, held: ChunkContents) -> int:
    """The causal mask that TE's softmax of operators keeps (dot_product_attention/softmax.py, _default_causal_mask)."""
    if setting.attention not in ("unfused", "eager"):
        return 0
    mixers = [b.mixer for b in held.blocks if isinstance(b.mixer, (Attention, LatentAttention))]
    kernels = all(has_fused_softmax(setting, mixer.heads // setting.tensor) for mixer in mixers)
    return 0 if kernels else rounded(setting.sequence * setting.sequence)


def _batch(job: TrainingJob, *, read: bool) -> int:
    """Token ids, labels, positions (int64) and the loss mask (fp32) of one micro-batch, on the first and last stage."""
    if not read:
        return 0
    tokens = job.micro_batch_size * job.sequence_length
    return 3 * rounded(8 * tokens) + rounded(4 * tokens)


def _deferred(job: TrainingJob, architecture: Architecture, setting: Setting) -> int:
    """Logit gradients and inputs of micro-batches whose output-layer dW waits for the end of the step.

    ``defer_embedding_wgrad_compute`` with ``wgrad_deferral_limit`` (0: all): tensor_parallel/layers.py,
    pipeline_parallel/schedules.py (finish_embedding_wgrad_compute).
    """
    if not job.option("defer_embedding_wgrad_compute"):
        return 0
    limit = int(str(job.option("wgrad_deferral_limit") or 0))
    count = min(limit or job.gradient_accumulation_steps, job.gradient_accumulation_steps)
    item = DTYPE_BYTES[setting.compute]
    tokens = setting.batch * setting.sequence
    inputs = tokens // setting.tensor if setting.sequence_parallel else tokens
    logits = rounded(tokens * (padded_vocabulary(architecture.vocab_size, job) // setting.tensor) * item)
    return count * (logits + rounded(inputs * setting.hidden * item))


def _fp8_weights(job: TrainingJob, setting: Setting, tensors: list[tuple[LocalTensor, int]]) -> int:
    """fp8 copies of TE's weights, by rows and by columns, cached over the micro-batches of a step.

    ``module/base.py`` (quantize_weight, cache). With ``fp8_param_gather`` the rows are the parameter itself, in place
    of its bf16 form: the copy by columns is then all there is, and it is paid for by the byte that bf16 does not take.
    """
    if not quantizes(setting) or job.option("fp8_param_gather"):
        return 0
    return sum(2 * count * rounded(t.numel) for t, count in tensors if t.matrix and "linear" in t.name)
