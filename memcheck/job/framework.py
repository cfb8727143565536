"""A training framework: what it supports, its defaults, and what its code decides where frameworks differ."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from memcheck.autograd.context import Style
from memcheck.autograd.weight_formats import NF4, WeightFormat
from memcheck.job.lookup import Families
from memcheck.job.types import Layout, Recipe
from memcheck.job.versions import ENGINE, TRANSFORMERS, is_before
from memcheck.models.types import Architecture, Rough
from memcheck.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Literal

    from memcheck.job.lookup import Defaults
    from memcheck.plan.types import TrainerSpec

    Change = Literal[
        "adapter units", "expert matrices", "FSDP2", "kept exchanges", "non-reentrant", "own loss", "shifted labels"
    ]
    """A behaviour that a release of a framework brought: a key of ``Framework.since``."""

DEFAULT_OPTIMIZER = "adamw"
"""What every framework steps with unless told otherwise."""
PEFT_VARIANTS = ("dropout", "dora", "modules_to_save", "target_parameters", "expert_rank")
"""Keys of peft's LoraConfig that change what its adapters hold."""
HEADS = ("lm", "classification", "token-classification", "reward", "embedding")
"""Heads that transformers' classes put on a model: values of ``training.head``."""


class Precisions(Record):
    """The precision recipes of a framework."""

    default: str
    recipes: Mapping[str, Recipe]
    """Recipe by plan name, at every ZeRO stage unless ``sharded`` says otherwise."""
    sharded: Mapping[str, Recipe] = MappingProxyType({})
    """Recipes that differ at zero_stage 3 (FSDP2's mixed precision has no autocast copies)."""


class Optimizers(Record):
    """How a framework's optimizers run."""

    implementation: str
    """``fused``, ``foreach`` or ``for-loop``, of optimizers that ``by_name`` does not list."""
    by_name: Mapping[str, str] = MappingProxyType({})
    """Implementation by the optimizer's name."""
    own_kernels: bool = False
    """Fused optimizers are kernels of the framework, on the GPU and on the host (DeepSpeed's FusedLion and CPU-Adam,
    those that Megatron calls). Else they are torch's, and bitsandbytes' for Lion."""
    bitsandbytes: bool = True
    """The framework can step with bitsandbytes' 8-bit optimizers."""
    in_backward: bool = False
    """The optimizer can step on each gradient as backward makes it."""


class Losses(Record):
    """How a framework computes the loss."""

    default: str
    kinds: tuple[str, ...]
    keep_logits: bool = False
    """The training loop still references the model's output during backward."""
    vocab_parallel_when: str = "never"
    """When the standard loss runs on vocabulary shards by itself: ``never`` | ``tensor`` (tensor > 1) | ``always``."""


class Parallelism(Record):
    """How a framework divides a job over ranks."""

    zero_stages: tuple[int, ...]
    degrees: tuple[str, ...] = ()
    """Supported ones of ``tensor``, ``sequence``, ``context``, ``pipeline``, ``expert``, ``expert_tensor``."""
    schedules: tuple[str, ...] = ()
    """Pipeline schedules."""
    sequence_default: bool = False
    """Default of ``parallelism.sequence`` when tensor > 1."""
    gradient_sync_default: str = "every"
    """Default of ``parallelism.gradient_sync``: with which of the micro-batches of a step gradients are reduced."""
    pads_vocabulary: bool = False
    """The vocabulary is padded to a multiple of the tensor degree."""


class Adapters(Record):
    """The adapters of a framework, and the frozen bases under them."""

    rank: int = 16
    targets: str | tuple[str, ...] = "all-linear"
    dtype: str = "fp32"
    """``fp32`` (peft's default), or ``params``: the dtype of the model's parameters."""
    variants: tuple[str, ...] = ()
    """Keys of ``training.lora``, other than rank, targets and dtype, that the adapters are modelled with."""
    base_formats: tuple[str, ...] = ()
    """Values of ``training.base``: how a frozen base can be stored, in addition to the dtype of the parameters."""
    can_target_head: bool = False
    """Targets may name the head, as peft's may."""
    are_own_code: bool = False
    """Adapters and 4-bit layers are the framework's own model code. Else they are peft's, whose
    ``prepare_model_for_kbit_training`` (peft/utils/other.py) casts norms, embeddings and head to fp32."""


