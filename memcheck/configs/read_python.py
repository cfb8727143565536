"""Reads Python files and notebooks that train with transformers, TRL and PEFT. Nothing of them is run.

Read at transformers 5.23.0 (``trainer.py``, ``quantizer_bnb_4bit.py``), TRL 1.9 (``sft_trainer.py``,
``dpo_trainer.py``) and PEFT 0.21 (``constants.py``, ``mapping_func.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from memcheck.catalog.names import AmbiguousNameError, UnknownNameError, find_gpu
from memcheck.configs import python_unsloth as unsloth
from memcheck.configs import trainer_arguments as arguments
from memcheck.configs import trainer_parts as parts
from memcheck.configs.arguments import load_arguments
from memcheck.configs.bridge_launch import join_file
from memcheck.configs.config_file import ConfigFile, located
from memcheck.configs.draft import Draft, Reader
from memcheck.configs.key_table import key_table
from memcheck.configs.next_command import NO_MACHINE
from memcheck.configs.python_bridge import recipes_of
from memcheck.configs.python_code import PythonCode, code_of
from memcheck.configs.python_expressions import MOST_STEPS
from memcheck.configs.python_job import LAUNCH, MOST_JOBS, PythonJob, followed, jobs_of, reason
from memcheck.configs.python_launches import LAUNCHER, Launch, launches_of, started_module
from memcheck.configs.python_library import DATACLASS_PARSERS, UNSLOTH, StatedGpu
from memcheck.configs.python_run import FollowedFile
from memcheck.configs.python_source import NearFiles, script_near, way_on
from memcheck.configs.python_started import (
    STOPS,
    Started,
    compared,
    divided,
    evaluated,
    is_split,
    join_started,
    launch_line,
    options_of,
    read_launch,
    stops,
    words_of,
)
from memcheck.configs.python_values import PythonValue, is_whole, plain
from memcheck.configs.read_megatron import read_arguments
from memcheck.configs.read_trl import (
    attention_of,
    casts_of,
    flattened,
    loss_of,
    precision_of,
    recompute_of,
    scored_before,
)
from memcheck.configs.trainer_adapters import PREPARES, leaves_casts, usual_targets
from memcheck.configs.trainer_arguments import chosen_apart, weighted
from memcheck.configs.trainer_job import (
    BatchArguments,
    Collated,
    EvaluationArguments,
    Known,
    ObjectiveArguments,
    RowArguments,
    Runs,
    Said,
    TuningArguments,
    plan_of,
)
from memcheck.configs.trainer_parts import Division, architecture_named, on, text
from memcheck.configs.trainer_script import others as unknown_options
from memcheck.configs.types import JOB, NO_DEFINES, ConfigError, ConfigProblem, Note, ReadConfig
from memcheck.plan.finding import Location, Span
from memcheck.plan.text import split_lines
from memcheck.record import Record

KEYS, TRL, TRAINER = key_table("python"), key_table("trl"), key_table("transformers")
PLACES = "hardware.gpus_per_node"
SHOWN = (
    ("model_name_or_path", "model"),
    ("load_in_4bit", "4-bit"),
    ("lora_r", "LoRA rank"),
    ("per_device_train_batch_size", "micro-batch"),
    ("max_length", "length"),
    ("max_seq_length", "length"),
    ("packing", "packing"),
    ("gradient_checkpointing", "gradient checkpointing"),
    ("optim", "optimizer"),
)
"""What the first lines of an answer name, if the file says it."""
TAKES_WORDS = re.compile(rf"\b(?:argv|{'|'.join(DATACLASS_PARSERS)})\b")
"""What a file has that takes words of its launch line which are no options."""
LAUNCHERS = frozenset({"accelerate", "uv", "poetry", "pipenv", "pdm"})
"""Programs whose next word is a command of theirs, and no word for the script: ``accelerate launch``, ``uv run``."""
_OPTION = re.compile(r"--(?:set|define) \S+|--[\w-]+ (?!NAME|VALUE)[\w./\[\]-]+")


def recognise(config: ConfigFile) -> str:
    """The name of the file, which is Python: what it trains is found by following it."""
    return config.path if config.text else ""


def read_python(config: ConfigFile, world: int | None) -> ReadConfig:
    """The settings of the job that a Python file or a notebook trains.

    What a file leaves to its command line is taken from the launch lines beside it, where all of them say the same job.
    """
    if not config.text:
        return _reading(config, world, *script_near(config))[0]
    found, run = _reading(config, world, config.path, config.text)
    return found if run is None else _as_launched(config, world, found, run)


def _as_launched(config: ConfigFile, world: int | None, found: ReadConfig, run: FollowedFile) -> ReadConfig:
    """The reading of a file as the launch lines beside it start it; ``found``, with those lines named, if they differ.

    ``found``: the reading of the file alone. If it leaves nothing open that an option says, only lines with a launcher
    count, which starts several processes.
    """
    asks = bool(found.problems) and bool(run.taken or run.takes_all)
    if not asks and _says(config, PLACES):
        return found
    launches = [each for each in launches_of(config) if asks or LAUNCHER.search(each.shown)]
    if len(launches) * run.steps > MOST_STEPS // 2:
        return found
    readings = [(each, _launched_so(config, world, each)) for each in launches]
    if not found.problems:
        readings = [each for each in readings if each[1] is None or not stops(each[1])]
    jobs = {compared(reading) for _, reading in readings if reading is not None and not reading.problems}
    whole = all(reading is not None and not reading.problems for _, reading in readings)
    if not readings:
        return found
    read = [each for each in readings if each[1] is not None]
    launch, reading = max(read or readings, key=lambda each: evaluated(each[1]))
    at = Location(launch.path, Span(launch.line, 1, launch.line, len(launch.lines[launch.line - 1]) + 1))
    if reading is not None and whole and len(jobs) == 1:
        note = Note(at, f"the job is what this line starts: {launch.shown[:200]}", counted=True)
        return reading._replace(notes=(note, *reading.notes))
    places = ", ".join(f"{each.path}:{each.line}" for each, _ in readings)
    line = f"launch lines that do not agree: {places}; give one"
    if len(readings) == 1:
        line = f"{at.path}:{at.span.line} starts it, and leaves as much open"
    if not found.problems:
        problem = next((each for _, reading in readings if reading is not None for each in reading.problems), None)
        alike = "these lines start jobs that differ" if whole else "something in it is not read"
        reason = alike if problem is None else problem.message.partition("not run: ")[2]
        message = f"`{launch.shown[:80]}` starts it ({places}): {reason}"
        line = f"{LAUNCH}\nadd, with your own values: --gpus-per-node 8 --set parallelism.zero_stage=3"
        return found._replace(problems=(ConfigProblem(at, message, line, keys=(PLACES, "parallelism.zero_stage")),))
    first, *others = found.problems
    return found._replace(problems=(first._replace(help=f"{first.help}\n{line}"), *others))


def _launched_so(config: ConfigFile, world: int | None, launch: Launch) -> ReadConfig | None:
    """The reading of a file that is started by a launch line; None where something of the line is not read."""
    try:
        started = load_arguments(launch.path, launch.text, defines={**launch.variables, **config.variables})
    except ConfigError:
        return None
    short = re.search(r"\s-[A-Za-ln-z]\b", launch.shown)
    words = [
        each
        for each in started.positionals
        if each.text[:1] not in "-$" and each.program not in LAUNCHERS and not started_module(launch.shown, each.text)
    ]
    unheeded = {name for names in TRAINER.irrelevant.values() for name in names}
    hanging = [name for name in started.hanging if name.replace("-", "_") not in unheeded]
    unread = words and TAKES_WORDS.search(config.text) is None
    if hanging or started.loose or unread or short:
        return None
    for name in ("inside", "read", "version", "images", "gpus_per_node", "method", "gpu", "stated", "instead"):
        setattr(started, name, getattr(config, name))
    try:
        found, _ = _reading(started, world, config.path, config.text)
    except ConfigError:
        return None
    return found._replace(sources={**found.sources, launch.path: launch.lines})


def _reading(config: ConfigFile, world: int | None, path: str, script: str) -> tuple[ReadConfig, FollowedFile | None]:
    """The settings of the job of a script, and what was followed of it; None for a recipe of Megatron-Bridge.

    ``config``: the script itself, or a launch line of it. ``path``, ``script``: the script's file and text.

    Raises:
        ConfigError: it trains nothing that is read.
    """
    code = code_of(path, script)
    near = NearFiles(config)
    options = None if config.text else options_of(config)
    run = followed(
        code,
        config.variables if options is None else NO_DEFINES,
        _machine(config),
        near,
        options,
        words_of(config, path),
    )
    jobs = jobs_of(run)
    recipes = recipes_of(run) if not jobs else []
    plain_config = _plain(config)
    draft = Draft(plain_config, "python", KEYS.title)
    draft.sources = {config.path: config.lines, path: split_lines(script), **near.sources}
    started = None if options is None else read_launch(config, world, run.taken)
    if options is not None:
        for name in [] if run.takes_all or recipes else unknown_options(config, run.taken, map(_dashed, run.taken)):
            if run.taken:
                problem = f"`--{name}`: `{path}` {STOPS}"
                draft.problems.append(ConfigProblem(config.at(name), problem))
            else:
                draft.notes.append(Note(config.at(name), f"`--{name}`: `{path}` reads no options"))
    if recipes:
        if len(recipes) > 1:
            named = ", ".join(f"`{plain(each.arguments[0])}`" for each in recipes[:MOST_JOBS])
            draft.problems.append(ConfigProblem(recipes[1].at, f"the file trains {len(recipes)} recipes: {named}"))
        draft.derive("training.framework", "megatron", "the file calls a recipe of Megatron-Bridge")
        if started is not None:
            join_started(draft, started)
        join_file(draft, recipes[-1], {} if options is None else config.values)
        return read_arguments(draft), None
    if not jobs:
        at, why = reason(code, run)
        machine = NO_MACHINE.stated({"gpu": config.gpu, "gpus_per_node": config.gpus_per_node})
        raise located(at, f"this is {code.kind}, read and not run: {why}", way_on(code, machine)[1])
    job = _chosen(draft, jobs, config.variables.get(JOB, ""))
    _adopt(draft, job)
    needed = next((each for each in run.things if each.name == "needs"), None)
    asked = {each.option for each in job.values.values() if not each.known}
    if needed is not None and plain(needed.arguments[0]) not in asked:
        message = f"it needs `{plain(needed.arguments[0])}` on its command line"
        draft.problems.append(ConfigProblem(needed.at, message, LAUNCH))
    for at in code.broken:
        draft.notes.append(Note(at, "this cell is no Python, and is not read"))
    if run.cut:
        draft.notes.append(Note(job.at, "the file takes more steps than are followed: what is after them is not read"))
    found = plan_of(draft, _job(draft, job, world, _machine(config), started))
    found = _asked(config, code, draft, job, found, "" if needed is None else str(plain(needed.arguments[0])))
    return found, run


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _machine(config: ConfigFile) -> StatedGpu:
    """What the stated GPU answers to a script that asks for it."""
    try:
        gpu = find_gpu(config.gpu) if config.gpu else None
    except (UnknownNameError, AmbiguousNameError):
        gpu = None
    if gpu is None:
        return StatedGpu(gpus=config.gpus_per_node)
    known = re.fullmatch(r"sm_(\d+)(\d)[a-z]?", gpu.arch or "")
    return StatedGpu(
        capability=(int(known[1]), int(known[2])) if known is not None else None,
        bf16=known is None or int(known[1]) >= 8,
        memory_bytes=gpu.memory_bytes,
        gpus=config.gpus_per_node or 1,
    )


def _plain(config: ConfigFile) -> ConfigFile:
    """A config without lines: what is read for launch lines would take the code for one."""
    found = ConfigFile(config.path, {}, lambda _: Location(config.path, config.at("").span), ())
    found.read, found.inside, found.version, found.method = config.read, config.inside, config.version, config.method
    found.gpus_per_node, found.images, found.stated = config.gpus_per_node, config.images, config.stated
    found.instead = config.instead
    return found


def _chosen(draft: Draft, jobs: list[PythonJob], said: str) -> PythonJob:
    """The job that the user means, or the only one; several are named, and one is asked for."""
    stated = next((each for each in jobs if str(each.at.span.line) == said), None)
    if stated is not None or len(jobs) == 1:
        return stated or jobs[0]
    named = "; ".join(f"line {each.at.span.line}: {each.trainer}{_model(each)}" for each in jobs[:MOST_JOBS])
    more = f", and {len(jobs) - MOST_JOBS} more" if len(jobs) > MOST_JOBS else ""
    message = f"the file trains {len(jobs)} jobs ({named}{more})"
    draft.problems.append(ConfigProblem(jobs[1].at, message, f"choose one: --define {JOB}={jobs[0].at.span.line}"))
    return jobs[-1]


def _model(job: PythonJob) -> str:
    name = plain(job.values.get("model_name_or_path"))
    return f" of {name}" if isinstance(name, str) else ""


def _adopt(draft: Draft, job: PythonJob) -> None:
    """The job's values as keys of a config; what is not known becomes a question."""
    config = draft.config
    settled = KEYS.words["settled"]
    config.adopt("trainer", job.trainer, job.at)
    for key, value in job.values.items():
        if is_whole(value):
            _put(config, key, plain(value), value)
        elif key in KEYS.words["upper"] and not value.by_gpu:
            _upper(draft, key, value, settled[key])
        elif key in settled:
            _ask(draft, key, value, settled[key])
    for key, other in config.instead.items():
        config.adopt(key, other, job.at)
    options = {value.option: value.at for value in job.values.values() if value.option and value.known}
    if options:
        listed = ", ".join(f"`{each}`" for each in list(options)[:MOST])
        message = f"the defaults of {listed} count: for another launch, state its values or give its line"
        draft.notes.append(Note(next(iter(options.values())), message))
    for at, message, help, keys in job.refusals:
        draft.problems.append(ConfigProblem(at, message, help, keys=keys))
    model = job.values.get("model_name_or_path")
    placeholder = model is not None and model.known and model.option and " " not in model.option  # a file is none
    if model is not None and placeholder:
        message = f"the model is the default of `{model.option}` on the command line (line {model.at.span.line})"
        help = f"{LAUNCH}; or {KEYS.words['answers']['model']}"
        draft.problems.append(ConfigProblem(model.at, message, help, keys=("model", "model.name")))


