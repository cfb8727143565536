"""What modules of a model are made of: parameters, norms, softmax attention, other mixers, feed-forward networks."""

from __future__ import annotations

from memcheck.record import Record


class ParameterTensor(Record):
    """One parameter tensor, with the shape in which transformers stores it."""

    name: str
    """Path inside its owner, e.g. ``self_attn.q_proj.weight``."""
    shape: tuple[int, ...]
    group: str
    """``embedding`` | ``position`` | ``attention`` | ``mlp`` | ``router`` | ``experts`` | ``shared_experts`` | ``norm``
    | ``mixer`` (state-space and linear attention) | ``head``."""
    shard: str = "none"
    """How tensor parallelism cuts it: ``column`` (output features: dim 0), ``row`` (input features: dim 1),
    ``vocab`` (dim 0), ``none`` (replicated). Stacked experts: the same dimensions of each expert's matrix."""
    linear: bool = False
    """A matrix multiplied with activations (autocast casts it, LoRA adapts it, QLoRA quantises it). Listed in the order
    of the forward pass. Stacked experts and routers that are bare parameters are not: no linear layer wraps them."""
    transposed: bool = False
    """Stored as [in, out]: GPT-2's Conv1D, GPT-OSS's and Llama 4's experts."""
    fixed: bool = False
    """A parameter that wants no gradient whatever is trained (ERNIE's and AFMoE's expert biases)."""

    @property
    def count(self) -> int:  # type: ignore[override]
        """Number of parameters."""
        n = 1
        for d in self.shape:
            n *= d
        return n


class ViewedTensor(ParameterTensor):
    """A matrix that is multiplied as ``input @ weight.T`` (Falcon): autocast caches no copy of a view."""


class Norm(Record):
    """A normalisation over the last dimension."""

    kind: str
    """What transformers computes: ``rmsnorm`` (Llama: cast back, then weight) | ``rmsnorm-fp32-weight`` (OLMo 2,
    GPT-OSS: weight, then cast back) | ``rmsnorm-t5`` (product with the input as it came, cast to the weight's
    dtype, weight) | ``rmsnorm-unit-offset`` (Gemma's 1 + w in fp32)
    | ``layernorm`` (one kernel)
    | ``layernorm-fp32`` (OLMo: one kernel on an fp32 copy) | ``layernorm-pieces`` (Cohere: mean, variance and product
    as separate fp32 operations) | ``layernorm-rounded`` (DeBERTa V1: as those, cast back before weight and bias)
    | ``layernorm-1p`` (Nemotron: weight + 1) | ``l2`` (Llama 4: no weight)."""
    size: int
    """Elements of a row that are normalised together."""
    weight: bool = True
    """The norm has a learned weight."""
    bias: bool = False
    """The norm has a learned bias."""
    rows: int = 1
    """Number of separate weight rows (Cohere and StableLM: one per head)."""
    name: str = ""
    """Path inside its owner: ``input_layernorm`` in a block, ``model.norm`` in the model."""


class TableNorm(Norm):
    """A norm of the looked-up rows that the embedding's own module runs (Muse Glimmer)."""


class Disentangled(Record):
    """Scores of words and of relative positions, from one table of all layers (DeBERTa)."""

    rows: int
    """Rows of the table: buckets of distances in both directions."""
    scores: tuple[str, ...]
    """``c2p`` (words read positions), ``p2c`` (positions read words)."""
    shared: bool
    """The words' matrices make the positions' queries and keys, too."""
    dropout: float
    """What each layer drops of the table's rows."""
    norm: Norm | None
    """Norms the table once for all layers."""


class Compressed(Record):
    """One key of every ``rate`` tokens, in addition to those of a window, and what else DeepSeek V4's attention has."""

    rate: int
    """Tokens of a compressed key; 0: the layer has its window alone."""
    groups: int
    """Groups of heads that the output's first matrix multiplies apart."""
    query_rank: int
    output_rank: int
    """Width of what each group is made to."""
    index_heads: int
    """Heads of an indexer that chooses among compressed keys, which read the tokens before theirs, too; 0 = none."""
    index_dim: int


