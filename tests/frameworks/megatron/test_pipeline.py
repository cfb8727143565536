"""Stages, schedules, losses and refusals."""

from __future__ import annotations

import pytest

from memcheck.errors import UnsupportedError
from memcheck.frameworks.megatron.head import MegatronHead, megatron_head_curve
from memcheck.frameworks.megatron.prediction import prediction_tensors
from memcheck.frameworks.megatron.ranks import megatron_ranks
from memcheck.frameworks.megatron.schedule import Pass, SchedulePosition, runs
from memcheck.frameworks.megatron.setting import megatron_setting
from memcheck.frameworks.megatron.stages import stages
from memcheck.frameworks.megatron.units import recompute_groups
from memcheck.job.types import Checkpointing, Layout, Lora
from memcheck.models.types import Architecture
from tests.frameworks.megatron.every_event import expanded
from tests.frameworks.megatron.models import deepseek_v2, grid, job, llama_8b, setting

TE_LOSS = {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "te"}


def layers_per_rank(num_layers: int, **changes: object) -> list[list[int]]:
    """Number of layers in each chunk of each rank."""
    options = changes.pop("options", {})
    case = job(llama_8b(num_layers), grid(8, **changes), options=options)
    return [[len(c.layers) for c in rank] for rank in stages(num_layers, case)]


def test_layers_are_split_evenly_or_as_the_plan_says() -> None:
    """Even splits, uneven first and last stages, and stages that count the embedding and the loss as layers."""
    assert layers_per_rank(32, pipeline=4) == [[8], [8], [8], [8]]
    uneven = {"decoder_first_pipeline_num_layers": 6, "decoder_last_pipeline_num_layers": 2}
    assert layers_per_rank(12, pipeline=4, options=uneven) == [[6], [2], [2], [2]]
    counted = {"account_for_embedding_in_pipeline_split": True, "account_for_loss_in_pipeline_split": True}
    assert layers_per_rank(30, pipeline=4, options=counted) == [[7], [8], [8], [7]]


def test_virtual_stages_cut_ranks_into_chunks() -> None:
    """Chunk c of rank s holds the layers behind those of all ranks' earlier chunks."""
    assert layers_per_rank(16, pipeline=4, virtual_stages=2) == [[2, 2]] * 4
    assert layers_per_rank(16, pipeline=4, options={"num_layers_per_virtual_pipeline_stage": 1}) == [[1] * 4] * 4
    case = job(llama_8b(16), grid(8, pipeline=4, virtual_stages=2))
    assert [c.layers for c in stages(16, case)[1]] == [(2, 3), (10, 11)]


def test_layouts_are_read() -> None:
    """Letters and groups repeat, stages go round the ranks, and E, t, m and L say what is in them."""
    options = {"pipeline_model_parallel_layout": "Ettt|(tt|)*6mL", "mtp_num_layers": 1}
    found = stages(15, job(llama_8b(15), grid(8, pipeline=4), options=options))
    assert [[c.layers for c in rank] for rank in found] == [
        [(0, 1, 2), (9, 10)],
        [(3, 4), (11, 12)],
        [(5, 6), (13, 14)],
        [(7, 8), ()],
    ]
    assert [[(c.has_embedding, c.has_head, c.mtp_layers) for c in found[i]] for i in (0, 3)] == [
        [(True, False, 0), (False, False, 0)],
        [(False, False, 0), (False, True, 1)],
    ]
    repeated = {"pipeline_model_parallel_layout": "Et*3|(tt|)*6mL", "mtp_num_layers": 1}
    assert stages(15, job(llama_8b(15), grid(8, pipeline=4), options=repeated)) == found


def test_a_layout_that_does_not_fit_is_refused() -> None:
    """Stages must be a multiple of the pipeline ranks."""
    case = job(llama_8b(4), grid(8, pipeline=4), options={"pipeline_model_parallel_layout": "Ett|t|tL"})
    with pytest.raises(UnsupportedError, match="3 stages"):
        stages(4, case)


def in_flight(rank: int, pipeline: int, chunks: int, micro_batches: int, overlaps: bool = False) -> int:
    """The most forwards ahead of backwards."""
    most = now = 0
    for one in expanded(runs(SchedulePosition(rank, pipeline, chunks, pipeline, overlaps), micro_batches)):
        now += 1 if one.is_forward else -1
        most = max(most, now)
    return most


def test_micro_batches_in_flight() -> None:
    """1F1B holds P - s of them; interleaving 2 (P - s - 1) + (v - 1) P + 1 chunks; never more than there are."""
    assert [in_flight(s, 4, 1, 16) for s in range(4)] == [4, 3, 2, 1]
    assert [in_flight(s, 4, 1, 2) for s in range(4)] == [2, 2, 2, 1]
    assert [in_flight(s, 4, 2, 16) for s in range(4)] == [11, 9, 7, 5]
    assert in_flight(0, 1, 1, 16) == 1


