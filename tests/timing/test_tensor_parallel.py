"""What tensor parallelism exchanges, what products hide of it, and what torchtitan's releases add."""

from __future__ import annotations

import pytest

from memcheck.catalog.names import find_gpu
from memcheck.frameworks.registry import FRAMEWORKS, timing_of
from memcheck.frameworks.torchtitan.stack import is_batched, repeats_kv_heads
from memcheck.timing.model import parts_of, shape_of
from memcheck.timing.rates import exposed, matmul, rates_of
from memcheck.timing.tensor_parallel import ENGINE, TORCH, Half, TensorWires, tensor_seconds, tensor_wires
from tests.timing.plans import job, timed

H100 = rates_of(find_gpu("h100-80gb"), "bf16", 8, fp8=False)
ASYNC = {"enable_async_tensor_parallel": True}


def test_nothing_runs_beside_plain_exchanges() -> None:
    """Two halves, forward and backward: four pairs, and one more for each half that is recomputed."""
    w = TensorWires(8, gather_seconds=2.0, scatter_seconds=3.0)
    halves = (Half(column_seconds=100.0, row_seconds=100.0), Half(column_seconds=100.0, row_seconds=100.0))
    assert tensor_seconds(w, halves, 2, 0.0) == 20.0
    assert tensor_seconds(w, halves, 2, 2.0) == 30.0
    assert tensor_seconds(w, (), 2, 0.0) == 20.0


def test_chunks_hide_behind_the_products_beside_them() -> None:
    """Of eight chunks one is the rank's own: seven eighths of a product hide an exchange, and the rest of it waits."""
    w = TensorWires(8, gather_seconds=7.0, scatter_seconds=7.0, hiding_library=TORCH)
    wide, thin = Half(8.0, 8.0, 8.0, 8.0, 8.0, 1), Half(4.0, 4.0, 4.0, 4.0, 4.0, 1)
    assert tensor_seconds(w, (wide,), 1, 0.0) == 0.0
    assert tensor_seconds(w, (thin,), 1, 0.0) == 4 * (7.0 - 3.5)


def test_a_gradient_that_is_added_up_is_scattered_on_its_own() -> None:
    """Queries, keys and values read one input: torch fuses a reduce-scatter with the one product that makes it only,
    Transformer Engine puts it behind the gradients of the weights.
    """
    qkv = Half(8.0, 8.0, 8.0, 8.0, 8.0, 3)
    w = TensorWires(8, gather_seconds=7.0, scatter_seconds=7.0, copy_seconds=(0.0, 0.5), hiding_library=TORCH)
    assert tensor_seconds(w, (qkv,), 1, 0.0) == 7.5
    assert tensor_seconds(w._replace(hiding_library=ENGINE), (qkv,), 1, 0.0) == 0.0


def test_megatron_gathers_inputs_again_for_the_gradients_of_weights() -> None:
    """Behind the gradient of the input; with ``tp_comm_overlap`` the chunks do it."""
    w = TensorWires(8, gather_seconds=7.0, scatter_seconds=7.0, gathers_input_twice=True, collective_sm_share=0.1)
    assert tensor_seconds(w, (Half(column_input_gradient_seconds=4.0),), 1, 0.0) == 28.0 + exposed(7.0, 4.0, 0.1)
    plain, overlapped = (
        tensor_wires(job(framework="megatron", tensor=8, **keys), 1e9, 2, H100)
        for keys in ({}, {"options": {"tp_comm_overlap": True}})
    )
    assert (plain.gathers_input_twice, plain.hiding_library) == (True, "")
    assert (overlapped.gathers_input_twice, overlapped.hiding_library) == (False, ENGINE)


def test_asynchronous_exchanges_gain_less_where_products_are_thin() -> None:
    """Eight ranks share an 8B model's products, which are shorter than their exchanges; a 405B model's are not."""

    def left(model: str, gpus: int) -> float:
        plain, chunked = (
            timed(model, gpus, tensor=8, zero_stage=3, compile=True, options=options).exchanges.tensor
            for options in ({}, ASYNC)
        )
        return chunked / plain

    assert left("llama-3.1-405b", 128) < left("llama-3.1-8b", 64) < 1
    assert left("llama-3.1-405b", 128) > 0.2  # the two sums of gradients stay


