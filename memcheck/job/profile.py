"""What memcheck knows of a training framework: one record, one file per framework."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from memcheck.job.types import Recipe
from memcheck.record import Record


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
    """Those that it has of ``tensor``, ``sequence``, ``context``, ``pipeline``, ``expert``, ``expert_tensor``."""
    schedules: tuple[str, ...]
    """Pipeline schedules."""
    methods: tuple[str, ...]
    """Those that it has of ``full``, ``lora``, ``qlora``."""
    losses: tuple[str, ...]
    attentions: tuple[str, ...]
    recompute: tuple[str, ...]
    options: dict[str, tuple[type, ...]]
    """Known ``training.options`` and the types their values may have."""
    choices: dict[str, tuple[str, ...]]
    """The words that an option may have, where upstream lists them."""
    implementations: dict[str, str]
    """Optimizer implementation by optimizer name, where it is not ``default_implementation``."""
    replicated_amp_alone: bool = False
    """Below zero_stage 3, mixed precision works only without tensor and pipeline parallelism; else all is fp32."""
    loss_parallel: str = "never"
    """When the standard loss runs on vocabulary shards by itself: ``never`` | ``tensor`` (tensor > 1) | ``always``."""
    gradient_sync: str = "every"
    """Default of ``parallelism.gradient_sync``: with which of the micro-batches of a step gradients are reduced."""
    lora_rank: int = 16
    lora_targets: str | tuple[str, ...] = "all-linear"
    lora_dtype: str = "fp32"
    """Dtype of adapters: ``fp32`` (peft's default), or ``params``, which is that of the model's parameters."""
    lacks: Mapping[str, str] = MappingProxyType({})
    """Keys of a plan that it has nothing for, and what it does instead, with the upstream file. Their defaults hold."""
    own_gradients: bool = False
    """It sums gradients in buffers of its own, whose dtype a plan chooses. Else they are autograd's, made in the dtype
    of their parameters, and so are the states that torch's optimizers make of these (``zeros_like``)."""
    allocators: tuple[str, ...] = ("default", "expandable")
    """The allocator's settings that steps of this framework were measured with."""
    initialization: tuple[str, str] = ("host", "host")
    """Default of ``training.initialization``: of a replicated model, and of one whose parameters are sharded."""
    checkpoint: tuple[str, str] = ("full", "sharded")
    """Default of ``training.checkpoint``, likewise."""
    harmless: Mapping[str, str] = MappingProxyType({})
    """Options that move no memory worth a figure, and why."""
    unmodelled: Mapping[str, tuple[object, str]] = MappingProxyType({})
    """Options that move memory and have no model: the value that is priced, and what another one does, as a clause."""
    source: str = ""
