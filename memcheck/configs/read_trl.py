"""Reads jobs of TRL, alignment-handbook and open-instruct, and the arguments of transformers' own Trainer.

Read at trl f2cd5771 of July 2026 (``trl/trainer/base_config.py``, ``model_config.py``, ``sft_config.py``,
``dpo_config.py``), alignment-handbook's ``src/alignment/configs.py``, peft 0.21 ``tuners/lora/config.py``, and
open-instruct e6c3044a of August 2026 (``finetune.py``, ``dpo_tune_cache.py``, ``dpo_utils.py``, ``mason.py``).
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator

from memcheck.configs import trainer_arguments as arguments
from memcheck.configs import trainer_parts as parts
from memcheck.configs.config_file import ConfigFile, all_keys, any_key
from memcheck.configs.draft import Draft, Reader
from memcheck.configs.key_table import key_table
from memcheck.configs.launch_devices import devices
from memcheck.configs.launch_lines import starts_processes, training_alone
from memcheck.configs.pictures import shown
from memcheck.configs.recipe_launch import join_launch, join_named_recipe
from memcheck.configs.trainer_adapters import HELD, adapters, base, leaves_casts, usual_targets
from memcheck.configs.trainer_arguments import chosen_apart, masked, synchronised, weighted
from memcheck.configs.trainer_job import (
    EVALUATED,
    AttentionArguments,
    BatchArguments,
    Collated,
    EvaluationArguments,
    Known,
    LossArguments,
    ObjectiveArguments,
    PrecisionArguments,
    RecomputeArguments,
    Runs,
    Said,
    TuningArguments,
    plan_of,
)
from memcheck.configs.trainer_parts import Division, off, on, text
from memcheck.configs.trainer_script import (
    ask,
    commands,
    kind_of,
    objectives_named,
    otherwise_named,
    recipe,
    retrieves,
    rows_of,
    runs,
    spelled_with_underscores,
    takes,
    towers,
)
from memcheck.configs.trainer_split import STAGE
from memcheck.configs.types import AdapterKeys, KeyRow, ReadConfig
from memcheck.record import Record

KEYS, TRAINER = key_table("trl"), key_table("transformers")


def recognise(config: ConfigFile) -> str:
    """The key that shows that a config is TRL's, next to TrainingArguments and a model; empty where none does."""
    key = recognise_arguments(config)
    if not key:
        return _launched(config)
    if any(re.search(r"\btrl\s+[a-z]", line) for line in config.lines if not line.lstrip().startswith("#")):
        return key
    return key if _alone(config) or objectives_named(config, KEYS.names["scripts"]) else ""


def recognise_arguments(config: ConfigFile) -> str:
    """A model's name and an argument that only a training has; or a script of TRL's or transformers' name, a model and
    any further argument of theirs.
    """
    key = _arguments(config)
    if key or config.path.endswith(KEYS.names["files"]):
        return key
    stated = {name.replace("-", "_"): name for name in config.values}
    names = commands(config)
    if not names or "model_name_or_path" not in stated:
        return ""
    of_examples = TRAINER.as_set("example_scripts")
    known = bool(objectives_named(config, KEYS.names["scripts"])) or any(f"run_{name}" in of_examples for name in names)
    fields = TRAINER.as_set("training_arguments", "trl", "examples") - {"model_name_or_path"}
    further = known and not fields.isdisjoint(stated)
    return stated["model_name_or_path"] if further or not KEYS.as_set("trained").isdisjoint(stated) else ""


def _launched(config: ConfigFile) -> str:
    """A launch line that leaves all to a recipe: ``accelerate launch scripts/run_sft.py recipe.yaml``."""
    if not objectives_named(config, KEYS.names["scripts"]) or config.path.endswith(KEYS.names["files"]):
        return ""
    if any(re.search(r"\b(?:swift|llamafactory)\b", line) for line in config.lines):
        return ""
    return "config" if config.has("config") or recipe(config)[0] else ""


_arguments = all_keys(*KEYS.evidence)
_alone = any_key(*KEYS.names["trl_alone"])

