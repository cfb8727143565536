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
    bias: bool = False
    fused_gate_up: bool = False
    dropout: float = 0.0
    tensors: tuple[ParameterTensor, ...] = ()
    inline: bool = False
    """Whether the network's statements stand in the layer's own forward: one variable holds the input, then each result
    (OPT).
    """
    multiplied: bool = False
    """What the gate's activation reads is multiplied by a constant, and so is the output (Falcon-H1)."""
    scaled_output: bool = False
    """The output is multiplied by a learned number (Inkling)."""
    down_bias: bool = False
    """The last matrix alone has a bias (GTE)."""
    inner_dropout: float = 0.0
    """In front of the last matrix (GTE, ModernBERT)."""
    clipped: bool = False
    """Inputs and outputs of its matrices are clamped between learned bounds (Gemma 4's tower)."""
    copied: bool = False
    """Whether the input rows are not contiguous in memory. The gate and up products each copy them (Ovis 2's tower);
    the second product copies its gradient (Phi-4's).
    """
    sparse: bool = False
    """Each row keeps its largest gate values alone (Gemma 3n's first layers)."""
    clamp: str = ""
    """See :attr:`Moe.clamp`."""
    nested: bool = False
    """First matrix and activation are one statement; the layer's variable holds their input to its end (BART)."""
    named_inner: bool = False
    """What the last matrix reads has a variable of the layer's, to its end (BERT)."""
    widens_inner: bool = False
    """What the last matrix reads is cast to that matrix's dtype by hand (T5)."""
    named_factors: bool = False
    """The gate, its activation and what that multiplies have variables to the module's end (Gemma 3n)."""
    adaptable: bool = True
    """peft's targets can name its matrices; False next to experts that took their names (``Moe.stacked_adapters``)."""


class Moe(Record):
    """A routed mixture of experts, with or without shared experts."""

    experts: int
    experts_per_token: int
    width: int
    """Intermediate size of one expert."""
    gated: bool
    activation: str
    bias: bool = False
    router: str = "softmax"
    """``softmax`` | ``sigmoid`` | ``softmax-topk`` (over the chosen ones; ``softmax-chosen``: in their dtype)
    | ``sparsemixer`` (Phi 3.5) | ``sigmoid-topk`` (Command A's experts) | ``softmax-fp32-topk`` (theirs, in fp32)
    | ``sigmoid-best`` (Flint: the best scores, uncorrected) | ``sigmoid-narrow`` (Laguna: cast back)
    | ``sigmoid-logits`` (LFM 2: in their dtype) | ``sigmoid-chosen`` (Kolibri: of the logits that a correction chose)
    | ``softmax-gather`` (ERNIE: those scores) | ``softmax-groups`` (Mistral 4) | ``sqrt-softplus`` (DeepSeek V4)
    | ``sigmoid-sink`` (Inkling: of the chosen and of the shared experts, which are stacked, together)
    | ``sigmoid-even`` (Inkling 2: of those that a correction chose, by their sum) | ``handed`` (ZAYA: a network's)."""
    table: int = 0
    """Elements of an int64 buffer that says each token's experts (DeepSeek V4's first layers); 0 = none."""
    shared_width: int = 0
    """Intermediate size of all shared experts together; 0 = none."""
    shared_gate: bool = False
    tensors: tuple[ParameterTensor, ...] = ()
    looped: bool = False
    """The class runs one expert after the other: transformers' grouped products do not reach it (DBRX, Step 3.7)."""
    identities: int = 0
    """Experts that hand tokens on as they are, the last of them; they have rows of the first matrix (LongCat Flash)."""
    dense_dispatch: bool = False
    """Every expert is given every token, weighted by its score (Llama 4 in transformers)."""
    correction_bias: bool = False
    """A bias per expert, kept as a buffer, is added to the scores when experts are chosen (DeepSeek V3)."""
    clamped_glu: bool = False
    """GPT-OSS's gate: interleaved halves, clamped, ``(up + 1) * gate * sigmoid(alpha * gate)``."""
    clamp: str = ""
    """Both halves are clamped: ``oai`` (MiniMax M3: ``(up + 1) * gate * sigmoid(alpha * gate)``) | ``act`` (their usual
    product; ``act-routed``: not in shared experts; ``acted``: the gate after its activation, Step 3.7) | ``tanh``
    (Inkling 2: softly, in fp32) | ``wide`` (Beam: not at all, but the product is of fp32 copies); empty: neither is.
    """
    latent_size: int = 0
    """Experts work on a projection of this width instead of the hidden size (Nemotron-H); 0 = they do not."""
    router_fp32: bool = False
    """The router multiplies fp32 copies of its input and weight (DeepSeek, GLM-4 MoE)."""
    router_apart: bool = False
    """Whether the router switches autocast off for the product with its weight (ERNIE 4.5, Flint)."""
    scores_fp32: bool = False
    """The chosen scores stay in fp32, so the weighted outputs of the experts are fp32 (Mixtral, DeepSeek, MiniMax)."""
    normalised_scores: bool = True
    """The chosen scores are divided by their sum (``norm_topk_prob``)."""
    groups: int = 1
    """Groups of experts, of which a token is routed to ``chosen_groups`` at most (DeepSeek: ``n_group``)."""
    chosen_groups: int = 1
    reads_stream: bool = False
    """Experts read the residual stream, in parallel with a dense network that reads its norm (Gemma 4)."""
    combined_fp32: bool = False
    """Routed and shared outputs are added in fp32, and cast back (Hy 3)."""
    averaged: bool = False
    """Routed and shared outputs are averaged (Command A's experts on request)."""
    scaled_output: bool = False
    """The routed output is multiplied by a constant (Laguna)."""
    shared_first: bool = False
    """The shared experts run before the routed ones, whose output is added to theirs (ERNIE, Hunyuan, AFMoE)."""
    past_adapter: bool = False
    """The router's forward reads its linear layer's weight alone, so that an adapter on it is never used (LongCat
    Flash).
    """
    input_noise: bool = False
    """What router and experts read is multiplied by random numbers (Phi 3.5 MoE: ``input_jitter_noise``)."""
    stacked_adapters: bool = False
    """peft maps names of separate experts and routers to these alone (peft utils/transformers_weight_conversion.py)."""
