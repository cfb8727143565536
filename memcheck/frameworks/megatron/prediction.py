"""Multi-token prediction: one more transformer layer and one more pass through the output layer per depth.

Source: Megatron-core ``transformer/multi_token_prediction.py`` (MultiTokenPredictionLayer, process_mtp_loss).
"""

from __future__ import annotations

from functools import lru_cache

from memcheck.accounts.ranks import Unit
from memcheck.accounts.state import LocalTensor
from memcheck.autograd.context import Context, Setting
from memcheck.autograd.curve import Curve, replay
from memcheck.autograd.operator import cat, operator
from memcheck.autograd.tensor import Value, ceil_div
from memcheck.frameworks.megatron.head import MegatronHead, megatron_head_curve
from memcheck.frameworks.megatron.layers import megatron_layers
from memcheck.frameworks.megatron.linear import column, norm, projection
from memcheck.frameworks.megatron.tensors import block_tensors, embedding_tensors, padded_vocabulary
from memcheck.job.types import TrainingJob
from memcheck.models.types import Architecture, Block, Norm


def prediction_units(
    job: TrainingJob, architecture: Architecture, depth: int, setting: Setting, *, embeds: bool, inventory: bool = False
) -> list[Unit]:
    """Return the units of ``depth`` multi-token prediction layers, then those of their logits and losses.

    A prediction layer has the structure of the model's last layer. With ``mtp_use_repeated_layer`` all depths share one
    layer's weights. ``embeds``: this rank needs a copy of the embedding (language_module.py,
    setup_embeddings_and_output_layer).
    """
    block = architecture.blocks[-1][0]
    # with the method "block" prediction layers are not recomputed (multi_token_prediction.py, _checkpointed_forward)
    recomputes = setting.option("recompute_granularity") == "full" and setting.option("recompute_method") != "block"
    curve = _layer(block, architecture.final_norm, setting, recomputes, inventory)
    head = MegatronHead(padded_vocabulary(architecture.vocab_size, job), None, tied=False)
    loss_curve = _logits(head, setting, inventory)
    tensors = prediction_tensors(job, architecture, block)
    units: list[Unit] = []
    losses: list[Unit] = []
    for index in range(depth):
        embedding_copy = embedding_tensors(architecture, job) if embeds and index == 0 else ()
        layer_tensors = () if index > 0 and job.option("mtp_use_repeated_layer") else tensors
        units.append(
            Unit(
                kind="block",
                name=f"prediction layer {index}",
                tensors=(*embedding_copy, *layer_tensors),
                first_curve=curve,
                later_curve=curve,
            )
        )
        losses.append(
            Unit(
                kind="loss", name=f"prediction loss {index}", tensors=(), first_curve=loss_curve, later_curve=loss_curve
            )
        )
    return units + losses


def prediction_tensors(job: TrainingJob, architecture: Architecture, block: Block) -> tuple[LocalTensor, ...]:
    """Return the tensors of a prediction layer on one rank.

    They are two input norms, the projection of [embedding, hidden], a layer like ``block``, and a final norm.
    """
    hidden = architecture.hidden_size
    rows = ceil_div(hidden, job.layout.tensor)
    norm_names = ("enorm", "hnorm", "final_layernorm")
    norms = [LocalTensor(f"mtp.{name}.weight", (hidden,), trained=True) for name in norm_names]
    projection_weight = LocalTensor("mtp.linear_eh_proj.weight", (rows, 2 * hidden), trained=True, matrix=True)
    return (*norms, projection_weight, *block_tensors(block, job, hidden))


@lru_cache(maxsize=128)
def _layer(block: Block, final: Norm | None, setting: Setting, recompute: bool, inventory: bool) -> Curve:
    """Replay one prediction layer and return its memory curve. ``final``: the model's final norm, whose kind its norms
    have.

    ``recompute``: the layer is checkpointed as a whole.
    """
    rows = setting.batch * setting.sequence
    if setting.sequence_parallel:
        rows //= setting.tensor_parallel
    spec = final or Norm("rmsnorm", setting.hidden)

    def forward(ctx: Context, x: Value) -> Value:
        """Normalise and join hidden states and the next tokens' embedding, project both to hidden, run the layer."""
        tape = ctx.tape
        embedded = tape.leaf(x.shape, x.dtype, "embedding of the next tokens")
        both = cat(
            tape,
            (norm(ctx, spec, embedded, "mtp.enorm"), norm(ctx, spec, x, "mtp.hnorm")),
            (x.shape[0], 2 * setting.hidden),
            "cat embedding and hidden states",
        )
        eh_proj = projection(ctx, "mtp.linear_eh_proj", ceil_div(setting.hidden, ctx.tp), 2 * setting.hidden)
        hidden = column(ctx, both, eh_proj, "eh_proj")
        del embedded, both
        if ctx.tp > 1:
            hidden = _gather_features(ctx, hidden, x.shape)
        hidden = megatron_layers(ctx, (block,), hidden, recompute=recompute)
        return norm(ctx, spec, hidden, "mtp.final_layernorm")

    curve = replay(forward, setting, (rows, setting.hidden), setting.compute_dtype, inventory=inventory)
    # the checkpoint saves two inputs, hidden states and embedding; replay counts one of them
    return curve._replace(until_backward_ends=2 * curve.until_backward_ends) if recompute else curve


def _gather_features(ctx: Context, hidden: Value, shape: tuple[int, ...]) -> Value:
    """Compute ``gather_from_tensor_model_parallel_region``, then ``scatter_to_sequence_parallel_region``.

    The rows that this rank takes are contiguous, so that they stay a view of all (mappings.py, _split_along_first_dim).
    """
    tape, dtype = ctx.tape, hidden.dtype
    out = Value(tape.new((ctx.tokens, ctx.hidden), dtype, "gather eh_proj"), shape, dtype)
    return operator(tape, out, hidden, "gather eh_proj backward")


_logits = lru_cache(maxsize=128)(
    lambda head, setting, inventory: megatron_head_curve(head, setting, inventory=inventory)
)