OTHER_TITLE = "transformers"
"""Whose defaults a script has that is none of TRL's."""
OTHER_ADAPTERS = KEYS.adapters["adapters"]._replace(default_rank=None, default_dropout=None)
"""Names of the adapter arguments of an unknown script, without defaults: its defaults are not known."""
OPEN_ADAPTERS = KEYS.adapters["adapters"]._replace(
    rank="lora_rank",
    default_rank=64,
    targets=("lora_target_modules",),
    default_targets=["q_proj", "o_proj", "v_proj", "k_proj", "gate_proj", "up_proj", "down_proj"],
    default_dropout=0.1,
)

OLMO_CORE = re.compile(r"^[^#]*\b(open_instruct/(?:olmo_core_finetune|dpo)\.py)")
"""open-instruct's scripts that are no loop over transformers' classes."""
COPIES = "zero_hpz_partition_size"


def own_engine(draft: Draft) -> None:
    """``zero_stage`` and its switches, as the engine's config that ``build_deepspeed_config`` makes of them."""
    config, path = draft.config, "zero_stage"
    stage = draft.whole(path, STAGE)
    if "hardware.gpus_per_node" not in draft.settings:
        draft.rows((KeyRow("gpus", "hardware.gpus_per_node"),))
    config.see(path, "offload_optimizer", "offload_param", "gpus", *([COPIES] if config.has(path) else []))
    if stage is None:
        return
    found: dict[str, object] = {"stage": stage, "overlap_comm": True, "contiguous_gradients": True}
    found["reduce_bucket_size"] = "auto"
    if stage == 3:
        found |= {"sub_group_size": 10**9, "stage3_max_live_parameters": 10**9, "stage3_max_reuse_distance": 10**9}
        found |= {"stage3_prefetch_bucket_size": "auto", "stage3_param_persistence_threshold": "auto"}
        found |= {"stage3_gather_16bit_weights_on_model_save": True, COPIES: draft.whole(COPIES) or 8}
    for name in ("offload_optimizer", "offload_param"):
        if on(draft, name):
            found |= {f"{name}.device": "cpu", f"{name}.pin_memory": True}
    for name, value in found.items():
        config.adopt(f"deepspeed.zero_optimization.{name}", value, config.at(path))


def own_loop(draft: Draft, *, engine: bool) -> None:
    """Read optimizer, gradient clipping and sequence parallelism of open-instruct's own training loop into ``draft``.

    The optimizer is AdamW, fused if ``fused_optimizer`` is on. QLoRA, and DPO with ``dpo_use_paged_optimizer``, take
    bitsandbytes' paged AdamW; ``use_8bit_optimizer`` stores its states in 8 bits. ``clip_grad_norm: -1`` disables
    clipping. ``engine``: DeepSpeed runs the step. A script of OLMo-core is refused.
    """
    config = draft.config
    for line in config.lines:
        named = OLMO_CORE.search(line)
        if named is not None:
            draft.refuse("", f"`{named[1]}` runs OLMo-core's model and loop, which has no memory model here")
            break
    path = next((name for name in ("use_qlora", "dpo_use_paged_optimizer") if on(draft, name)), "")
    if path:
        eight = on(draft, "use_8bit_optimizer")
        draft.set("training.optimizer.name", "paged-adamw-8bit" if eight else "paged-adamw", path)
    elif off(draft, "fused_optimizer"):
        draft.set("training.optimizer.name", "adamw", "fused_optimizer")
        draft.set("training.optimizer.implementation", "foreach", "fused_optimizer")
    config.see("use_8bit_optimizer", "fused_optimizer", "dpo_use_paged_optimizer")
    clip = config.take("clip_grad_norm")
    if clip is not None:
        draft.set("training.clip_grad_norm", str(clip) not in ("-1", "-1.0", "0"), "clip_grad_norm")
    elif not engine and not config.has("max_grad_norm"):
        draft.assume("training.clip_grad_norm", False)
    sequence = draft.whole("sequence_parallel_size", "parallelism.context")
    if sequence and sequence > 1:
        draft.set("parallelism.context", sequence, "sequence_parallel_size")