def _upper(draft: Draft, key: str, value: PythonValue, settles: str) -> None:
    """The value that needs most, for one that is not known, unless the user states it."""
    if _says(draft.config, settles):
        return
    found = KEYS.words["upper"][key]
    draft.config.adopt(key, found, value.at)
    message = (
        f"`{key}` is not known ({value.why}): taken as {found}, which needs no less; state it: --set {settles}=VALUE"
    )
    draft.notes.append(Note(value.at, message))


def _put(config: ConfigFile, key: str, found: object, value: PythonValue) -> None:
    if isinstance(found, dict):
        for name, inner in found.items():
            _put(config, f"{key}.{name}", inner, value.of[name] if isinstance(value.of, dict) else value)
    elif found is not None:
        config.adopt(key, found, value.at)


def _ask(draft: Draft, key: str, value: PythonValue, settles: str) -> None:
    """A question for a value that the file computes, or takes from elsewhere."""
    answers = KEYS.words["answers"]
    answer = answers.get(key) or answers.get(settles, f"--set {settles}=VALUE")
    keys = (settles, "model.name") if settles == "model" else (settles,)
    if value.by_gpu and not draft.config.gpus_per_node:
        answer, keys = answers["hardware.gpu"], (*keys, "hardware.gpu")
    elif value.option:
        answer = f"{LAUNCH}; or {answer}"
    message = f"`{key}` is not known: it hangs on {value.why or 'what only a run gives'}"
    draft.problems.append(ConfigProblem(value.at, message, answer, keys=keys))


