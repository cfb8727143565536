"""What memcheck knows of a training framework: one record, one file per framework."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from memcheck.autograd.style import Style
from memcheck.job.families import Families
from memcheck.job.types import Recipe
from memcheck.record import Record

TRANSFORMERS_BASES = ("nf4", "fp4", "int8", "gptq-4bit", "gptq-8bit", "awq-4bit", "fp8")
"""Quantised bases that transformers loads and peft adapts."""
PEFT_VARIANTS = ("dropout", "dora", "modules_to_save", "target_parameters", "expert_rank")
"""Keys of peft's LoraConfig that change what its adapters hold."""


class Profile(Record):
    """Defaults and abilities of one stack. Each default names the upstream line it was read from in its file."""

    name: str
    title: str
    recipes: dict[str, Recipe]
    """Precision recipe by plan name, at every ZeRO stage unless ``sharded_recipes`` says otherwise."""
    sharded_recipes: dict[str, Recipe]
    """Recipes that differ at zero_stage 3 (FSDP2's mixed precision has no autocast copies)."""
    default_precision: str
    default_optimizer: str
    default_implementation: str
    default_attention: str
    default_loss: str
    keep_logits: bool
    """The training loop still references the model's output during backward."""
    upcast: bool
    clip_grad_norm: bool
    sequence_parallel: bool
    """Default of ``parallelism.sequence`` when tensor > 1."""
    expandable_segments: bool
    zero_stages: tuple[int, ...]
    parallelisms: tuple[str, ...]
    """Parallelisms that the framework supports, of ``tensor``, ``sequence``, ``context``, ``pipeline``, ``expert``,
    ``expert_tensor``.
    """
    schedules: tuple[str, ...]
    """Pipeline schedules."""
    methods: tuple[str, ...]
    """Training methods that the framework supports, of ``full``, ``lora``, ``qlora``."""
    losses: tuple[str, ...]
    attentions: tuple[str, ...]
    recompute: tuple[str, ...]
    options: dict[str, tuple[type, ...]]
    """Known ``training.options`` and the types their values may have."""
    choices: Mapping[str, tuple[str | int, ...]]
    """The words that an option may have, where upstream lists them."""
    families: Families
    """The models it builds that have a memory model."""
    style: Style
    """The module code that runs, and what sets it apart: that of transformers' classes, or the framework's own."""
    implementations: dict[str, str]
    """Optimizer implementation by optimizer name, where it is not ``default_implementation``."""
    objectives: tuple[str, ...] = ("sft",)
    """Values of ``training.objective`` that the framework supports."""
    own_objectives: bool = False
    """Whether the objectives run in the framework's own recipes, not in the code of a trainer."""
    heads: tuple[str, ...] = ("lm",)
    """Values of ``training.head`` that the framework supports."""
    evaluates: bool = False
    """What its evaluation pass holds is known."""
    pads: bool = False
    """Rows of different lengths are known: it runs transformers' classes, which mask the padding."""
    collates: bool = False
    """Whether the framework's loop pads the rows of a micro-batch by itself (transformers ``trainer.py``,
    ``default_collator``).
    """
    steps_in_backward: bool = False
    trainers: tuple[str, ...] = ()
    """Values of ``training.trainer``: the trainers that run on top of the framework."""
    wide_outputs: bool = False
    """Under mixed precision the model's outputs are copied to fp32 as its forward returns."""
    upcasts_trained: bool = False
    """Under mixed precision what is trained is cast to fp32 before FSDP shards it, in whichever dtype it was loaded."""
    replicated_amp_alone: bool = False
    """Below zero_stage 3, mixed precision works only without tensor and pipeline parallelism; else all is fp32."""
    loss_parallel: str = "never"
    """When the standard loss runs on vocabulary shards by itself: ``never`` | ``tensor`` (tensor > 1) | ``always``."""
    caches_outputs: bool = False
    """Whether pipelines are torch's, which cache the logits of the last stage until their backward."""
    loss_reduces_head: bool = False
    """The chunked loss runs the head, and reduces the gradient of its weight itself."""
    splits_fused: bool = False
    """Query, key and value, gate and up are layers of their own in its modules, whatever transformers fuses."""
    chunks_fused_loss: bool = False
    """Whether the loss that contains the head runs head and loss on chunks of the tokens."""
    gradient_sync: str = "every"
    """Default of ``parallelism.gradient_sync``: with which of the micro-batches of a step gradients are reduced."""
    gathers_stages_again: bool = True
    """Default of ``parallelism.reshard_after_forward`` in a pipeline."""
    fewer_layers: tuple[int, int] = (0, 0)
    """How many layers a pipeline's first and last stage have less than others, unless its options say otherwise."""
    lora_rank: int = 16
    lora_targets: str | tuple[str, ...] = "all-linear"
    lora_dtype: str = "fp32"
    """Dtype of adapters: ``fp32`` (peft's default), or ``params``, which is that of the model's parameters."""
    runs_transformers: bool = False
    """Whether the framework runs the modules of transformers unchanged."""
    lora_variants: tuple[str, ...] = ()
    """Keys of ``training.lora``, other than rank, targets and dtype, that its adapters are modelled with."""
    rests_towers: tuple[str, str] | None = None
    """The option, and its value, under which it holds a tower that does not run, whole on each rank of its first stage;
    None: towers are transformers' and run.
    """
    adapted_modules: tuple[str, ...] = ()
    """Names that ``target_modules`` can have where its linear layers are not called as transformers' are."""
    adapts_head: bool = False
    """Targets may name the head: its adapters are peft's, on the model's own linear layer."""
    own_adapters: bool = False
    """Adapters and 4-bit layers are its own model code. Else they are peft's, whose ``prepare_model_for_kbit_training``
    (peft/utils/other.py) casts what is not quantised (norms, embeddings, head) to fp32."""
    bases: tuple[str, ...] = ()
    """Values of ``training.base``: how a frozen base can be stored, in addition to the dtype of the parameters."""
    quantizes_head: bool = False
    """QLoRA quantises the head, too."""
    default_quantization: str = ""
    """Default of its option ``quantize``, whose values without ``-dq`` leave the constants of 4-bit weights as they
    are. Empty: constants are always quantised once more."""
    masters_adapters: bool = False
    """Whether the optimizer steps on a master copy of every trained tensor. If not, adapters with a dtype of their own
    have no master copy.
    """
    modelled_release: str = ""
    """The release whose code its steps were read from, where releases differ and a plan may state one. Empty: not
    stated.
    """
    modelled_since: tuple[int, ...] | None = None
    """The first release that has these steps. None: every release."""
    compiled_releases: tuple[float, float] = (0.0, 0.0)
    """Shares of the predicted bytes by which compiled steps of other releases may need less, and more."""
    flattens_units: bool = False
    """Whether the framework uses FSDP1 (``FullyShardedDataParallel``), in every version."""
    wraps_adapters_since: tuple[int, int] | None = None
    """The first version whose Trainer makes FSDP1 units of adapters (peft ``fsdp_auto_wrap_policy``). None: its option
    ``wraps_adapters`` decides; without that option, layers alone are units."""
    fsdp2_since: tuple[int, int] | None = None
    """The first version whose default is FSDP2; before it, that is FSDP1. None: it always was."""
    stacks_experts_since: tuple[int, int] | None = None
    """The first version whose experts are one tensor a layer; before it, each is linear layers, which bitsandbytes
    quantises. None: they always were."""
    shifts_labels_since: tuple[int, int] | None = None
    """The first version whose loss shifts labels; before it, a copy of the logits without the last token's."""
    keeps_narrow_logits_since: tuple[int, int] | None = None
    """The first version whose loss is a function of its own, so that the model still has the logits as computed."""
    reentrant_before: tuple[int, int] | None = None
    """The first version that checkpoints without ``use_reentrant`` by default. None: it never did otherwise."""
    wraps_ends: bool = False
    """Embedding and head are FSDP2 groups of their own. Else they are the root's, with the final norm."""
    gathers_ahead: bool = False
    """With expert parallelism a group's forward begins with the all-gather of the next one."""
    divides_gradients: bool = False
    """Whether the framework sets the factor by which FSDP2 divides gradients (``set_gradient_divide_factor``)."""
    versions_models: bool = False
    """Whether the stated version is the version of transformers, whose classes are the models."""
    unsplit: tuple[str, ...] = ()
    """Model types whose classes name no layers, at zero_stage 3 in one group for that."""
    wraps_classes: bool = False
    """FSDP makes units of the classes that a model of pictures names (``_no_split_modules``), not of layers alone."""
    wraps_one_rank: bool = False
    """At zero_stage 3 FSDP2 wraps the model on a single rank, too, for its mixed precision."""
    lacks: Mapping[str, str] = MappingProxyType({})
    """Keys of a plan that it has nothing for, and what it does instead, with the upstream file. Their defaults hold."""
    own_gradients: bool = False
    """Whether the framework sums gradients in buffers of its own, whose dtype a plan chooses. Otherwise autograd makes
    the gradients in the dtype of their parameters, and torch's optimizers make their states in that dtype
    (``zeros_like``).
    """
    allocators: tuple[str, ...] = ("default", "expandable")
    """The allocator's settings that steps of this framework were measured with."""
    initialization: tuple[str, str] = ("host", "host")
    """Default of ``training.initialization``: of a replicated model, and of one whose parameters are sharded."""
    checkpoint: tuple[str, str] = ("full", "sharded")
    """Default of ``training.checkpoint``: of a replicated model, and of one whose parameters are sharded."""
    harmless: Mapping[str, str] = MappingProxyType({})
    """Options that move no memory worth a figure, and why."""
    unmodelled: Mapping[str, tuple[object, str]] = MappingProxyType({})
    """Options that change memory and have no model: the value that the estimate assumes, and what another value does,
    as a clause.
    """
    data_parallel: str = "torch"
    """Whose data parallelism: ``torch`` (DistributedDataParallel, ZeroRedundancyOptimizer and FSDP2, by ZeRO stage),
    ``fsdp`` (FSDP alone, with what its scripts choose), ``zero`` (DeepSpeed's engine), ``distributed-optimizer``
    (Megatron's contiguous buffers and Megatron-FSDP)."""
    own_optimizers: bool = False
    """Fused optimizers are kernels of its own, on the GPU and on the host (DeepSpeed's FusedLion and CPU-Adam, those
    that Megatron calls). Else they are torch's, and bitsandbytes' for Lion."""
    bitsandbytes: bool = True
    """Whether the framework can step with bitsandbytes' 8-bit optimizers."""
    own_loop: bool = False
    """The training loop is the user's, over PyTorch alone: ``framework_version`` is PyTorch's, and a full state dict
    may be gathered on the GPUs."""
    from_pretrained: bool = False
    """Weights are loaded by transformers' ``from_pretrained``, which quantizes on the current GPU."""
    loads_slices: bool = False
    """With tensor parallelism ``from_pretrained`` reads only the slices of the rank."""
    frozen_dtype: str = "recipe"
    """The dtype of a frozen base: the ``recipe``'s, or the 16 bits of its ``checkpoint``."""
    other_initializations: tuple[str, ...] = ()
    """Places where it can make a model instead of the default one."""
    either_state_dict: bool = False
    """A plan chooses between a full and a sharded state dict."""
    asynchronous_checkpoints: bool = False
    """Sharded state dicts can be saved while training goes on."""
    offload_places: tuple[str, ...] = ("cpu",)
    """Where the optimizer's states and parameters can be offloaded: ``cpu``, ``nvme``."""
    offloads_parameters: bool = True
    selective_recompute: str = ""
    """What selective recompute chooses among: the ``operators`` or the ``modules`` of a block. Empty: there is none to
    turn on; for a plan that has it, the estimate recomputes core attention.
    """
    keeps_exchanges_since: tuple[int, int] | None = None
    """First version whose selective recompute keeps what the experts' all-to-alls brought. None: none repeats them."""
    checkpointed_parts: tuple[str, ...] = ()
    """Modules of a layer that can be checkpointed each apart, of ``training.activation_checkpointing.modules``."""
    context_parallel: str = "ring"
    """By default: ``ring`` (each rank's tokens are two chunks, for balance) or ``ulysses`` (heads are exchanged)."""
    leaves_whole_experts: bool = False
    """Experts that one rank holds alone are no part of FSDP2's groups. Else they are groups of one rank."""
    cuts_expert_matrices: str = ""
    """When FSDP2 divides the experts that expert parallelism has dealt out inside of each matrix, and not expert by
    expert: ``always``, or where there are ``more-shards`` than experts on a rank. Empty: never, and it pads them."""
    cuts_all_experts_since: tuple[int, int, int] | None = None
    """First version that does so where experts are not dealt out, too. None: none does."""
    own_expert_groups: bool = False
    """Expert-tensor parallelism has groups and a degree of its own. Else experts are cut over the tensor ranks."""
    splits_expert_biases: bool = True
    """Experts with biases can be cut over ranks."""
    copies_kv_heads: bool = False
    """A key/value head may be on several tensor ranks."""
    pads_vocabulary: bool = False
    """The vocabulary is padded to a multiple of the tensor degree."""
    even_stages: bool = False
    """Pipeline stages hold equally many layers, but for what its options say."""
    engine_attention: bool = False
    """Attention runs in Transformer Engine, which has FlashAttention 2 and 3 and cuDNN's kernels."""
    own_models: tuple[str, ...] = ()
    """Values of ``model_type`` for models that no other framework has."""
    errors_as: str = ""
    """Framework whose measured errors its intervals rest on, too: it runs the same code. Empty: its own."""
    errors_by_model: bool = False
    """Errors were measured per kind of model (dense, mixture of experts), not per layout."""
    own_workspaces: bool = False
    """Whether the workspaces of the framework's kernels are tensors of its step. Otherwise the workspaces of ATen's
    BLAS handles are counted in addition to the step.
    """
    allocator_group: str = ""
    """Kind of step, as the caching allocator sees it, that its measured steps are; empty: by how it shards."""
    not_run: str = ""
    """Why ``verify`` does not run its code; empty where it does."""
    runs_itself: bool = False
    """``verify`` runs its model code where its package can be imported."""
    source: str = ""

    @property
    def own_engine(self) -> bool:
        """Whether it shards and reduces with buffers of its own instead of wrapping modules as torch does."""
        return self.data_parallel in ("zero", "distributed-optimizer")
