"""nanotron's embedding, head and loss.

Sources: nanotron ``parallel/tensor_parallel/nn.py`` (TensorParallelEmbedding), ``functional.py``
(_ShardedCrossEntropy), ``models/llama.py`` (LlamaModel.forward_with_hidden_states, Loss), ``models/qwen.py``.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.operator import cast, operator
from memcheck.autograd.tensor import Parameter, Storage, Value, ceil_div
from memcheck.frameworks.megatron.embedding import MegatronEmbedding
from memcheck.frameworks.megatron.head import Gradients, MegatronHead
from memcheck.frameworks.nanotron.layers import is_qwen
from memcheck.frameworks.nanotron.linear import column, norm, scatters


def embedding_forward(ctx: Context, embedding: MegatronEmbedding) -> Value:
    """Look up token embeddings in this rank's shard of the vocabulary: [this rank's tokens, hidden].

    With several shards, tokens of other shards are masked. Under sequence parallelism the rows are reduce-scattered.
    """
    tape, setting = ctx.tape, ctx.setting
    has_grad = setting.has_grad or embedding.tied  # the head's backward has computed a gradient of the table before
    shard_rows = ceil_div(embedding.vocab, ctx.tp)
    weight = ctx.register(
        Parameter(
            "token_embedding", (shard_rows, setting.hidden), setting.param_dtype, requires_grad=True, has_grad=has_grad
        )
    )
    shape, dtype, table = (ctx.tokens, setting.hidden), setting.compute_dtype, weight.shape
    is_sharded = ctx.tp > 1
    saved_ids = [tape.new((ctx.tokens,), "int64", "masked token ids")] if is_sharded else []
    out = tape.value(shape, dtype, "token embedding")
    tied = embedding.tied

    def run(grad: Storage) -> list[Storage | None]:
        """Backward: the shard's gradient. A tied table's is added to the head's, a transposed view, into a third
        tensor.
        """
        table_gradient = tape.new(table, dtype, "embedding backward")
        if tied:
            own_gradient, table_gradient = table_gradient, tape.new(table, dtype, "sum of a tied table's gradients")
            del own_gradient
        return [table_gradient]

    x = tape.record(out, (tape.parameter(weight),), run, saves=saved_ids)
    del out
    if is_sharded:
        mask = tape.new((ctx.tokens,), "bool", "token mask")
        masked = tape.value(shape, dtype, "masked embedding")
        x = operator(tape, masked, x, (shape, dtype, "masked embedding backward"), saves=(mask,))
        del masked
    if scatters(setting):
        scattered = tape.value((ctx.residual_tokens, setting.hidden), dtype, "reduce-scatter embedding")
        x = operator(tape, scattered, x, (shape, dtype, "all-gather embedding gradient"))
    return x


def head_forward(ctx: Context, head: MegatronHead, x: Value, gradients: Gradients) -> Value:
    """Compute the final norm, the logits of this rank's shard of the vocabulary, and the loss of each token: [tokens].

    Llama's model casts the logits to fp32 before it returns, Qwen 2's loss does. Either way a variable of the model's
    forward holds the logits that it passes to the loss, until the loss returns. ``gradients``: Megatron's, not used.
    """
    del gradients
    tape = ctx.tape
    normed = norm(ctx, head.final_norm, x, "final_layer_norm")
    del x
    tape.component = "logits_and_loss"
    logits = column(ctx, normed, "lm_head", ceil_div(head.vocab, ctx.tp))
    del normed
    if not is_qwen(ctx.setting):
        logits = cast(tape, logits, "fp32", "cast_to_fp32")
        return _cross_entropy(ctx, logits)
    return _cross_entropy(ctx, cast(tape, logits, "fp32", "sharded_logits.to"))


def _cross_entropy(ctx: Context, logits: Value) -> Value:
    """Compute ``_ShardedCrossEntropy``: the shifted logits are a second tensor, in which all that follows happens in
    place.
    """
    tape, shape = ctx.tape, logits.shape
    rows = shape[:-1]
    highest = tape.new(rows, "fp32", "logits_max")
    probabilities = tape.new(shape, "fp32", "sharded_logits - logits_max")
    kept = (probabilities, tape.new(rows, "bool", "target mask"), tape.new(rows, "int64", "masked target"))
    del highest
    out = tape.value(rows, "fp32", "loss")

    def run(grad: Storage) -> list[Storage | None]:
        return [kept[0]]

    del probabilities
    return tape.record(out, (logits,), run, saves=kept)