class LoadAndSave(Record):
    """How a framework makes the model before the steps, and saves it after them."""

    initialization: tuple[str, str] = ("host", "host")
    """Default of ``training.initialization``: of a replicated model, and of one whose parameters are sharded."""
    other_places: tuple[str, ...] = ()
    """Places where the framework can make a model instead of the default one."""
    checkpoint: tuple[str, str] = ("full", "sharded")
    """Default of ``training.checkpoint``: of a replicated model, and of one whose parameters are sharded."""
    either_state_dict: bool = False
    """A plan chooses between a full and a sharded state dict."""
    asynchronous: bool = False
    """Sharded state dicts can be saved while training goes on."""


class Fsdp2(Record):
    """How a framework calls FSDP2, where that is its own code."""

    groups_of_ends: bool = False
    """Embedding and head are groups of their own. Else they are the root's, with the final norm."""
    on_one_rank: bool = False
    """At zero_stage 3 the model is wrapped on a single rank, too, for the mixed precision."""
    prefetches_experts: bool = False
    """With expert parallelism a group's forward begins with the all-gather of the next group."""
    divides_gradients: bool = False
    """The framework sets the factor by which gradients are divided (``set_gradient_divide_factor``)."""
    loss_reduces_head: bool = False
    """The chunked loss runs the head, and reduces the gradient of its weight itself."""
    gathers_stages_again: bool = True
    """Default of ``parallelism.reshard_after_forward`` in a pipeline."""
    leaves_whole_experts: bool = False
    """Experts that one rank holds alone are no part of a group. Else they are groups of one rank."""
    cuts_expert_matrices: str = ""
    """When experts of expert parallelism are divided inside of each matrix, and not expert by expert: ``always``, or
    where there are ``more-shards`` than experts on a rank. Empty: never, and they are padded."""


class TrainerPackage:
    """A package on top of transformers' Trainer, such as TRL: what its own code changes in a step.

    This class changes nothing. A package that does is a subclass in the folder of the framework that it runs on.
    """

    __slots__ = ()

    @property
    def kbit_casts_undone(self) -> str:
        """Why norms, embeddings and head stay in 16 bits after peft's ``prepare_model_for_kbit_training``; empty: they
        are fp32.
        """
        return ""

    @property
    def hooks_embedding(self) -> bool:
        """Whether ``enable_input_require_grads`` is called for every model with adapters, recomputed or not."""
        return False

    @property
    def own_fsdp2_prepare(self) -> bool:
        """Whether the package replaces Accelerate's ``fsdp2_prepare_model``, which wraps the model in FSDP2."""
        return False

    def loads_in_fp32(self, version: str | None) -> str:
        """Return why the package loads a model in fp32 unless told; empty: in the dtype of the checkpoint."""
        del version
        return ""

    def asks_for_accelerate(self, version: str | None) -> str | None:
        """Return the oldest Accelerate that a release of the package asks for; None: that is not known here."""
        del version
        return None

    def mixed_checkpoints(self, version: str | None) -> float:
        """Return by which share of live bytes checkpoints of the package's own exceed a base of 4 bits alone, because
        they hold some matrices in 16 bits; 0.0: it has no such checkpoints. ``version``: of the package.
        """
        del version
        return 0.0


