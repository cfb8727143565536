"""LLaMA-Factory's second generation of keys: a loop of its own over FSDP2, DDP or DeepSpeed."""

from __future__ import annotations

from memcheck.configs import trainer_parts as parts
from memcheck.configs.config_file import ConfigFile
from memcheck.configs.draft import Draft
from memcheck.configs.liger import liger_kernels
from memcheck.configs.llamafactory_keys import KEYS
from memcheck.configs.shipped import LLAMA_FACTORY
from memcheck.configs.trainer_adapters import adapters, base, constants, leaves_casts
from memcheck.configs.trainer_frozen import last_layers
from memcheck.configs.trainer_objective import objective, trainer
from memcheck.configs.trainer_parts import Division, on, text
from memcheck.configs.trainer_settled import settle
from memcheck.configs.trainer_split import GROUP, RESHARDED, STAGE, deepspeed, replicas
from memcheck.configs.types import KeyRow, ReadConfig


def is_second(config: ConfigFile) -> bool:
    """Whether a config has keys of the second generation alone."""
    return config.has("model") and any(key.startswith(KEYS.names["second"]) for key in config.values)


def read_second(draft: Draft, world: int | None) -> ReadConfig:
    """The settings of one job."""
    config = draft.config
    draft.derive("training.framework", "pytorch", "LLaMA-Factory's second generation has a loop of its own")
    trainer(draft, "llama-factory")
    if not config.has("train_dataset"):
        draft.refuse("", "no `train_dataset`: the config trains nothing")
    if text(draft, "model_class") not in ("", "llm"):
        message = f"`model_class: {text(draft, 'model_class')}` is no language model of text alone"
        draft.refuse("model_class", message)
    parts.model(draft, "model")
    split = _split(draft, world)
    adapted = _method(draft)
    parts.whole(draft, KeyRow("micro_batch_size", "training.micro_batch_size"), 1)
    if config.has("global_batch_size"):
        draft.rows((KeyRow("global_batch_size", "training.global_batch_size"),))
    else:
        draft.assume("training.gradient_accumulation_steps", 1)
    strategy = text(draft, "batching_strategy").lower()
    parts.length(draft, ("cutoff_len",), 2048, strategy not in ("", "normal"))
    if strategy not in ("", "normal"):
        draft.note("batching_strategy", f"rows of strategy `{strategy}` are priced as full ones: an upper bound")
    _precision(draft, split, adapted=adapted)
    _step(draft)
    draft.irrelevant(KEYS.irrelevant)
    parts.irrelevant(draft, {})
    settle(draft)
    return draft.finish()


def _split(draft: Draft, world: int | None) -> Division:
    config = draft.config
    name = text(draft, "dist_config.name")
    draft.rows((KeyRow("cp_size", "parallelism.context"),))
    engine = deepspeed(draft, "dist_config.config_file", world, LLAMA_FACTORY)
    if engine is not None:
        return engine
    if name == "fsdp2":
        draft.set(STAGE, 3, "dist_config.name")
        reshard = "dist_config.reshard_after_forward"
        if config.has(reshard):
            draft.set(RESHARDED, on(draft, reshard), reshard)
        shard, replicate = draft.whole("mp_shard_size", GROUP), draft.whole("mp_replicate_size", GROUP) or 1
        if shard:
            draft.set(GROUP, shard, "mp_shard_size")
        elif replicate > 1:
            replicas(draft, "mp_replicate_size", replicate, world)
        config.see("dp_size", reshard)
        if on(draft, "dist_config.offload_params"):
            draft.set("training.offload.parameters", "cpu", "dist_config.offload_params")
        return Division(sharded=True)
    if name:
        draft.refuse("dist_config.name", f"`{name}` has no memory model here", keys=(STAGE,))
    else:
        draft.assume(STAGE, 0, "no dist_config: DDP")
    config.see("dp_size")
    return Division()


