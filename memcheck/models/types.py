"""A model as the memory engine sees it: blocks made of components, components made of tensors.

A family file (``families/<model_type>.py``) turns a configuration in Hugging Face's key names into an
:class:`Architecture`. Nothing here knows frameworks, parallelism or bytes.
"""

from __future__ import annotations

from itertools import chain, repeat

from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.models.vision import OtherTower, TowerAttention, Vision


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
    viewed: bool = False
    """Multiplied as ``input @ weight.T`` (Falcon): autocast caches no copy of a view."""

    @property
    def count(self) -> int:  # type: ignore[override]
        """Number of parameters."""
        n = 1
        for d in self.shape:
            n *= d
        return n


class Norm(Record):
    """A normalisation over the last dimension."""

    kind: str
    """What transformers computes: ``rmsnorm`` (Llama: cast back, then weight) | ``rmsnorm-fp32-weight`` (OLMo 2,
    GPT-OSS: weight, then cast back) | ``rmsnorm-unit-offset`` (Gemma's 1 + w in fp32) | ``layernorm`` (one kernel)
    | ``layernorm-fp32`` (OLMo: one kernel on an fp32 copy) | ``layernorm-pieces`` (Cohere: mean, variance and product
    as separate fp32 operations) | ``layernorm-1p`` (Nemotron: weight + 1) | ``l2`` (Llama 4: no weight)."""
    size: int
    weight: bool = True
    bias: bool = False
    rows: int = 1
    """Number of separate weight rows (Cohere and StableLM: one per head)."""
    name: str = ""
    """Path inside its owner: ``input_layernorm`` in a block, ``model.norm`` in the model."""


class Attention(Record):
    """Softmax attention, grouped or not."""

    heads: int
    kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    out_bias: bool = False
    fused_qkv: bool = False
    """One matrix makes q, k and v: the whole output stays alive while any part of it does."""
    fused_form: str = "split"
    """How that output is taken apart: ``split`` (GPT-2, MPT) | ``heads`` (GPT-NeoX, BLOOM: head by head) | ``slices``
    (Phi-3) | ``index`` (Falcon: keys and values are picked with an index list, and so copied)."""
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    rotary_dim: int = 0
    """Dimensions of a head that are rotated; 0 = no rotary embedding in this block."""
    rotary_interleaved: bool = False
    rotary_form: str = "half"
    """How the rotation is written: ``half`` (Llama's rotate_half) | ``half-fp32`` (OLMo: by fp32 tables, then cast
    back) | ``cat`` (Phi-3: the rest of each head, even of no width, is concatenated) | ``pairs`` (GLM: neighbours,
    tables repeated once per layer) | ``pairs-each`` (GPT-J: tables repeated for each of q and k) | ``pairs-fp32``
    (Cohere: neighbours, on fp32 copies) | ``chunks`` (GPT-OSS: the two halves apart) | ``complex`` (Llama 4: fp32
    copies read as complex numbers)."""
    alibi: bool = False
    window: int | None = None
    """Sliding or chunked window in tokens; None = full attention."""
    chunked: bool = False
    """The window is a chunk; a sequence's chunks start behind its padding (Llama 4)."""
    softcap: bool = False
    sinks: bool = False
    """One learned logit per head (GPT-OSS)."""
    output_gate: bool = False
    """q_proj is twice as wide, the second half gates the output (Qwen3-Next)."""
    dropout: float = 0.0
    tensors: tuple[ParameterTensor, ...] = ()
    """Every parameter of the module, its own norms included."""
    clip_qkv: bool = False
    """The projections are clamped to a range (DBRX, MPT, OLMo with ``clip_qkv``)."""
    sdpa: bool = True
    """transformers has a scaled_dot_product_attention path; False: eager code unless flash-attention is asked for."""
    flash: bool = True
    """transformers has a flash-attention path."""
    fp32_scores: bool = False
    """Queries and keys are cast to fp32 before their product (GPT-J)."""
    masked: bool = False
    """transformers always passes an explicit causal mask (Falcon), which the flash kernel does not take."""
    padded: bool = False
    """Rows of a micro-batch are padded, so that each has a mask of its own."""
    pictures: bool = False
    """Tokens of a picture see each other: token types make a mask for every sequence (Gemma 3, PaliGemma)."""
    softmax_fp32: bool = True
    """Eager attention's softmax runs in fp32; False: in the scores' own dtype (GPT-2, Falcon, Llama 4)."""
    expanded_kv: bool = False
    """Keys and values are copied to every query head before the kernel (Falcon 40B)."""
    returns_weights: bool = False
    """The layer returns eager attention's probabilities beside its output, and the model's loop keeps both in a
    variable until the next layer has returned (Falcon, BLOOM, MPT, GPT-J)."""
    filled_scores: bool = False
    """A boolean mask fills the scores, which stay in a variable to the end (MPT)."""
    named_rotary: bool = False
    """The rotation is written in the module's forward: what goes in and comes out of it are variables (Phi, GPT-J)."""
    position_rows: int = 0
    """Rows of the fp32 table of sines and cosines that each layer keeps as a buffer, and copies (GPT-J)."""
    adds_residual: bool = False
    """The module adds the residual stream by itself: its variables live until then (BLOOM)."""
    named_scores: bool = False
    """Eager scores are scaled in place and stay in variables while the softmax runs (Falcon)."""


