"""The shapes of experts' tensors on ranks that share the experts, and cut them."""

from __future__ import annotations

import pytest

from memcheck.accounts.state import adapter_tensors, local_tensor
from memcheck.autograd.weight_formats import FORMATS
from memcheck.families.registry import catalog_architecture
from memcheck.job.types import Lora
from memcheck.models.module_types import ParameterTensor
from memcheck.models.types import Moe


@pytest.mark.parametrize(
    ("model", "expert", "cut", "shapes"),
    [
        # up and gate [8, 2 x 14336, 4096], down [8, 4096, 14336]
        ("mixtral-8x7b", 4, 1, {(2, 28672, 4096), (2, 4096, 14336)}),
        ("mixtral-8x7b", 8, 2, {(1, 14336, 4096), (1, 4096, 7168)}),
        # three matrices of all experts' rows, [16 x 10752, 6144] each
        ("dbrx", 4, 1, {(43008, 6144)}),
        ("dbrx", 8, 2, {(10752, 6144)}),
        # matrices that are kept transposed, [32, 2880, 5760] and [32, 2880, 2880], and their biases
        ("gpt-oss-20b", 4, 1, {(8, 2880, 5760), (8, 2880, 2880), (8, 5760), (8, 2880)}),
        ("gpt-oss-20b", 4, 2, {(8, 2880, 2880), (8, 1440, 2880), (8, 2880)}),
    ],
)
def test_experts_are_divided_and_their_matrices_cut(
    model: str, expert: int, cut: int, shapes: set[tuple[int, ...]]
) -> None:
    """Whole experts on each rank; a cut goes through what they compute in between, and leaves a bias behind it whole."""
    experts = next(block.mlp for block, _ in catalog_architecture(model).blocks if isinstance(block.mlp, Moe))
    found = {local_tensor(t, experts, 1, expert, cut) for t in experts.tensors if t.group == "experts"}
    assert found == shapes


@pytest.mark.parametrize(("transposed", "shape"), [(False, (300, 100)), (True, (100, 300))])
def test_adapters_of_a_matrix_that_is_kept_transposed(transposed: bool, shape: tuple[int, int]) -> None:
    """GPT-2 keeps [inputs, outputs]: A still reads 100 inputs, B still writes 300 outputs, DoRA scales 300."""
    tensor = ParameterTensor("h.0.mlp.c_fc.weight", shape, "mlp", transposed=transposed)
    a, b, magnitudes = adapter_tensors(tensor, shape, Lora(rank=4, dora=True))
    assert (a.shape, b.shape) == ((4, 100), (300, 4))
    assert magnitudes.numel == 300


@pytest.mark.parametrize(
    ("kind", "constants"),
    [
        # a byte per 64 weights, fp32 per 256 of these, tables of 256 and of 16 values, a mean
        ("nf4", 2**18 + 4 * 2**10 + 1024 + 512 + 512),
        ("nf4-single", 4 * 2**18 + 512),
    ],
)
def test_constants_of_four_bits_are_whole_on_every_rank(kind: str, constants: int) -> None:
    """FSDP divides the packed weights of a matrix [4096, 4096]; its constants are attributes of the parameter."""
    for ranks in (1, 4):
        assert FORMATS[kind].stored_bytes((4096, 4096), 2**24 // ranks) == 2**23 // ranks + constants
