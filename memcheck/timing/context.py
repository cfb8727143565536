"""What the ranks that share a sequence exchange for attention, and how much of it attention hides.

- ``engine``: Transformer Engine's ring (Megatron's ``cp_comm_type: p2p``). Keys and values are passed on while a
  block is multiplied, and their gradients with them (``dot_product_attention/context_parallel.py``,
  AttnFuncWithCPAndKVP2P).
- ``torch``: keys and values are gathered during the rank's own block; in backward their gradients go round in fp32,
  during the next block, and the last of them waits (``_context_parallel/_attention.py``,
  _templated_ring_attention_backward). Compiled, nothing is hidden: a traced collective is waited for where it starts
  (``torch/distributed/_functional_collectives.py``, _maybe_wrap_tensor), and Inductor does not move the wait
  (``torch/_inductor/config.py``, reorder_for_compute_comm_overlap = False).
- ``whole``: torchtitan's main branch gathers keys and values before attention, keeps them, and scatters the sum of
  their gradients (``models/common/decoder_sharding.py``, set_gqa_inner_attention_local_map); releases have the ring.
- ``ulysses``: four tensors are turned from parts of the sequence to parts of the heads, and back (DeepSpeed; Megatron's
  ``a2a``).
- ``gather``: keys and values are gathered before, once more in backward, and their gradients are scattered after it
  (Megatron's ``all_gather``; AttnFuncWithCPAndKVAllGather: "exposed").
"""

from __future__ import annotations

from memcheck.frameworks.registry import timing_of
from memcheck.job.types import DTYPE_BYTES, TrainingJob
from memcheck.timing.collectives import all_to_all, behind, gather, group, send
from memcheck.timing.layer import LayerCost
from memcheck.timing.rates import Rates

ENGINE, ULYSSES, GATHER, WHOLE = "engine", "ulysses", "gather", "whole"


def context_kind(job: TrainingJob) -> str:
    """The kind of context parallelism that the job runs, of those above; empty without any."""
    return "" if job.layout.context == 1 else timing_of(job.framework).context(job)


def context_seconds(job: TrainingJob, cost: LayerCost, kind: str, rates: Rates) -> tuple[float, float]:
    """Forward and backward of one layer, as far as attention does not hide them."""
    layout = job.layout
    if not kind or not cost.kv_bytes:
        return 0.0, 0.0
    g = group(rates, layout.context, layout.tensor)
    steps = layout.context - 1
    if kind == ENGINE:
        forward = behind(steps * send(g, cost.kv_bytes), cost.attention_seconds, rates.taken)
        return forward, behind(steps * send(g, 2 * cost.kv_bytes), cost.attention_backward, rates.taken)
    if kind == ULYSSES:
        both = 2 * all_to_all(g, 2 * cost.kv_bytes)
        return both, both
    one, block = gather(g, cost.kv_bytes * layout.context), cost.attention_seconds / layout.context
    back = cost.attention_backward / layout.context
    if kind in (GATHER, WHOLE):
        return one, 2 * one if kind == GATHER else one
    summed = send(g, 4 / DTYPE_BYTES[job.recipe.compute] * cost.kv_bytes)
    if job.compile:
        return one, one + layout.context * summed
    hidden = steps * behind(summed, back, rates.taken)
    return behind(one, block, rates.taken), behind(one, back, rates.taken) + hidden + summed