def _method(draft: Draft) -> bool:
    """Whether adapters are trained alone."""
    kind, bits = text(draft, "peft_config.name").lower(), draft.whole("quant_config.quantization_bit", "training.base")
    how = text(draft, "quant_config.name")
    draft.config.see("quant_config", "peft_config", "quant_config.name")
    if kind in ("", "none"):
        draft.derive("training.method", "full", "no peft_config")
        return False
    if kind == "freeze":
        draft.set("training.method", "full", "peft_config.name")
        last_layers(draft, "peft_config.name", "peft_config.")
        draft.note("peft_config.name", "frozen layers are priced in fp32, as trained ones are: an upper bound")
        draft.harmless((), ("peft_config.freeze_",))
        return False
    if kind != "lora":
        draft.refuse("peft_config.name", f"`{kind}` has no memory model here", keys=("training.method",))
        return True
    draft.set("training.method", "qlora" if bits == 4 else "lora", "peft_config.name")
    if bits and bits != 4:
        base(draft, "int8" if bits == 8 else f"{how}-{bits}bit", "quant_config.quantization_bit")
    constants(draft, "quant_config.double_quantization", default=True)
    leaves_casts(draft, "LLaMA-Factory casts adapters alone")
    adapters(draft, KEYS.adapters["second_adapters"])
    return True


def _precision(draft: Draft, split: Division, *, adapted: bool) -> None:
    """Read the precision. A model that is trained whole is converted to fp32 (``core/model_engine.py``,
    ``model.to(torch.float32)``). FSDP2 or DeepSpeed casts it if ``bf16`` says so; there is no autocast. The base model
    of adapters keeps the checkpoint's dtype (``dtype="auto"``), and PEFT's adapters are fp32.
    """
    key = "training.precision.recipe"
    if parts.off(draft, "bf16"):
        draft.set(key, "fp32", "bf16")
    elif split.engine or split.sharded:
        draft.set(key, "bf16-mixed", "bf16")
        if not split.engine:
            why = "its own policy reduces in fp32 (plugins/trainer_plugins/distributed/fsdp2.py)"
            draft.derive("training.precision.reduce", "fp32", why)
        if adapted and not split.engine:
            draft.derive("training.precision.params", "bf16", "the base's dtype in its checkpoint: nothing is upcast")
    elif adapted:
        draft.derive(key, "bf16-pure", "the base's dtype in its checkpoint, and no autocast")
        draft.derive("training.lora.dtype", "fp32", "PEFT makes adapters of a 16-bit base in fp32")
    else:
        draft.derive(key, "fp32", "a model that is trained whole is made fp32, and nothing casts it")
    draft.config.see("bf16")


def _step(draft: Draft) -> None:
    config = draft.config
    optimizer = text(draft, "optim_config.name").lower()
    if optimizer in ("", "adamw"):
        draft.assume("training.optimizer.name", "adamw")
    else:
        message = f"the states of `optim_config.name: {optimizer}` have no memory model"
        draft.refuse("optim_config.name", message, keys=("training.optimizer", "training.optimizer.name"))
    parts.recompute(draft, "enable_activation_checkpointing", default=True, reentrant=False)
    parts.attention(draft, "flash_attn")
    parts.clipping(draft, "max_grad_norm")
    kernels = text(draft, "kernel_config.name")
    if kernels == "liger_kernel":
        liger_kernels(draft, dict.fromkeys(("rope", "rms_norm", "glu"), "kernel_config.name"))
    elif kernels:
        draft.note("kernel_config.name", "LLaMA-Factory's own kernels are priced as transformers' code: an upper bound")
    draft.harmless((), ("kernel_config.", "optim_config."))
    if config.has("pref_loss"):
        kind = KEYS.words["preferences"].get(text(draft, "pref_loss").lower(), "dpo")
        objective(draft, kind, "pref_loss")
    if config.has("eval_dataset"):
        parts.evaluation(draft, "eval_dataset", batch=(), default=1, runs=True)
