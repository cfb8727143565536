"""Gated delta nets against traces of Megatron-core's own module and of mcore-bridge's.

The traces ran ``megatron/core/ssm/gated_delta_net`` at d98e8a64dd and mcore-bridge 1.2.1's
``model/modules/gated_delta_net.py`` in bfloat16 on fake tensors with torch 2.13, behind an RMSNorm and without tensor
parallelism. flash-linear-attention's three functions were stood in for by ones that allocate and save what those of
0.5.0 do, and the functions under ``jit_fuser`` by ones that save what ``torch.compile``'s partitioner saved of them.
Bytes, without the layer's input and the gradient of its output.
"""

from __future__ import annotations

import pytest

from memcheck.autograd import backward
from memcheck.autograd.context import Context
from memcheck.autograd.tensor import Leaf, Tape, Value
from memcheck.errors import UnsupportedError
from memcheck.families.registry import read_architecture
from memcheck.frameworks.megatron.attention import self_attention
from memcheck.frameworks.megatron.delta_net import delta_net
from memcheck.frameworks.megatron.ranks import megatron_ranks
from memcheck.frameworks.megatron.workspaces import Device
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, Attention, Mixer, Norm
from tests.frameworks.megatron.models import grid, job, setting

QWEN = (16, 32, 128, 128, 2048, 1, 4096)
UNGROUPED = (4, 4, 64, 128, 512, 2, 1000)
ONE_KEY_HEAD = (1, 3, 64, 128, 512, 2, 1000)


def _mixer(key_heads: int, heads: int, key: int, value: int) -> Mixer:
    return Mixer(
        kind="gated-delta-net",
        heads=heads,
        head_dim=value,
        state_bytes_per_sequence=0,
        width=0,
        key_heads=key_heads,
        key_dim=key,
        kernel=4,
        tensors=(),
        chunk=0,
    )


def _replayed(
    case: tuple[int, ...], backend: str, modules: tuple[str, ...] = (), context: int = 1
) -> tuple[int, int, int]:
    """Bytes that are kept at the end of the forward, its highest point, and that of the backward."""
    *sizes, hidden, batch, sequence = case
    options: dict[str, object] = {"gradient_accumulation_fusion": False, "bridge_backend": backend}
    own = setting(hidden, batch=batch, sequence=sequence, attention="flash", options=options)
    tape = Tape()
    ctx = Context(tape, own._replace(has_grad=False, main_grad_dtype=None, context_parallel=context))
    x = Value(tape.new((batch * sequence, hidden), "bf16", "input"), (batch * sequence, hidden), "bf16", Leaf())
    assert x.storage is not None
    given = x.storage.bytes
    out, _ = delta_net(ctx, _mixer(*sizes), x, Norm("rmsnorm", hidden), modules)
    kept, forward = tape.live - given, tape.peak - given
    box = [tape.new(out.shape, "bf16", "gradient")]
    tape.peak = 0
    backward(tape, out, box)
    return kept, forward, tape.peak - given


@pytest.mark.parametrize(
    ("case", "backend", "traced"),
    [
        (QWEN, "megatron-bridge", (421_806_080, 572_801_024, 808_468_992)),
        (QWEN, "mcore-bridge", (388_776_960, 641_221_632, 775_439_872)),
        (UNGROUPED, "megatron-bridge", (25_785_344, 30_954_496, 39_769_088)),
        (UNGROUPED, "mcore-bridge", (21_723_136, 33_084_928, 35_706_880)),
        (ONE_KEY_HEAD, "mcore-bridge", (18_334_208, 20_687_360, 28_822_016)),
    ],
)
def test_a_net_takes_what_was_traced(case: tuple[int, ...], backend: str, traced: tuple[int, int, int]) -> None:
    """To the byte: what is kept, and both highest points."""
    assert _replayed(case, backend) == traced


@pytest.mark.parametrize(
    ("case", "traced"),
    [
        ((16, 32, 128, 128, 2048, 1, 2048), (210_935_808, 286_695_424, 412_656_128)),
        ((4, 4, 64, 128, 512, 2, 512), (13_205_504, 17_416_192, 20_570_624)),
    ],
)
def test_a_net_over_two_context_ranks_takes_what_was_traced(case: tuple[int, ...], traced: tuple[int, ...]) -> None:
    """Heads and tokens are exchanged before the convolution and behind the norm. Sequences are of one rank's tokens."""
    assert _replayed(case, "megatron-bridge", context=2) == traced


