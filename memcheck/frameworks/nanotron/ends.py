"""nanotron's embedding, head and loss.

Sources: nanotron ``parallel/tensor_parallel/nn.py`` (TensorParallelEmbedding), ``functional.py``
(_ShardedCrossEntropy), ``models/llama.py`` (LlamaModel.forward_with_hidden_states, Loss), ``models/qwen.py``.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.elementwise import cast
from memcheck.autograd.operator import operator
from memcheck.autograd.tensor import Parameter, Storage, Value
from memcheck.frameworks.megatron.embedding import MegatronEmbedding
from memcheck.frameworks.megatron.head import Gradients, MegatronHead
from memcheck.frameworks.nanotron.layers import is_qwen
from memcheck.frameworks.nanotron.linear import column, norm, scatters


def embedding_forward(ctx: Context, embedding: MegatronEmbedding) -> Value:
    """Rows of the vocabulary's shard, times a mask where there are several shards."""
    tape, setting = ctx.tape, ctx.setting
    has_grad = setting.has_grad or embedding.tied  # the head's gradient of the table is there already
    rows = -(-embedding.vocab // ctx.tp)
    weight = ctx.register(
        Parameter("token_embedding", (rows, setting.hidden), setting.param_dtype, True, has_grad=has_grad)
    )
    shape, dtype, table = (ctx.tokens, setting.hidden), setting.compute_dtype, weight.shape
    several = ctx.tp > 1
    kept = [tape.new((ctx.tokens,), "int64", "masked token ids")] if several else []
    out = tape.value(shape, dtype, "token embedding")
    tied = embedding.tied

    def run(grad: Storage) -> list[Storage | None]:
        found = tape.new(table, dtype, "embedding backward")
        if tied:  # summed with the head's, of which it is a transposed view: a third tensor
            own, found = found, tape.new(table, dtype, "sum of a tied table's gradients")
            del own
        return [found]

    x = tape.record(out, (tape.parameter(weight),), run, saves=kept)
    del out
    if several:
        mask = tape.new((ctx.tokens,), "bool", "token mask")
        masked = tape.value(shape, dtype, "masked embedding")
        x = operator(tape, masked, x, (shape, dtype, "masked embedding backward"), saves=(mask,))
        del masked
    if scatters(setting):
        part = tape.value((ctx.residual_tokens, setting.hidden), dtype, "reduce-scatter embedding")
        x = operator(tape, part, x, (shape, dtype, "all-gather embedding gradient"))
    return x


def head_forward(ctx: Context, head: MegatronHead, x: Value, gradients: Gradients) -> Value:
    """Final norm, logits of this rank's shard and the loss of each token.

    Llama's model casts the logits before it returns, Qwen 2's loss does. Either way the model's forward has a name for
    what it hands to the loss, until that returns.
    """
    del gradients
    tape = ctx.tape
    h = norm(ctx, head.final_norm, x, "final_layer_norm")
    del x
    tape.component = "logits_and_loss"
    logits = column(ctx, h, "lm_head", -(-head.vocab // ctx.tp))
    del h
    if not is_qwen(ctx.setting):
        logits = cast(tape, logits, "fp32", "cast_to_fp32")
        return _cross_entropy(ctx, logits)
    return _cross_entropy(ctx, cast(tape, logits, "fp32", "sharded_logits.to"))


def _cross_entropy(ctx: Context, logits: Value) -> Value:
    """``_ShardedCrossEntropy``: the shifted logits are a second tensor, in which all that follows happens in place."""
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
