"""Heads without a vocabulary: labels of sequences or tokens, rewards, and pooled embeddings.

Sources: transformers 5.23 modeling_layers.py (GenericForSequenceClassification, GenericForTokenClassification) and
loss/loss_utils.py; sentence-transformers 6.2 models/Pooling.py (mean) and losses/MultipleNegativesRankingLoss.py.
"""

from __future__ import annotations

from memcheck.autograd.context import Context
from memcheck.autograd.curve import peak_of
from memcheck.autograd.kernels import Weights, linear
from memcheck.autograd.loss import cross_entropy
from memcheck.autograd.modules import activation, normalise
from memcheck.autograd.operator import dropout, index, operator, slices
from memcheck.autograd.tensor import Parameter, Tape, Value
from memcheck.models.types import Norm, NormedPooling, ParameterTensor, Pooling, TaskHead, is_saved


def task_loss(ctx: Context, task: TaskHead, box: list[Value], *, trained: bool) -> Value:
    """Compute the loss of a head without a vocabulary from the last hidden states, [tokens, hidden].

    ``box``: a list with the only reference to them. The head labels sequences or tokens, or pools embeddings.
    """
    if task.kind == "embedding":
        return _embedding(ctx, box)
    tape = ctx.tape
    if task.pooling is not None:
        return _pooled_labels(ctx, task, task.pooling, box, trained=trained)
    hidden_states = output = box.pop()  # `outputs.last_hidden_state`, to the end of the model's forward
    if task.dropout:
        hidden_states = dropout(tape, hidden_states, task.dropout)
        _end_of_forward(ctx)
    logits = linear(tape, hidden_states, _score(ctx, task, trained=trained), "score")
    if task.kind == "token-classification":
        loss = cross_entropy(tape, logits, upcast=True)
        del output
        return loss
    last = tape.new((ctx.setting.batch,), "int64", "last token of each row")
    pooled = index(tape, logits, last, (ctx.setting.batch, task.labels), "pooled logits")
    loss = cross_entropy(tape, pooled, upcast=False)
    del hidden_states, output, logits
    return loss


def _pooled_labels(ctx: Context, task: TaskHead, pooling: Pooling, box: list[Value], *, trained: bool) -> Value:
    """Run an encoder's pooling layer and its classifier, for the first token of each sequence or for every token.

    ``box``: a list with the last hidden state [tokens, hidden]. ``trained``: the classifier gets a gradient. The first
    token is a slice; its gradient is padded with zeros to all tokens. Sources: modeling_bert.py (BertPooler),
    modeling_roberta.py (RobertaClassificationHead), modeling_modernbert.py, modeling_distilbert.py.
    """
    tape, last_hidden = ctx.tape, box.pop()
    labels_tokens = task.kind == "token-classification" or pooling.rows == "labels"
    rows = last_hidden.shape[0] if labels_tokens else ctx.setting.batch
    if labels_tokens:
        x = last_hidden
    elif pooling.rows == "mean":
        x = _mean(ctx, last_hidden)
    else:
        x = slices(tape, last_hidden, (rows, ctx.hidden))[0]
    if pooling.dropout_before:
        x = dropout(tape, x, pooling.dropout)
    matrix, *others = pooling.tensors
    has_bias = bool(others) and others[0].name == matrix.name.removesuffix("weight") + "bias"
    x = linear(tape, x, _pooling_weights(ctx, matrix, bias=has_bias), matrix.name)
    x = activation(tape, x, pooling.activation)
    if isinstance(pooling, NormedPooling):
        last = pooling.tensors[-1]
        norm = Norm("layernorm", ctx.hidden, bias=last.name.endswith(".bias"), name="pooling norm")
        x = normalise(ctx, norm, x, "pooling norm")
    x = dropout(tape, x, pooling.dropout)
    _end_of_forward(ctx)
    logits = linear(tape, x, _score(ctx, task, trained=trained), "score")
    if pooling.rows == "labels" and task.kind != "token-classification":
        logits = _late_mean(ctx, logits)
    loss = cross_entropy(tape, logits, upcast=False)
    del last_hidden
    return loss