@pytest.mark.parametrize(("backend", "traced"), [("megatron-bridge", 58_937_344), ("mcore-bridge", 71_520_256)])
def test_gated_attention_keeps_what_was_traced(backend: str, traced: int) -> None:
    """SelfAttention of Megatron-core and GatedSelfAttention of mcore-bridge, with frozen weights and norms of heads.

    Their kernel was stood in for by one that keeps contiguous q, k, v, its output and a number of each row and head.
    """
    a = Attention(
        24,
        4,
        256,
        rotary_dim=0,
        output_gate=True,
        query_norm=Norm("rmsnorm", 256),
        key_norm=Norm("rmsnorm", 256),
        dropout=0.0,
        tensors=(),
        qkv_bias=False,
        out_bias=False,
        window=None,
    )
    own = setting(1024, sequence=1024, attention="flash", options={"bridge_backend": backend}, trained=False)
    tape = Tape()
    ctx = Context(tape, own)
    x = Value(tape.new((1024, 1024), "bf16", "input"), (1024, 1024), "bf16", Leaf())
    assert x.storage is not None
    out, _ = self_attention(ctx, a, x, Norm("rmsnorm", 1024), recompute=False)
    assert out.storage is not None
    assert tape.live - x.storage.bytes == traced


def test_the_norms_output_is_made_again() -> None:
    """``gdn_norm_out``: what out_proj keeps, the normalised output and its row statistics are not there meanwhile."""
    kept, _, _ = _replayed(QWEN, "megatron-bridge")
    less, _, _ = _replayed(QWEN, "megatron-bridge", ("gdn_norm_out",))
    values = 4096 * 32 * 128 * 2
    assert kept - less == 2 * values + 4096 * 32 * 4


def _qwen3_next(layers: int = 4) -> Architecture:
    return read_architecture(
        {
            "model_type": "qwen3_next",
            "num_hidden_layers": layers,
            "hidden_size": 2048,
            "num_attention_heads": 16,
            "num_key_value_heads": 2,
            "head_dim": 256,
            "num_experts": 16,
            "num_experts_per_tok": 4,
            "moe_intermediate_size": 512,
            "shared_expert_intermediate_size": 512,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 32,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "vocab_size": 151936,
        }
    )


def _peak(job: TrainingJob, a: Architecture) -> int:
    ranks = megatron_ranks(job, a, Device("sm_90"), inventory=False)
    return max(rank.peak.allocated_bytes for rank in ranks)


def test_megatron_lms_own_words_are_the_same_model() -> None:
    """Qwen 3 Next by transformers' configuration and by Megatron-LM's arguments, but for the router's scores."""
    own = read_architecture(
        {
            "model_type": "megatron-lm",
            "num_layers": 4,
            "hidden_size": 2048,
            "num_attention_heads": 16,
            "group_query_attention": True,
            "num_query_groups": 2,
            "kv_channels": 256,
            "rotary_percent": 0.25,
            "qk_layernorm": True,
            "attention_output_gate": True,
            "experimental_attention_variant": "gdn",
            "linear_attention_freq": 4,
            "num_experts": 16,
            "moe_router_topk": 4,
            "moe_ffn_hidden_size": 512,
            "moe_shared_expert_intermediate_size": 512,
            "moe_shared_expert_gate": True,
            "position_embedding_type": "rope",
            "normalization": "RMSNorm",
            "swiglu": True,
            "disable_bias_linear": True,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
            "vocab_size": 151936,
            "max_position_embeddings": 4096,
            "untie_embeddings_and_output_weights": True,
        }
    )
    found = [_peak(job(a, grid(8, tensor=2, expert=4)), a) for a in (_qwen3_next(), own)]
    assert found[0] == pytest.approx(found[1], rel=1e-3)


def test_heads_are_divided_by_tensor_ranks() -> None:
    """Sixteen heads of keys are not cut over 32 ranks."""
    a = _qwen3_next()
    with pytest.raises(UnsupportedError, match="not divided by 32"):
        _peak(job(a, grid(32, tensor=32)), a)


@pytest.mark.parametrize(
    ("options", "layout", "pointer"),
    [
        ({"transformer_impl": "local"}, {}, "/training/options/transformer_impl"),
        ({}, {"context": 32}, "/parallelism/context"),
        ({"bridge_backend": "mcore-bridge"}, {}, "/training/options/bridge_backend"),
    ],
)
def test_nets_that_are_not_priced_are_refused(options: dict[str, object], layout: dict[str, int], pointer: str) -> None:
    """Modules of PyTorch, an exchange over a context group, transformers' own layers: each by name."""
    a = _qwen3_next()
    with pytest.raises(UnsupportedError) as caught:
        _peak(job(a, grid(8, **layout), options=options), a)
    assert caught.value.pointer == pointer