STATED = ("lora", "qlora")
"""Methods that train adapters."""
RANKS = ("lora_rank", "lora_r", "peft_lora_r", "lora_dim", "r", "rank")
TARGETS = ("lora_target_modules", "target_modules", "lora_target", "lora_targets", "lora_modules", "trainable")
DROPOUTS = ("lora_dropout", "peft_lora_dropout")
SAVED = ("lora_modules_to_save", "modules_to_save", "additional_target")
DORA = ("use_dora", "lora_use_dora")
PARAMETERS = ("lora_target_parameters", "target_parameters")
COUNTS = "state what it turns on with the method: training.lora, training.base"
HARMLESS = (
    *("alpha", "lora_scale", "peft_lora_alpha", "fan_in_fan_out", "task_type", "lora_task_type"),
    *("use_rslora", "lora_use_rslora"),
)


def stated_method(draft: Draft, four: str, eight: str, switch: str) -> None:
    """Read the adapters.

    ``four``, ``eight``: arguments that hold the base in bits; ``switch``: one that may turn adapters or bits on.
    """
    if four and draft.config.method != "qlora":
        message = f"`{four}`: the base is held in 4 bits, and training.method={draft.config.method} was stated"
        draft.refuse(four, message, "state it: --set training.method=qlora")
    if eight:
        base(draft, "int8", eight)

    def name(known: tuple[str, ...]) -> str:
        return next((each for each in known if draft.config.has(each)), known[0])

    names = OTHER_ADAPTERS._replace(
        rank=name(RANKS),
        targets=(name(TARGETS),),
        dropout=name(DROPOUTS),
        saved=name(SAVED),
        dora=name(DORA),
        parameters=name(PARAMETERS),
    )
    adapters(draft, names, stated=True)
    draft.harmless(HARMLESS)
    if switch and switch not in {*RANKS, *TARGETS, *DROPOUTS, *SAVED, *DORA, *PARAMETERS, *HARMLESS}:
        draft.note(switch, COUNTS)


LIGER = "liger_kernel_config"


def read_trl(config: ConfigFile, world: int | None) -> ReadConfig:
    """The settings of a job of TRL, or of what is built on it."""
    draft = Draft(config, "trl", KEYS.title)
    return plan_of(draft, _job(draft, world, alone=True))


def read_transformers(config: ConfigFile, world: int | None) -> ReadConfig:
    """The settings of a job of transformers.Trainer itself."""
    draft = Draft(config, "transformers", "transformers")
    return plan_of(draft, _job(draft, world, alone=False))


def _job(draft: Draft, world: int | None, *, alone: bool) -> Iterator[Record]:
    """The job in the normal form. ``alone``: TRL or a trainer on top of it runs, not transformers alone."""
    config = draft.config
    spelled_with_underscores(config)
    join_named_recipe(draft)
    launched_as = commands(config)
    opened = runs(config, "open_instruct") or any(
        config.has(name) for name in KEYS.names["open_instruct"] if not launched_as
    )
    unknown = not opened and _foreign(config) and not _example(config)
    if alone and _foreign(config):
        alone, draft.title = False, OTHER_TITLE
    name = "open-instruct" if opened else "trl" if alone else "transformers"
    yield Runs("huggingface", f"the config is {draft.title}'s", name)
    parts.launcher(draft)
    parts.model(draft, otherwise_named(config) or "model_name_or_path")
    if not opened and _foreign(config):
        towers(draft)
        _of_examples(draft)
    retrieves(draft)
    shown(draft, (), KEYS.names["data"], launched_as)
    if opened:
        own_engine(draft)
    launched = join_launch(draft, world)
    split = launched or arguments.split(draft, world)
    devices(draft)
    yield from _tuning(draft, opened=opened)
    yield BatchArguments()
    multiple = yield from rows_of(draft, alone=alone, opened=opened)
    guessed = yield from precision_of(draft, split, alone=alone, opened=opened)
    if opened:
        own_loop(draft, engine=split.engine)
    arguments.step(draft, split)
    synchronised(draft, "sync_each_batch")
    _template(draft)
    yield from recompute_of(draft, alone=alone and not opened)
    yield from attention_of(draft, opened=opened)
    supervised = yield from _objective(draft, opened=opened)
    yield from loss_of(draft, supervised=supervised)
    if alone and not opened:
        casts_of(draft, supervised=supervised)
    yield _evaluation(draft, own=unknown)
    alike = arguments.one_job(draft)
    yield Known(KEYS)
    if alike:
        arguments.other_jobs(draft)
    yield Collated(multiple)
    if alone and not opened:
        flattened(draft)
    if unknown:
        ask(draft, objective=supervised, weights=guessed)