class BlockIndexer(Record):
    """What chooses blocks of keys: a mask of every query head is made in the layer (MiniMax M3)."""

    heads: int
    head_dim: int


class HeldMask(Record):
    """A boolean mask that each layer holds and fills its scores by (GPT-Neo)."""

    rows: int
    """Rows, and columns, of the mask."""


class PositionTable(Record):
    """An fp32 table of sines and cosines that each layer keeps as a buffer, and copies (GPT-J)."""

    positions: int


class Rotation(Record):
    """How queries and keys are rotated by their positions."""

    form: str
    """How transformers writes the rotation: ``half`` (Llama's rotate_half) | ``half-fp32`` (OLMo: by fp32 tables, then
    cast back) | ``cat`` (Phi-3: the rest of each head, even of no width, is concatenated) | ``pairs`` (GLM: neighbours,
    tables repeated once per layer) | ``pairs-wide`` (ERNIE: as that, in fp32 by fp32 tables, then cast back)
    | ``pairs-each`` (GPT-J: tables repeated for each of q and k) | ``pairs-fp32`` (Cohere: neighbours, on fp32 copies)
    | ``half-wide`` (ModernBERT: on fp32 copies for each product)
    | ``chunks`` (GPT-OSS: the two halves apart) | ``complex`` (Llama 4: fp32 copies read as complex numbers)."""
    interleaved: bool
    """Neighbouring dimensions form the rotated pairs, not the two halves of a head."""
    named: bool
    """The rotation is written in the module's forward: what goes in and comes out of it are variables (Phi, GPT-J)."""
    before_norms: bool
    """Queries and keys are normalised after the rotation (Hunyuan, nanochat)."""


HALF = Rotation("half", interleaved=False, named=False, before_norms=False)
"""Llama's rotation."""


class FusedKernels(Record):
    """The fused attention kernels that the transformers class of a model can call."""

    sdpa: bool
    """transformers has a scaled_dot_product_attention path; False: eager code unless flash-attention is asked for."""
    flash: bool
    """transformers has a flash-attention path."""
    explicit_mask: bool
    """transformers always passes an explicit causal mask (Falcon), which the flash kernel does not take."""


KERNELS = FusedKernels(sdpa=True, flash=True, explicit_mask=False)
"""Both kernels, without a mask of their own: what most models have."""


class EagerScores(Record):
    """How eager attention computes its scores and probabilities."""

    scores_fp32: bool
    """Queries and keys are cast to fp32 before their product (GPT-J)."""
    softmax_fp32: bool
    """The softmax runs in fp32; False: in the scores' own dtype (GPT-2, Falcon, Llama 4)."""
    returned: bool
    """The layer returns the probabilities as well as its output, and the model's loop keeps both in a variable until
    the next layer has returned (Falcon, BLOOM, MPT, GPT-J).
    """


EAGER = EagerScores(scores_fp32=False, softmax_fp32=True, returned=False)
"""Llama's eager attention."""


