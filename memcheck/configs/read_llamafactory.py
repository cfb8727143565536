"""Reads a LLaMA-Factory YAML config of either generation, or a launch that names one.

The second generation has a loop of its own over FSDP2, DDP or DeepSpeed. Read at ff6d4d12 of August 2026
(``src/llamafactory/hparams/*.py``, ``model/adapter.py``, ``model/model_utils/checkpointing.py``,
``model/model_utils/liger_kernel.py``; second generation: ``v1/config/*.py``, ``v1/core/base_trainer.py``).
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.configs import trainer_arguments as arguments
from memcheck.configs import trainer_parts as parts
from memcheck.configs.config_file import ConfigFile
from memcheck.configs.draft import Draft, Reader
from memcheck.configs.key_table import key_table
from memcheck.configs.launch_devices import devices
from memcheck.configs.launch_lines import training_alone
from memcheck.configs.pictures import IMAGES, scaled, shown
from memcheck.configs.pictures import parts as sides
from memcheck.configs.recipe_launch import evidence, join_launch, join_recipe
from memcheck.configs.trainer_adapters import resumed
from memcheck.configs.trainer_arguments import liger_kernels
from memcheck.configs.trainer_job import (
    LIGER,
    AttentionArguments,
    BatchArguments,
    Collated,
    EvaluationArguments,
    Known,
    LossArguments,
    ObjectiveArguments,
    PrecisionArguments,
    RecomputeArguments,
    RowArguments,
    Runs,
    Said,
    Starts,
    TuningArguments,
    plan_of,
)
from memcheck.configs.trainer_parts import Division, last_layers, on, text
from memcheck.configs.trainer_split import GROUP, LLAMA_FACTORY, RESHARDED, STAGE, deepspeed, replicas
from memcheck.configs.types import KeyRow, ReadConfig
from memcheck.record import Record

KEYS = key_table("llamafactory")


def recognise(config: ConfigFile) -> str:
    """A training of either generation; a chat or an export has neither a stage nor data."""
    if config.has("model_name_or_path"):
        return next((key for key in ("finetuning_type", "cutoff_len", "stage") if config.has(key)), "")
    if config.has("stage") and config.has("finetuning_type"):
        return "finetuning_type"  # the model is its first release's own
    if config.has("model"):
        return next((key for key in config.values if key.startswith(KEYS.names["second"])), "")
    return ""


OLD_PIXELS = "image_resolution"


def is_second(config: ConfigFile) -> bool:
    """Whether a config has keys of the second generation alone."""
    return config.has("model") and any(key.startswith(KEYS.names["second"]) for key in config.values)


def _second(draft: Draft, world: int | None) -> Iterator[Record]:
    """A job of the second generation in the normal form."""
    config = draft.config
    yield Runs("pytorch", "LLaMA-Factory's second generation has a loop of its own", "llama-factory")
    if not config.has("train_dataset"):
        draft.refuse("", "no `train_dataset`: the config trains nothing")
    if text(draft, "model_class") not in ("", "llm"):
        message = f"`model_class: {text(draft, 'model_class')}` is no language model of text alone"
        draft.refuse("model_class", message)
    parts.model(draft, "model")
    split = _split(draft, world)
    tuning = _second_method(draft)
    if tuning is not None:
        yield tuning
    adapted = draft.value("training.method") != "full"
    parts.whole(draft, KeyRow("micro_batch_size", "training.micro_batch_size"), 1)
    if config.has("global_batch_size"):
        draft.rows((KeyRow("global_batch_size", "training.global_batch_size"),))
    else:
        draft.assume("training.gradient_accumulation_steps", 1)
    strategy = text(draft, "batching_strategy").lower()
    yield RowArguments(paths=("cutoff_len",), default=2048, packed=strategy not in ("", "normal"))
    if strategy not in ("", "normal"):
        draft.note("batching_strategy", f"rows of strategy `{strategy}` are estimated as full ones: an upper bound")
    _second_precision(draft, split, adapted=adapted)
    yield from _step(draft)
    draft.irrelevant(KEYS.irrelevant)
    parts.irrelevant(draft, {})
    yield Collated()


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


def _second_method(draft: Draft) -> TuningArguments | None:
    """The adapters; None: everything trains, or the kind is refused."""
    name, path = "peft_config.name", "quant_config.quantization_bit"
    kind, bits = text(draft, name).lower(), draft.whole(path, "training.base")
    how = text(draft, "quant_config.name")
    draft.config.see("quant_config", "peft_config", "quant_config.name")
    if kind in ("", "none"):
        draft.derive("training.method", "full", "no peft_config")
        return None
    if kind == "freeze":
        draft.set("training.method", "full", name)
        last_layers(draft, name, "peft_config.")
        draft.note(name, "frozen layers are estimated in fp32, as trained ones are: an upper bound")
        draft.harmless((), ("peft_config.freeze_",))
        return None
    if kind != "lora":
        draft.refuse(name, f"`{kind}` has no memory model here", keys=("training.method",))
        return None
    return TuningArguments(
        method="qlora" if bits == 4 else "lora",
        path=name,
        adapters=KEYS.adapters["second_adapters"],
        base=Said("int8" if bits == 8 else f"{how}-{bits}bit" if bits and bits != 4 else "", path),
        double=Said(True, "quant_config.double_quantization"),
        casts="LLaMA-Factory casts adapters alone",
    )


def _second_precision(draft: Draft, split: Division, *, adapted: bool) -> None:
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


def _step(draft: Draft) -> Iterator[Record]:
    config = draft.config
    optimizer = text(draft, "optim_config.name").lower()
    if optimizer in ("", "adamw"):
        draft.assume("training.optimizer.name", "adamw")
    else:
        message = f"the states of `optim_config.name: {optimizer}` have no memory model"
        draft.refuse("optim_config.name", message, keys=("training.optimizer", "training.optimizer.name"))
    yield RecomputeArguments(path="enable_activation_checkpointing", default=True, reentrant=False)
    yield AttentionArguments("flash_attn")
    parts.clipping(draft, "max_grad_norm")
    kernels = text(draft, "kernel_config.name")
    if kernels == "liger_kernel":
        liger_kernels(draft, dict.fromkeys(LIGER, "kernel_config.name"))
    elif kernels:
        draft.note("kernel_config.name", "LLaMA-Factory's kernels are estimated as transformers' code: an upper bound")
    draft.harmless((), ("kernel_config.", "optim_config."))
    if config.has("pref_loss"):
        kind = KEYS.words["preferences"].get(text(draft, "pref_loss").lower(), "dpo")
        yield ObjectiveArguments(kind=kind, path="pref_loss")
    if config.has("eval_dataset"):
        yield EvaluationArguments(path="eval_dataset", runs=True, default=1, batch=())


def read_llamafactory(config: ConfigFile, world: int | None) -> ReadConfig:
    """The settings of one job. ``world``: how many GPUs run it, where that is known."""
    draft = Draft(config, "llamafactory", KEYS.title)
    join_recipe(draft)
    return plan_of(draft, (_second if is_second(config) else _job)(draft, world))


def _job(draft: Draft, world: int | None) -> Iterator[Record]:
    """A job of the first generation in the normal form."""
    yield Runs("huggingface", "LLaMA-Factory runs transformers.Trainer", "llama-factory")
    _refuse(draft)
    parts.launcher(draft)
    draft.rows((KeyRow("ray_num_workers", "hardware.gpus_per_node"),))
    parts.model(draft, "model_name_or_path")
    split = join_launch(draft, world) or arguments.split(draft, world, LLAMA_FACTORY, version=1)
    devices(draft)
    yield from _tuning(draft)
    _pictures(draft)
    yield BatchArguments()
    packed = on(draft, "packing") or on(draft, "neat_packing")
    pretrains = text(draft, "stage") == "pt" and not parts.off(draft, "packing")
    draft.config.see("packing", "neat_packing")
    yield RowArguments(paths=("cutoff_len",), default=2048, packed=packed or pretrains)
    yield _precision(draft, split)
    arguments.step(draft, split)
    if on(draft, "use_muon"):
        draft.set("training.optimizer.name", "muon", "use_muon")
        draft.settings.pop("training.optimizer.implementation", None)
    _recompute(draft)
    yield AttentionArguments("flash_attn")
    yield from _objective(draft)
    yield _evaluation(draft)
    arguments.one_job(draft)
    yield Known(KEYS)
    draft.harmless((*KEYS.refused, *KEYS.names["vision"], "do_train", "stage", "ref_model"))
    why = "without FlashAttention 2 neat_packing masks a row's parts"  # src/llamafactory/data/collator.py
    # `pad_to_multiple_of` of its collators (train/sft/workflow.py)
    yield Collated(8, masked="neat_packing" if on(draft, "neat_packing") else "", why=why)


def _refuse(draft: Draft) -> None:
    idle = next((name for name in KEYS.names["idle"] if draft.config.has(name) and not parts.off(draft, name)), "")
    trains = not idle and any(draft.config.has(name) for name in KEYS.names["trained"])
    if not on(draft, "do_train") and (not trains or parts.off(draft, "do_train")):
        message = "no `do_train: true`: this is a chat, an export or an evaluation, which trains nothing"
        draft.refuse(idle or "do_train", message)
    for name, what in KEYS.refused.items():
        if draft.config.has(name) and not parts.off(draft, name):  # `mixture_of_depths: convert` is no switch
            draft.refuse(name, f"`{name}`: the job is one with {what}, which has no memory model here")
    stage = text(draft, "stage").lower() or "sft"
    if stage == "ppo":
        draft.refuse("stage", "`stage: ppo` generates between its steps, which has no memory model here")
    elif stage not in KEYS.words["stages"]:
        message = f"`stage: {stage}` is no stage of LLaMA-Factory's own: what it trains has no memory model here"
        draft.refuse("stage", message, keys=("training.objective",))


def _tuning(draft: Draft) -> Iterator[Record]:
    """Which weights train; nothing for a kind that is refused."""
    path, stated = "finetuning_type", "quantization_bit"
    kind = text(draft, path).lower() or "lora"
    bits = draft.whole(stated, "training.base")
    how = text(draft, "quantization_method").lower().rpartition(".")[2] or "bnb"
    draft.config.see("quantization_type", "double_quantization", "lora_alpha")
    names = KEYS.adapters["adapters"]
    if kind in ("full", "freeze"):
        yield TuningArguments(method="full", path=path, adapters=names)
        if kind == "freeze":
            last_layers(draft)
    elif kind == "lora":
        by_bnb = how in ("bnb", "bitsandbytes")
        four = bits == 4 and by_bnb
        held = "int8" if bits == 8 and by_bnb else f"{how}-{bits}bit"
        upcast = on(draft, "upcast_layernorm")
        yield TuningArguments(
            method="qlora" if four else "lora",
            path=stated if four else path,
            adapters=names,
            base=Said(held if bits and not four else "", stated),
            double=Said(True, "double_quantization"),
            casts=""
            if upcast
            else "LLaMA-Factory casts adapters alone (model/adapter.py, model_utils/checkpointing.py)",
        )
        _grown(draft)
        yield Starts(("pissa_init",), off=False)
        if not on(draft, "create_new_adapter"):  # else those there are merged first (model/adapter.py)
            resumed(draft, "adapter_name_or_path")
    else:
        message = f"`{path}: {kind}` has no memory model here"
        draft.refuse(path, message, parts.STATE_IT.format("training.method"), ("training.method",))
    draft.config.see("freeze_trainable_layers", "freeze_trainable_modules", "freeze_extra_modules")


def _grown(draft: Draft) -> None:
    """Beside a vocabulary that grows embedding and head are trained whole, unless other modules are named
    (``model/adapter.py``; ``model/patcher.py``: added tokens turn ``resize_vocab`` on).
    """
    path = next((name for name in KEYS.names["grows"] if draft.config.has(name) and not parts.off(draft, name)), "")
    if path and not parts.words(draft, KEYS.adapters["adapters"].saved):
        parts.say(draft, "training.lora.modules_to_save", ["embed_tokens", "lm_head"], path)


def _pictures(draft: Draft) -> None:
    """Towers and projectors are frozen unless a switch says otherwise; no adapter is on a projector
    (``model/model_utils/visual.py``, ``misc.py``).
    """
    config = draft.config
    shown(draft, KEYS.names["vision"], ("dataset",))
    _scaled(draft)
    tower, projector, language = KEYS.names["frozen"]
    frozen = {
        "vision": not parts.off(draft, tower),
        "projector": not parts.off(draft, projector) or draft.value("training.method") != "full",
        "language": on(draft, language),
    }
    stated = next((each for each in KEYS.names["frozen"] if config.has(each)), tower)
    sides(draft, stated, frozen, "LLaMA-Factory freezes towers and projectors by default")
    config.see(*KEYS.names["frozen"])


def _scaled(draft: Draft) -> None:
    """Pictures of more pixels than ``image_max_pixels`` are scaled down in front of the processor, and those of fewer
    than ``image_min_pixels`` up (``src/llamafactory/data/mm_plugin.py``, ``_preprocess_image``).
    """
    least, most = (draft.whole(path, IMAGES) for path in KEYS.words["pixels"])
    most = most or draft.whole(OLD_PIXELS, IMAGES)  # before 0.9.2
    scaled(draft, "image_max_pixels", most or KEYS.words["pixels"]["image_max_pixels"])
    scaled(draft, "image_min_pixels", least or KEYS.words["pixels"]["image_min_pixels"], up=True)


def _precision(draft: Draft, split: Division) -> PrecisionArguments:
    """What is trained is upcast to fp32 (``init_adapter``), but for ``pure_bf16``, and for the engine's own copies."""
    amp, path = arguments.mixed(draft)
    pure, trains_all = on(draft, "pure_bf16"), draft.value("training.method") == "full"
    draft.config.see("pure_bf16")
    if pure:
        return PrecisionArguments(path="pure_bf16", amp="", weights="bf16", split=split)
    if not (amp or trains_all or split.engine or split.sharded):  # extras/misc.py, infer_optim_dtype
        draft.derive("training.lora.dtype", "fp32", "LLaMA-Factory upcasts adapters, in a step without autocast")
        return PrecisionArguments(path="bf16", amp="", weights="bf16", split=split)
    return PrecisionArguments(
        path=path or "bf16", amp=amp, weights="fp32" if trains_all or not amp else amp, split=split
    )