def test_overlapped_expert_communication_warms_up_with_one_forward_more() -> None:
    """get_pp_rank_microbatches adds it under interleaving alone, so that a forward and a backward are independent."""
    assert [in_flight(s, 4, 2, 16, overlaps=True) for s in range(4)] == [12, 10, 8, 6]
    assert [in_flight(s, 4, 1, 16, overlaps=True) for s in range(4)] == [4, 3, 2, 1]


def test_every_forward_has_its_backward() -> None:
    """The walk ends with nothing in flight, chunk by chunk."""
    for rank in range(4):
        found = list(expanded(runs(SchedulePosition(rank, 4, 2, 4), 8)))
        for chunk in range(2):
            assert found.count(Pass(True, chunk)) == found.count(Pass(False, chunk))


def test_the_first_stage_holds_the_most() -> None:
    """Earlier stages keep more micro-batches alive; the last one has the logits instead."""
    model = llama_8b()
    found = megatron_ranks(job(model, grid(8, pipeline=4), gradient_accumulation_steps=8), model)
    held = [max(i.components_bytes["activations"] for i in r.instants) for r in found]
    assert held[0] > held[1] > held[2] > held[3]
    assert "logits_and_loss" in found[3].peak.components_bytes


@pytest.mark.parametrize(
    ("options", "item"),
    [
        ({}, 6),
        ({"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": "native"}, 10),
        (TE_LOSS, 6),
        (TE_LOSS | {"transformer_engine_version": "2.17"}, 2),
    ],
)
def test_bytes_per_logit(options: dict[str, object], item: int) -> None:
    """Unfused: bf16 logits and their fp32 copy. Compiled: one more fp32 tensor. TE: an fp32 gradient, before 2.18 none."""
    tokens, vocabulary, tensor = 8192, 131072, 4
    curve = megatron_head_curve(
        MegatronHead(vocabulary, None, tied=False),
        setting(1024, sequence=tokens, tensor_parallel=tensor, options=options),
    )
    logits = tokens * vocabulary // tensor
    assert curve.forward_peak.bytes == pytest.approx(item * logits, rel=0.035)


def test_a_tied_weights_gradient_waits_for_the_embeddings() -> None:
    """Without fused accumulation the output layer's dW lives until the embedding's backward."""
    options = {"gradient_accumulation_fusion": False}
    tied = megatron_head_curve(MegatronHead(131072, None, tied=True), setting(1024, options=options))
    apart = megatron_head_curve(MegatronHead(131072, None, tied=False), setting(1024, options=options))
    fused = megatron_head_curve(MegatronHead(131072, None, tied=True), setting(1024))
    assert (tied.until_backward_ends, apart.until_backward_ends, fused.until_backward_ends) == (2 * 131072 * 1024, 0, 0)


def test_recompute_methods() -> None:
    """uniform checkpoints groups of layers, block the first layers of a stage."""
    layers = tuple(range(6))

    def groups(**options: object) -> list[tuple[tuple[int, ...], bool]]:
        case = job(llama_8b(6), grid(1), checkpointing=Checkpointing("full"), options=options)
        return recompute_groups(case, megatron_setting(case, llama_8b(6)), layers)

    assert groups() == [((i,), True) for i in layers]
    assert groups(recompute_num_layers=3) == [((0, 1, 2), True), ((3, 4, 5), True)]
    block = groups(recompute_method="block", recompute_num_layers=2)
    assert [r for _, r in block] == [True, True, False, False, False, False]


def test_full_recompute_saves_memory() -> None:
    """More recompute never costs memory at the peak of a deep model."""
    model = llama_8b()
    peaks = [
        megatron_ranks(job(model, grid(8, tensor=2, sequence=True), checkpointing=Checkpointing(m)), model)[0]
        for m in ("none", "full")
    ]
    assert peaks[1].peak.allocated_bytes < peaks[0].peak.allocated_bytes


def test_prediction_layers_bring_a_layer_a_loss_and_an_embedding() -> None:
    """mtp_num_layers adds a transformer layer, its projection and a second pass through the output layer."""
    model = llama_8b(8)
    alone = megatron_ranks(job(model, grid(8, pipeline=2)), model)
    more = megatron_ranks(job(model, grid(8, pipeline=2), options={"mtp_num_layers": 1}), model)
    layer = 218_112_000
    extra = more[1].parameters - alone[1].parameters
    assert extra == layer + 2 * 4096 * 4096 + 3 * 4096 + 128256 * 4096
    assert more[0].parameters == alone[0].parameters
    assert more[1].peak.allocated_bytes > alone[1].peak.allocated_bytes