def _tuning(draft: Draft, *, opened: bool) -> Iterator[Record]:
    """Which weights train."""
    path = next((name for name in KEYS.names["adapted"] if on(draft, name)), "")
    four = next((name for name in KEYS.names["four_bits"] if on(draft, name)), "")
    eight = next((name for name in KEYS.names["eight_bits"] if on(draft, name)), "")
    draft.config.see(*KEYS.names["adapted"], *KEYS.names["four_bits"], *KEYS.names["eight_bits"], "lora_alpha")
    names = _adapter_keys(draft, path, opened=opened)
    if not path and draft.config.method in STATED:
        stated_method(draft, four, eight, "" if opened else _unswitched(draft))
    elif not path:
        ranked = "" if opened else _unswitched(draft)
        if ranked:
            message = f"`{ranked}` is stated, and no switch that memcheck knows says whether adapters are trained"
            rank = draft.config.values[ranked] if ranked in KEYS.names["ranks"] else ""
            beside = ", or --set training.method=full" if rank else ""
            draft.refuse(ranked, message, f"state it: --set training.method=lora{beside}", ("training.method",))
            draft.note(ranked, COUNTS)
        if four or eight:
            message = f"`{four or eight}` without `use_peft`: a quantized base is not trained whole"
            told = ("training.method",) if ranked else ()
            draft.refuse(four or eight, message, "state it: --set training.method=qlora" if told else "", told)
            if told:
                draft.note(four or eight, "it counts where it is stated: training.method=qlora, or training.base")
        refused = next(
            (name for name in KEYS.names["adapted"] if off(draft, name) and name not in KEYS.names["four_bits"]),
            "use_peft",
        )
        yield TuningArguments(method="full", path=refused, adapters=names, asked=ranked)
    else:
        nested = "use_nested_quant"  # of PEFT's examples
        yield TuningArguments(
            method="qlora" if four else "lora",
            path=path,
            adapters=names,
            base=Said("int8" if eight else "", eight),
            double=Said(False, nested if draft.config.has(nested) else "use_bnb_nested_quant"),
            computed="bnb_4bit_compute_dtype",
        )


def _adapter_keys(draft: Draft, switch: str, *, opened: bool) -> AdapterKeys:
    """The names and defaults of adapters: TRL's, open-instruct's, or names alone, for a script with its own."""
    if opened:
        return OPEN_ADAPTERS
    if switch in ("", "use_peft") and not _foreign(draft.config):
        names = KEYS.adapters["adapters"]._replace(default_targets=usual_targets(draft))  # TRL names none
        older = draft.config.has("peft_lora_r")  # of TRL's first scripts
        return names._replace(rank="peft_lora_r") if older else names
    ranked = next((name for name in ("lora_rank", "peft_lora_r") if draft.config.has(name)), "lora_r")
    return OTHER_ADAPTERS._replace(rank=ranked)


def _unswitched(draft: Draft) -> str:
    """The first argument of adapters or of a quantized base, where no known switch turns them on; else empty."""
    stated = draft.config.values
    if any(name in stated for name in KEYS.names["adapted"] if name not in KEYS.names["four_bits"]):
        return ""  # `--q_lora False` leaves the adapters, of a script that always has them
    launched = KEYS.names["unswitched"] if commands(draft.config) else ()
    named = next((name for name in (*KEYS.names["no_switch"], *launched) if name in stated), "")
    if named or not _foreign(draft.config):
        return named
    for name, value in stated.items():
        words = {*re.split(r"[._]", name.lower()), str(value).lower()}
        if words & KEYS.as_set("adapter_words") and value not in (None, 0, "0") and not off(draft, name):
            return name
    return ""


def _foreign(config: ConfigFile) -> bool:
    """Whether a command line runs a script that is none of TRL's or alignment-handbook's: its defaults are its own.

    It is called as none of them is, or has arguments at which their parser stops.
    """
    if not commands(config):
        return starts_processes(config)
    return not objectives_named(config, KEYS.names["scripts"]) or not takes(
        config, TRAINER.as_set("training_arguments", "trl", "handbook")
    )


def _example(config: ConfigFile) -> bool:
    """Whether a command line runs an example script of transformers, with arguments that the script knows."""
    named = {name for line in config.lines for name in re.findall(r"\b(run_\w+)\.py\b", line)}
    return bool(named & TRAINER.as_set("example_scripts")) and takes(
        config, TRAINER.as_set("training_arguments", "examples")
    )


