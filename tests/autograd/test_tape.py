"""The replay of autograd: who keeps what, and what dies when."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from memcheck.autograd import Parameter, Storage, Tape, Value, backward, rounded
from memcheck.autograd.engine import checkpoint
from memcheck.autograd.kernels import Weights, embedding, linear
from memcheck.autograd.operator import add, cast, divide_rows, dropout, index, mul, power, sum_groups, unary
from memcheck.autograd.tensor import Leaf, promote
from tests.sources import trees

MIB = 2**20
SHAPE = (1024, 1024)
HALF = 2 * MIB
"""Bytes of SHAPE in bf16."""


def weight(*, trained: bool = True, has_grad: bool = False) -> Parameter:
    """A square matrix."""
    return Parameter("w", SHAPE, "bf16", trained, has_grad=has_grad)


def test_blocks_are_rounded_up_as_the_caching_allocator_does() -> None:
    """No block is smaller than 512 bytes."""
    assert [rounded(n) for n in (0, 1, 512, 513)] == [0, 512, 512, 1024]


def test_a_storage_lives_as_long_as_something_refers_to_it() -> None:
    """Views share it; the last reference frees it."""
    tape = Tape()
    x = tape.value(SHAPE, "bf16", "x")
    view = x.view(512, 2048)
    del x
    assert tape.live == HALF
    del view
    assert tape.live == 0
    assert tape.peak == HALF


def test_elementwise_results_take_the_wider_dtype() -> None:
    """bf16 with fp32 gives fp32, and so do bf16 and fp16."""
    assert promote("bf16", "fp32") == "fp32"
    assert promote("bf16", "fp16") == "fp32"
    assert promote("bf16", "bf16") == "bf16"


def test_a_linear_layer_keeps_its_input_only_for_its_weight() -> None:
    """A frozen weight needs no input for its gradient; ZeRO-3's own function saves it all the same."""
    for trained, saves, kept in ((True, False, HALF), (False, False, 0), (False, True, HALF)):
        tape = Tape()
        tape.saves_linear_inputs = saves
        x = tape.leaf(SHAPE, "bf16", "x")
        y = linear(tape, x, Weights(weight(trained=trained)), "linear")
        x.storage = y.storage = None
        assert tape.live == kept


def test_backward_frees_what_was_saved_and_leaves_the_gradients() -> None:
    """After backward only the weight's and the input's gradients are alive."""
    tape = Tape()
    w = weight()
    x = tape.leaf(SHAPE, "bf16", "x")
    leaf = x.origin
    y = linear(tape, x, Weights(w), "linear")
    x.storage = y.storage = None
    backward(tape, y, [tape.new(SHAPE, "bf16", "gradient")])
    assert tape.by_component["gradients"] == HALF
    assert isinstance(leaf, Leaf)
    assert leaf.grad is not None
    assert tape.live == 2 * HALF
    assert tape.peak == 4 * HALF, "input, incoming gradient, dX and dW at once"


def test_an_existing_gradient_takes_the_new_one_in_place() -> None:
    """From the second micro-batch on, a weight's new gradient is a temporary."""
    tape = Tape()
    x = tape.leaf(SHAPE, "bf16", "x")
    y = linear(tape, x, Weights(weight(has_grad=True)), "linear")
    x.storage = y.storage = x.origin = None
    backward(tape, y, [tape.new(SHAPE, "bf16", "gradient")])
    assert tape.by_component.get("gradients", 0) == 0
    assert tape.live == 0


def test_a_product_keeps_each_factor_for_the_other() -> None:
    """A factor that wants no gradient is all that is kept for the one that does."""
    tape = Tape()
    a, b = tape.leaf(SHAPE, "bf16", "a"), tape.value(SHAPE, "bf16", "b")
    y = mul(tape, a, b)
    a.storage = y.storage = None
    assert tape.live == HALF
    b.storage = None
    assert tape.live == HALF, "kept for the gradient of a"


def test_a_cast_keeps_nothing() -> None:
    """x.float() leaves only its result behind."""
    tape = Tape()
    x = tape.leaf(SHAPE, "bf16", "x")
    y = cast(tape, x, "fp32")
    x.storage = None
    assert tape.live == 2 * HALF
    assert cast(tape, y, "fp32") is y


def test_relu_keeps_its_result_and_silu_its_input() -> None:
    """What a derivative is computed from decides what is kept."""
    for name, same_storage in (("relu", True), ("silu", False)):
        tape = Tape()
        x = tape.leaf(SHAPE, "bf16", "x")
        y = unary(tape, x, name)
        x.storage = None
        assert tape.live == (HALF if same_storage else 2 * HALF)
        del y