def _job(
    draft: Draft, job: PythonJob, world: int | None, machine: StatedGpu, started: Started | None
) -> Iterator[Record]:
    """The job in the normal form. ``started``: what its launch line says; None where there is none."""
    launched = None if started is None else started.split
    config, trl = draft.config, job.objective != ""
    if job.older and not config.version:
        config.version = "0.15"
    who = _trainer_of(draft, job, machine, launched)
    by_unsloth = who == "unsloth"
    yield Runs("huggingface", f"the file calls {job.trainer}", who)
    if started is not None:
        join_started(draft, started)
    parts.model(draft, "model_name_or_path")
    _known_model(draft)
    _machine_of(draft, job.visible, world)
    _headed(draft, job)
    split = divided(draft, job, world, launched)
    yield _tuning(draft)
    yield BatchArguments()
    yield from _rows(draft, job)
    _dtype(draft, job)
    yield from precision_of(draft, split, alone=job.trl_config, opened=False)
    _former(draft, job)
    arguments.step(draft, split)
    if by_unsloth:
        unsloth.recomputed(draft)
    yield from recompute_of(draft, alone=job.trl_config and not parts.older(draft, 0, 20)) if not by_unsloth else ()
    yield from attention_of(draft, opened=False)
    supervised = job.objective in ("", "sft")
    if not supervised:
        yield from _objective(draft, job)
    if by_unsloth and job.model is not None:
        unsloth.note_checkpoint(draft, job.model.at)
        config.see("use_liger_kernel", "loss_type")
        leaves_casts(draft, unsloth.WHY)
    else:
        yield from loss_of(draft, supervised=supervised)
    if trl and not job.wrapped:
        casts_of(draft, supervised=supervised)
        if job.model is not None and job.model.prepared is not None and PREPARES in draft.settings:
            draft.derive(PREPARES, True, "the file calls prepare_model_for_kbit_training")
    elif job.wrapped and job.model is not None and job.model.prepared is None and job.model.name not in UNSLOTH:
        leaves_casts(draft, "the file does not call prepare_model_for_kbit_training")
    path = next((name for name in ("eval_strategy", "evaluation_strategy", "do_eval") if config.has(name)), "")
    yield EvaluationArguments(path=path, runs=arguments.evaluates(draft), default=8)
    config.see("trainer")
    yield Known(TRL)
    yield Known(KEYS)
    yield Collated()
    if trl:
        flattened(draft)


