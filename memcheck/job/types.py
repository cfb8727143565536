"""A resolved job: every value concrete, nothing left to default. The memory engine reads only this."""

from __future__ import annotations

from memcheck.autograd.weight_formats import FourBits, WeightFormat
from memcheck.models.types import Architecture, Rough
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from memcheck.job.engines.types import EngineSettings
    from memcheck.job.framework import Framework


PAIRED = ("dpo", "ipo", "orpo", "simpo", "cpo", "reward")
"""Objectives whose samples are pairs: the chosen and the rejected sequence are two rows of one forward pass."""
COMPARED = ("dpo", "ipo", "kto")
"""Objectives that compare the policy with a reference."""
SCORED = (*COMPARED, "orpo", "simpo", "cpo")
"""Objectives over log-probabilities of a completion."""
DISTILLED = ("gkd", "distill")
"""Objectives that compare the student with a teacher."""
LLAMA_FACTORY = "llama-factory"
"""The code of a loss that LLaMA-Factory computes itself."""
MS_SWIFT = "ms-swift"
"""The code of a loss that ms-swift computes itself."""
OPEN_INSTRUCT = "open-instruct"
"""The code of a loss that open-instruct computes itself."""
TRAINERS = (LLAMA_FACTORY, MS_SWIFT, OPEN_INSTRUCT)
"""The codes that are a trainer's name, without a version."""
PIECEWISE = ("trl-1.7", "trl-1.13")
"""The codes of TRL's ``chunked_nll``: with the head in fp32, and in the dtype of the hidden states."""
OWN = "own"
"""The code of a loss in the framework's own training loop."""
SECOND_PASSES = ("resident", "host", "adapter-off")
"""References whose log-probabilities are made in the step."""
SECOND_MODELS = ("resident", "host")
"""References that are a model of their own."""


class Objective(Record):
    """The loss, and whose code computes it. As it is by default, the model computes it: next-token cross-entropy."""

    name: str = "sft"
    loss_code: str = ""
    """Which lines compute the loss: ``trl-0.24`` | ``trl-0.29`` | ``trl-1.6`` | ``trl-1.7`` | ``trl-1.13`` |
    ``trl-1.15`` | ``llama-factory`` | ``ms-swift`` | ``open-instruct`` | ``own``.

    Empty: the model's own.
    """
    prompt_tokens: int = 0
    """Tokens of a row that are not scored."""
    beta: float = 0.5
    """Distillation's share: 0 is the forward divergence, 1 the reverse one, between them both are mixed."""
    reference: str = "none"
    """``resident`` | ``host`` | ``precomputed`` | ``adapter-off`` | ``none``."""
    fp32_outputs: bool = False
    """accelerate copies the model's outputs to fp32 as its forward returns (``convert_outputs_to_fp32``)."""

    @property
    def rows(self) -> int:
        """Rows of a forward pass for each sample of a micro-batch."""
        return 2 if self.name in PAIRED else 1

    @property
    def loss_after_model(self) -> bool:
        """Whether the loss is taken after the model's forward, on what that returned."""
        return bool(self.loss_code) and self.name not in ("sft", "reward", "distill")

    @property
    def loss_from_hidden_states(self) -> bool:
        """Whether the loss is taken from hidden states, without logits."""
        return self.loss_code == "trl-1.15" and self.name not in ("gkd", "reward")

    @property
    def loss_in_chunks(self) -> bool:
        """Whether head and loss run on some tokens at a time, each time again in backward (``chunked_nll``)."""
        return self.loss_code in PIECEWISE

    @property
    def loss_in_model(self) -> bool:
        """Whether the model's own forward is given a loss without whole logits, in place of what the plan states."""
        return self.name == "sft" and (self.loss_from_hidden_states or self.loss_in_chunks)

    @property
    def usual_loss(self) -> str:
        """Return the kind of loss of a framework's own recipe (torchtune): ``chunked`` for a distillation.

        Empty: a trainer such as TRL computes the objective.
        """
        if self.loss_code != OWN:
            return ""
        return "chunked" if self.name in DISTILLED else "standard"

    @property
    def holds_reference(self) -> bool:
        """Whether the training loop's variables hold the reference's logits until the next micro-batch's: torchtune's
        recipes of adapters do not delete them (``recipes/lora_dpo_*.py``).
        """
        return self.loss_code == OWN and self.reference == "adapter-off"

    @property
    def keeps_evaluation_logits(self) -> bool:
        """Whether an evaluation that keeps logits gets those of the whole rows: TRL's DPO returns its outputs."""
        return self.name in ("dpo", "ipo") and self.loss_code in ("trl-0.29", "trl-1.6")

    @property
    def reference_caches(self) -> bool:
        """Whether a reference of its own returns keys and values too: TRL's KTO asks for none since 1.14 only."""
        return self.name == "kto" and self.loss_code in ("trl-0.29", "trl-1.6")

    @property
    def reads_logits(self) -> bool:
        """Whether the trainer reads the model's logits after its forward, for metrics."""
        return self.name == "sft" and self.loss_code == "trl-0.29"

    @property
    def forward_only_pass(self) -> bool:
        """Whether another forward pass runs without gradients in each micro-batch."""
        return self.name in DISTILLED or (self.name in COMPARED and self.reference in SECOND_PASSES)

    @property
    def repeats_forward(self) -> bool:
        """Whether the trained model runs forward twice before a backward: with its adapters off, or for KTO's estimate
        of a divergence (``_compute_kl_logps``).
        """
        return self.name == "kto" or (self.name in COMPARED and self.reference == "adapter-off")


