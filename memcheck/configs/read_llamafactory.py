"""A LLaMA-Factory YAML config in the plan's words."""

from __future__ import annotations

from memcheck.configs import llamafactory_keys as keys
from memcheck.configs import trainer_arguments as arguments
from memcheck.configs import trainer_parts as parts
from memcheck.configs.config_file import ConfigFile
from memcheck.configs.draft import Draft
from memcheck.configs.launch_devices import devices
from memcheck.configs.liger import liger_kernels
from memcheck.configs.llamafactory_keys import KEYS
from memcheck.configs.pictures import IMAGES, scaled, shown
from memcheck.configs.pictures import parts as sides
from memcheck.configs.read_llamafactory_v1 import is_second, read_second
from memcheck.configs.recipe_launch import join_recipe
from memcheck.configs.shipped import LLAMA_FACTORY
from memcheck.configs.trainer_adapters import adapters, base, constants, leaves_casts, resumed, starts, unused
from memcheck.configs.trainer_frozen import last_layers
from memcheck.configs.trainer_objective import objective, trainer
from memcheck.configs.trainer_pairs import join_launch
from memcheck.configs.trainer_parts import Division, on, text
from memcheck.configs.trainer_settled import masked, settle
from memcheck.configs.types import KeyRow, ReadConfig


def read_llamafactory(config: ConfigFile, world: int | None) -> ReadConfig:
    """The settings of one job. ``world``: how many GPUs run it, where that is known."""
    draft = Draft(config, "llamafactory", KEYS.title)
    join_recipe(draft)
    if is_second(config):
        return read_second(draft, world)
    draft.derive("training.framework", "huggingface", "LLaMA-Factory runs transformers.Trainer")
    trainer(draft, "llama-factory")
    _refuse(draft)
    parts.launcher(draft)
    draft.rows((KeyRow("ray_num_workers", "hardware.gpus_per_node"),))
    parts.model(draft, "model_name_or_path")
    split = join_launch(draft, world) or arguments.split(draft, world, LLAMA_FACTORY, version=1)
    devices(draft)
    trains_all = _method(draft)
    _pictures(draft)
    arguments.batch(draft)
    packed = on(draft, "packing") or on(draft, "neat_packing")
    pretrains = text(draft, "stage") == "pt" and not parts.off(draft, "packing")
    draft.config.see("packing", "neat_packing")
    parts.length(draft, ("cutoff_len",), 2048, packed or pretrains)
    _precision(draft, split, trains_all=trains_all)
    arguments.step(draft, split)
    if on(draft, "use_muon"):
        draft.set("training.optimizer.name", "muon", "use_muon")
        draft.settings.pop("training.optimizer.implementation", None)
    _recompute(draft)
    parts.attention(draft, "flash_attn")
    _objective(draft)
    _evaluation(draft)
    arguments.one_job(draft)
    draft.unmodelled(KEYS.unmodelled)
    parts.irrelevant(draft, KEYS.irrelevant)
    draft.harmless((*KEYS.refused, *KEYS.names["vision"], "do_train", "stage", "ref_model"))
    settle(draft, 8)  # `pad_to_multiple_of` of its collators (train/sft/workflow.py)
    if on(draft, "neat_packing"):  # src/llamafactory/data/collator.py
        masked(draft, "neat_packing", "masked", "without FlashAttention 2 neat_packing masks a row's parts")
    return draft.finish()


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


