"""Feed-forward networks as the memory engine sees them: one, or experts with a router."""

from __future__ import annotations

from memcheck.models.attention_types import ParameterTensor
from memcheck.record import Record


class Mlp(Record):
    """A dense feed-forward network."""

    width: int
    gated: bool
    activation: str
    """Hugging Face's name of the activation function: ``silu``, ``gelu_new``, ``relu2``..."""
    bias: bool
    tensors: tuple[ParameterTensor, ...]
    fused_gate_up: bool = False
    dropout: float = 0.0
    inline: bool = False
    """Whether the network's statements stand in the layer's own forward: one variable holds the input, then each result
    (OPT).
    """
    scaled_output: bool = False
    """The output is multiplied by a learned number."""
    inner_dropout: float = 0.0
    """In front of the last matrix (GTE, ModernBERT)."""
    copied: bool = False
    """Whether the input rows are not contiguous in memory. The gate and up products each copy them (Ovis 2's tower);
    the second product copies its gradient (Phi-4's).
    """
    clamp: str = ""
    """See :attr:`Moe.clamp`."""
    adaptable: bool = True
    """peft's targets can name its matrices; False next to experts that took their names (``Moe.adaptable``)."""


class SharedExperts(Record):
    """Experts of an MoE layer that see every token, next to the routed ones."""

    width: int
    """Intermediate size of all of them together; 0 = none."""
    gate: bool
    """The output of the shared experts is multiplied by a sigmoid of one score per token (Qwen 2 MoE)."""
    first: bool
    """Shared experts run before the routed ones, and both outputs are added (ERNIE, Hunyuan, AFMoE)."""


NO_SHARED_EXPERTS = SharedExperts(0, gate=False, first=False)


class Routing(Record):
    """How a router computes the scores of the chosen experts."""

    input_fp32: bool
    """The router multiplies fp32 copies of its input and weight (DeepSeek, GLM-4 MoE)."""
    scores_fp32: bool
    """The chosen scores stay in fp32, so the weighted outputs of the experts are fp32 (Mixtral, DeepSeek, MiniMax)."""
    normalised: bool
    """The chosen scores are divided by their sum (``norm_topk_prob``)."""
    groups: tuple[int, int]
    """Groups of experts, and how many of them a token is routed to at most (DeepSeek: ``n_group``, ``topk_group``)."""


CHOSEN = Routing(input_fp32=False, scores_fp32=False, normalised=True, groups=(1, 1))
"""Scores in the dtype of the activations, divided by their sum."""


class Moe(Record):
    """A routed mixture of experts, with or without shared experts."""

    experts: int
    experts_per_token: int
    width: int
    """Intermediate size of one expert."""
    gated: bool
    activation: str
    bias: bool
    router: str
    """``softmax`` | ``sigmoid`` | ``softmax-topk`` (over the chosen ones; ``softmax-chosen``: in their dtype)
    | ``sparsemixer`` (Phi 3.5) | ``sigmoid-topk`` (Command A's experts) | ``softmax-fp32-topk`` (theirs, in fp32)
    | ``sigmoid-logits`` (LFM 2: in their dtype) | ``softmax-gather`` (ERNIE: those scores) | ``softmax-groups``
    (Mistral 4) | ``sqrt-softplus`` (DeepSeek V4) | ``scaled`` (Gemma 4: of normed rows, times a scale per expert)."""
    tensors: tuple[ParameterTensor, ...]
    shared: SharedExperts = NO_SHARED_EXPERTS
    looped: bool = False
    """The class runs one expert after the other: transformers' grouped products do not reach it (DBRX, Step 3.7)."""
    clamp: str = ""
    """Gate and up are clamped: ``interleaved`` (GPT-OSS: ``(up + 1) * gate * sigmoid(alpha * gate)`` of slices of one
    tensor) | ``oai`` (MiniMax M3: the same of two halves) | ``act`` (DeepSeek V4: their usual product) | ``acted``
    (Step 3.7: the gate after its activation); empty: neither is.
    """
    routing: Routing = CHOSEN
    scaled_output: bool = False
    """The routed output is multiplied by a constant (Step 3.7)."""
    adaptable: bool = True
    """peft's targets can name the matrices of its modules; False where peft maps names of separate experts and routers
    to the stacked tensors alone (peft utils/transformers_weight_conversion.py).
    """


class HashedMoe(Moe):
    """Experts that an int64 buffer names for each word of the vocabulary (DeepSeek V4's first layers)."""


class DenseDispatchMoe(Moe):
    """Experts that are given every token, weighted by its score (Llama 4 in transformers)."""


class StreamMoe(Moe):
    """Experts that read the residual stream, in parallel with a dense network that reads its norm (Gemma 4)."""


class IdentityMoe(Moe):
    """Experts of which the last hand tokens on as they are; their rows are in the router's matrix (LongCat Flash).

    The router's forward reads its linear layer's weight alone, so that an adapter on it is never used.
    """

    @property
    def identities(self) -> int:
        """Number of experts that hand tokens on: those without a matrix down."""
        return self.experts - min(t.shape[0] for t in self.tensors if t.group == "experts")


class LatentMoe(Moe):
    """Experts that work on a projection of the hidden states, which another projection widens again (Nemotron-H)."""


class ClippedMlp(Mlp):
    """A network that clamps inputs and outputs of its matrices between learned bounds (Gemma 4's tower)."""


class FalconH1Mlp(Mlp):
    """A gated network that multiplies what the activation reads, and its output, by constants (Falcon-H1)."""


class GemmaMlp(Mlp):
    """A gated network whose gate, its activation and what that multiplies have variables to the end (Gemma 3n)."""


class SparseGemmaMlp(GemmaMlp):
    """Gemma 3n's network in which each row keeps its largest gate values alone."""


class T5Mlp(Mlp):
    """A network that casts what the last matrix reads to that matrix's dtype by hand (T5)."""


class NestedMlp(Mlp):
    """A network whose first matrix and activation are one statement; a variable holds their input to the end (BART)."""


class BertMlp(Mlp):
    """A network of a layer that has a variable for what the last matrix reads, to the layer's end (BERT)."""


class DownBiasMlp(Mlp):
    """A gated network of which the last matrix alone has a bias (GTE)."""
