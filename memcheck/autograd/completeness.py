"""A check that a forward pass meets every parameter that its rank holds, so that no part of a model is counted as 0
bytes.

Both are counted in elements, whole: on one rank, without adapters, of a short sequence. Layouts divide what is met and
what is held in their own ways, and frameworks fuse matrices that a checkpoint keeps apart; the sums stay.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from memcheck.autograd.context import Context, Setting
from memcheck.autograd.tensor import Leaf, Tape, Value
from memcheck.errors import UnsupportedError
from memcheck.models.parameters import block_tensors
from memcheck.models.types import Block

TOKENS = 64


def whole(setting: Setting) -> Setting:
    """Return the setting on one rank with everything trained, and as few tokens as show which weights a forward
    meets.
    """
    return setting._replace(
        batch=1,
        sequence=TOKENS,
        tensor_parallel=1,
        sequence_parallel=False,
        expert_parallel=1,
        expert_tensor_parallel=1,
        reentrant=False,
        trained=True,
        frozen_modules=(),
        has_grad=False,
        grad_dtype=None,
        needs_input_gradient=True,
        external_input=False,
        holds_output_gradient=False,
        adapter=None,
        expert_imbalance=1.0,
        context_parallel=1,
        images=1,
    )


def touched(run: Callable[[Context], object], setting: Setting) -> int:
    """Return the elements of the weights that a forward pass registers; ``setting``: a :func:`whole` one."""
    ctx = Context(Tape(autocast=setting.autocast_dtype), setting)
    run(ctx)
    return sum(prod(p.shape) for p in ctx.parameters)


def touched_by(forward: Callable[[Context, Value], Value], setting: Setting) -> int:
    """Count the elements of the weights that the forward pass of a layer registers."""

    def run(ctx: Context) -> None:
        """Run the layer's forward on an input of the setting's size."""
        shape = (setting.sequence, setting.hidden)
        forward(
            ctx, Value(ctx.tape.new(shape, setting.compute_dtype, "block input"), shape, setting.compute_dtype, Leaf())
        )

    return touched(run, setting)


def elements(block: Block) -> int:
    """Count the elements of the weights that a layer reads, those that belong to another layer included."""
    return sum(t.count for t in block_tensors(block._replace(shared_with=block.shared_with._replace(later=False))))


def require_covered(read: int, elements: int, what: str, framework: str) -> None:
    """Check that a forward pass reads every weight of the rank exactly once.

    ``read``: elements of the weights that the forward pass reads. ``elements``: elements of the rank's weights.

    Raises:
        UnsupportedError: the numbers differ. The error points at ``training.framework``.
    """
    if read == elements:
        return
    raise UnsupportedError(
        f"memcheck has no complete model of {what} under {framework}: "
        f"its forward pass meets {read:,} of {elements:,} parameters",
        "choose another training.framework",
        "/training/framework",
    )