def _method(draft: Draft) -> bool:
    kind = text(draft, "finetuning_type").lower() or "lora"
    path = "finetuning_type"
    bits = draft.whole("quantization_bit", "training.base")
    how = text(draft, "quantization_method").lower().rpartition(".")[2] or "bnb"
    draft.config.see("quantization_type", "double_quantization", "lora_alpha")
    if kind in ("full", "freeze"):
        draft.set("training.method", "full", path)
        unused(draft, KEYS.adapters["adapters"])
        if kind == "freeze":
            last_layers(draft)
        draft.config.see("freeze_trainable_layers", "freeze_trainable_modules", "freeze_extra_modules")
        return True
    draft.config.see("freeze_trainable_layers", "freeze_trainable_modules", "freeze_extra_modules")
    if kind != "lora":
        message = f"`finetuning_type: {kind}` has no memory model here"
        draft.refuse(path, message, parts.STATE_IT.format("training.method"), ("training.method",))
        return False
    four = bits == 4 and how in ("bnb", "bitsandbytes")
    draft.set("training.method", "qlora" if four else "lora", "quantization_bit" if four else path)
    if bits and not four:
        held = "int8" if bits == 8 and how in ("bnb", "bitsandbytes") else f"{how}-{bits}bit"
        base(draft, held, "quantization_bit")
    constants(draft, "double_quantization", default=True)
    if not on(draft, "upcast_layernorm"):
        leaves_casts(draft, "LLaMA-Factory casts adapters alone (model/adapter.py, model_utils/checkpointing.py)")
    adapters(draft, KEYS.adapters["adapters"])
    _grown(draft)
    starts(draft, "pissa_init", off=False)
    if not on(draft, "create_new_adapter"):  # else those there are merged first (model/adapter.py)
        resumed(draft, "adapter_name_or_path")
    return False


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
    most = most or draft.whole(keys.OLD_PIXELS, IMAGES)  # before 0.9.2
    scaled(draft, "image_max_pixels", most or KEYS.words["pixels"]["image_max_pixels"])
    scaled(draft, "image_min_pixels", least or KEYS.words["pixels"]["image_min_pixels"], up=True)


def _precision(draft: Draft, split: Division, *, trains_all: bool) -> None:
    """What is trained is upcast to fp32 (``init_adapter``), but for ``pure_bf16``, and for the engine's own copies."""
    amp, path = arguments.mixed(draft)
    if on(draft, "pure_bf16"):
        parts.precision(draft, "pure_bf16", split, amp="", weights="bf16", trains_all=trains_all)
    elif not (amp or trains_all or split.engine or split.sharded):  # extras/misc.py, infer_optim_dtype
        parts.precision(draft, "bf16", split, amp="", weights="bf16", trains_all=trains_all)
        draft.derive("training.lora.dtype", "fp32", "LLaMA-Factory upcasts adapters, in a step without autocast")
    else:
        weights = "fp32" if trains_all or not amp else amp
        parts.precision(draft, path or "bf16", split, amp=amp, weights=weights, trains_all=trains_all)
    draft.config.see("pure_bf16")


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


def _objective(draft: Draft) -> None:
    stage = text(draft, "stage").lower() or "sft"
    kind = KEYS.words["stages"].get(stage, stage)
    if stage == "dpo":
        written = text(draft, "pref_loss").lower() or text(draft, "dpo_loss").lower()
        kind = KEYS.words["preferences"].get(written or "sigmoid", "dpo")
    draft.config.see("pref_loss", "dpo_loss")
    supervised = kind == "sft"
    liger = next((name for name in ("enable_liger_kernel", "use_liger_kernel") if on(draft, name)), "")
    if liger and supervised:
        draft.set("training.loss.kind", "fused-linear", liger)
        liger_kernels(draft, dict.fromkeys(("rope", "rms_norm", "glu"), liger))
    else:
        draft.assume("training.loss.kind", "standard")
    draft.config.see("enable_liger_kernel", "use_liger_kernel")
    if kind in ("dpo", "ipo", "orpo", "kto", "simpo", "reward"):
        objective(draft, kind, "stage", reference="ref_model")


def _evaluation(draft: Draft) -> None:
    share = str(draft.config.values.get("val_size") or 0)
    held = draft.config.has("eval_dataset") or share not in ("0", "0.0")
    strategy = text(draft, "eval_strategy").lower() or text(draft, "evaluation_strategy").lower()
    path = "eval_dataset" if draft.config.has("eval_dataset") else "val_size"
    batches = ("per_device_eval_batch_size", "per_gpu_eval_batch_size")
    runs = held and (strategy not in ("", "no", "none") or on(draft, "do_eval"))  # `do_eval` runs after the training
    parts.evaluation(draft, path, batch=batches, default=8, runs=runs)
    draft.config.see("eval_strategy", "evaluation_strategy", "do_eval")