def test_chunks_are_walked_up_to_a_limit() -> None:
    """Each of them lives beside all others, so that thousands would take minutes."""
    with pytest.raises(UnsupportedError, match="more than 256 model chunks") as caught:
        layers_per_rank(2048, pipeline=2, options={"num_layers_per_virtual_pipeline_stage": 1})
    assert caught.value.pointer == "/parallelism/virtual_stages"


def test_prediction_layers_are_trained_whole() -> None:
    """Norms and projection have gradients and states, as the layer has."""
    model = llama_8b(8)
    tensors = prediction_tensors(job(model, grid(8)), model, model.layers()[-1])
    assert all(tensor.trained for tensor in tensors)


def test_prediction_depths_may_share_a_layer() -> None:
    """mtp_use_repeated_layer: the second depth brings activations, no parameters."""
    model = llama_8b(8)
    once, twice, shared = (
        megatron_ranks(job(model, grid(8), options=options), model)[0]
        for options in (
            {"mtp_num_layers": 1},
            {"mtp_num_layers": 2},
            {"mtp_num_layers": 2, "mtp_use_repeated_layer": True},
        )
    )
    assert once.parameters == shared.parameters < twice.parameters
    assert once.peak.allocated_bytes < shared.peak.allocated_bytes < twice.peak.allocated_bytes


def test_the_old_name_of_recomputed_mixtures() -> None:
    """moe_layer_recompute is recompute_modules with moe."""
    model = deepseek_v2()
    old, new = (
        megatron_ranks(job(model, grid(8, expert=8), options=options), model)[0]
        for options in (
            {"moe_layer_recompute": True},
            {"recompute_granularity": "selective", "recompute_modules": ("core_attn", "moe")},
        )
    )
    assert old.peak == new.peak


def test_components_add_up_at_every_instant() -> None:
    """Every byte has one component, for dense, routed, recomputed, interleaved and sharded ranks."""
    cases: tuple[tuple[Architecture, Layout, dict[str, object]], ...] = (
        (llama_8b(8), grid(8, pipeline=2, virtual_stages=2), {}),
        (llama_8b(8), grid(8, zero_stage=3), {}),
        (llama_8b(8), grid(8, tensor=2, sequence=True), {"recompute_granularity": "selective"}),
        (deepseek_v2(), grid(8, expert=8), {"moe_token_dispatcher_type": "alltoall"}),
        (deepseek_v2(), grid(8, expert=4), {"moe_token_dispatcher_type": "flex"}),
        (
            deepseek_v2(),
            grid(8, tensor=2, sequence=True, expert=4),
            {"recompute_granularity": "selective", "recompute_modules": ("moe_act", "mla_up_proj", "layernorm")},
        ),
    )
    for model, layout, options in cases:
        for rank in megatron_ranks(job(model, layout, options=options), model, inventory=True):
            for instant in rank.instants:
                assert sum(instant.components_bytes.values()) == instant.allocated_bytes
                assert min(instant.components_bytes.values()) >= 0
            assert bool(rank.formulas) == bool(rank.largest)


def test_what_has_no_model_is_refused() -> None:
    """Adapters beside fp8 and offloaded activations raise, with the key to change."""
    model = llama_8b(2)
    with pytest.raises(UnsupportedError) as adapters:
        megatron_ranks(job(model, grid(1), method="lora", lora=Lora(), options={"fp8_format": "hybrid"}), model)
    assert adapters.value.pointer == "/training/precision"
    with pytest.raises(UnsupportedError) as offload:
        megatron_ranks(job(model, grid(1), options={"fine_grained_activation_offloading": True}), model)
    assert offload.value.pointer == "/training/options/fine_grained_activation_offloading"
    with pytest.raises(UnsupportedError) as graphs:
        megatron_ranks(job(model, grid(1), options={"cuda_graph_impl": "local"}), model)
    assert graphs.value.pointer == "/training/options/cuda_graph_impl"
    megatron_ranks(job(model, grid(1), options={"cuda_graph_impl": "none", "delay_wgrad_compute": False}), model)


def test_frozen_layers_keep_nothing_below_the_first_trained_one() -> None:
    """A frozen embedding and frozen lower layers have no gradients and save nothing."""
    model = llama_8b(8)
    whole = megatron_ranks(job(model, grid(8)), model)[0]
    part = megatron_ranks(job(model, grid(8), freeze=("embed", "layers:0-4")), model)[0]
    assert part.peak.components_bytes["gradients"] < whole.peak.components_bytes["gradients"]
    saved = [max(i.components_bytes["activations"] for i in r.instants) for r in (whole, part)]
    assert saved[1] < 0.6 * saved[0]