class LatentAttention(Record):
    """Multi-head latent attention (DeepSeek V2/V3)."""

    heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    bias: bool = False
    tensors: tuple[ParameterTensor, ...] = ()
    rotary_interleaved: bool = True
    dropout: float = 0.0
    rotary_complex: bool = False
    """The rotation multiplies fp32 copies read as complex numbers (DeepSeek V2)."""


class Mixer(Record):
    """A token mixer that is not softmax attention: Mamba-2, gated delta net, lightning attention."""

    kind: str
    heads: int
    head_dim: int
    state_bytes_per_sequence: int
    """fp32 recurrent state (plus convolution state) that inference keeps per sequence."""
    width: int
    """Channels of the widest activation inside the mixer."""
    tensors: tuple[ParameterTensor, ...] = ()
    buffer_numel: int = 0
    """Elements of constant tables that each such layer keeps on the device (MiniMax's decay matrices)."""


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
    """Its statements are the layer's own: one variable holds its input, then each result (OPT)."""
    adaptable: bool = True
    """peft's targets can name its matrices; False beside experts that took their names (``Moe.stacked_adapters``)."""


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
    """``softmax`` | ``sigmoid`` | ``softmax-topk`` (softmax over the chosen ones) | ``sparsemixer`` (Phi 3.5)."""
    shared_width: int = 0
    """Intermediate size of all shared experts together; 0 = none."""
    shared_gate: bool = False
    tensors: tuple[ParameterTensor, ...] = ()
    dense_dispatch: bool = False
    """Every expert is given every token, weighted by its score (Llama 4 in transformers)."""
    correction_bias: bool = False
    """A bias per expert, kept as a buffer, is added to the scores when experts are chosen (DeepSeek V3)."""
    clamped_glu: bool = False
    """GPT-OSS's gate: interleaved halves, clamped, ``(up + 1) * gate * sigmoid(alpha * gate)``."""
    latent_size: int = 0
    """Experts work on a projection of this width instead of the hidden size (Nemotron-H); 0 = they do not."""
    router_fp32: bool = False
    """The router multiplies fp32 copies of its input and weight (DeepSeek, GLM-4 MoE)."""
    scores_fp32: bool = False
    """The chosen scores stay in fp32, so the weighted outputs of the experts are fp32 (Mixtral, DeepSeek, MiniMax)."""
    normalised_scores: bool = True
    """The chosen scores are divided by their sum (``norm_topk_prob``)."""
    groups: int = 1
    """Groups of experts, of which a token is routed to ``chosen_groups`` at most (DeepSeek: ``n_group``)."""
    chosen_groups: int = 1
    stacked_adapters: bool = False
    """peft maps the names of transformers 4's separate experts (gate_proj, up_proj, down_proj, w1...) and of the router
    to the stacked tensors, and to nothing else in the model (peft utils/transformers_weight_conversion.py)."""