def _pooling_weights(ctx: Context, matrix: ParameterTensor, bias: bool) -> Weights:
    """Return the weights of the pooling layer. With LoRA, peft trains a copy of it, or adapts it as a target."""
    setting = ctx.setting
    if setting.adapter is None or not is_saved(matrix.name):
        return ctx.weights(matrix, bias)
    weight = Parameter(matrix.name, matrix.shape, setting.param_dtype, requires_grad=True, has_grad=setting.has_grad)
    bias_parameter = (
        Parameter(
            matrix.name + " bias", matrix.shape[:1], setting.param_dtype, requires_grad=True, has_grad=setting.has_grad
        )
        if bias
        else None
    )
    return Weights(ctx.register(weight), ctx.register(bias_parameter) if bias_parameter is not None else None)


def _end_of_forward(ctx: Context) -> None:
    """Assign the peak so far to the forward pass before the label matrix, and reset the tape's peak."""
    highest = peak_of(ctx.tape)
    if ctx.final_norm_peak is None or highest.bytes > ctx.final_norm_peak.bytes:
        ctx.final_norm_peak = highest
    ctx.tape.reset_peak()


def _mean(ctx: Context, x: Value) -> Value:
    """Compute the masked mean of each sequence, ``(x * mask).sum(1) / mask.sum(1)``: [batch, hidden].

    The sum's gradient is an expanded view, which is made whole to be multiplied.
    """
    tape, shape = ctx.tape, (ctx.setting.batch, ctx.hidden)
    product = _masked(tape, x)
    return operator(tape, tape.value(shape, product.dtype, "mean of rows"), product, "expanded gradient")


def _late_mean(ctx: Context, logits: Value) -> Value:
    """Compute ``logits.mean(dim=1)`` of each sequence: [batch, labels]."""
    tape = ctx.tape
    out = tape.value((ctx.setting.batch, logits.shape[-1]), logits.dtype, "mean of logits")
    return operator(tape, out, logits, "expanded gradient")


def _score(ctx: Context, task: TaskHead, *, trained: bool) -> Weights:
    """Register the weight and bias of the matrix from hidden states to labels, [labels, hidden]."""
    s = ctx.setting
    weight = Parameter("score", (task.labels, ctx.hidden), s.param_dtype, trained, has_grad=s.has_grad)
    bias = Parameter("score.bias", (task.labels,), s.param_dtype, trained, has_grad=s.has_grad) if task.bias else None
    return Weights(ctx.register(weight), ctx.register(bias) if bias is not None else None)


def _embedding(ctx: Context, box: list[Value]) -> Value:
    """Pool embeddings by mean: ``(x * mask).sum(1, dtype=float32)``, [batch, hidden]; the loss compares rows of the
    batch.

    The sum's gradient is an expanded view, which becomes a tensor of the product's dtype before it is multiplied.
    """
    tape, x = ctx.tape, box.pop()
    ctx.unused_outputs.append(x)  # an entry of the trainer's features, to the end of its loss
    product = _masked(tape, x)
    rows, hidden = ctx.setting.batch, ctx.hidden
    pooled = tape.value((rows, hidden), "fp32", "pooled sum")
    pooled = operator(tape, pooled, product, "expanded gradient")
    del product, x
    _end_of_forward(ctx)  # pooling is a module of the model's
    return pooled


def _masked(tape: Tape, x: Value) -> Value:
    """Multiply by the padding mask, which needs no gradient and is kept. ``x``: [tokens, hidden]."""
    mask = tape.new((x.shape[0],), x.dtype, "attention mask")
    return operator(tape, tape.value(x.shape, x.dtype, "masked hidden states"), x, "masked gradient", saves=(mask,))


def activated_twice(ctx: Context, names: tuple[str, str], inner: int, x: Value) -> Value:
    """Run UltrabertPredictionHead: two linear layers without biases, each activated. ``x``: [tokens, hidden].

    ``names``: of the first layer, and of the activation. ``inner``: width between the layers. Source:
    modeling_ultrabert.py.
    """
    first_layer, activation_name = names
    for name, shape in ((first_layer, (inner, ctx.hidden)), (first_layer.replace("1", "2"), (ctx.hidden, inner))):
        matrix = ParameterTensor(name, shape, "head", linear=True)
        x = activation(ctx.tape, linear(ctx.tape, x, ctx.weights(matrix, bias=False), name), activation_name)
    return x
