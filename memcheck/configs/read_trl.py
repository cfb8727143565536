"""TRL, alignment-handbook, open-instruct, and transformers' own examples: TrainingArguments and a model's name."""

from __future__ import annotations

import re

from memcheck.configs import trainer_arguments as arguments
from memcheck.configs import trainer_parts as parts
from memcheck.configs import trainer_rows as rows
from memcheck.configs import trl_keys as keys
from memcheck.configs.config_file import ConfigFile
from memcheck.configs.draft import Draft
from memcheck.configs.key_table import key_table
from memcheck.configs.launch_devices import devices
from memcheck.configs.launch_lines import starts_processes
from memcheck.configs.liger import liger_kernels
from memcheck.configs.open_instruct import own_engine, own_loop
from memcheck.configs.pictures import shown
from memcheck.configs.stated_adapters import COUNTS, STATED, stated_method
from memcheck.configs.trainer_accelerator import synchronised
from memcheck.configs.trainer_adapters import HELD, adapters, base, computed, constants, leaves_casts, unused
from memcheck.configs.trainer_objective import chosen_apart, objective, trainer, weighted
from memcheck.configs.trainer_pairs import join_launch, join_recipe
from memcheck.configs.trainer_parts import Division, off, on, text
from memcheck.configs.trainer_script import (
    commands,
    kind_of,
    objectives_named,
    otherwise_named,
    runs,
    spelled_with_underscores,
)
from memcheck.configs.trainer_settled import masked, settle
from memcheck.configs.trl_keys import KEYS
from memcheck.configs.types import AdapterKeys, ReadConfig
from memcheck.configs.unknown_script import ask, retrieves, takes, towers

TRAINER = key_table("transformers")
LIGER = "liger_kernel_config"


def read_trl(config: ConfigFile, world: int | None) -> ReadConfig:
    """The settings of a job of TRL, or of what is built on it."""
    return _read(Draft(config, "trl", KEYS.title), world, alone=True)


def read_transformers(config: ConfigFile, world: int | None) -> ReadConfig:
    """The settings of a job of transformers.Trainer itself."""
    return _read(Draft(config, "transformers", "transformers"), world, alone=False)


def _read(draft: Draft, world: int | None, *, alone: bool) -> ReadConfig:
    config = draft.config
    spelled_with_underscores(config)
    join_recipe(draft)
    launched_as = commands(config)
    opened = runs(config, "open_instruct") or any(
        config.has(name) for name in KEYS.names["open_instruct"] if not launched_as
    )
    unknown = not opened and _foreign(config) and not _example(config)
    if alone and _foreign(config):
        alone, draft.title = False, keys.OTHER_TITLE
    draft.derive("training.framework", "huggingface", f"the config is {draft.title}'s")
    trainer(draft, "open-instruct" if opened else "trl" if alone else "transformers")
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
    trains_all = _method(draft, opened=opened)
    arguments.batch(draft)
    multiple = rows.rows_of(draft, alone=alone, opened=opened)
    guessed = _precision(draft, split, alone=alone, opened=opened, trains_all=trains_all)
    if opened:
        own_loop(draft, engine=split.engine)
    arguments.step(draft, split)
    synchronised(draft, "sync_each_batch")
    _template(draft)
    _recompute(draft, alone=alone and not opened)
    _attention(draft, opened=opened)
    supervised = _objective(draft, opened=opened)
    _loss(draft, supervised=supervised)
    if alone and not opened:
        _casts(draft, supervised=supervised)
    arguments.evaluation(draft, own=unknown)
    alike = arguments.one_job(draft)
    draft.unmodelled(KEYS.unmodelled)
    parts.irrelevant(draft, KEYS.irrelevant)
    if alike:
        arguments.other_jobs(draft)
    settle(draft, multiple)
    if alone and not opened:
        _flattened(draft)
    if unknown:
        ask(draft, objective=supervised, weights=guessed)
    return draft.finish()


def _method(draft: Draft, *, opened: bool) -> bool:
    """Whether everything is trained."""
    path = next((name for name in KEYS.names["adapted"] if on(draft, name)), "")
    four = next((name for name in KEYS.names["four_bits"] if on(draft, name)), "")
    eight = next((name for name in KEYS.names["eight_bits"] if on(draft, name)), "")
    draft.config.see(*KEYS.names["adapted"], *KEYS.names["four_bits"], *KEYS.names["eight_bits"], "lora_alpha")
    names = _adapter_keys(draft, path, opened=opened)
    if not path and draft.config.method in STATED:
        return stated_method(draft, four, eight, "" if opened else _unswitched(draft))
    if not path:
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
        draft.set("training.method", "full", refused)
        unused(draft, names, ranked)
        return True
    draft.set("training.method", "qlora" if four else "lora", path)
    if eight:
        base(draft, "int8", eight)
    nested = "use_nested_quant"  # of PEFT's examples
    constants(draft, nested if draft.config.has(nested) else "use_bnb_nested_quant", default=False)
    computed(draft, "bnb_4bit_compute_dtype")
    adapters(draft, names)
    return False