class Block(Record):
    """One layer of the stack."""

    mixer: Attention | LatentAttention | Mixer | TowerAttention | None
    mlp: Mlp | Moe | None
    input_norm: Norm | None
    """Before the mixer."""
    mlp_norm: Norm | None
    """Before the feed-forward network (``post_attention_layernorm`` of Llama)."""
    mixer_output_norm: Norm | None = None
    """After the mixer, before the residual sum (Gemma 2/3, GLM-4, OLMo 2)."""
    mlp_output_norm: Norm | None = None
    parallel: bool = False
    """Attention and feed-forward read the same residual and are added together."""
    post_norm: bool = False
    """``input_norm`` and ``mlp_norm`` come after the residual sum (OPT-350m)."""
    dropout: float = 0.0
    """Residual dropout."""
    extra_tensors: tuple[ParameterTensor, ...] = ()
    residual_scale: bool = False
    """What is added to the residual stream is multiplied by a constant (Granite, MiniMax)."""
    inner_dropout: bool = False
    """Residual dropout is the last statement of attention and feed-forward network, whose arguments live until then
    (GPT-2, StarCoder 2)."""
    named_output: bool = False
    """What attention returns has a variable of its own to the end of the layer (GPT-2, MPT)."""
    named_norm: bool = False
    """What the first norm returns has a variable of its own to the end of the layer (StableLM, Falcon)."""
    norms_first: bool = False
    """Both norms run before attention, and the halves are added in place (Falcon)."""
    layer_scale: bool = False
    """What is added to the residual stream is multiplied by a learned vector: ``extra_tensors`` (InternViT)."""
    residual_from_norm: bool = False
    """The residual stream continues from the norm's output, not from its input (MiniMax, BLOOM on request)."""

    @property
    def norms(self) -> tuple[Norm, ...]:
        """The block's own norms, without those inside its components."""
        found = (self.input_norm, self.mlp_norm, self.mixer_output_norm, self.mlp_output_norm)
        return tuple(n for n in found if n is not None)


class Paths(Record):
    """Where transformers keeps the parts of the model: what module patterns match."""

    layers: str = "model.layers"
    embedding: str = "model.embed_tokens"
    positions: str = ""
    head: str = "lm_head"


class TaskHead(Record):
    """What a model ends in instead of logits over its vocabulary."""

    kind: str
    """``classification`` (one answer a sequence) | ``token-classification`` | ``embedding`` (pooled hidden states)."""
    labels: int = 0
    bias: bool = False
    dropout: float = 0.0


class Architecture(Record):
    """A whole causal language model."""

    model_type: str
    hidden_size: int
    vocab_size: int
    blocks: tuple[tuple[Block, int], ...]
    """Runs of equal consecutive blocks, in order: ``((dense, 3), (moe, 58))``."""
    embedding_size: int
    """Width of the token embedding; differs from hidden_size only with a projection (OPT-350m)."""
    tie_word_embeddings: bool
    final_norm: Norm | None
    embedding_norm: Norm | None = None
    learned_positions: int = 0
    """Rows of a learned position table; 0 = none."""
    head_bias: bool = False
    head: bool = True
    """It has a matrix to the vocabulary, its own or the embedding's."""
    task: TaskHead | None = None
    max_position_embeddings: int = 0
    """0 = unbounded (ALiBi, no positions)."""
    final_softcap: bool = False
    """tanh soft-capping of the logits (Gemma 2)."""
    embedding_scale: bool = False
    """The embedding output is multiplied by a constant or tensor (Gemma, Granite)."""
    scales_outside: bool = False
    """In the model's forward (Granite) instead of the embedding module's (Gemma)."""
    embedding_dropout: float = 0.0
    rotary_dim: int = 0
    """Width of the rotary tables, where no block says it."""
    rotary_tables: int = 1
    """Pairs of rotary tables: one for each kind of layer (Gemma 3, OLMo 3), else one."""
    mask_windows: tuple[int | None, ...] = ()
    """Windows of the masks that the model makes whatever its layers are; None: the full one."""
    positions_each: bool = False
    """Positions are looked up for every sequence (OPT), not once for all."""
    extra_tensors: tuple[ParameterTensor, ...] = ()
    """Tensors outside blocks, embedding, head and final norm (OPT's projections)."""
    logit_scale: bool = False
    """The logits are multiplied or divided by a constant (Cohere, Granite)."""
    mtp_layers: int = 0
    """Multi-token-prediction layers that the configuration names. transformers does not build them, so ``blocks`` and
    every count leave them out."""
    paths: Paths = Paths()
    vision: Vision | None = None
    """The tower whose rows become image tokens; None: text alone."""
    others: tuple[OtherTower, ...] = ()
    """Towers that hold weights and do not run."""
    notes: tuple[str, ...] = ()
    """What a reader of the estimate should know about how the configuration was read."""

    @property
    def num_layers(self) -> int:
        """Number of blocks."""
        return sum(n for _, n in self.blocks)

    def layers(self) -> tuple[Block, ...]:
        """Every block, one entry per layer."""
        return tuple(chain.from_iterable(repeat(block, n) for block, n in self.blocks))


class Rough(Record):
    """What ``model: {rough: ...}`` states when no architecture is known."""

    parameters: int
    layers: int
    hidden_size: int
    activation_multiplier: float
    vocab_size: int | None = None
