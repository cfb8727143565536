"""The layer of quantization-aware training against torchao's own.

Traced: ``Int8DynActInt4WeightQATLinear`` of torchao 0.18 with torch 2.13.0 on the CPU, 1,024 tokens, 1,024 inputs, 2,048
outputs in bf16, groups of 256: storages that are alive, without the input and the weight.
"""

from __future__ import annotations

import pytest

from memcheck.autograd.engine import backward
from memcheck.autograd.kernels import Weights, linear
from memcheck.autograd.tensor import Leaf, Parameter, Tape, Value

TOKENS, INPUTS, OUTPUTS = 1024, 1024, 2048
TRACED = {True: (23_179_264, 35_762_176, 44_150_788), False: (12_660_736, 27_340_800, 23_146_500)}
"""With a trained weight, with a frozen one: alive after the forward, its highest point, that of the backward."""


@pytest.mark.parametrize("trained", [True, False])
def test_a_fake_quantised_product_is_torchaos(trained: bool) -> None:
    """What stays, and both highest points. Scales that the layer keeps for good are counted when its unit is done."""
    tape = Tape()
    weights = Weights(Parameter("w", (OUTPUTS, INPUTS), "bf16", trained, has_grad=False))
    weights.fake_quantizer = ("Int8DynActInt4WeightQATQuantizer", 256)
    x = Value(tape.new((TOKENS, INPUTS), "bf16", "x"), (TOKENS, INPUTS), "bf16", Leaf())
    before = tape.live
    y = linear(tape, x, weights, "linear")
    kept, forward = tape.live - before, tape.peak - before
    held = y.storage
    arrived = [tape.new((TOKENS, OUTPUTS), "bf16", "gradient")]
    outer = arrived[0]  # both are variables of the traced script
    tape.reset_peak()
    backward(tape, y, arrived)
    del held, outer
    for ours, theirs in zip((kept, forward, tape.peak - before), TRACED[trained], strict=True):
        assert ours == pytest.approx(theirs, rel=4e-3)


INT4_TRACED = {True: (49_295_360, 57_946_112, 74_985_472), False: (12_595_200, 40_906_752, 23_081_472)}
"""The same of ``FakeQuantizedLinear`` with inputs by token to int8 and Int4WeightFakeQuantizer, groups of 32."""


@pytest.mark.parametrize("trained", [True, False])
def test_a_weight_in_four_bits_goes_through_fp32(trained: bool) -> None:
    """Four fp32 copies of a trained weight wait for backward; a frozen one has as many for a moment."""
    tape = Tape()
    weights = Weights(Parameter("w", (OUTPUTS, INPUTS), "bf16", trained, has_grad=False))
    weights.fake_quantizer = ("int8-int4", 32)
    x = Value(tape.new((TOKENS, INPUTS), "bf16", "x"), (TOKENS, INPUTS), "bf16", Leaf())
    before = tape.live
    y = linear(tape, x, weights, "linear")
    kept, forward = tape.live - before, tape.peak - before
    held = y.storage
    arrived = [tape.new((TOKENS, OUTPUTS), "bf16", "gradient")]
    outer = arrived[0]  # both are variables of the traced script
    tape.reset_peak()
    backward(tape, y, arrived)
    del held, outer
    for ours, theirs in zip((kept, forward, tape.peak - before), INT4_TRACED[trained], strict=True):
        assert ours == pytest.approx(theirs, rel=5e-4)