class ModelHead(Record):
    """What the trained model ends in."""

    kind: str = "lm"
    """``lm`` | ``classification`` | ``token-classification`` | ``reward`` | ``embedding``."""
    labels: int = 0
    """Classes that a classification head tells apart; 0 where there is no such head."""

    @property
    def text_columns(self) -> int:
        """Forward passes of a micro-batch, whose graphs live at the same time. A model that embeds texts runs once for
        each column of the data set (anchors, then positives); any other model runs once.
        """
        return 2 if self.kind == "embedding" else 1


class Evaluation(Record):
    """The forward pass without gradients that a trainer runs between steps, to evaluate the model."""

    micro_batch_size: int
    """Samples in one forward pass of a data-parallel rank."""
    sequence_length: int
    """Tokens of a row; 0: as many as in training."""
    steps: int = 1
    """Forward passes of one evaluation on a data-parallel rank."""
    keeps_logits: bool = False
    """Whether the logits of every evaluation step accumulate on the GPU until the evaluation is over."""


class Companion(Record):
    """A model that a step needs in addition to the one that is trained."""

    role: str
    """``reference`` | ``teacher``."""
    architecture: Architecture
    parameters_place: str = "device"
    """``device`` | ``host``: where its parameters rest."""
    dtype: str = "bf16"


DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "remainder": 2}
"""Bytes of one element; 4-bit formats carry quantisation constants and are counted where they are used."""


UNPACKED = ("padded", "unpacked", "unpacked-masked")
"""Values of ``training.sequences`` for rows that are one text each: ``sequence_length`` is only their limit."""
LIGER_KERNELS = ("rope", "rms_norm", "glu")
"""Modules that Liger replaces."""
TORCH_2_13 = "2.13"
"""The behaviour of PyTorch up to 2.14."""
TORCH_2_15 = "2.15"


class Assumption(Record):
    """A value that the plan did not state and that was used."""

    key: str
    value: object
    why: str


class Ground(Record):
    """A value that the plan did not state, and what the plan would need with another one."""

    key: str
    value: object
    other: object
    needed_bytes: int
    utilization: float
    """``needed / capacity``, both with the other value."""


class Layout(Record):
    """The parallel layout of a job: ``world_size == tensor * context * pipeline * data`` ranks, one GPU each."""

    nodes: int = 1
    """Machines."""
    gpus_per_node: int = 1
    """GPUs of one machine."""
    tensor: int = 1
    """Tensor-parallel degree."""
    sequence: bool = False
    """Sequence parallelism: hidden states between layers are divided among the tensor ranks."""
    context: int = 1
    """Context-parallel degree: ranks that share each sequence."""
    pipeline: int = 1
    """Pipeline-parallel degree: the number of pipeline ranks."""
    pipeline_schedule: str = "1f1b"
    """``gpipe`` | ``1f1b`` | ``interleaved-1f1b`` | ``zero-bubble`` | ``dualpipe``."""
    virtual_stages: int = 1
    """Stages (model chunks) per pipeline rank."""
    fewer_layers: tuple[int, int] = (0, 0)
    """How many layers the first and the last stage have less than others."""
    expert: int = 1
    """Expert-parallel degree: ranks that share out the experts of a layer."""
    expert_tensor: int = 1
    """Tensor-parallel degree of the experts."""
    data: int = 1
    """Data-parallel degree: ranks with different samples."""
    zero_stage: int = 0
    """What data-parallel ranks shard: 0 nothing, 1 optimizer states, 2 gradients too, 3 parameters too."""
    shard_group: int = 1
    """Ranks that share one copy of the sharded state; data * context when fully sharded."""
    reshard_after_forward: bool = True
    """FSDP frees a unit's parameters after its forward, and gathers them again for its backward."""
    gradient_sync: str = "every"
    """Which micro-batches reduce their gradients over data-parallel ranks: ``every`` | ``last``."""
    gradient_as_bucket_view: bool = False
    """DDP's ``gradient_as_bucket_view``: gradients are views of the reduction buckets."""

    @property
    def world_size(self) -> int:
        """Number of GPUs."""
        return self.nodes * self.gpus_per_node