def _of_examples(draft: Draft) -> None:
    """Scripts in the way of transformers' examples (``run_clm.py``, ``run_glue.py``): one that is told to evaluate, or
    not to train, and not to train, too, trains nothing; the name of an example says the head.
    """
    said = [name for name in ("do_eval", "do_predict") if draft.config.at(name).path == draft.config.path]
    passes = next((name for name in said if on(draft, name)), "")  # a recipe of TRL's may say it and train, too
    if (off(draft, "do_train") and _example(draft.config)) or (passes and not on(draft, "do_train")):
        known = _example(draft.config)
        help = "" if known else "where it trains all the same, state what it optimizes: --set training.objective=sft"
        message = "no `--do_train`: the script evaluates, and trains nothing"
        draft.refuse(passes or "do_train", message, help, () if known else ("training.objective",))
    chosen = next((name for name in commands(draft.config) if name.removesuffix("_no") in KEYS.names["choices"]), "")
    if chosen:
        message = f"the script of {chosen} runs every choice of a question as a row, which has no memory model here"
        draft.refuse("", message, keys=("training.objective",))
    if not _example(draft.config):
        return
    head = next((KEYS.words["heads"][name] for name in commands(draft.config) if name in KEYS.words["heads"]), "")
    if head:
        draft.derive("training.head", head, "the script's name")


def casts_of(draft: Draft, *, supervised: bool) -> None:
    """Set the dtype of a quantised model's adapters. SFTTrainer since 0.26, DPOTrainer and RewardTrainer since 1.0 make
    them bf16, without peft's preparation (trl ``trainer/sft_trainer.py``, ``dpo_trainer.py``, ``reward_trainer.py``).
    """
    kind = "sft" if supervised else draft.value("training.objective.name")
    first = {"sft": (0, 26), "dpo": (1, 0), "reward": (1, 0)}.get(str(kind))
    quantised = draft.value("training.method") == "qlora" or draft.value(HELD) == "int8"
    if first is None or not quantised or parts.older(draft, *first):
        return
    why = f"TRL since {first[0]}.{first[1]}: adapters of quantized models are bf16, and nothing else is cast"
    leaves_casts(draft, why)
    draft.derive("training.lora.dtype", "bf16", why)


def flattened(draft: Draft) -> None:
    """Read the mask of packed rows. Since 0.17 TRL joins the rows of a micro-batch and passes positions on. Without
    FlashAttention, transformers makes a mask from them (trl ``trainer/sft_trainer.py``, padding_free; transformers
    ``masking_utils.py``, find_packed_sequence_indices). ``wrapped`` rows are one text each.
    """
    fits = on(draft, "packing") and text(draft, "packing_strategy").lower() != "wrapped"
    path = "packing" if fits else "padding_free"
    if on(draft, path) and not parts.older(draft, 0, 17):
        masked(draft, path, "flattened", "without FlashAttention a mask keeps documents apart (TRL since 0.17)")


def precision_of(draft: Draft, split: Division, *, alone: bool, opened: bool) -> Generator[Record, None, bool]:
    """The recipe; returns whether the dtype of the weights is a guess that counts."""
    config, trains_all = draft.config, draft.value("training.method") == "full"
    name = "dtype" if config.has("dtype") else "torch_dtype"
    written = text(draft, name).lower()
    amp, path = arguments.mixed(draft)
    if not amp and (opened or (alone and not parts.off(draft, "bf16") and not parts.older(draft, 0, 20))):
        amp, path = "bf16", "bf16"
    if not (amp or written or opened) and _foreign(config) and not _example(config):
        if draft.engine_precision is not None:
            draft.settings["training.precision.recipe"] = draft.engine_precision
            return False
        help = "state it: --set training.precision.recipe=bf16-mixed"
        draft.ask("training.precision.recipe", "the precision, and the script has a default of its own", help)
        return False
    weights = TRAINER.words["dtypes"].get(written, "")
    unsaid = not (alone or opened) and written in ("", "none") and arguments.is_dtype_open(draft)
    if written in ("", "auto", "none"):
        weights = "bf16" if written == "auto" or opened or not (alone or unsaid or parts.older(draft, 5)) else "fp32"
    if not weights:
        parts.no_dtype(draft, name)
        return False
    config.see("dtype", "torch_dtype")
    yield PrecisionArguments(path=path or name, amp=amp, weights=weights, split=split)
    same = split.engine or (amp and split.sharded and trains_all)  # whatever it was loaded in
    if not (written or same) and _foreign(config) and not _example(config):
        draft.settings.pop("training.precision.params", None)
        return True
    if unsaid and not same:
        draft.assume(f"training.precision.{'params' if amp else 'recipe'}", "fp32", arguments.FORMER)
    return False