class Profile(Record):
    """Defaults and abilities of one framework. Its folder names the upstream file that each value was read from."""

    name: str
    """The value of ``training.framework``."""
    title: str
    source: str
    """The upstream repository and commit that the values were read from."""
    style: Style
    """The module code that runs, and what sets it apart: that of transformers' classes, or the framework's own."""
    families: Families
    """The models that the framework builds and that have a memory model."""
    precisions: Precisions
    optimizers: Optimizers
    losses: Losses
    parallelism: Parallelism
    methods: tuple[str, ...]
    """Supported values of ``training.method``: ``full``, ``lora``, ``qlora``."""
    default_attention: str
    attentions: tuple[str, ...]
    recompute: tuple[str, ...]
    """Supported modes of ``training.activation_checkpointing``."""
    options: Mapping[str, tuple[type, ...]]
    """Known ``training.options`` and the types their values may have."""
    choices: Mapping[str, tuple[str | int, ...]] = MappingProxyType({})
    """The words that an option may have, where upstream lists them."""
    harmless: Mapping[str, str] = MappingProxyType({})
    """Options that change no memory worth a figure, and why."""
    unmodelled: Mapping[str, tuple[object, str]] = MappingProxyType({})
    """Options that change memory and have no model: the value that the estimate assumes, and what another value does,
    as a clause.
    """
    lacks: Mapping[str, str] = MappingProxyType({})
    """Keys of a plan that the framework does not have, and what it does instead, with the upstream file. The defaults
    of these keys hold.
    """
    adapters: Adapters = Adapters()
    load_and_save: LoadAndSave = LoadAndSave()
    fsdp2: Fsdp2 = Fsdp2()
    clip_grad_norm: bool = False
    """Default of ``training.clip_grad_norm``."""
    objectives: tuple[str, ...] = ("sft",)
    """Supported values of ``training.objective``."""
    trainers: tuple[str, ...] = ()
    """Values of ``training.trainer``: the trainers on top of the framework, all of which are transformers' Trainer."""
    selective_recompute: str = ""
    """What selective recompute chooses among: the ``operators`` or the ``modules`` of a block. Empty: there is none to
    turn on; for a plan that has it, the estimate recomputes core attention.
    """
    since: Mapping[Change, tuple[int, ...]] = MappingProxyType({})
    """First release with a behaviour, of behaviours that releases differ in; every release has those not listed."""
    allocators: tuple[str, ...] = ("default", "expandable")
    """The allocator's settings that steps of this framework were measured with, the default one first."""
    data_parallel: str = "torch"
    """Whose data parallelism: ``torch`` (DistributedDataParallel, ZeroRedundancyOptimizer and FSDP2, by ZeRO stage),
    ``fsdp1`` and ``fsdp2`` (one of these alone), ``zero`` (DeepSpeed's engine), ``distributed-optimizer`` (Megatron's
    contiguous buffers and Megatron-FSDP)."""
    missing_attentions: Mapping[str, tuple[str, ...]] = {}
    """Kinds of attention that the class of a model type does not have."""
    runs_transformers: bool = False
    """The framework loads the modules of transformers by ``from_pretrained`` and runs them unchanged. So peft adapts
    them, rows can be padded, and an evaluation pass is known."""
    measured_as: str = ""
    """The framework whose measured steps the intervals use, where both run the same code. Empty: the framework's
    own, as the allocator sees them by how they shard."""
    errors_by_model: bool = False
    """Errors were measured per kind of model (dense, mixture of experts), not per layout."""
    stack: str = "torch"
    """The folder in ``memcheck.frameworks`` whose ``stack.py`` estimates the framework's ranks."""
    timing: str = "torch"
    """The folder in ``memcheck.frameworks`` whose ``stack.py`` says what decides the time of a step."""
    not_run: str = ""
    """Why ``verify`` does not run the framework's code; empty where it does."""


NO_PACKAGE = TrainerPackage()