def _recompute(draft: Draft) -> None:
    """On unless ``disable_gradient_checkpointing``; FSDP 2 turns the reentrant kind off."""
    mode, config = f"{parts.RECOMPUTE}.mode", draft.config
    if on(draft, "disable_gradient_checkpointing"):
        if on(draft, "gradient_checkpointing"):
            draft.set(mode, "full", "gradient_checkpointing")
        else:
            draft.set(mode, "none", "disable_gradient_checkpointing")
    else:
        draft.assume(mode, "full")
        own = "gradient_checkpointing_kwargs.use_reentrant"  # the Trainer turns it on again, with these
        name = own if on(draft, "gradient_checkpointing") and config.has(own) else "use_reentrant_gc"
        if config.has(name):
            draft.set(f"{parts.RECOMPUTE}.reentrant", on(draft, name), name)
        else:
            draft.assume(f"{parts.RECOMPUTE}.reentrant", True)
        if on(draft, "use_unsloth_gc"):
            draft.set(f"{parts.RECOMPUTE}.offload", "cpu", "use_unsloth_gc")
    config.see("use_reentrant_gc", "use_unsloth_gc", "disable_gradient_checkpointing")
    parts.recomputed(draft, "gradient_checkpointing")


def _objective(draft: Draft) -> Iterator[Record]:
    stage = text(draft, "stage").lower() or "sft"
    kind = KEYS.words["stages"].get(stage, stage)
    if stage == "dpo":
        written = text(draft, "pref_loss").lower() or text(draft, "dpo_loss").lower()
        kind = KEYS.words["preferences"].get(written or "sigmoid", "dpo")
    draft.config.see("pref_loss", "dpo_loss")
    liger = next((name for name in ("enable_liger_kernel", "use_liger_kernel") if on(draft, name)), "")
    if liger and kind == "sft":
        yield LossArguments(Said("fused-linear", liger), dict.fromkeys(LIGER, liger))
    else:
        yield LossArguments(Said("standard"))
    draft.config.see("enable_liger_kernel", "use_liger_kernel")
    if kind in ("dpo", "ipo", "orpo", "kto", "simpo", "reward"):
        yield ObjectiveArguments(kind=kind, path="stage", reference="ref_model")


def _evaluation(draft: Draft) -> EvaluationArguments:
    share = str(draft.config.values.get("val_size") or 0)
    held = draft.config.has("eval_dataset") or share not in ("0", "0.0")
    strategy = text(draft, "eval_strategy").lower() or text(draft, "evaluation_strategy").lower()
    path = "eval_dataset" if draft.config.has("eval_dataset") else "val_size"
    runs = held and (strategy not in ("", "no", "none") or on(draft, "do_eval"))  # `do_eval` runs after the training
    draft.config.see("eval_strategy", "evaluation_strategy", "do_eval")
    return EvaluationArguments(path=path, runs=runs, default=8)


READER = Reader(
    recognise=evidence("llamafactory", recognise),
    read=read_llamafactory,
    lists=key_table("transformers").as_set("lists"),
    trains=training_alone,
)
