"""LoRA on Megatron's layers, by hand from Megatron-Bridge's adapters."""

from __future__ import annotations

import pytest

from memcheck.autograd.context import Adapter, Setting
from memcheck.errors import UnsupportedError
from memcheck.frameworks.megatron.adapters import adapter_parameters
from memcheck.frameworks.megatron.ranks import megatron_ranks
from memcheck.frameworks.megatron.setting import megatron_setting
from memcheck.job.types import Checkpointing, Lora
from tests.frameworks.megatron.models import deepseek_v2, grid, job, layer_curve, llama_8b, setting

H, Q, K, F, A, TOKENS, RANK = 4096, 4096, 1024, 14336, 32, 8192, 32
EVERY = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
LAYER = RANK * (H + Q + 2 * K + Q + H + H + 2 * F + F + H)
"""Elements of the adapters of a Llama-3.1-8B layer."""


def adapted(targets: tuple[str, ...] = EVERY, *, dropout: float = 0.0, **changes: object) -> Setting:
    """A frozen layer with adapters."""
    adapter = Adapter(RANK, targets, "bf16", dropout=dropout)
    return setting(H, sequence=TOKENS, adapter=adapter, trained=False, **changes)


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_an_adapted_layer_keeps_what_adapters_multiply(tensor: int) -> None:
    """4 h + 4 q + 4 k + 6 f + 8 + 4 a bytes a token, divided; 4 h for both normalised inputs and 8 r, which are not.

    The frozen weights need no input of theirs. Those of the adapters are whole under sequence parallelism: TE hands
    the gathered ones on, and keeps this rank's.
    """
    config = adapted(tensor_parallel=tensor, sequence_parallel=tensor > 1)
    found = layer_curve(llama_8b(), config).saved_bytes
    own = 4 * H // tensor if tensor > 1 else 0
    assert found == TOKENS * ((4 * H + 4 * Q + 4 * K + 6 * F + 8 + 4 * A) // tensor + own + 4 * H + 8 * RANK)


def test_a_frozen_layer_keeps_no_inputs_of_products() -> None:
    """With adapters of the projection alone: both norms' inputs, attention, the MLP's activation, and one output of the rank."""
    found = layer_curve(llama_8b(), adapted(("linear_proj",))).saved_bytes
    assert found == TOKENS * (4 * H + 4 * Q + 4 * K + 4 * F + 8 + 4 * A + 2 * RANK)


def test_dropout_keeps_masks_and_second_inputs() -> None:
    """A byte for each input of an adapter; norms and attention keep their outputs beside the dropped copies."""
    plain, dropped = (layer_curve(llama_8b(), adapted(dropout=p)).saved_bytes for p in (0.0, 0.1))
    assert dropped - plain == TOKENS * (H + Q + H + F + 2 * Q + 4 * H)


def test_the_local_spec_gathers_for_the_adapter() -> None:
    """Its norms are modules: their outputs, of this rank's tokens, are let go of behind the gathered ones."""
    whole = {"transformer_impl": "local"}
    config = adapted(("linear_qkv",), tensor_parallel=2, sequence_parallel=True, options=whole, attention="fused")
    bare = setting(H, sequence=TOKENS, tensor_parallel=2, sequence_parallel=True, options=whole, trained=False)
    assert layer_curve(llama_8b(), config).saved_bytes - layer_curve(llama_8b(), bare).saved_bytes == TOKENS * (
        2 * H + 2 * RANK
    )


def test_only_adapters_have_gradients_and_states() -> None:
    """fp32 gradients of the adapters in DDP's buffers; the base rests beside them in 16 bits."""
    model = llama_8b(4)
    lora = Lora(RANK, EVERY, "bf16")
    found = job(model, grid(1), method="lora", lora=lora)
    assert adapter_parameters(found, model) == 4 * LAYER
    (part,) = megatron_ranks(found, model)
    peak = part.peak.components_bytes
    assert peak["gradients"] == 4 * 4 * LAYER
    assert peak["optimizer_states"] == 2 * 4 * 4 * LAYER
    (whole,) = megatron_ranks(job(model, grid(1)), model)
    base = whole.peak.components_bytes["parameters"]
    assert 0 <= peak["parameters"] - base - 2 * 4 * LAYER < 2**20  # the buffers' alignment


def test_tensor_ranks_share_an_adapter() -> None:
    """The first matrix is divided by rank, or by inputs; the second by outputs."""
    model = llama_8b(4)
    lora = Lora(RANK, EVERY, "bf16")
    one, two = (megatron_ranks(job(model, grid(n, tensor=n), method="lora", lora=lora), model)[0] for n in (1, 2))
    gradients = [each.peak.components_bytes["gradients"] for each in (one, two)]
    assert gradients[0] == 2 * gradients[1]
    with pytest.raises(UnsupportedError, match="rank 3 are not divided by 2"):
        megatron_ranks(job(model, grid(2, tensor=2), method="lora", lora=Lora(3, EVERY, "bf16")), model)


def test_a_recomputed_first_layer_wants_its_inputs_gradient() -> None:
    """A checkpoint whose input wants no gradient never runs backward; Megatron-Bridge sees to it."""
    model, lora = llama_8b(1), Lora(RANK, EVERY, "bf16")
    full = Checkpointing("full")
    again, kept = (
        megatron_ranks(job(model, grid(1), method="lora", lora=lora, **c), model)[0]
        for c in ({"checkpointing": full}, {})
    )
    forward = [{i.name: i for i in each.instants}["forward"].allocated_bytes for each in (again, kept)]
    backward = [{i.name: i for i in each.instants}["backward"].allocated_bytes for each in (again, kept)]
    assert forward[0] < forward[1]
    assert backward[0] > forward[0]


def test_experts_share_one_adapter() -> None:
    """DeepSeek-V2's local experts have one between them; latent attention's layers are adapted by their own names."""
    model = deepseek_v2(2)
    fc1 = adapter_parameters(job(model, grid(1), method="lora", lora=Lora(8, ("linear_fc1",))), model)
    h, dense, expert, shared = 5120, 12288, 1536, 2 * 1536
    assert fc1 == 8 * (3 * h + 2 * (dense + expert + shared))
    every = job(model, grid(1), method="lora", lora=Lora(8, "all-linear"))
    assert adapter_parameters(every, model) > fc1
    assert megatron_ranks(every, model)[0].peak.components_bytes["gradients"] > 4 * fc1


BRIDGE = {"bridge_backend": "mcore-bridge"}


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_mcore_bridges_adapters_keep_nothing_gathered(tensor: int) -> None:
    """8 h + 4 q + 4 k + 6 f + 8 + 4 a + 8 r bytes a token, all divided: both normalised inputs are this rank's tokens."""
    config = adapted(tensor_parallel=tensor, sequence_parallel=tensor > 1, options=BRIDGE)
    found = layer_curve(llama_8b(), config).saved_bytes
    assert found * tensor == TOKENS * (8 * H + 4 * Q + 4 * K + 6 * F + 8 + 4 * A + 8 * RANK)


def test_mcore_bridges_outputs_of_the_rank_are_whole_without_sequence_parallelism() -> None:
    """Residual stream, normalised inputs and four outputs of the rank are whole on every tensor rank."""
    found = layer_curve(llama_8b(), adapted(tensor_parallel=2, options=BRIDGE)).saved_bytes
    assert found == TOKENS * ((4 * Q + 4 * K + 6 * F + 4 * A) // 2 + 8 * H + 8 + 8 * RANK)


def test_a_matrix_of_each_of_mcore_bridges_adapters_is_whole() -> None:
    """Beside a column-parallel layer the first is, beside a row-parallel one the second; any rank will do."""
    model, lora = llama_8b(4), Lora(3, EVERY, "bf16")
    two = megatron_ranks(job(model, grid(2, tensor=2), method="lora", lora=lora, options=BRIDGE), model)[0]
    outputs, inputs = Q + 2 * K + 2 * F, Q + F
    assert two.peak.components_bytes["gradients"] == 4 * 4 * 3 * (2 * H + outputs // 2 + inputs // 2 + 2 * H)


def test_mcore_bridges_experts_have_adapters_of_their_own() -> None:
    """Two matrices for each local expert, none of which tensor ranks may divide."""
    model = deepseek_v2(2)
    lora = Lora(8, ("linear_fc1",))
    found = job(model, grid(1), method="lora", lora=lora, options=BRIDGE)
    h, dense, expert, shared, experts = 5120, 12288, 1536, 2 * 1536, 160
    assert adapter_parameters(found, model) == 8 * ((2 + experts) * h + 2 * (dense + experts * expert + shared))
    cut = grid(2, tensor=2, expert_tensor=2)
    with pytest.raises(UnsupportedError, match="no adapters of experts that 2 tensor ranks divide"):
        megatron_ranks(job(model, cut, method="lora", lora=lora, options=BRIDGE), model)


def test_what_mcore_bridges_embedding_gives_wants_a_gradient() -> None:
    """The first layer's backward makes it, with nothing recomputed, too; Megatron-Bridge's stops at the first adapter."""
    model, lora = llama_8b(1), Lora(RANK, ("linear_fc2",), "bf16")
    bridge, other = (
        megatron_ranks(job(model, grid(1), method="lora", lora=lora, options=each), model)[0] for each in (BRIDGE, {})
    )
    assert bridge.peak.allocated_bytes >= other.peak.allocated_bytes
    moments = [{i.name: i.allocated_bytes for i in each.instants} for each in (bridge, other)]
    assert moments[0]["forward"] > moments[1]["forward"]


def test_rows_without_padding_lie_end_to_end() -> None:
    """FlashAttention transposes a batch of several rows into copies, and one row of all of them not at all."""
    rows = {"attention_backend": "flash"}
    batch = layer_curve(llama_8b(), setting(H, sequence=TOKENS // 4, batch=4, attention="flash", options=rows))
    one = layer_curve(llama_8b(), setting(H, sequence=TOKENS, attention="flash", options=rows))
    assert batch.backward_peak.bytes > one.backward_peak.bytes
    model = llama_8b(1)
    laid = {**rows, "padding_free": True}
    found = [megatron_setting(job(model, grid(1), micro_batch_size=4, options=o), model) for o in (rows, laid)]
    assert [(s.batch, s.sequence // found[0].sequence) for s in found] == [(4, 1), (1, 4)]
    unfused = {**laid, "attention_backend": "unfused"}
    with pytest.raises(UnsupportedError, match="end to end"):
        megatron_setting(job(model, grid(1), options=unfused), model)