class Framework(Profile):
    """One training framework, the single object that its folder defines.

    The fields, of :class:`Profile`, are what several frameworks state. Methods and properties are decisions that one
    framework's code takes in its own way: its folder overrides them in a subclass. A job carries its framework. Two
    frameworks are equal only if they are the same object, and the hash costs nothing in a cache key.
    """

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    # What follows from the fields

    @property
    def heads(self) -> tuple[str, ...]:
        """Values of ``training.head`` that the framework supports."""
        return HEADS if self.runs_transformers else ("lm",)

    @property
    def has_sharding_engine(self) -> bool:
        """Whether the framework shards and reduces with buffers of its own instead of wrapping modules as torch
        does.
        """
        return self.data_parallel in ("zero", "distributed-optimizer")

    @property
    def sums_gradients_in_buffers(self) -> bool:
        """Whether gradients are summed in buffers of the framework's, whose dtype a plan chooses. Otherwise autograd
        makes gradients in the dtype of their parameters, and torch's optimizers their states (``zeros_like``).
        """
        return self.data_parallel == "distributed-optimizer"

    @property
    def runs_objectives_in_recipes(self) -> bool:
        """Whether the objectives run in the framework's own recipes, not in the code of a trainer."""
        return len(self.objectives) > 1 and not self.trainers

    @property
    def always_uses_fsdp1(self) -> bool:
        """Whether the framework uses FSDP1 (``FullyShardedDataParallel``), in every version."""
        return self.data_parallel == "fsdp1"

    @property
    def has_master_adapters(self) -> bool:
        """Whether the optimizer steps on a master copy of every trained tensor. If not, adapters with a dtype of their
        own have no master copy.
        """
        return self.data_parallel == "zero"

    @property
    def offload_places(self) -> tuple[str, ...]:
        """Where the optimizer's states and the parameters can be offloaded: ``cpu``, ``nvme``."""
        return ("cpu", "nvme") if self.data_parallel == "zero" else ("cpu",)

    @property
    def offloads_parameters(self) -> bool:
        """Whether sharded parameters can be offloaded, not the optimizer's states alone."""
        return self.data_parallel != "distributed-optimizer"

    @property
    def context_parallel(self) -> str:
        """``ring`` (each rank's tokens are two chunks, for balance) or ``ulysses`` (heads are exchanged)."""
        return "ulysses" if self.data_parallel == "zero" else "ring"

    @property
    def caches_last_stage_logits(self) -> bool:
        """Whether pipelines are torch's, which cache the logits of the last stage until their backward."""
        return bool(self.parallelism.schedules) and self.data_parallel == "torch"

    @property
    def expandable(self) -> bool:
        """Default of ``training.expandable_segments``."""
        return self.allocators[0] == "expandable"

    @property
    def transformer_engine(self) -> bool:
        """Whether layers run in Transformer Engine: attention by FlashAttention 2 and 3 and by cuDNN's kernels, and
        workspaces that are tensors of the step, without those of ATen's BLAS handles.
        """
        return ENGINE in self.options

    @property
    def version_is_transformers(self) -> bool:
        """Whether the stated version is the version of transformers, whose classes are the models."""
        return self.runs_transformers and TRANSFORMERS not in self.options

    def predates(self, version: str | None, change: Change) -> bool:
        """Whether a stated release is older than a behaviour of the framework; False where either is unknown."""
        return is_before(version, self.since.get(change))

    # How the plan's values are resolved

    def trainer_package(self, stated: TrainerSpec | None) -> TrainerPackage:
        """Return the code of the package that the plan's ``training.trainer`` names, if that changes a step."""
        name = stated.name if stated is not None else None
        return self.package_named(name) if name is not None else NO_PACKAGE

    def package_named(self, name: str) -> TrainerPackage:
        """Return the code of one of ``trainers``, if that changes a step."""
        del name
        return NO_PACKAGE

    def built(self, architecture: Architecture) -> Architecture:
        """The model as the framework's modules divide it."""
        return architecture

    def replicated_recipe(self, recipe: Recipe, layout: Layout) -> tuple[Recipe, str]:
        """Return the precision recipe of a replicated model in this layout, and why it differs from ``recipe``.

        The reason is empty if it does not differ.
        """
        del layout
        return recipe, ""

    def frozen_params(self, recipe: str, trainer: str | None, version: str | None) -> tuple[str, str]:
        """Return the dtype of a frozen base under a mixed recipe, and why; empty texts: that of the recipe.

        ``version``: of the trainer.
        """
        del recipe, trainer, version
        return "", ""

    @property
    def variants(self) -> tuple[str, ...]:
        """Trainers that replace so much of the model that each has a profile of its own, under its name."""
        return ()

    def of_release(self, version: str | None, classes: str | None, architecture: Architecture | Rough) -> Framework:
        """Return the trainer's profile as of a release, for a model.

        ``version``: the trainer's; ``classes``: that of the framework, whose classes it runs. None: unknown.
        """
        del version, classes, architecture
        return self

    def upcasts(self, recipe: Recipe, layout: Layout, fsdp: int = 1, base_format: WeightFormat | None = None) -> bool:
        """Say whether trained parameters are cast to fp32 before FSDP shards them, in whichever dtype they were
        loaded.
        """
        del recipe, layout, fsdp, base_format
        return False

    def chunks(self, loss: str) -> bool:
        """Whether a kind of loss runs head and loss on chunks of the tokens."""
        return loss == "chunked"

    def four_bits(self, options: Mapping[str, object]) -> WeightFormat:
        """Return the format of the base under ``method: qlora``."""
        del options
        return NF4

    def stored_as(self, base_format: WeightFormat) -> WeightFormat:
        """Return the format of a base's tensors, where the framework's library is not the one that a format implies."""
        return base_format

    def made(self, layout: Layout, *, sharded: bool) -> tuple[str, str]:
        """Return where the model is created by default (a value of ``training.initialization``), and why.

        ``sharded``: its parameters are divided over ranks.
        """
        del layout
        of_replicated, of_sharded = self.load_and_save.initialization
        return of_sharded if sharded else of_replicated, f"default of {self.name}"

    def puts_whole_model_on_gpu(self, place: str) -> str:
        """Say what puts the whole model on every GPU before its parameters are sharded; an empty text: nothing does."""
        return "building the whole model on every GPU" if place == "device" else ""

    def loads_ahead(self, version: str | None) -> bool:
        """Say whether a release puts whole matrices on the GPU before it gets to quantising them."""
        del version
        return False

    def keeps_whole_model_while_sharding(self, base_format: WeightFormat | None, fsdp: int) -> bool:
        """Say whether the whole model on the GPU, stored in ``base_format``, stays until all shards are made.

        ``fsdp``: which FSDP divides it.
        """
        del base_format, fsdp
        return False

    def fewer_layers(self, options: Mapping[str, object], defaults: Defaults) -> tuple[int, int]:
        """Return the layers that the first and the last stage of a pipeline have less than others."""
        del options, defaults
        return 0, 0

    def note_releases(
        self, version: str | None, options: Mapping[str, object], recipe: Recipe, defaults: Defaults
    ) -> None:
        """Note in ``defaults`` which releases are assumed, if the plan does not state them and the estimate depends on
        it.

        ``version``: the framework's, as the plan states it. ``options``: the plan's ``training.options``.
        """

    # What has a memory model

    @property
    def resident_towers(self) -> tuple[str, str] | None:
        """Return the option and its value that load a whole vision tower, which does not run, on the first stage's
        ranks.

        None: the framework's towers are transformers' modules, and run.
        """
        return None

    @property
    def adapter_modules(self) -> tuple[str, ...]:
        """Names of ``target_modules`` where linear layers are not called as transformers' are; else empty."""
        return ()

    @property
    def checkpointable_modules(self) -> tuple[str, ...]:
        """Modules of a layer that can be checkpointed one by one, of ``training.activation_checkpointing.modules``."""
        return ()

    @property
    def has_user_loop(self) -> bool:
        """Whether the loop is the user's, over PyTorch alone: ``framework_version`` is PyTorch's, and a full state dict
        may be gathered on the GPUs.
        """
        return False

    @property
    def has_expert_tensor_groups(self) -> bool:
        """Whether expert-tensor parallelism has groups and a degree of its own, which experts with biases do not have.
        Else experts are cut over the tensor ranks.
        """
        return False

    @property
    def copies_kv_heads(self) -> bool:
        """Whether a key/value head may be on several tensor ranks."""
        return False

    @property
    def has_even_stages(self) -> bool:
        """Whether pipeline stages hold equally many layers, unless options say otherwise."""
        return False

    # How a step runs

    @property
    def copies_outputs_to_fp32(self) -> bool:
        """Whether the model's outputs are copied to fp32 as its forward returns, under mixed precision."""
        return False

    @property
    def unsplit(self) -> tuple[str, ...] | None:
        """Model types without layers among the classes that FSDP makes units of (``_no_split_modules``), so that all of
        the model is one group. None: FSDP makes units of layers, whatever classes a model names.
        """
        return None

    @property
    def usual_checkpoints(self) -> tuple[str, str, str]:
        """Mode of activation checkpointing and place of its inputs where a plan states neither, and why."""
        return "none", "none", ""

    @property
    def always_reentrant(self) -> bool:
        """Whether checkpoints are of a reentrant function, whatever the release."""
        return False

    @property
    def quantizes_head(self) -> bool:
        """Whether QLoRA quantises the head, too."""
        return False

    @property
    def keeps_graph_until_next_loss(self) -> bool:
        """Whether the loop's variable holds the graph of a step until the next step's loss replaces it."""
        return False

    @property
    def caps_hidden_states(self) -> bool:
        """Whether a cap of the logits is put on what the head reads, after the final norm."""
        return False

    @property
    def unties_head(self) -> bool:
        """Whether the head is a module of its own, whatever the model's configuration ties."""
        return False

    def compiled_releases(self, version: str | None) -> tuple[float, float]:
        """Return the shares of the predicted bytes by which compiled steps of a stated release may need less, and
        more.
        """
        del version
        return 0.0, 0.0

    @property
    def verify_runs_package(self) -> bool:
        """Whether ``verify`` runs the framework's model code where its package can be imported."""
        return False