def _trainer_of(draft: Draft, job: PythonJob, machine: StatedGpu, launched: Division | None) -> str:
    """Whose kernels train: unsloth's where it loads the model, or those of TRL or transformers."""
    if job.model is not None and job.model.name in UNSLOTH:
        sharded = is_split(draft) or (launched is not None and (launched.engine or launched.sharded))
        if not unsloth.refuse_what_is_not_modelled(draft, job.model, job.objective, machine, sharded=sharded):
            return "unsloth"
    return "trl" if job.objective else "transformers"


def _known_model(draft: Draft) -> None:
    """Ask for a model like that of the file where the catalog has none of its name."""
    key = "model.name"
    name = draft.settings.get(key)
    if name is None or parts.is_known(str(name.value)):
        return
    message = f"memcheck does not know the model `{str(name.value)[:80]}`"
    help = f"name one like it, or the folder of its config.json: {KEYS.words['answers']['model']}"
    at = draft.config.at("model_name_or_path")
    draft.problems.append(ConfigProblem(at, message, help, keys=("model", key)))


def _machine_of(draft: Draft, seen: PythonValue | None, world: int | None) -> None:
    """One process, which is what a notebook or ``python FILE`` starts, where no count is stated.

    ``seen``: what the file sets ``CUDA_VISIBLE_DEVICES`` to.
    """
    if seen is not None and plain(seen) in ("", "-1", -1):
        draft.problems.append(ConfigProblem(seen.at, "`CUDA_VISIBLE_DEVICES` hides every GPU: the job runs on the CPU"))
    spread = text(draft, "device_map").lower() in ("auto", "balanced", "balanced_low_0", "sequential")
    launched = draft.settings.get(PLACES)
    if spread and launched is not None and launched.value != 1:
        # accelerate, Accelerator.prepare_model: an error unless the map has one device.
        message = "accelerate refuses several processes for a model that `device_map` spreads over the GPUs"
        draft.refuse("device_map", message, "leave `device_map` out, or start it with `python`")
    elif spread and world is not None and world > 1:
        message = (
            f"`device_map` spreads the layers over the {world} GPUs of one process, which has no memory model here"
        )
        draft.refuse("device_map", message, "for one GPU: --gpus-per-node 1")
    if seen is not None and "," in str(plain(seen)):
        message = "`CUDA_VISIBLE_DEVICES` names several GPUs: without a launcher the Trainer copies the model to each"
        draft.problems.append(ConfigProblem(seen.at, message, "state them: --gpus-per-node 1", keys=(PLACES,)))
        return
    if PLACES in draft.settings:
        return
    draft.assume(PLACES, 1, "one process: `python FILE`, or a notebook")


