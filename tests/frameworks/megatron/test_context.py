"""Attention over a context group: what each exchange keeps and what it needs for a moment."""

from __future__ import annotations

import pytest

from memcheck.autograd.context import Context, Setting
from memcheck.autograd.curve import Curve, replay
from memcheck.autograd.tensor import Value
from memcheck.errors import UnsupportedError
from memcheck.frameworks.megatron.core_attention import AttentionWidths, context_attention, exchange, ring_ranks
from memcheck.frameworks.megatron.setting import megatron_setting
from tests.frameworks.megatron.models import grid, job, llama_8b, setting

HEADS, KV_HEADS, DIM = 32, 8, 128
TOKENS = 32768
"""Of the whole sequence."""
SIDES = AttentionWidths(HEADS, DIM, DIM, expands_kv_gradients=False)
Q, K, LSE = HEADS * DIM * 2, KV_HEADS * DIM * 2, HEADS * 4
"""Bytes per token."""


def attention(kind: str, ways: int, sides: AttentionWidths = SIDES, **options: object) -> Curve:
    """Attention alone; the queries are the input, keys and values need no gradient of their own."""
    config = setting(
        HEADS * DIM,
        sequence=TOKENS // ways,
        context_parallel=ways,
        options={"cp_comm_type": kind, **options} if kind else {},
    )
    rows = TOKENS // ways

    def forward(ctx: Context, q: Value) -> Value:
        keys = [ctx.tape.value((rows, KV_HEADS * DIM), "bf16", "key or value") for _ in range(2)]
        return context_attention(ctx, sides, q, *keys)

    return replay(forward, config, (rows, HEADS * DIM), "bf16")


@pytest.mark.parametrize("kind", ["p2p", "all_gather"])
def test_a_rank_keeps_its_share(kind: str) -> None:
    """A share of q, k, v, the output and its statistics, as if the sequence were that short."""
    rows = TOKENS // 4
    whole = attention("", 1).saved_bytes
    assert whole == TOKENS * (Q + 2 * K + Q + LSE)
    assert attention(kind, 4).saved_bytes == rows * (Q + 2 * K + Q + LSE)


def test_an_exchange_of_heads_keeps_its_results() -> None:
    """Ulysses: the exchanged q, k and v are kept instead, and the output before its way back."""
    rows = TOKENS // 4
    kept = attention("a2a", 4).saved_bytes
    assert kept == rows * (Q + 2 * K + Q + LSE)
    ring = attention("a2a+p2p", 4, hierarchical_context_parallel_sizes=(2, 2)).saved_bytes
    assert ring == kept


def test_a_ring_has_every_steps_buffers_at_once() -> None:
    """Forward: k and v, output and statistics of every step; backward: two pairs of (k, v) and (dK, dV)."""
    ways, rows = 8, TOKENS // 8
    curve = attention("p2p", ways)
    local = rows * (Q + 2 * K + Q + LSE)
    assert curve.forward_peak.bytes == local + ways * rows * (2 * K + Q + LSE)
    step = rows * (2 * Q + Q + 2 * K)  # fp32 dQ, dQ, dK, dV
    assert curve.backward_peak.bytes == curve.saved_bytes + rows * (Q + Q + 2 * 4 * K) + step


def test_a_kernel_that_expands_has_gradients_per_query_head() -> None:
    """FlashAttention's backward writes dK and dV of every query head before it sums those of a group."""
    rows = TOKENS // 8
    ring = attention("p2p", 8)
    expanding = attention("p2p", 8, sides=SIDES._replace(expands_kv_gradients=True))
    assert expanding.backward_peak.bytes - ring.backward_peak.bytes == 2 * rows * Q


def test_a_ring_of_fewer_ranks_needs_fewer_buffers() -> None:
    """a2a+p2p with two ranks on each ring needs less for a moment than one ring of eight."""
    assert ring_ranks(setting(1, context_parallel=8)) == 8
    options = {"cp_comm_type": "a2a+p2p", "hierarchical_context_parallel_sizes": (4, 2)}
    assert ring_ranks(setting(1, context_parallel=8, options=options)) == 2
    mixed = attention("a2a+p2p", 8, hierarchical_context_parallel_sizes=(4, 2))
    assert mixed.forward_peak.bytes < attention("p2p", 8).forward_peak.bytes


def test_gathered_keys_span_the_whole_sequence() -> None:
    """all_gather: k and v of every token twice while they are reordered, and their gradients in the backward."""
    ways = 8
    curve = attention("all_gather", ways)
    assert curve.forward_peak.bytes > 3 * TOKENS * K
    assert curve.backward_peak.bytes > 2 * 3 * TOKENS * K


def test_layers_that_exchange_differently_are_refused() -> None:
    """A list of one kind is that kind; a mixture has no figure."""
    assert exchange(setting(1, context_parallel=2, options={"cp_comm_type": ("a2a", "a2a")})) == "a2a"
    assert exchange(setting(1)) == ""
    with pytest.raises(UnsupportedError) as refused:
        exchange(setting(1, context_parallel=2, options={"cp_comm_type": ("a2a", "p2p")}))
    assert refused.value.pointer == "/training/options/cp_comm_type"
    case = job(llama_8b(2), grid(2, context=2), options={"cp_comm_type": ["a2a", "a2a"]})
    assert exchange(megatron_setting(case, llama_8b(2))) == "a2a"


def test_longer_context_groups_shorten_the_sequence() -> None:
    """A layer's saved bytes fall in proportion to the context group, whatever the exchange."""

    def saved(config: Setting) -> int:
        from tests.frameworks.megatron.models import layer_curve

        return layer_curve(llama_8b(), config).saved_bytes

    alone = saved(setting(4096, sequence=TOKENS))
    assert saved(setting(4096, sequence=TOKENS // 4, context_parallel=4)) * 4 == pytest.approx(alone, rel=1e-3)