class Recipe(Record):
    """Dtypes of the training state. ``master`` is ``none`` when the parameters are their own master copy."""

    recipe: str
    """``fp32`` | ``bf16-mixed`` | ``fp16-mixed`` | ``fp8-mixed`` | ``bf16-pure`` | ``fp16-pure``."""
    params: str
    """Dtype in which the parameters are stored between steps."""
    compute: str
    """Dtype of matrix products and activations."""
    gradients: str
    """Dtype of the gradients that stay allocated until the optimizer step."""
    master: str
    """Dtype of the master copy of the parameters that the optimizer updates; or ``none``."""
    optimizer_states: str
    """Dtype of the optimizer's moments."""
    reduce: str
    """Dtype in which gradients are reduced over data-parallel ranks."""
    autocast: bool
    """torch.autocast casts fp32 parameters per operator (DDP/single GPU), as opposed to casting whole units (FSDP2)."""


class Lora(Record):
    """The LoRA adapters of a job, in PEFT's words."""

    rank: int = 16
    """Rank ``r``: A has the shape [r, inputs], B has [outputs, r]."""
    target_modules: str | tuple[str, ...] = "all-linear"
    """Names of the linear layers that get adapters, a pattern of their paths, or ``all-linear``."""
    dtype: str = "fp32"
    """Dtype of the adapters' weights."""
    dropout: float = 0.0
    """``lora_dropout``: the probability of dropout on an adapter's input."""
    dora: bool = False
    """DoRA: a trained magnitude for each output (``use_dora``)."""
    modules_to_save: tuple[str, ...] = ()
    """``embed_tokens`` and ``lm_head`` that are trained as copies while the frozen originals stay allocated."""
    target_parameters: tuple[str, ...] = ()
    """Stacked experts that are adapted by their parameters' names."""
    expert_rank: int = 0
    """The rank of the adapters of stacked experts; 0: ``rank``."""
    parts: tuple[str, ...] = ()
    """Parts of a multimodal model that get adapters; empty: all of them."""
    reach: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """For targets that are a pattern of paths: the names of the modules that it matches, by part of the model."""

    def targets_in(self, part: str) -> str | tuple[str, ...]:
        """Return the target modules in one part of the model: ``language``, ``vision`` or ``projector``; may be
        empty.
        """
        if self.parts and part not in self.parts:
            return ()
        return dict(self.reach).get(part, ()) if self.reach else self.target_modules


class Images(Record):
    """What the processor makes of the pictures of one sample."""

    pictures_per_sample: int
    """Pictures, or the tiles that they are cut into."""
    patches_per_sample: int
    """Rows of the tower, class tokens included."""
    tokens_per_sample: int
    """Image tokens of the sequence."""
    patches_by_picture: tuple[int, ...] = ()
    """Rows of each picture, where the plan says that they differ; none: all pictures have the same size."""


class Optimizer(Record):
    """The optimizer of a job, and how its step is implemented."""

    name: str
    """The plan's name of it: ``adamw``, ``adamw-8bit``, ``muon``, ..."""
    implementation: str
    """``foreach`` | ``fused`` | ``for-loop``."""
    offload: str = "none"
    """Where its states are kept between steps: ``none`` (on the GPU) | ``cpu`` | ``nvme``."""
    in_backward: bool = False
    """Each tensor is stepped as its gradient is made (torchtune ``register_optim_in_bwd_hooks``)."""