def _headed(draft: Draft, job: PythonJob) -> None:
    """What the model ends in, by the class that loads it."""
    kind = job.model.name.removesuffix(".from_config") if job.model is not None else ""
    head = next((word for end, word in KEYS.words["heads"].items() if kind.endswith(end)), "")
    if head and job.objective != "reward":
        draft.derive("training.head.kind", head, f"the file loads it with {kind}")
        labels = draft.config.values.get("num_labels")
        draft.derive("training.head.labels", labels if isinstance(labels, int) else 2, "`num_labels`")
    elif kind.endswith(("ForQuestionAnswering", "ForMultipleChoice", "ForNextSentencePrediction")):
        at = job.model.at if job.model is not None else job.at
        draft.problems.append(ConfigProblem(at, f"the head of `{kind}` has no memory model here"))


def _tuning(draft: Draft) -> TuningArguments:
    """Which weights train."""
    adapted, four, eight = (on(draft, name) for name in ("use_peft", "load_in_4bit", "load_in_8bit"))
    names = KEYS.adapters["adapters"]
    if not adapted:
        if (four or eight) and not any("training.method" in each.keys for each in draft.problems):
            path = "load_in_4bit" if four else "load_in_8bit"
            draft.refuse(path, f"`{path}` without adapters: a quantized model is not trained whole")
        return TuningArguments(method="full", path="", adapters=names)
    if not any(draft.config.has(name) for name in names.targets):
        names = names._replace(default_targets=usual_targets(draft))
    return TuningArguments(
        method="qlora" if four else "lora",
        path="use_peft",
        adapters=names,
        base=Said("int8" if eight else "", "load_in_8bit"),
        double=Said(False, "use_bnb_nested_quant"),
        computed="bnb_4bit_compute_dtype",
    )