def test_derivatives_that_are_expressions_make_temporaries() -> None:
    """expm1's is ``grad * (result + 1)``: a sum beside the gradient and the result; tanh's is one kernel."""
    highest = {}
    for name in ("tanh", "expm1"):
        tape = Tape()
        y = unary(tape, tape.leaf(SHAPE, "bf16", "x"), name)
        tape.peak = 0
        backward(tape, y, [tape.new(SHAPE, "bf16", "gradient")])
        highest[name] = tape.peak
    assert highest["expm1"] - highest["tanh"] == HALF


def test_dropout_keeps_a_byte_per_element() -> None:
    """native_dropout saves a boolean mask; without dropout nothing happens."""
    tape = Tape()
    x = tape.leaf(SHAPE, "bf16", "x")
    y = dropout(tape, x, 0.1)
    x.storage = y.storage = None
    assert tape.live == MIB
    assert dropout(tape, x, 0.0) is x


def test_gradients_that_meet_are_added_in_place() -> None:
    """The residual sum hands one gradient to both branches; where they meet again nothing new is made."""
    tape = Tape()
    x = tape.leaf(SHAPE, "bf16", "x")
    start = unary(tape, x, "relu")
    y = add(tape, start, unary(tape, start, "relu"))
    x.storage = start.storage = y.storage = None
    start.origin = None
    tape.reset_peak()
    before = tape.live
    backward(tape, y, [tape.new(SHAPE, "bf16", "gradient")])
    assert tape.peak - before == 2 * HALF, "the handed-over gradient and the branch's own"


def test_a_gradient_of_a_linear_layer_takes_no_other_in_place() -> None:
    """It goes on as a view of the product's result: the sum of two such gradients, as of a layer and its adapter of
    the same dtype, is a third tensor.
    """
    tape = Tape()
    x = tape.leaf(SHAPE, "bf16", "x")
    h = unary(tape, x, "silu")
    narrow = Parameter("w", (8, SHAPE[1]), "bf16", requires_grad=False, has_grad=False)
    parts = [linear(tape, h, Weights(narrow), name) for name in ("base", "branch")]
    y = add(tape, *parts)
    for value in (x, h, y, *parts):
        value.storage = None
    tape.reset_peak()
    backward(tape, y, [tape.new((SHAPE[0], 8), "bf16", "gradient")])
    assert tape.peak == 4 * HALF, "what silu keeps, the gradient of either layer, and their sum"


def test_dtensor_gradients_are_added_out_of_place() -> None:
    """can_accumulate_inplace refuses tensor subclasses."""
    peaks = []
    for subclass in (False, True):
        tape = Tape()
        tape.dtensor_gradients = subclass
        x = tape.leaf(SHAPE, "bf16", "x")
        start = cast(tape, x, "fp32")
        y = add(tape, start, power(tape, start))
        x.storage = start.storage = y.storage = None
        start.origin = None
        tape.reset_peak()
        backward(tape, y, [tape.new(SHAPE, "fp32", "gradient")])
        peaks.append(tape.peak)
    assert peaks[1] >= peaks[0]


def test_a_tensor_used_twice_gets_one_gradient() -> None:
    """The graph below a shared tensor runs once, when both gradients have arrived."""
    tape = Tape()
    calls = []
    x = tape.leaf(SHAPE, "bf16", "x")

    def run(grad: Storage) -> list[Storage | None]:
        calls.append(grad.numel)
        return [grad]

    shared = tape.record(tape.value(SHAPE, "bf16", "shared"), (x,), run)
    y = add(tape, shared, unary(tape, shared, "relu"))
    backward(tape, y, [tape.new(SHAPE, "bf16", "gradient")])
    assert calls == [1024 * 1024]


def test_autocast_copies_a_weight_once() -> None:
    """Two products with one fp32 weight share its bf16 copy until autocast ends."""
    tape = Tape(autocast="bf16")
    w = Parameter("w", SHAPE, "fp32", requires_grad=True, has_grad=False)
    x = tape.leaf(SHAPE, "bf16", "x")
    first = linear(tape, x, Weights(w), "first")
    live = tape.live
    second = linear(tape, x, Weights(w), "second")
    assert tape.live - live == HALF, "only the second result"
    del first, second
    tape.casts.clear()


def test_split_gradients_wait_for_each_other() -> None:
    """The parts of a chunked tensor hand on one gradient of the whole."""
    tape = Tape()
    x = tape.leaf(SHAPE, "bf16", "x")
    leaf = x.origin
    half = (1024, 512)
    a, b = tape.views(x, half, half)
    x.storage = None
    y = mul(tape, a, b)
    del a, b
    y.storage = None
    backward(tape, y, [tape.new(half, "bf16", "gradient")])
    assert isinstance(leaf, Leaf)
    assert leaf.grad is not None
    assert leaf.grad.shape == SHAPE


