"""Reads an Axolotl YAML config, or a launch that names one.

Read at axolotl 067b021c of July 2026 (``src/axolotl/utils/schemas/*.py``, ``utils/config/__init__.py``,
``core/builders/base.py``).
"""

from __future__ import annotations

from collections.abc import Iterator

from memcheck.configs import trainer_parts as parts
from memcheck.configs.axolotl_frozen import frozen_but
from memcheck.configs.config_file import ConfigFile, all_keys
from memcheck.configs.detect import override
from memcheck.configs.draft import Draft, Reader
from memcheck.configs.key_table import key_table
from memcheck.configs.launch_lines import training_alone
from memcheck.configs.pictures import FREEZE, IMAGES, pictures, resized, sees, text_alone
from memcheck.configs.recipe_launch import evidence, join_recipe
from memcheck.configs.trainer_adapters import (
    leaves_casts,
    linear_and,
    resumed,
)
from memcheck.configs.trainer_arguments import accelerator, chosen_apart, liger_kernels, weighted
from memcheck.configs.trainer_job import (
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
from memcheck.configs.trainer_parts import (
    Division,
    architecture_named,
    known_architecture,
    off,
    on,
    same_dimensions,
    text,
)
from memcheck.configs.trainer_split import AXOLOTL, GROUP, STAGE, deepspeed, fsdp, replicas
from memcheck.configs.types import KeyRow, ReadConfig
from memcheck.frameworks.transformers.profile import CASTS_BACK
from memcheck.job.types import UNPACKED
from memcheck.record import Record

KEYS = key_table("axolotl")


MODEL = "base_model"


MULTIPLE = 64
"""Tokens of which a row is a multiple, unless ``pad_to_sequence_len`` is false (``core/builders/causal.py``)."""

CCE_PLUGIN = "cut_cross_entropy"
LIGER_FUSED = "liger_fused_linear_cross_entropy"


LIGER_LAYER_NORM = "liger_layer_norm"

QAT, QAT_GROUP = "qat", 32
"""Quantization-aware training, and how many weights share a scale by default (``utils/schemas/quantization.py``)."""
QUANTIZATION = "model_quantization_config"
DEQUANTIZES = "model_quantization_config_kwargs.dequantize"
DEQUANTIZED = "Mxfp4Config"
"""The quantization whose experts are loaded in 16 bits with ``dequantize: true``: where a GPU is too small for a tensor
on its way, it is converted in host memory (transformers 5.23 ``integrations/mxfp4.py``, convert_moe_packed_tensors).
"""


def dimensions(draft: Draft) -> None:
    """``base_model_config``: the repository whose config.json the model is built from (``loaders/utils.py``)."""
    path = "base_model_config"
    if draft.config.has(path) and text(draft, path) != text(draft, MODEL):
        own, other = architecture_named(draft), known_architecture(text(draft, path))
        if own is None or other is None or not same_dimensions(own, other):
            message = f"`{path}` is another model's than `{MODEL}`, and decides its dimensions"
            draft.refuse(path, message, "name the model that is built: --model NAME", ("model", "model.name"))
    draft.config.see(path)


def picture_size(draft: Draft) -> None:
    """``image_size``: every picture of a column of its own is padded to a square, or resized to width and height
    (``src/axolotl/processing_strategies.py``).
    """
    path = "image_size"
    written = draft.config.take(path)
    sides = written if isinstance(written, list) else [written, written]
    whole = [each for each in sides if isinstance(each, int) and each > 0]
    if len(whole) == len(sides) == 2:
        resized(draft, path, {"width": whole[0], "height": whole[1]})
    elif written is not None:
        draft.refuse(path, f"`{path}: {written}` is no size of a picture", keys=(IMAGES,))


def quantization(draft: Draft) -> None:
    """Read ``model_quantization_config``. A 4-bit checkpoint that is dequantized while it loads is resident in 16 bits.

    Any other quantization is refused.
    """
    name = draft.config.take(QUANTIZATION)
    if name is not None and not (name == DEQUANTIZED and on(draft, DEQUANTIZES)):
        message = f"`{QUANTIZATION}`: the job is one with a base of another quantization"
        help = f"with `{DEQUANTIZED}` and `dequantize: true` it is kept in 16 bits"
        draft.refuse(QUANTIZATION, f"{message}, which has no memory model here", help, ("training.base",))
    draft.config.see(DEQUANTIZES)


def quantizers(draft: Draft) -> None:
    """``qat``: inputs to int8 and weights to int4 have a memory model (``utils/quantization.py``, _make_qat_config)."""
    config, key = draft.config, "training.options.quantizer"
    if not config.section(QAT):
        return
    weights, inputs = (text(draft, f"{QAT}.{name}_dtype") for name in ("weight", "activation"))
    path = f"{QAT}.weight_dtype" if weights else next(key for key in config.values if key.startswith(QAT))
    config.see(*(key for key in config.values if key.startswith(f"{QAT}.")))
    if (weights, inputs) == ("int4", "int8") and not on(draft, f"{QAT}.quantize_embedding"):
        draft.set(key, "int8-int4", path)
        size = KeyRow(f"{QAT}.group_size", "training.options.groupsize", default=QAT_GROUP)
        draft.rows((size,))
    elif weights == "nvfp4":
        message = f"`{path}: nvfp4`: quantization-aware training to NVFP4 has no memory model here"
        draft.refuse(path, message, "torchao 0.18 stops at it: Unexpected base config: NVFP4WeightOnlyConfig", (key,))
    else:
        message = f"`{path}`: the job is one with quantization-aware training, which has no memory model here"
        draft.refuse(path, message, "int4 weights with int8 inputs have one", (key,))


def quantized_experts(draft: Draft) -> None:
    """``quantize_moe_experts``: stacked experts rest quantized, too (``monkeypatch/moe_quant.py``).

    ScatterMoE and SonicMoE read them by kernels of their own.
    """
    config, name, key = draft.config, "quantize_moe_experts", "training.options.quantize_experts"
    kernel = next((each for each in KEYS.names["expert_kernels"] if on(draft, each)), "")
    if not on(draft, name):
        config.see(name)
    elif kernel:
        message = f"`{name}` with `{kernel}`, whose kernels dequantize experts in chunks, has no memory model here"
        draft.refuse(name, message, f"leave `{kernel}` out", (key,))
    else:
        draft.set(key, True, name)


def read_axolotl(config: ConfigFile, world: int | None) -> ReadConfig:
    """The settings of one job. ``world``: how many GPUs run it, where that is known."""
    draft = Draft(config, "axolotl", KEYS.title)
    return plan_of(draft, _job(draft, world))


def _job(draft: Draft, world: int | None) -> Iterator[Record]:
    """The job in the normal form."""
    config = draft.config
    yield Runs("huggingface", "Axolotl runs transformers.Trainer", "axolotl")
    join_recipe(draft)
    _refuse(draft)
    parts.model(draft, MODEL)
    dimensions(draft)
    for section in KEYS.names["overrides"]:
        override(draft, section)
    if config.has("processor_type"):
        message = "`processor_type`: the job trains on images or sound, whose number and size are not in the config"
        pictures(draft, "processor_type", message, "; rows with more tokens than sequence_len are not cut")
        picture_size(draft)
    else:
        text_alone(draft, "no processor_type: Axolotl trains on text alone")
    quantization(draft)
    quantizers(draft)
    split = _split(draft, world)
    yield from _tuning(draft)
    yield BatchArguments(micro=("micro_batch_size",), default=1, total="batch_size")
    packed = on(draft, "sample_packing")
    yield RowArguments(paths=("sequence_len",), default=512, packed=packed)
    yield from _precision(draft, split)
    if not on(draft, "embeddings_skip_upcast"):  # which leaves them as peft has cast them: in fp32
        leaves_casts(draft, CASTS_BACK)
    draft.config.see("embeddings_skip_upcast")
    _optimizer(draft, split)
    accelerator(draft)
    yield from _recompute(draft)
    yield from _attention(draft)
    yield from _loss(draft)
    _upcast(draft, split)
    yield from _objective(draft)
    yield from _evaluation(draft)
    parts.clipping(draft, "max_grad_norm")
    parts.compiled(draft, "torch_compile")
    liger_kernels(draft, {kernel: name for name, kernel in KEYS.words["liger"].items() if on(draft, name)})
    draft.config.see(*KEYS.words["liger"])
    parts.saved(draft)
    for name, what in KEYS.upper.items():
        if on(draft, name) and not (name == LIGER_LAYER_NORM and _has_no_layer_norm(draft)):
            draft.note(name, f"{what} keeps less than transformers' own code, as which it is estimated: an upper bound")
        config.see(name)
    yield Known(KEYS)
    # utils/collators/batching.py, monkeypatch/attention/sdpa_varlen.py
    why = "without FlashAttention a mask keeps documents apart, or a kernel that repeats keys: an upper bound"
    multiple = 1 if off(draft, "pad_to_sequence_len") else MULTIPLE
    yield Collated(multiple, masked="sample_packing" if packed else "", why=why)
    _padded(draft)


def _padded(draft: Draft) -> None:
    """Rows that are padded to the limit have its length (``core/builders/causal.py``, pad_to_multiple_of)."""
    limit = draft.value("training.sequence_length")
    if draft.value("training.sequences") in UNPACKED and on(draft, "pad_to_sequence_len") and isinstance(limit, int):
        draft.set("training.longest_row", limit, "pad_to_sequence_len")


def _refuse(draft: Draft) -> None:
    config = draft.config
    for name, what in KEYS.refused.items():
        path = next((key for key in config.values if key == name or (name[-1] == "." and key.startswith(name))), "")
        if not path:
            continue
        config.see(*(key for key in config.values if name[-1] == "." and key.startswith(name)))
        if config.has(path) and (name[-1] == "." or not off(draft, path)) and config.values[path] not in ([], 0):
            draft.refuse(path, f"`{path}`: the job is one with {what}, which has no memory model here")
        config.see(path)
    for name in KEYS.names["unknown_attentions"]:
        if on(draft, name):
            message = f"the attention kernel `{name}` has no memory model"
            draft.refuse(name, message, parts.STATE_IT.format("training.attention"), ("training.attention",))


def _split(draft: Draft, world: int | None) -> Division:
    config = draft.config
    if on(draft, "use_ray"):
        draft.rows((KeyRow("ray_num_workers", "hardware.gpus_per_node"),))
    config.see("ray_num_workers")
    draft.rows(
        (
            KeyRow("tensor_parallel_size", "parallelism.tensor"),
            KeyRow("context_parallel_size", "parallelism.context", aliases=("sequence_parallel_degree",)),
        )
    )
    experts = draft.whole("expert_parallel_size", "parallelism.expert")
    if experts and experts > 1:
        message = f"`expert_parallel_size: {experts}`: what DeepEP holds of tokens has no memory model here"
        draft.refuse("expert_parallel_size", message, keys=("parallelism.expert",))
    below = (name for name in config.values if name.startswith("expert_parallel_"))
    config.see(*below)
    split = deepspeed(draft, "deepspeed", world, AXOLOTL)
    split = split or fsdp(draft, "fsdp", "fsdp_config", version=1, versions=("fsdp_version",))
    shard, replicate = draft.whole("dp_shard_size", GROUP), draft.whole("dp_replicate_size", GROUP) or 1
    context = draft.value("parallelism.context") or 1
    if split is not None and split.sharded and isinstance(context, int):
        # ranks that a number of shards leaves over are replicas, and shards those that one of replicas leaves over
        # (utils/distributed.py, _get_parallel_config_kwargs)
        if shard and shard > 1:
            draft.set(GROUP, shard * context, "dp_shard_size")
        elif replicate > 1:
            replicas(draft, "dp_replicate_size", replicate, world)
    config.see("fsdp_version")
    moved = "experimental_skip_move_to_device"  # loaders/model.py
    if off(draft, moved) and split is not None and split.sharded:
        draft.set("training.initialization.place", "device", moved)
    config.see(moved)
    if split is None:
        draft.assume(STAGE, 0, "neither deepspeed nor fsdp: every GPU holds the whole state")
    return split or Division()


def _tuning(draft: Draft) -> Iterator[Record]:
    """Which weights train. ``adapter: lora`` on a 4-bit base is what others call QLoRA."""
    config, names = draft.config, KEYS.adapters["adapters"]
    adapter = text(draft, "adapter").lower()
    bits4, bits8, gptq = on(draft, "load_in_4bit"), on(draft, "load_in_8bit"), on(draft, "gptq")
    config.see("adapter")
    if adapter in ("", "none", "false"):
        yield TuningArguments(method="full", path="adapter", adapters=names)
        config.see(*KEYS.names["of_adapters"])
        _frozen(draft)
        config.see("lora_target_linear")
        if bits4 or bits8 or gptq:
            name = "load_in_4bit" if bits4 else "load_in_8bit" if bits8 else "gptq"
            draft.refuse(name, f"`{name}` without an adapter: a quantized base is not trained whole")
        return
    if adapter not in ("lora", "qlora"):
        draft.refuse("adapter", f"adapters of kind `{adapter}` have no memory model", keys=("training.method",))
        return
    config.see("unfrozen_parameters", "freeze_mm_modules")  # everything but the adapters is frozen
    quantized_experts(draft)
    resumed(draft, "lora_model_dir")
    yield Starts(("peft_init_lora_weights", "peft.loftq_config.loftq_bits"))
    if off(draft, "peft_autocast_adapter_dtype"):  # loaders/adapter.py: adapters in the dtype of the base
        draft.set("training.lora.dtype", "fp16" if on(draft, "fp16") else "bf16", "peft_autocast_adapter_dtype")
    config.see("peft_autocast_adapter_dtype")
    linear, targets = on(draft, "lora_target_linear"), "lora_target_modules"
    by_name = not linear and config.values.get("lora_target_parameters") and not config.has(targets)
    if linear or by_name:
        names = names._replace(targets=(), default_targets="all-linear" if linear else [])
    yield TuningArguments(
        method="qlora" if bits4 or adapter == "qlora" else "lora",
        path="adapter",
        adapters=names,
        base=Said("int8", "load_in_8bit") if bits8 else Said("gptq-4bit" if gptq else "", "gptq"),
        double=Said(True, "bnb_config_kwargs.bnb_4bit_use_double_quant"),
    )
    pattern = str(config.values.get(targets))
    if linear:
        config.see(targets)
        draft.set("training.lora.target_modules", linear_and(draft, parts.words(draft, targets)), "lora_target_linear")
    elif by_name:
        draft.settings.pop("training.lora.target_modules", None)
    elif ("language_model" in pattern or "text_model" in pattern) and sees(draft):
        draft.set("training.lora.parts", ["language"], targets)


def _has_no_layer_norm(draft: Draft) -> bool:
    """Whether every norm of a model of text is an RMSNorm, which Liger's LayerNorm leaves as it is."""
    known = architecture_named(draft)
    if known is None or known.vision is not None or known.encoder is not None:
        return False
    norms = [norm for block, _ in known.blocks for norm in block.norms]
    return all(norm.kind.startswith("rmsnorm") for norm in (*norms, *filter(None, [known.final_norm])))


def _frozen(draft: Draft) -> None:
    """What a model with a tower trains of itself: ``freeze_mm_modules``, or patterns that name its language model.

    Patterns are matched with the start of parameters' names (``src/axolotl/utils/freeze.py``).
    """
    seen, name, whole = sees(draft), "unfrozen_parameters", "freeze_mm_modules"
    beside = ["vision", "projector", *(["audio"] if seen is not None and seen.others else [])]
    if on(draft, whole) and seen is not None:
        draft.set(FREEZE, beside, whole)
    patterns = [each.removeprefix("^").removesuffix("$") for each in parts.words(draft, name)]
    if not patterns:
        return
    trained = {each.removesuffix("*").removesuffix(".") for each in patterns}
    if seen is None:
        frozen_but(draft, name)
    elif not {"model.language_model"} <= trained <= {"model.language_model", "lm_head", "embed_tokens"}:
        message = f"`{name}` freezes by patterns that are not read"
        draft.refuse(name, message, "state what is frozen: --set training.freeze=[embed]", (FREEZE,))
    else:
        head = ["head"] if "lm_head" not in trained and seen.head and not seen.tie_word_embeddings else []
        draft.set(FREEZE, [*beside, *head], name)


def _precision(draft: Draft, split: Division) -> Iterator[Record]:
    """``resolve_dtype``: weights are loaded in the dtype of the step; ``bf16: full`` is without autocast."""
    config = draft.config
    bf16, fp16 = text(draft, "bf16").lower(), on(draft, "fp16")
    config.see("bf16", "fp16", "bfloat16", "float16", "float32", "torch_dtype")
    config.see("fp8_enable_fsdp_float8_all_gather")
    unsaid = bf16 == "auto" or "bf16" not in config.values
    if on(draft, "fp8"):
        message = "`fp8`: which products run in fp8 is not in the config"
        draft.refuse("fp8", message, keys=("training.precision",))
    elif bf16 == "full":
        yield PrecisionArguments(path="bf16", amp="", weights="bf16", split=split)
    elif bf16 in ("true", "1", "yes") or (unsaid and not fp16):
        yield PrecisionArguments(path="bf16", amp="bf16", weights="bf16", split=split)
    elif on(draft, "bfloat16"):
        yield PrecisionArguments(path="bfloat16", amp="bf16", weights="bf16", split=split)
    elif fp16:
        yield PrecisionArguments(path="fp16", amp="fp16", weights="fp16", split=split)
    elif on(draft, "float16") or on(draft, "load_in_8bit"):
        name = "float16" if on(draft, "float16") else "load_in_8bit"
        yield PrecisionArguments(path=name, amp="", weights="fp16", split=split)
    else:
        yield PrecisionArguments(path="bf16", amp="", weights="fp32", split=split)


def _optimizer(draft: Draft, split: Division) -> None:
    parts.optimizer(draft, "optimizer", "adamw_torch_fused", "Axolotl's default")
    if split.engine:
        draft.settings.pop("training.optimizer.implementation", None)


def _recompute(draft: Draft) -> Iterator[Record]:
    name = "gradient_checkpointing"
    by_fsdp = draft.value(f"{parts.RECOMPUTE}.mode") == "full"
    if not by_fsdp or on(draft, name):
        yield RecomputeArguments(path=name, default=False, reentrant=False, kwargs="gradient_checkpointing_kwargs")
    parts.recomputed(draft, name)
    if text(draft, name) in ("offload", "offload_disk"):
        draft.set(f"{parts.RECOMPUTE}.offload", "cpu", name)
    if not parts.offloaded(draft):
        message = "saved activations that are offloaded without recompute have no memory model"
        draft.refuse(parts.OFFLOADS, message, "turn gradient_checkpointing on", (parts.RECOMPUTE,))


def _attention(draft: Draft) -> Iterator[Record]:
    old = next((name for name in KEYS.words["old_attentions"] if on(draft, name)), "")
    draft.config.see(*KEYS.words["old_attentions"], *KEYS.names["unknown_attentions"])
    if draft.config.has("attn_implementation") or not old:
        yield AttentionArguments("attn_implementation")
    else:
        draft.set("training.attention", KEYS.words["old_attentions"][old], old)
    draft.config.see("attn_implementation")
    hybrid = "gemma4_hybrid_attn_impl"
    if on(draft, hybrid) and draft.value("training.attention") == "flash":
        draft.set("training.attention", "sdpa", hybrid)
        draft.note(hybrid, "layers of a window run FlashAttention: estimated as sdpa, as the others are")


def _upcast(draft: Draft, split: Division) -> None:
    """A model that is trained whole has its norms, embeddings, head and routers made fp32, unless FSDP shards it, or a
    flash attention or cut cross entropy follows, for which they are cast back (``loaders/model.py``,
    ``_configure_embedding_dtypes``); DeepSpeed casts the whole model itself.
    """
    narrow, cast = (
        draft.value("training.precision.params"),
        any(on(draft, name) for name in KEYS.names["cast_attentions"]),
    )
    attention, named = draft.value("training.attention"), text(draft, "attn_implementation").lower()
    if draft.value("training.method") != "full" or split.engine or split.sharded or narrow not in ("bf16", "fp16"):
        return
    if cast or named == "xformers" or attention not in ("sdpa", "eager") or _is_cut(draft):
        return
    why = "Axolotl leaves norms, embeddings, head and routers in fp32 without a flash attention"
    if sees(draft) is None:
        draft.derive("training.options.fp32_embeddings", True, why)
    else:
        draft.note("attn_implementation", f"{why}, which is not in the estimate of a model with a tower")


def _is_cut(draft: Draft) -> bool:
    """Cut cross entropy comes with its plugin."""
    cut = any(CCE_PLUGIN in each for each in parts.words(draft, "plugins"))
    return cut and not off(draft, CCE_PLUGIN)


def _loss(draft: Draft) -> Iterator[Record]:
    """Liger's fused loss has a switch of its own."""
    config, chunked = draft.config, "chunked_cross_entropy"
    plugins = [each for each in parts.words(draft, "plugins") if each]
    if _is_cut(draft):
        yield LossArguments(Said("fused-linear", "plugins"))
    elif on(draft, LIGER_FUSED):
        yield LossArguments(Said("fused-linear", LIGER_FUSED))
    elif on(draft, chunked):
        yield LossArguments(Said("chunked", chunked))
        draft.rows((KeyRow(f"{chunked}_num_chunks", "training.loss.chunks"),))
    else:
        yield LossArguments(Said("standard"))
    config.see(CCE_PLUGIN, LIGER_FUSED, chunked, f"{chunked}_num_chunks")
    for each in plugins:
        what, switch = KEYS.words["plugins_refused"].get(each.rpartition(".")[2], ("", ""))
        if what and not (switch and off(draft, switch)):
            draft.refuse("plugins", f"`{each}`: the job is one with {what}, which has no memory model here")
        elif each.endswith("SpectrumPlugin"):
            draft.note("plugins", "the layers that Spectrum freezes are estimated as trained: an upper bound")
        elif not each.endswith((*KEYS.names["plugins_known"], "KernelsPlugin", "ExpertParallelPlugin")):
            draft.note("plugins", f"what the plugin `{each}` does to memory is not modelled")


def _objective(draft: Draft) -> Iterator[Record]:
    written = text(draft, "rl").lower()
    draft.config.see(*(key for key in draft.config.values if key.startswith(("trl.", "vllm."))))
    if written in KEYS.names["rollouts"]:
        message = f"`rl: {written}` needs a rollout engine on the same GPUs, which has no memory model here"
        draft.refuse("rl", message)
    elif written:
        kind = KEYS.words["objectives"].get(written, written)
        chosen_apart(draft, "rpo_alpha")
        chosen_apart(draft, "dpo_loss_type")
        precomputed, second = "precompute_ref_log_probs", "rl_adapter_ref_model"
        yield ObjectiveArguments(kind=kind, path="rl", precomputed=precomputed, prompt="max_prompt_len")
        if "training.reference" in draft.settings and (on(draft, second) or draft.value("training.method") == "full"):
            # train.py, setup_reference_model: a second model is loaded, and TRL keeps one that it is given even where
            # log-probabilities are computed once
            path = second if on(draft, second) else precomputed
            draft.set("training.reference", "resident", path)
    draft.config.see("rl_adapter_ref_model")
    for name in ("reward_model", "process_reward_model"):
        if on(draft, name):
            yield ObjectiveArguments(kind="reward", path=name)
    if draft.config.has("num_labels") and not on(draft, "reward_model") and not on(draft, "process_reward_model"):
        parts.labelled(draft, "num_labels", "classification", "num_labels")
    weighted(draft, "dpo_use_weighting")
    draft.config.see("num_labels", "dpo_loss_type")


def _evaluation(draft: Draft) -> Iterator[Record]:
    config = draft.config
    share = str(config.values.get("val_set_size") or 0)
    held = config.has("test_datasets") or share not in ("0", "0.0")
    strategy = text(draft, "eval_strategy").lower() or text(draft, "evaluation_strategy").lower()
    name = "test_datasets" if config.has("test_datasets") else "val_set_size"
    micro = draft.value("training.micro_batch_size")
    runs = held and strategy not in ("no", "none")
    default = micro if isinstance(micro, int) else 1
    yield EvaluationArguments(path=name, runs=runs, default=default, batch=("eval_batch_size",))
    if runs and config.has("eval_sequence_len"):
        draft.rows((KeyRow("eval_sequence_len", "training.evaluation.sequence_length"),))
    config.see("eval_sequence_len", "eval_strategy", "evaluation_strategy")


READER = Reader(recognise=evidence("axolotl", all_keys(*KEYS.evidence)), read=read_axolotl, trains=training_alone)