class Checkpointing(Record):
    """Activation checkpointing: what backward recomputes instead of reading it from saved tensors."""

    mode: str = "none"
    """``none`` | ``selective`` | ``full``: nothing, some operators or modules, or whole layers."""
    reentrant: bool = False
    """``torch.utils.checkpoint`` with ``use_reentrant=True``."""
    every_n_layers: int = 1
    """Every n-th layer is recomputed; 1: all of them."""
    modules: tuple[str, ...] = ()
    """Modules of a layer that are recomputed, where the mode is ``selective``."""
    offload: str = "none"
    """Where the saved inputs of layers are kept between forward and backward: ``none`` (on the GPU) | ``cpu``."""


class Loss(Record):
    """How the loss is computed from the last hidden state."""

    kind: str = "standard"
    """``standard`` | ``vocab-parallel`` | ``chunked`` | ``fused-linear`` | ``in-place``."""
    chunks: int = 1
    """Number of chunks of a chunked loss."""
    upcast: bool = True
    """Logits are cast to fp32 before the loss."""
    keep_logits: bool = False
    """The training loop refers to the logits until the next micro-batch's replace them."""
    shifts: str = ""
    """What becomes of the logits where they are shifted: ``copied``, or ``rebound`` to their fp32 copy before that;
    empty: labels are shifted instead."""

    def stated(self) -> dict[str, object]:
        """The loss as keys and values of a plan, without those that follow from other keys."""
        return {k: v for k, v in self._asdict().items() if k not in ("compiled", "shifts")}


class Initialization(Record):
    """Where each process makes the model, and of what."""

    place: str = "meta"
    """``host`` | ``rank0`` | ``device`` | ``meta``."""
    files_dtype: str = "bf16"
    """Dtype of the checkpoint's files, or ``random``."""
    loads_before_quantizing: bool = False
    """Matrices of the files are on the GPU, in 16 bits, long before they are quantised."""


class Checkpoint(Record):
    """How the training state is saved."""

    state_dict: str = "none"
    """``full`` | ``sharded`` | ``none``."""
    optimizer: bool = True
    offload: str = "cpu"
    """Where a full state is gathered: ``cpu``, tensor by tensor, or ``none``: on every GPU, all of it."""
    asynchronous: bool = False