class Attention(Record):
    """Softmax attention, grouped or not."""

    heads: int
    """Query heads."""
    kv_heads: int
    """Heads of keys and values; query heads share them in equal groups."""
    head_dim: int
    """Elements of one head of queries and keys."""
    rotary_dim: int
    """Dimensions of a head that are rotated; 0 = no rotary embedding in this block."""
    dropout: float
    """Probability with which attention probabilities are dropped in training."""
    tensors: tuple[ParameterTensor, ...]
    """Every parameter of the module, its own norms included."""
    qkv_bias: bool
    """The matrices of q, k and v have a bias."""
    out_bias: bool
    """The output's matrix has a bias."""
    query_norm: Norm | None
    """Norm of the queries; None: they are not normalised."""
    key_norm: Norm | None
    """Norm of the keys; None: they are not normalised."""
    window: int | None
    """Sliding or chunked window in tokens; None = full attention."""
    fused_qkv: str = ""
    """How the output of one matrix for q, k and v is taken apart; all of it stays alive while any part of it does:
    ``split`` (GPT-2, MPT) | ``heads`` (GPT-NeoX, BLOOM: head by head) | ``slices`` (Phi-3) | ``shards`` (CodeGen:
    heads of four slices, copied) | ``index`` (Falcon: keys and values are picked with an index list, and so
    copied); empty: q, k and v have a matrix each.
    """
    rotation: Rotation = HALF
    """How queries and keys are rotated."""
    kernels: FusedKernels = KERNELS
    """Which fused kernels the class can call."""
    eager: EagerScores = EAGER
    """How eager attention computes its scores, where no fused kernel runs."""
    alibi: bool = False
    """Scores have ALiBi's bias, linear in the distance of two tokens."""
    chunked_window: bool = False
    """The window, if any, is a chunk: a token attends only to tokens of its own chunk. A sequence's chunks start after
    its padding (Llama 4).
    """
    softcap: bool = False
    """Scores are capped: ``cap * tanh(scores / cap)`` (Gemma 2)."""
    sinks: str = ""
    """What one learned number per head is: ``logit`` (one more key's score: GPT-OSS) | ``scale`` (each row of the
    output is multiplied by a sigmoid of its logsumexp minus the sink: Granite's windowed models); empty: there is none.
    """
    output_gate: bool = False
    """q_proj is twice as wide, the second half gates the output (Qwen3-Next)."""
    gate_matrix: str = ""
    """A matrix of its own, after the output's, makes the output's gate (AFMoE): ``adaptable`` | ``hidden`` (peft's
    targets cannot name it, see :attr:`memcheck.models.types.Mlp.adaptable`); empty: there is none.
    """
    extension: Disentangled | Compressed | BlockIndexer | HeldMask | PositionTable | None = None
    """What one family's module has in addition; what runs it is found by its type."""
    clip_qkv: bool = False
    """The projections are clamped to a range (DBRX, MPT, OLMo with ``clip_qkv``)."""
    row_masks: str = ""
    """Why each row of a micro-batch has a mask of its own: ``padding`` (rows are padded) | ``images`` (tokens of an
    image see each other, as token types say: Gemma 3, PaliGemma); empty: rows share one mask, or none is made.
    """
    query_scale: str = ""
    """What multiplies queries: ``position`` (a scale of each position, after the rotation: Ministral 3) |
    ``constant`` (where they are made, not in the kernel alone: Whisper; after their norm: Muse Glimmer);
    empty: the kernel's own scale.
    """
    bidirectional: bool = False
    """Every token sees every other (encoders): no mask is made unless one is given."""
    stores_keys: bool = False
    """Keys and values are put into a dict for later layers (Gemma 3n and 4): checkpointed, they keep their graph."""
    v_head_dim: int = 0
    """Width of a head's values, where it is not that of its keys (MiMo V2); 0 = the same."""
    cross: bool = False
    """Keys and values are made of the encoder's output."""
    position_bias: str = ""
    """Where relative position biases come from, which are added to the scores; empty: there are none.

    T5: ``table`` (the first layer looks them up in its table, and returns them for later layers) | ``shared`` (those of
    the first layer) | ``zeros`` (cross attention of the first layer makes zeros, and returns them for later layers) |
    ``shared-zeros`` (those zeros). UMT5: ``own`` (each layer has a table) | ``own-zeros`` (each layer makes zeros).
    MPNet: ``given`` (the model makes them for every sequence).
    """


class Indexer(Record):
    """What chooses each token's keys (DeepSeek V3.2); an explicit mask of each sequence is made of its choice."""

    heads: int
    """Heads of the layer's own indexer; 0: the layer uses the choice of one before it."""
    head_dim: int
    topk: int
    """Keys that are chosen for each token."""
    passes: bool
    """Whether the layer passes the indices of chosen keys to the next (GLM 5)."""


class LatentAttention(Record):
    """Multi-head latent attention (DeepSeek V2/V3)."""

    heads: int
    """Heads of queries, keys and values."""
    q_lora_rank: int | None
    """Width of the latent that queries are made of; None: they are made of the input by one matrix."""
    kv_lora_rank: int
    """Width of the latent that keys and values are made of."""
    qk_nope_head_dim: int
    """Elements of one head of queries and keys that are not rotated."""
    qk_rope_head_dim: int
    """Elements of one head of queries and keys that are rotated; all heads share the keys' ones."""
    v_head_dim: int
    """Elements of one head of values."""
    bias: bool
    """The matrices of the latents and the output have a bias."""
    dropout: float
    """Probability with which attention probabilities are dropped in training."""
    rotary_interleaved: bool
    """Neighbouring dimensions are rotated as pairs, not the two halves of a head."""
    tensors: tuple[ParameterTensor, ...]
    extension: Indexer | None = None
    """See :attr:`Attention.extension`."""
    query_scale: str = ""
    """See :attr:`Attention.query_scale`: ``position`` (Mistral 4)."""
    row_masks: str = ""
    """See :attr:`Attention.row_masks`: ``padding``, or empty."""