def recompute_of(draft: Draft, *, alone: bool) -> Iterator[Record]:
    """Which blocks are computed again in backward. ``alone``: TRL's own default holds, which is all of them."""
    name = "gradient_checkpointing"
    if draft.config.has("activation_checkpointing"):
        name = "activation_checkpointing"
    kwargs = f"{name}_kwargs"
    for each in ("gradient_checkpointing", "activation_checkpointing"):
        parts.recomputed(draft, each)
    by_fsdp = draft.value(f"{parts.RECOMPUTE}.mode") == "full"
    if not by_fsdp or draft.config.has(name):
        reentrant = parts.older(draft, 5) and not alone
        why = "TRL's default" if alone else "transformers' default"
        yield RecomputeArguments(path=name, default=alone, reentrant=reentrant, kwargs=kwargs, why=why)
    own = "use_reentrant"  # of PEFT's and other scripts, which hand it on
    if draft.config.has(own) and draft.value(f"{parts.RECOMPUTE}.mode") == "full" and not by_fsdp:
        draft.set(f"{parts.RECOMPUTE}.reentrant", on(draft, own), own)
    if not parts.offloaded(draft):
        draft.note(parts.OFFLOADS, "saved activations that are offloaded without recompute are not modelled")
    draft.config.see(own)


def attention_of(draft: Draft, *, opened: bool) -> Iterator[Record]:
    """The attention kernel; of open-instruct (``opened``) the default is FlashAttention."""
    names = ("use_flash_attn", "use_flash_attention_2", "use_flash_attention")
    draft.config.see(*names)
    for name in names:
        if on(draft, name):
            draft.set("training.attention", "flash", name)
            draft.config.see("attn_implementation")
            return
    without = next((name for name in names if off(draft, name)), "")
    if without and not draft.config.has("attn_implementation"):
        draft.set("training.attention", "sdpa", without)
    else:
        yield AttentionArguments("attn_implementation", "flash" if opened else "sdpa")


def _objective(draft: Draft, *, opened: bool) -> Generator[Record, None, bool]:
    """What is optimized; returns whether the job is supervised: the loss is the language model's."""
    config = draft.config
    rollout = next(
        (name for name in KEYS.names["rollout_keys"] if config.has(name) and name != "max_completion_length"), ""
    )
    kind, path = kind_of(
        config, KEYS.names["scripts"], () if _foreign(config) and not opened else KEYS.names["preference_keys"]
    )
    said = "dpo_loss_type" if config.has("dpo_loss_type") else "loss_type"
    loss = str(config.values.get(said) or "")
    if rollout or kind in KEYS.names["rollouts"]:
        what = f"`{rollout}`" if rollout else f"the script of {kind}"
        draft.refuse(rollout, f"{what}: the job generates between its steps, which has no memory model here")
        draft.harmless(KEYS.names["rollout_keys"])
        return False
    several = objectives_named(config, KEYS.names["scripts"])
    if len(several) > 1:
        message = f"the names of the scripts say {several[0]} and {several[1]}: which of them is optimized is not known"
        draft.refuse("", message, f"state it: --set training.objective={several[0]}", ("training.objective",))
        return False
    if kind == "sft":
        for name in config.unread():
            if set(name.lower().split("_")) & set(KEYS.names["objective_words"]) and not off(draft, name):
                what = f"`{name}`: what this script optimizes with it is not known"
                draft.refuse(name, what, "state it: --set training.objective=dpo", ("training.objective",))
        return True
    if kind in ("dpo", "cpo"):
        chosen_apart(draft, "rpo_alpha")
        chosen_apart(draft, said)
    kind = KEYS.words["losses"].get(loss.strip("[]'\""), kind) if kind in ("dpo", "cpo") else kind
    weighted(draft, "use_weighting")
    if opened and loss == "wpo":
        draft.refuse(said, f"`{said}: wpo` weighs pairs by scores of tokens, which has no memory model here")
    yield ObjectiveArguments(
        kind=kind, path=path, precomputed="precompute_ref_log_probs", prompt="max_prompt_length", reference="ref_model"
    )
    if opened and kind == "dpo":
        why = "open-instruct scores all pairs once, before it trains (dpo_utils.py, build_reference_logprobs_cache)"
        draft.assume("training.reference", "precomputed", why)
    scored_before(draft)
    config.see(said, "max_prompt_length", *KEYS.names["preference_keys"])
    return False