class TrainingJob(Record):
    """One training step of one plan."""

    architecture: Architecture | Rough
    framework: Framework
    framework_version: str | None
    """Release of the framework that the plan states; None: not stated."""
    layout: Layout
    recipe: Recipe
    """The dtype of each state, and of the computation."""
    optimizer: Optimizer
    micro_batch_size: int
    """Samples in one forward pass of a data-parallel rank; :attr:`rows` counts their sequences."""
    sequence_length: int
    """Tokens of a row, padding included."""
    gradient_accumulation_steps: int
    """Micro-batches of each data-parallel rank per optimizer step."""
    method: str = "full"
    """``full`` | ``lora`` | ``qlora``: which parameters are trained, and whether the frozen base is quantised."""
    base_format: WeightFormat | None = None
    """The format in which the frozen base is stored quantised; None: in ``recipe.params``."""
    unread_share: float = 0.0
    """By which share of live bytes a step over this base may need more, for a fact that no plan states."""
    lora: Lora | None = None
    """The adapters that are trained; None: there are none."""
    freeze: tuple[str, ...] = ()
    """Parts of the model that are frozen, in the words of ``training.freeze``."""
    images: Images | None = None
    """Pictures of a sample; None: none are stated, so that a multimodal model's fill the sequence."""
    target_length: int = 0
    """Tokens of an encoder-decoder's labels, of each sample; 0: none are stated."""
    checkpointing: Checkpointing = Checkpointing()
    attention: str = "sdpa"
    """The attention implementation, in the words of ``training.attention``."""
    loss: Loss = Loss()
    clip_grad_norm: bool = False
    """The norm of all gradients is computed before the optimizer steps."""
    expert_imbalance: float = 1.0
    """Tokens of the busiest expert-parallel rank over those of an average one."""
    compile: bool = False
    """torch.compile runs; :meth:`compiles` says on which component."""
    expandable_segments: bool = False
    """The caching allocator uses expandable segments."""
    parameter_offload: str = "none"
    """Where parameters are while they are not used: ``none`` (on the GPU) | ``cpu`` | ``nvme``."""
    initialization: Initialization = Initialization()
    checkpoint: Checkpoint = Checkpoint()
    options: tuple[tuple[str, object], ...] = ()
    """The framework's own knobs, sorted by name."""
    prepares_kbit: bool = False
    """peft's ``prepare_model_for_kbit_training`` has cast what is not quantised to fp32."""
    hooks_embedding: bool = False
    """Embedded rows are made to require a gradient without recompute, too (``TrainerPackage.hooks_embedding``)."""
    fsdp_version: int = 2
    """Which FSDP wraps the model, where one does."""
    groups_embedding_and_head: bool = False
    """Accelerate makes FSDP2 groups of the embedding, and of final norm and head, in addition to the root's."""
    upcasts_before_sharding: bool = False
    """What is trained is cast to fp32 before FSDP shards it, in whichever dtype it was loaded."""
    flat_param_gradients: bool = False
    """In the job of units alone: frozen weights get gradients, because one flat parameter holds them and adapters."""
    objective: Objective = Objective()
    head: ModelHead = ModelHead()
    evaluation: Evaluation | None = None
    """The forward pass between steps; None: there is none."""
    sequences: str = "packed"
    """``packed`` | ``padded`` | ``masked`` | ``flattened`` (a micro-batch in one row)."""
    may_pad: bool = False
    """Rows are texts that a collator may pad, and the plan does not say so: they are taken as full."""
    auxiliary_models: tuple[Companion, ...] = ()
    """Models in addition to the trained one: they stay allocated, and run forward without gradients."""
    ssm_kernels: str = "fused"
    """``fused`` | ``fallback``: whether recurrent layers have their kernels' packages."""
    liger: tuple[str, ...] = ()
    """Kernels of ``LIGER_KERNELS`` that replace modules."""
    torch: tuple[str, ...] = (TORCH_2_15,)
    """How PyTorch behaves, by version; several where that is unknown, and the one that needs most counts."""

    @property
    def rows(self) -> int:
        """Sequences in one forward pass."""
        return self.micro_batch_size * self.objective.rows

    @property
    def has_four_bit_base(self) -> bool:
        """Whether the frozen base is stored in bitsandbytes' 4-bit weights (or torchao's)."""
        return isinstance(self.base_format, FourBits)

    @property
    def sequences_per_row(self) -> int:
        """How many sequences lie end to end in one row."""
        return self.rows if self.sequences == "flattened" else 1

    @property
    def needs_attention_mask(self) -> bool:
        """Whether attention is given a mask of every row."""
        return self.sequences in ("masked", "flattened") or (self.sequences == "padded" and self.rows > 1)

    @property
    def forward_passes(self) -> int:
        """Forward passes of an optimizer step that build a graph."""
        return self.gradient_accumulation_steps * self.head.text_columns

    @property
    def run_micro_batches(self) -> int:
        """Micro-batches in one run of a pipeline's schedule, after which torch reduces gradients."""
        steps, each = self.gradient_accumulation_steps, self.option("micro_batches_per_run")
        return min(each, steps) if isinstance(each, int) and self.layout.pipeline > 1 else steps

    @property
    def casts_gradients(self) -> bool:
        """Autograd casts the gradients that FSDP2 accumulates to the reduce dtype, and pipelining allocates lazily.

        FSDP2's forward lets go of the last gathered buffer before it copies the next one out, too.
        """
        return self.torch == (TORCH_2_15,)

    def option(self, name: str, default: object = None) -> object:
        """Return the value of one framework option."""
        for key, value in self.options:
            if key == name:
                return value
        return default

    def compiles(self, component: str) -> bool:
        """Say whether torch.compile runs the ``model`` or the ``loss``: both, unless torchtitan's ``components`` say
        so.
        """
        components = self.option("components")
        return self.compile and (not isinstance(components, tuple) or component in components)


class InferenceJob(Record):
    """Serving: weights, KV cache and the working set of a prefill."""

    architecture: Architecture | Rough
    layout: Layout
    batch_size: int
    context_length: int
    weights: str
    kv_cache: str
    chunk: int = 8192
    """Tokens of one prefill at most."""
    engine: EngineSettings | None = None
    """The serving engine; None: weights, cache and a prefill are added up."""

    @property
    def pass_tokens(self) -> int:
        """Tokens of the longest forward pass: a chunk of a longer prompt."""
        return min(self.chunk, self.context_length)


class Overhead(Record):
    """How allocated bytes become device bytes."""

    kind: str = "modeled"
    """``modeled`` (context, communicators, fragmentation itemised) or ``flat``."""
    fraction: float = 0.0