def test_torch_copies_what_it_gathers_along_the_sequence() -> None:
    """``pytorch`` and torchtitan's releases keep [batch, sequence, hidden]; main and Megatron gather their first
    dimension.
    """
    size = 1e9

    def copies(framework: str, version: str | None = None) -> float:
        keys = {"framework_version": version} if version else {}
        found = job(framework=framework, tensor=8, sequence=True, zero_stage=1, **keys)
        return sum(tensor_wires(found, size, 2, H100).copy_seconds)

    assert copies("torchtitan") == copies("megatron") == 0.0
    assert copies("torchtitan", "0.2.2") == copies("pytorch") == pytest.approx(4 * size / H100.hbm_bandwidth)


def test_releases_of_torchtitan() -> None:
    """0.2.2 took grouped heads, main folds the batch; what is no release is main."""
    told = {v: job(framework_version=v) for v in ("0.0.2", "v0.2.1", "0.2.2", "0.3", "main")}
    assert [v for v, j in told.items() if is_batched(j)] == ["0.0.2", "v0.2.1", "0.2.2"]
    assert [v for v, j in told.items() if repeats_kv_heads(j)] == ["0.0.2", "v0.2.1"]
    assert not timing_of(FRAMEWORKS["megatron"]).repeats_kv_heads(job(framework="megatron", framework_version="0.2.1"))
    assert not is_batched(job())


def test_repeated_keys_travel_around_the_ring() -> None:
    """Llama's 8 key heads become 32: four times the keys and values between context-parallel ranks."""
    few, many = (job(context=4, framework_version=version) for version in ("0.2.2", "0.2.1"))
    costs = [parts_of(j.architecture, shape_of(j), H100).layer_costs[0] for j in (few, many)]  # type: ignore[arg-type]
    assert costs[1].kv_bytes == 4 * costs[0].kv_bytes
    assert costs[1].forward.memory_seconds > costs[0].forward.memory_seconds


def test_fp8_products_write_sixteen_bits() -> None:
    """A product of few inner channels is bound by its result, which fp8 does not narrow."""
    seconds, by_memory = matmul(98304, 4096, 64, H100, item_bytes=1)
    assert by_memory
    assert seconds == pytest.approx((98304 * 64 + 64 * 4096 + 2 * 98304 * 4096) / H100.hbm_bandwidth)


def test_torchao_transposes_what_fp8_multiplies() -> None:
    """The gradients of weights need copies of both operands: as many bytes as fp8 tensors are read and written."""
    titan = job("llama-3.1-8b", 8, zero_stage=3, compile=True, precision="fp8-mixed")
    frozen = job("llama-3.1-8b", 8, zero_stage=3, compile=True, precision="fp8-mixed", freeze=["layers:0-32"])
    fp8 = rates_of(find_gpu("h100-80gb"), "bf16", 8, fp8=True)
    trained, untrained = (parts_of(j.architecture, shape_of(j), fp8).layer_costs[0] for j in (titan, frozen))  # type: ignore[arg-type]
    outputs = 4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096
    inputs = 4096 + 4096 + 4096 + 14336
    assert trained.weight_gradients.memory_seconds == pytest.approx(2 * 8192 * (outputs + inputs) / fp8.hbm_bandwidth)
    assert untrained.weight_gradients.memory_seconds == 0.0


def test_gradients_of_a_shared_input_are_added_up() -> None:
    """Gate and up projection read one input: eager reads two gradients and writes one; Megatron has one product."""
    eager = job("llama-3.1-8b", 8, zero_stage=3)
    released = job("llama-3.1-8b", 8, zero_stage=3, framework_version="0.2.2")
    main, old = (parts_of(j.architecture, shape_of(j), H100).layer_costs[0] for j in (eager, released))  # type: ignore[arg-type]
    added = 2 * 3 * 2 * 8192 * 4096  # of queries, keys and values: two sums of 16 bits
    assert old.input_gradients.memory_seconds - main.input_gradients.memory_seconds == pytest.approx(
        added / H100.hbm_bandwidth
    )