class ComplexLatentAttention(LatentAttention):
    """Latent attention whose rotation multiplies fp32 copies read as complex numbers (DeepSeek V2)."""


class UnturnedLatentAttention(LatentAttention):
    """Latent attention whose rotary parts stay as they are (Kimi's linear models)."""


class ScaledLatentAttention(LatentAttention):
    """Latent attention that multiplies queries and the normed latent by constants (LongCat Flash)."""


class GatedLatentAttention(LatentAttention):
    """Latent attention whose output is multiplied by the sigmoid of an fp32 copy of what a matrix makes of the input
    (Ling 3).
    """


class FalconH1Attention(Attention):
    """Attention whose input, keys and output are multiplied by constants (Falcon-H1)."""


class MimoAttention(Attention):
    """Attention with values multiplied by a constant; eager scores lose their rows' maximum before the softmax, also
    without sinks (MiMo V2).
    """


class Gpt2Attention(Attention):
    """Attention that casts the softmax's result to the values' dtype, although the softmax runs in the scores' own
    (GPT-2).
    """


class MptAttention(Attention):
    """Attention whose boolean mask fills the scores, which stay in a variable to the end (MPT)."""


class BloomAttention(Attention):
    """Attention that adds the residual stream by itself: its variables live until then (BLOOM)."""


class FalconAttention(Attention):
    """Attention whose eager scores are scaled in place and stay in variables while the softmax runs (Falcon)."""


class ExpandedFalconAttention(FalconAttention):
    """Falcon's attention with keys and values copied to every query head before the kernel (Falcon 40B)."""


class WhisperAttention(Attention):
    """Attention that copies queries, keys and values head by head, and whose keys' matrix has no bias (Whisper)."""


class LateGateAttention(Attention):
    """Attention whose output's gate is made after the output (Muse Glimmer)."""


class Gemma4Attention(Attention):
    """Attention that norms each head's value, without a weight (Gemma 3n and 4)."""


class KeysAsValuesAttention(Gemma4Attention):
    """Gemma 4's full layers, whose values are what the keys' projection makes, before their norm."""


class ReusingAttention(Attention):
    """Attention with the keys and values of an earlier layer (the last layers of Gemma 3n and 4)."""


class Mlp(Record):
    """A dense feed-forward network."""

    width: int
    """Elements per token between the matrices."""
    gated: bool
    """The activated gate is multiplied by the up product, as in SwiGLU; else there is no gate."""
    activation: str
    """Hugging Face's name of the activation function: ``silu``, ``gelu_new``, ``relu2``..."""
    bias: bool
    """The matrices have biases."""
    tensors: tuple[ParameterTensor, ...]
    fused_gate_up: bool = False
    """One matrix makes gate and up."""
    dropout: float = 0.0
    inline: bool = False
    """Whether the network's statements stand in the layer's own forward: one variable holds the input, then each result
    (OPT).
    """
    inner_dropout: float = 0.0
    """In front of the last matrix (GTE, ModernBERT)."""
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
    runs_first: bool
    """Shared experts run before the routed ones, and both outputs are added (ERNIE, Hunyuan, AFMoE)."""


NO_SHARED_EXPERTS = SharedExperts(0, gate=False, runs_first=False)


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


NORMALISED_SCORES = Routing(input_fp32=False, scores_fp32=False, normalised=True, groups=(1, 1))
"""Scores in the dtype of the activations, divided by their sum."""