def _adapter_keys(draft: Draft, switch: str, *, opened: bool) -> AdapterKeys:
    """The names and defaults of adapters: TRL's, open-instruct's, or names alone, for a script with its own."""
    if opened:
        return keys.OPEN_ADAPTERS
    if switch in ("", "use_peft") and not _foreign(draft.config):
        older = draft.config.has("peft_lora_r")  # of TRL's first scripts
        return KEYS.adapters["adapters"]._replace(rank="peft_lora_r") if older else KEYS.adapters["adapters"]
    ranked = next((name for name in ("lora_rank", "peft_lora_r") if draft.config.has(name)), "lora_r")
    return keys.OTHER_ADAPTERS._replace(rank=ranked)


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


def _casts(draft: Draft, *, supervised: bool) -> None:
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


def _flattened(draft: Draft) -> None:
    """Read the mask of packed rows. Since 0.17 TRL joins the rows of a micro-batch and passes positions on. Without
    FlashAttention, transformers makes a mask from them (trl ``trainer/sft_trainer.py``, padding_free; transformers
    ``masking_utils.py``, find_packed_sequence_indices). ``wrapped`` rows are one text each.
    """
    fits = on(draft, "packing") and text(draft, "packing_strategy").lower() != "wrapped"
    path = "packing" if fits else "padding_free"
    if on(draft, path) and not parts.older(draft, 0, 17):
        masked(draft, path, "flattened", "without FlashAttention a mask keeps documents apart (TRL since 0.17)")


def _precision(draft: Draft, split: Division, *, alone: bool, opened: bool, trains_all: bool) -> bool:
    """The recipe; whether the dtype of the weights is a guess that counts."""
    config = draft.config
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
    parts.precision(draft, path or name, split, amp=amp, weights=weights, trains_all=trains_all)
    same = split.engine or (amp and split.sharded and trains_all)  # whatever it was loaded in
    if not (written or same) and _foreign(config) and not _example(config):
        draft.settings.pop("training.precision.params", None)
        return True
    if unsaid and not same:
        draft.assume(f"training.precision.{'params' if amp else 'recipe'}", "fp32", arguments.FORMER)
    return False


def _recompute(draft: Draft, *, alone: bool) -> None:
    name = "gradient_checkpointing"
    if draft.config.has("activation_checkpointing"):
        name = "activation_checkpointing"
    kwargs = f"{name}_kwargs"
    for each in ("gradient_checkpointing", "activation_checkpointing"):
        parts.recomputed(draft, each)
    by_fsdp = draft.value(f"{parts.RECOMPUTE}.mode") == "full"
    if by_fsdp and not draft.config.has(name):
        return
    reentrant = parts.older(draft, 5) and not alone
    why = "TRL's default" if alone else "transformers' default"
    parts.recompute(draft, name, default=alone, reentrant=reentrant, kwargs=kwargs, why=why)
    own = "use_reentrant"  # of PEFT's and other scripts, which hand it on
    if draft.config.has(own) and draft.value(f"{parts.RECOMPUTE}.mode") == "full":
        draft.set(f"{parts.RECOMPUTE}.reentrant", on(draft, own), own)
    draft.config.see(own)


def _attention(draft: Draft, *, opened: bool) -> None:
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
        parts.attention(draft, "attn_implementation", "flash" if opened else "sdpa")


def _objective(draft: Draft, *, opened: bool) -> bool:
    """Whether the job is supervised: the loss is the language model's."""
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
    objective(
        draft,
        kind,
        path,
        precomputed="precompute_ref_log_probs",
        prompt="max_prompt_length",
        reference="ref_model",
    )
    if opened and kind == "dpo":
        why = "open-instruct scores all pairs once, before it trains (dpo_utils.py, build_reference_logprobs_cache)"
        draft.assume("training.reference", "precomputed", why)
    _scored_before(draft)
    config.see(said, "max_prompt_length", *KEYS.names["preference_keys"])
    return False


def _scored_before(draft: Draft) -> None:
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


def _loss(draft: Draft, *, supervised: bool) -> None:
    config = draft.config
    name = next((each for each in ("use_liger_kernel", "use_liger", "use_liger_loss") if on(draft, each)), "")
    config.see("use_liger_kernel", "use_liger", "use_liger_loss")
    fused = not off(draft, f"{LIGER}.fused_linear_cross_entropy")
    config.see(f"{LIGER}.fused_linear_cross_entropy")
    if name and supervised:
        draft.set("training.loss.kind", "fused-linear" if fused else "standard", name)
        liger_kernels(draft, _liger(draft, name))
    elif name:
        draft.note(name, "Liger's loss of preferences is priced as TRL's own: an upper bound")
    elif supervised and text(draft, "loss_type").lower() == "chunked_nll":
        draft.set("training.loss.kind", "chunked", "loss_type")
    elif supervised and config.has("loss_type"):
        draft.set("training.loss.kind", "standard", "loss_type")
    elif not (supervised and draft.value("training.trainer.name") == "trl"):  # whose default its version decides
        draft.assume("training.loss.kind", "standard")
    if supervised and text(draft, "loss_type").lower() not in ("", "nll", "sft", "chunked_nll"):
        draft.note("loss_type", f"the loss `{text(draft, 'loss_type')}` is priced as the standard one")
    config.see("loss_type")