def _rows(draft: Draft, job: PythonJob) -> Iterator[Record]:
    """How long rows are: TRL cuts them itself, and of transformers' Trainer the tokenizer's call says it."""
    packed = on(draft, "packing")
    names = ("max_length", "max_seq_length")
    stated_none = any(name in job.values and job.values[name].of is None for name in names)
    default = 1024 if job.objective and not stated_none else None
    full = "every row is padded to the limit, or texts are joined" if job.padded else ""
    why, known = "TRL's default", architecture_named(draft) if job.cut is not None else None
    if known is not None and known.learned_positions and not any(map(draft.config.has, names)):
        default = min(known.learned_positions, known.max_position_embeddings or known.learned_positions)
        why = "the tokenizer cuts rows where the model's table of positions ends"
    yield RowArguments(paths=names, default=default, packed=packed or bool(full), why=why, full=full)
    limit, cut = draft.value("training.sequence_length"), job.tokens
    if cut is not None and isinstance(limit, int) and cut.of < limit:
        message = f"the file cuts rows at {cut.of} tokens; if it trains on these, state it: --sequence-length {cut.of}"
        draft.notes.append(Note(cut.at, message))
    draft.config.see("packing", *names, "max_target_length")
    help = "state the longest that a row gets: --sequence-length 4096"
    draft.ask("training.sequence_length", "how long a row is", help)


def _dtype(draft: Draft, job: PythonJob) -> None:
    """The dtype of weights that the file loads without one."""
    config = draft.config
    if job.model is None or config.has("dtype"):
        return
    if on(draft, "load_in_4bit") or on(draft, "load_in_8bit"):
        # without a dtype bitsandbytes leaves what is not quantized in 16 bits (quantizer_bnb_4bit.py, update_dtype)
        config.adopt("dtype", "float16" if on(draft, "fp16") else "bfloat16", job.model.at)
    elif config.version and not parts.older(draft, 5) and re.search(r"(?:^| )[5-9]", config.version):
        config.adopt("dtype", "auto", job.model.at)


