"""Feed-forward networks: gated, plain, and routed over experts."""

from __future__ import annotations

from memcheck.models.feed_forward_types import NO_SHARED_EXPERTS, SharedExperts
from memcheck.models.parts.matrices import linear
from memcheck.models.types import Mlp, Moe, ParameterTensor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def gated_mlp(
    hidden: int, width: int, activation: str, *, bias: bool = False, fused: bool = False, module: str = "mlp"
) -> Mlp:
    """Build a gated MLP of inner ``width``: down(act(gate(x)) * up(x)). ``fused``: gate and up are one matrix."""
    return Mlp(
        width=width,
        gated=True,
        activation=activation,
        bias=bias,
        fused_gate_up=fused,
        tensors=gated_tensors(module, hidden, width, "mlp", bias=bias, fused=fused),
    )


def gated_tensors(
    module: str, hidden: int, width: int, group: str, *, bias: bool = False, fused: bool = False
) -> tuple[ParameterTensor, ...]:
    """List the weights and biases of a gated MLP of inner ``width``: gate, up and down.

    ``module``: its path in the layer. ``group``: group of the parameter table that they count in. ``fused``: gate and
    up are one matrix.
    """
    if fused:
        first = linear(f"{module}.gate_up_proj", 2 * width, hidden, group, "column", bias=bias)
    else:
        first = (
            *linear(f"{module}.gate_proj", width, hidden, group, "column", bias=bias),
            *linear(f"{module}.up_proj", width, hidden, group, "column", bias=bias),
        )
    return (*first, *linear(f"{module}.down_proj", hidden, width, group, "row", bias=bias))


def plain_mlp(
    hidden: int,
    width: int,
    activation: str,
    up: str,
    down: str,
    *,
    bias: bool = False,
    transposed: bool = False,
    dropout: float = 0.0,
) -> Mlp:
    """Build an MLP of two matrices and inner ``width``: down(act(up(x))).

    ``up``, ``down``: module paths of the matrices. ``transposed``: they are transformers' Conv1D.
    """
    tensors = (
        *linear(up, width, hidden, "mlp", "column", bias=bias, transposed=transposed),
        *linear(down, hidden, width, "mlp", "row", bias=bias, transposed=transposed),
    )
    return Mlp(width=width, gated=False, activation=activation, bias=bias, dropout=dropout, tensors=tensors)


def with_linear_router(moe: Moe) -> Moe:
    """Return the experts with a router that is an ``nn.Linear``, which adapters and quantisers wrap."""
    return moe._replace(tensors=tuple(t._replace(linear=True) if t.group == "router" else t for t in moe.tensors))


def with_correction(moe: Moe, name: str, shape: tuple[int, ...]) -> Moe:
    """Return the experts with a correction bias per expert, a parameter ``name`` that gets no gradient.

    It is added to the scores by which experts are chosen (DeepSeek V3's ``e_score_correction_bias``).
    """
    bias = ParameterTensor(name, shape, "router", fixed=True)
    return moe._replace(tensors=(*moe.tensors, bias))


def stacked_experts(
    module: str, experts: int, hidden: int, width: int, *, gated: bool = True, transposed: bool = False
) -> tuple[ParameterTensor, ...]:
    """List the two tensors in which a layer's experts are stacked: gate and up matrices, and down matrices.

    Shapes: [experts, rows, columns]; ``transposed``: columns before rows. ``width``: inner width of an expert.
    ``gated``: the first tensor has gate and up; otherwise only up.
    """
    first, up = ("gate_up_proj", 2 * width) if gated else ("up_proj", width)
    shape_up = (experts, hidden, up) if transposed else (experts, up, hidden)
    shape_down = (experts, width, hidden) if transposed else (experts, hidden, width)
    return (
        ParameterTensor(f"{module}.{first}", shape_up, "experts", shard="column", transposed=transposed),
        ParameterTensor(f"{module}.down_proj", shape_down, "experts", shard="row", transposed=transposed),
    )


def routed(
    hidden: int,
    choice: tuple[int, int],
    width: int,
    activation: str,
    shared: SharedExperts = NO_SHARED_EXPERTS,
    *,
    module: str = "mlp",
    names: tuple[str, str] = ("gate", "shared_experts"),
    experts_first: bool = False,
    **fields: Any,
) -> Moe:
    """Build a layer's gated experts with stacked tensors, as most families of transformers 5 store them.

    Their router is a bare parameter, no linear layer. ``choice``: number of experts, and how many of them a token uses.
    ``width``: inner width of an expert. ``shared``: experts that every token uses. ``names``: of the router and of the
    shared experts, inside ``module``. ``experts_first``: the class creates its experts before its router, which is the
    order in which an optimizer that loops updates them. ``fields``: further ones of :class:`Moe`.
    """
    experts, experts_per_token = choice
    router, shared_module = names
    tensors = (
        ParameterTensor(f"{module}.{router}.weight", (experts, hidden), "router"),
        *stacked_experts(f"{module}.experts", experts, hidden, width),
    )
    if experts_first:
        tensors = (*tensors[1:], tensors[0])
    if shared.width:
        tensors += gated_tensors(f"{module}.{shared_module}", hidden, shared.width, "shared_experts")
    if shared.gate:
        tensors += linear(f"{module}.shared_expert_gate", 1, hidden, "router", "none")
    return Moe(
        experts,
        experts_per_token,
        width,
        gated=True,
        activation=activation,
        tensors=tensors,
        shared=shared,
        bias=fields.pop("bias", False),
        router=fields.pop("router", "softmax"),
        **fields,
    )