def scored_before(draft: Draft) -> None:
    """The reference may run over more pairs at once than a step (trl ``trainer/dpo_trainer.py``)."""
    path, micro = "precompute_ref_batch_size", draft.value("training.micro_batch_size")
    rows = draft.whole(path)
    if draft.value("training.reference") == "precomputed" and rows and isinstance(micro, int) and rows > micro:
        draft.note(path, f"the reference's pass over {rows} pairs, before the first step, is not in the estimate")


def _template(draft: Draft) -> None:
    """A template of another tokenizer, no file of its own, brings its tokens (trl ``chat_template_utils.py``)."""
    path = "chat_template_path"
    if draft.config.has(path) and not text(draft, path).endswith((".jinja", ".j2")):
        draft.note(path, "the tokens of that tokenizer enlarge the vocabulary")


def _liger(draft: Draft, name: str) -> dict[str, str]:
    """Where each kernel is asked for: transformers hands ``liger_kernel_config`` to Liger, whose defaults are all."""
    found = {}
    for kernel, keywords in {"rope": ("rope",), "rms_norm": ("rms_norm",), "glu": ("swiglu", "geglu")}.items():
        paths = [f"{LIGER}.{keyword}" for keyword in keywords]
        draft.config.see(*paths)
        if not any(off(draft, path) for path in paths):
            found[kernel] = name
    return found


def loss_of(draft: Draft, *, supervised: bool) -> Iterator[Record]:
    """How the loss is computed. ``supervised``: it is the language model's, and none over preferences."""
    config = draft.config
    name = next((each for each in ("use_liger_kernel", "use_liger", "use_liger_loss") if on(draft, each)), "")
    config.see("use_liger_kernel", "use_liger", "use_liger_loss")
    fused = not off(draft, f"{LIGER}.fused_linear_cross_entropy")
    config.see(f"{LIGER}.fused_linear_cross_entropy")
    if name and supervised:
        yield LossArguments(Said("fused-linear" if fused else "standard", name), _liger(draft, name))
    elif name:
        draft.note(name, "Liger's loss of preferences is estimated as TRL's own: an upper bound")
    elif supervised and text(draft, "loss_type").lower() == "chunked_nll":
        yield LossArguments(Said("chunked", "loss_type"))
    elif supervised and config.has("loss_type"):
        yield LossArguments(Said("standard", "loss_type"))
    elif not (supervised and draft.value("training.trainer.name") == "trl"):  # whose default its version decides
        yield LossArguments(Said("standard"))
    if supervised and text(draft, "loss_type").lower() not in ("", "nll", "sft", "chunked_nll"):
        draft.note("loss_type", f"the loss `{text(draft, 'loss_type')}` is estimated as the standard one")
    config.see("loss_type")


def _evaluation(draft: Draft, *, own: bool) -> EvaluationArguments:
    """The pass between steps. ``own``: memcheck does not know the script, which may evaluate although no argument says
    so.
    """
    runs = arguments.evaluates(draft)
    path = next((name for name in ("eval_strategy", "evaluation_strategy", "do_eval") if draft.config.has(name)), "")
    batch = next((name for name in EVALUATED if own and not runs and not path and draft.config.has(name)), "")
    if batch:
        key = "training.evaluation.micro_batch_size"
        size = draft.whole(batch, key)
        draft.note(batch, f"no argument asks for an evaluation pass: where the script has one, --set {key}={size}")
    return EvaluationArguments(path=path, runs=runs, default=8)


READER = Reader(
    recognise=recognise,
    read=read_trl,
    lists=key_table("transformers").as_set("lists"),
    trains=training_alone,
)