def _former(draft: Draft, job: PythonJob) -> None:
    """Say of whom fp32 is the default, where the file loads the model without a dtype and TRL's trainer gets it."""
    key = "training.precision.params"
    unsaid = job.model is not None and job.trl_config and not draft.config.has("dtype")
    mixed = str(draft.value("training.precision.recipe")).endswith("-mixed")
    if unsaid and mixed and arguments.is_dtype_open(draft):
        draft.settings.pop(key, None)
        draft.assume(key, "fp32", arguments.FORMER)


def _objective(draft: Draft, job: PythonJob) -> Iterator[Record]:
    kind = job.objective
    if kind in ("dpo", "cpo"):
        chosen_apart(draft, "rpo_alpha")
        chosen_apart(draft, "loss_type")
        kind = TRL.words["losses"].get(text(draft, "loss_type").strip("[]'\""), kind)
    weighted(draft, "use_weighting")
    yield ObjectiveArguments(
        kind=kind,
        path="trainer",
        precomputed="precompute_ref_log_probs",
        prompt="max_prompt_length",
        reference="ref_model",
    )
    scored_before(draft)
    draft.config.see("loss_type", "max_prompt_length", *TRL.names["preference_keys"])


def _asked(
    config: ConfigFile, code: PythonCode, draft: Draft, job: PythonJob, found: ReadConfig, needed: str
) -> ReadConfig:
    """The reading with everything that is still open in one problem: what the file is, what it says, what to add."""
    still = [
        each._replace(help=each.help.replace("--model NAME", KEYS.words["answers"]["model"]))
        for each in found.problems
        if not any(_says(config, key) for key in each.keys)
    ]
    if not still:
        return found
    said: list[str] = []
    for key, word in SHOWN:
        value = job.values.get(key)
        written = plain(value) if value is not None and is_whole(value) else None
        if value is not None and written not in (None, False) and not any(each.startswith(word) for each in said):
            shown = "" if written is True else f" {str(written)[:60]}"
            said.append(f"{word}{shown} (line {value.at.span.line})")
    options = list(dict.fromkeys(option for each in still for option in _OPTION.findall(each.help)))
    others = list(dict.fromkeys(each.help for each in still if each.help and not _OPTION.search(each.help)))
    others += [each.help.partition(": --")[0] for each in still if " of " in each.help and "closest" in each.help]
    if LAUNCH in " ".join(each.help for each in still):
        others = [launch_line(config, job, needed), *(each for each in others if LAUNCH not in each)]
        options = options if len(options) <= MOST_OPTIONS else []
    if any(not each.keys and not _OPTION.search(each.help) and LAUNCH not in each.help for each in still):
        options = []  # no answer makes a job of it
    gpu = KEYS.words["answers"]["hardware.gpu"]
    if options and not config.gpu and gpu not in options:
        options.insert(0, gpu)
    messages = list(dict.fromkeys(each.message for each in still))
    listed = "; ".join(messages[:MOST]) + (f"; and {len(messages) - MOST} more" if len(messages) > MOST else "")
    message = f"this is {code.kind}, read and not run: {listed}"
    first = f"found: {job.trainer} (line {job.at.span.line})" + "".join(f", {each}" for each in said)
    help = "\n".join([first, *others[:2], *([f"add, with your own values: {' '.join(options)}"] if options else [])])
    keys = tuple(dict.fromkeys(key for each in still for key in each.keys))
    problem = ConfigProblem(location=still[0].location, message=message, help=help, keys=keys)
    return found._replace(problems=(problem,))


MOST_OPTIONS = 3
"""Options that a message names in addition to a launch line."""
MOST = 5
"""Questions that one message holds."""


def _says(config: ConfigFile, key: str) -> bool:
    """Whether the user states a key, or something inside or around it."""
    return any(each == key or each.startswith(f"{key}.") or key.startswith(f"{each}.") for each in config.stated)


READER = Reader(recognise=recognise, read=read_python)