class Moe(Record):
    """A routed mixture of experts, with or without shared experts."""

    experts: int
    """Number of routed experts in the layer."""
    experts_per_token: int
    """Number of routed experts that each token is sent to."""
    width: int
    """Intermediate size of one expert."""
    gated: bool
    """Whether each expert has a gate, as :attr:`Mlp.gated` says of a feed-forward network."""
    activation: str
    """Hugging Face's name of the experts' activation function: ``silu``, ``gelu_new``..."""
    bias: bool
    """The experts' matrices have biases."""
    router: str
    """``softmax`` | ``sigmoid`` | ``softmax-topk`` (over the chosen ones; ``softmax-chosen``: in their dtype)
    | ``sparsemixer`` (Phi 3.5) | ``sigmoid-topk`` (Command A's experts) | ``softmax-fp32-topk`` (theirs, in fp32)
    | ``sigmoid-logits`` (LFM 2: in their dtype) | ``softmax-gather`` (ERNIE: those scores) | ``softmax-groups``
    (Mistral 4) | ``sqrt-softplus`` (DeepSeek V4) | ``scaled`` (Gemma 4: of normed rows, times a scale per expert)."""
    tensors: tuple[ParameterTensor, ...]
    """Every parameter of the module: router, routed and shared experts."""
    shared: SharedExperts = NO_SHARED_EXPERTS
    """Experts that every token is sent to."""
    looped: bool = False
    """The class runs one expert after the other: transformers' grouped products do not reach it (DBRX, Step 3.7)."""
    clamp: str = ""
    """Gate and up are clamped: ``interleaved`` (GPT-OSS: ``(up + 1) * gate * sigmoid(alpha * gate)`` of slices of one
    tensor) | ``oai`` (MiniMax M3: the same of two halves) | ``act`` (DeepSeek V4: their usual product) | ``acted``
    (Step 3.7: the gate after its activation); empty: neither is.
    """
    routing: Routing = NORMALISED_SCORES
    """How the router computes its scores, and which experts it may choose."""
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


class CopiedInputMlp(Mlp):
    """A gated network whose input rows lie apart in memory: the products of gate and up each copy them (Ovis 2)."""


class CopiedGradientMlp(Mlp):
    """A network whose output lies apart in memory: the second product copies its gradient (Phi-4's tower)."""


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


class Mixer(Record):
    """A token mixer that is not softmax attention: Mamba-2, gated delta net, lightning attention."""

    kind: str
    """Which recurrence runs: ``mamba2``, ``gated-delta-net``, ``lightning``, ``rg-lru``..."""
    heads: int
    """Heads of values."""
    head_dim: int
    """Elements of one head of values."""
    state_bytes_per_sequence: int
    """fp32 recurrent state (plus convolution state) that inference keeps per sequence."""
    width: int
    """Channels of the widest activation inside the mixer."""
    key_heads: int
    """Heads of queries and keys, where there are fewer than of values (delta nets); 0 = as many as ``heads``."""
    key_dim: int
    """Width of one head's keys, or of the state of a state-space model."""
    kernel: int
    """Columns of the causal convolution."""
    tensors: tuple[ParameterTensor, ...]
    chunk: int
    """Tokens of a chunk of the scan, where the configuration says it."""
    groups: int = 1
    """Groups of heads that share B and C (Mamba-2)."""
    output: str = "out_proj"
    """Name of the last linear layer."""
    normed_inputs: bool = False
    """Time steps, B and C are normalised in front of the scan (Falcon Mamba, Jamba)."""
    buffer_numel: int = 0
    """Elements of constant tables that each such layer keeps on the device (MiniMax's decay matrices)."""


class DoubledBetaMixer(Mixer):
    """A delta net whose beta is doubled, so that eigenvalues may be negative (OLMo's hybrids)."""


class FalconH1Mixer(Mixer):
    """Mamba-2 whose first matrix's output is multiplied by a constant vector, and whose norm's weight in fp32."""


class NormFirstMixer(FalconH1Mixer):
    """Falcon-H1's mixer with the gate after its norm."""


class LingDelta(Mixer):
    """Kimi's delta net with one matrix for each of the gates of decay and output (Ling 3)."""


class BoundedLingDelta(LingDelta):
    """Ling 3's delta net with a decay that is a sigmoid times a constant, not a softplus."""
