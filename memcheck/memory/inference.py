"""Serving: weights, KV cache, and the working set of a prefill.

KV cache per token and layer: 2 x kv_heads x head_dim (a sliding-window layer keeps its window only), or
kv_lora_rank + qk_rope_head_dim with multi-head latent attention, which tensor parallelism does not divide.
"""

from __future__ import annotations

from memcheck.architecture.parameters import outer_tensors
from memcheck.architecture.types import Architecture, Attention, Block, LatentAttention, Mixer, ParameterTensor, Rough
from memcheck.errors import UnsupportedError
from memcheck.job.types import DTYPE_BYTES, InferenceJob
from memcheck.memory.ledger.block import block_forward
from memcheck.memory.ledger.context import Context, Setting
from memcheck.memory.pipeline import parts
from memcheck.memory.state import block_component_tensors, local_tensor
from memcheck.memory.tape import Tape, Value, rounded
from memcheck.memory.timeline import Timeline
from memcheck.memory.types import RankEstimate
from memcheck.memory.units import Part

QUANTIZED_MILLIBITS = {"int8": 8125, "fp8": 8000, "int4": 4156, "fp4": 4500}
"""Thousandths of a bit per weight of a quantised matrix, scales included: int8 one fp16 scale per 128 (8 + 16 / 128);
fp8 per-tensor scales; int4 (GPTQ, AWQ) fp16 scale and 4-bit zero per 128 (4 + 20 / 128); NVFP4 one fp8 scale per 16."""


def weight_bytes(tensor: ParameterTensor, numel: int, weights: str) -> int:
    """Bytes of one resting weight. Only matrices are quantised; the rest stays in bf16."""
    if weights in QUANTIZED_MILLIBITS:
        if not (tensor.linear or tensor.group in ("experts", "shared_experts")) or tensor.group == "head":
            return rounded(2 * numel)
        return rounded(-(-numel * QUANTIZED_MILLIBITS[weights] // 8000))
    return rounded(numel * DTYPE_BYTES[weights])


def kv_bytes_per_sequence(block: Block, tokens: int, dtype: str, tensor: int) -> int:
    """Cache of one layer for one sequence of ``tokens``, on one tensor-parallel rank."""
    mixer, item = block.mixer, DTYPE_BYTES[dtype]
    if isinstance(mixer, Attention):
        heads = max(1, -(-mixer.kv_heads // tensor))
        kept = min(tokens, mixer.window) if mixer.window else tokens
        return 2 * heads * mixer.head_dim * kept * item
    if isinstance(mixer, LatentAttention):
        return (mixer.kv_lora_rank + mixer.qk_rope_head_dim) * tokens * item
    if isinstance(mixer, Mixer):
        return -(-mixer.state_bytes_per_sequence // tensor)
    return 0


def inference_ranks(job: InferenceJob) -> tuple[RankEstimate, ...]:
    """One estimate per pipeline rank."""
    if isinstance(job.architecture, Rough):
        raise UnsupportedError(
            "`rough` models have no attention shape, so their KV cache cannot be priced",
            "describe the model by name, config or architecture",
            "/model/rough",
        )
    found = []
    for rank, part in enumerate(parts(job.architecture.num_layers, job.layout)):
        found.append(_rank(job, job.architecture, part, rank))
    return tuple(found)


def _rank(job: InferenceJob, a: Architecture, part: Part, rank: int) -> RankEstimate:
    layout = job.layout
    timeline = Timeline()
    numel = parameters = 0
    for block in a.layers()[part.first : part.last]:
        for t, component in block_component_tensors(block):
            n = _product(local_tensor(t, component, layout.tensor, layout.expert, layout.expert_tensor))
            numel += n
            parameters += weight_bytes(t, n, job.weights)
    for t in outer_tensors(a):
        if (t.group == "head" and not part.head) or (t.group in ("embedding", "position") and not part.embedding):
            continue
        n = _product(local_tensor(t, None, layout.tensor, 1, 1))
        numel += n
        parameters += weight_bytes(t, n, job.weights)
    timeline.hold("parameters", parameters)
    timeline.mark("init", "weights at rest")
    cache = sum(
        rounded(job.batch_size * kv_bytes_per_sequence(b, job.context_length, job.kv_cache, layout.tensor))
        for b in a.layers()[part.first : part.last]
    )
    timeline.hold("kv_cache", cache)
    timeline.hold("activations", _working_set(job, a, part))
    if part.head:
        vocab = -(-a.vocab_size // layout.tensor)
        timeline.hold("logits_and_loss", rounded(4 * job.batch_size * vocab))
    timeline.mark("prefill", "prefill of one sequence with a full cache")
    return RankEstimate(rank, timeline.instants(), numel)


def _product(shape: tuple[int, ...]) -> int:
    n = 1
    for d in shape:
        n *= d
    return n


def _working_set(job: InferenceJob, a: Architecture, part: Part) -> int:
    """Highest live activations while one sequence of ``context_length`` tokens runs through a block without a graph."""
    dtype = "fp32" if job.weights == "fp32" else "bf16"
    worst = 0
    for block in dict.fromkeys(a.layers()[part.first : part.last]):
        setting = Setting(
            "transformers",
            1,
            job.context_length,
            a.hidden_size,
            tensor=job.layout.tensor,
            expert=job.layout.expert,
            expert_tensor=job.layout.expert_tensor,
            params=dtype,
            compute=dtype,
            attention="flash",
            trained=False,
            input_grad=False,
        )
        tape = Tape()
        tape.grad_enabled = False
        shape = (job.context_length, a.hidden_size)
        # the loop over the layers holds a layer's input in a variable of its own until the layer returns
        hidden = Value(tape.new(shape, dtype, "hidden states"), shape, dtype)
        block_forward(Context(tape, setting), block, hidden)
        worst = max(worst, tape.peak)
    return worst