def test_an_embedding_makes_a_gradient_of_the_whole_table() -> None:
    """embedding_dense_backward allocates [vocabulary, width] whatever the batch."""
    tape = Tape()
    table = Parameter("embed", (32000, 1024), "bf16", requires_grad=True, has_grad=False)
    y = embedding(tape, table, (16,), "bf16")
    y.storage = None
    backward(tape, y, [tape.new((16, 1024), "bf16", "gradient")])
    assert tape.by_component["gradients"] == 32000 * 1024 * 2


def test_the_inventory_lists_what_is_alive_at_the_peak() -> None:
    """With an inventory the tape can name its tensors."""
    tape = Tape(inventory=True)
    x = tape.value(SHAPE, "bf16", "a name")
    assert [row[0] for row in tape.peak_inventory] == ["a name"]
    assert Value(x.storage, SHAPE, "bf16").numel == 1024 * 1024


def used_twice(cast_to: str | None, *, has_grad: bool = False) -> tuple[int, str | None]:
    """Highest bytes in the backward of two products of one row with one weight, and the gradient's dtype."""
    tape, w = Tape(), weight(has_grad=has_grad)
    w.cast_to = cast_to
    row = (1, SHAPE[0])
    y = add(tape, *(linear(tape, tape.value(row, "bf16", "x"), Weights(w, None), "w") for _ in range(2)))
    tape.reset_peak()
    backward(tape, y, [tape.new(row, "bf16", "output gradient")])
    return tape.peak // HALF * HALF, None if w.grad_buffer is None else w.grad_buffer.dtype


def test_gradients_of_a_weight_that_is_used_twice_meet_in_a_buffer() -> None:
    """The first is the view of a product, so that their sum is a third tensor."""
    assert used_twice(None) == (3 * HALF, "bf16")


def test_gradients_that_autograd_casts_are_added_in_place() -> None:
    """The sum in fp32, the second gradient, and its cast: two fp32 tensors and one in bf16."""
    assert used_twice("fp32") == (5 * HALF, "fp32")
    assert used_twice("fp32", has_grad=True) == (5 * HALF, None)


def recomputed_peak(last: str) -> int:
    """Blocks of the input's size at the highest point of the backward of a checkpointed layer that ends with it."""
    tape = Tape()
    x = tape.leaf(SHAPE, "bf16", "x")
    rows = tape.new((8 * SHAPE[0],), "int64", "rows")

    def forward(x: Value) -> Value:
        h = mul(tape, x, x)
        wide = index(tape, h, rows, (8 * SHAPE[0], SHAPE[1]))
        if last == "sigmoid":
            wide = unary(tape, wide, "sigmoid")
        return sum_groups(tape, wide, 8)

    y = checkpoint(tape, forward, x)
    x.storage = y.storage = None
    tape.reset_peak()
    backward(tape, y, [tape.new(SHAPE, "bf16", "gradient")])
    return round(tape.peak / HALF)


def test_the_last_operator_of_a_recompute_saves_its_inputs_and_does_not_run() -> None:
    """torch/utils/checkpoint.py stops where the last tensor is saved, which an operator of ATen does before it runs."""
    expanded = 8
    assert recomputed_peak("index") == expanded + 2, "the layer's input and h, and no wide rows again"


def test_an_operator_that_saves_its_result_runs() -> None:
    """A sigmoid's backward reads its output: it is made, beside the rows that it reads."""
    assert recomputed_peak("sigmoid") > recomputed_peak("index") + 8


def test_the_gradient_of_a_divisor_of_rows_takes_four_tensors() -> None:
    """``-grad * ((x / rows) / rows)``: a negation, two quotients and their product, beside what came in."""
    tape = Tape()
    x, rows = tape.leaf(SHAPE, "fp32", "x"), tape.leaf((SHAPE[0], 1), "fp32", "rows")
    y = divide_rows(tape, x, rows)
    y.storage = None
    before = tape.live
    tape.reset_peak()
    backward(tape, y, [tape.new(SHAPE, "fp32", "gradient")])
    assert tape.peak - before == 5 * 2 * HALF


@pytest.mark.slow
def test_what_a_backward_saves_is_stated(root: Path) -> None:
    """A checkpoint sees what ``saves`` names, and not a default argument of the backward function."""
    found = []
    for path, tree in trees(root / "memcheck", [".record("]):
        named = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "record":
                runs = [named.get(a.id) if isinstance(a, ast.Name) else a for a in call.args[2:3]]
                runs = [run for run in runs if isinstance(run, (ast.FunctionDef, ast.Lambda))]
                found += [f"{path.name}:{call.lineno}" for run in runs if run.args.defaults]
    assert found == []
