"""What a launch line says in addition to its arguments: the script, its rows, and whether memcheck knows it."""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterable
from functools import lru_cache

from memcheck.configs.arguments import without_comment
from memcheck.configs.config_file import ConfigFile, load_json
from memcheck.configs.draft import Draft
from memcheck.configs.key_table import key_table
from memcheck.configs.launch_lines import commands_of, started_by
from memcheck.configs.read_accelerate import LAUNCHED
from memcheck.configs.shell_values import resolved
from memcheck.configs.trainer_job import RowArguments
from memcheck.configs.trainer_parts import KEYS, architecture_named, off, on
from memcheck.configs.types import ConfigError, ConfigProblem
from memcheck.plan.finding import Location, Span
from memcheck.record import Record

_SCRIPT = re.compile(r"(?:^|[\s/\"'])(?:run[_-])?([\w.-]*?\w)(?:[_-](?:training|trainer|finetune|llm))?\.py\b")
_MODULE = re.compile(
    r"(?:^|\s)(?:-m|--module)[\s=]+(?!torch\.|accelerate\.|deepspeed\.|axolotl\.)(?:\w+\.)*(\w+)(?=\s|$)"
)
_RECIPE = re.compile(r"(?:[\w-]\.py|\btrl\s+[a-z_]+)[\"']?\s+[\"']?((?:[\w./~-]|\$\w+(?!\w)|\$\{\w+\})+)[\"']?(?=\s|$)")
_CALLED_RECIPE = re.compile(r"\$\{?\w*(?:conf|recipe|yaml|yml)\w*\}?\Z", re.IGNORECASE)
_MODELS = (
    *("model_name", "model-name", "model_id", "model-id", "pretrained_model_name_or_path", "base_model"),
    *("base-model", "model_path", "model-path"),
)
"""Arguments by which scripts of one's own name their model."""
_SUFFIXES = (".yaml", ".yml")
_OVERRIDE = re.compile(r"(?:^|\s)\+{0,2}((?:grpo|policy|dpo|sft|rm|distillation|cluster)\.[\w.]+)=(?!=)")
_ABBREVIATED = {"rm": "reward", "rewards": "reward"}
_JOINED = frozenset({"train", "trainer", "training", "run", "my", "main", "do", "llm", "vlm", "hf", "trl", "ft"})
"""Text before or after an objective in a script's name, without a hyphen between them: ``traindpo.py``."""
_COMMAND = re.compile(r"\b(?:trl|swift|llamafactory-cli)\s+([a-z_]+)")


def spelled_with_underscores(config: ConfigFile) -> None:
    """``--per-device-train-batch-size`` is the same argument as ``--per_device_train_batch_size``."""
    for name in [each for each in config.values if "-" in each and "." not in each]:
        plain = name.replace("-", "_")
        if plain not in config.values:
            config.rename(name, plain)
    for name in [each for each in config.values if each.startswith("no_")]:
        _turned_off(config, name)
    for name, written in list(config.values.items()):
        if isinstance(written, str) and written.startswith("{") and written.endswith("}"):
            _spread(config, name, written)


def _turned_off(config: ConfigFile, name: str) -> None:
    """``--no_gradient_checkpointing``: the parser's own switch of a field that is true by default."""
    plain = name.removeprefix("no_")
    fields = KEYS.as_set("training_arguments", "trl")
    if name not in fields and plain in fields and plain not in config.values and config.values[name] is True:
        config.rename(name, plain)
        config.values[plain] = False


def _spread(config: ConfigFile, name: str, written: str) -> None:
    """An argument that is a JSON object: its keys, as the same mapping in YAML has them."""
    try:
        below = load_json(config.path, written).values
    except ConfigError:
        return
    at = config.at(name)
    for key, value in below.items():
        config.adopt(f"{name}.{key}", value, at)
    if below:
        del config.values[name]


def commands(config: ConfigFile) -> list[str]:
    """The names of scripts and subcommands on the lines of a launch."""
    return list(_commands(config.lines))


@lru_cache(maxsize=4)
def _commands(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Readers ask for them several times for one script."""
    found = []
    for line in lines:
        code = without_comment(line)[:2000]
        found += _COMMAND.findall(code) + _SCRIPT.findall(code) + _MODULE.findall(code)
    return tuple(each.lower().replace("-", "_") for each in found)


def otherwise_named(config: ConfigFile) -> str:
    """The argument by which a script of one's own names its model; empty where it has the Trainer's examples' name."""
    if config.has("model_name_or_path"):
        return ""
    return next((name for name in _MODELS if config.has(name)), "")


def overridden(lines: Iterable[str]) -> tuple[int, re.Match[str]] | None:
    """The line, and on it the first key of a config that a launch sets in Hydra's way: ``grpo.max_num_steps=10``."""
    for number, line in enumerate(lines, 1):
        found = _OVERRIDE.search(without_comment(line)[:2000])
        if found is not None:
            return number, found
    return None


def recipe(config: ConfigFile) -> tuple[str, Location | None]:
    """The recipe that a launch line hands to its script as the first argument (``run_sft.py recipe.yaml``), and where.

    Empty where there is none, or several lines name different ones.
    """
    found: dict[str, Location] = {}
    for command in commands_of(config.lines):
        for named in _RECIPE.finditer(command.text):
            file = resolved(named[1], config.variables)
            held = config.variables.get(file.strip("${}"), "")
            if file.endswith(_SUFFIXES) or held.endswith(_SUFFIXES) or (not held and _CALLED_RECIPE.match(file)):
                found.setdefault(file, command.at(config.path, named.start(1), named.end(1)))
    return next(iter(found.items())) if len(found) == 1 else ("", None)


def runs(config: ConfigFile, package: str) -> bool:
    """Whether a line of a launch names a script in this folder, or a module of this package."""
    named = re.compile(rf"(?:^|[\s/]){package}[/.]")
    return any(named.search(without_comment(line)[:2000]) for line in config.lines)


def objectives_named(config: ConfigFile, kinds: Iterable[str]) -> list[str]:
    """The objectives that the names of scripts and commands hold, each once: ``dpo`` of ``train_dpo.py``.

    A word of a name counts, and what a word starts or ends with: ``my-grpo-run.py``, ``traindpo.py``, ``train_rm.py``.
    """
    known = tuple(kinds)
    return list(dict.fromkeys(kind for name in commands(config) for kind in _objectives_of(name, known)))


def _objectives_of(name: str, known: tuple[str, ...]) -> list[str]:
    spaced = f"_{'_'.join(re.findall('[a-z]+', name))}_"
    long = next((kind for kind in known if "_" in kind and f"_{kind}_" in spaced), "")
    if long:  # `online_dpo` is no `dpo`
        return [long]
    words = [_ABBREVIATED.get(word, word) for word in spaced.strip("_").split("_")]
    exact = [word for word in words if word in known]
    return exact or [kind for word in words for kind in known if _is_joined(word, kind)][:1]


def _is_joined(word: str, kind: str) -> bool:
    return word not in _JOINED and not _JOINED.isdisjoint((word.removeprefix(kind), word.removesuffix(kind)))


def kind_of(config: ConfigFile, kinds: Iterable[str], preference: Iterable[str]) -> tuple[str, str]:
    """What is optimized, and the key that says so.

    A script's or a command's name decides; in a file without one, a key that only objectives over preferences have
    does, and which of them it is, the names of its folder and file, or these names alone. Without such keys, of scripts
    whose keys mean what they like, only the first counts.
    """
    known, keys = tuple(kinds), tuple(preference)
    found = objectives_named(config, known)
    if found:
        return found[0], ""
    if not keys:
        return "sft", ""
    key = next((name for name in keys if config.has(name)), "")
    if not key:
        named = _folders(config, 2)
        return ("sft" if "sft" in named else next((name for name in known if name in named), "sft")), ""
    parts = [*re.split(r"[^a-z0-9]+", config.path.lower()), *_folders(config, 3)]
    return next((name for name in known if name in parts and name != "sft"), "dpo"), key


def _folders(config: ConfigFile, count: int) -> list[str]:
    """Words of the last parts of a path, wherever the command runs."""
    whole = os.path.abspath(config.path).lower().replace("\\", "/")
    return re.split(r"[^a-z0-9]+", "/".join(whole.split("/")[-count:]))


GROUPED = ("clm", "fim", "mlm", "plm", "language_modeling")
"""Scripts that join all texts and cut them into rows of the limit: the first word of their names after ``run_``."""
BY_LINE = ("mlm", "plm", "language_modeling")
"""Grouping scripts that keep one text per row under ``--line_by_line``."""
PADDED = ("glue", "classification", "xnli", "qa", "qa_beam_search")
"""Scripts that pad every row to the limit unless ``--pad_to_max_length False`` is stated."""
SHORT = ("ner", "seq2seq_qa", "summarization", "translation")
"""Scripts that pad the rows of a micro-batch to its longest row."""
LIMITS = {"glue": 128, "classification": 128, "xnli": 128, "qa": 384, "qa_beam_search": 384, "seq2seq_qa": 384}
LIMITS |= {"plm": 512}
"""The limits that the scripts have themselves."""
LENGTHS = ("max_length", "max_seq_length", "block_size", "model_max_length", "max_seq_len", "max_token_length")
"""Arguments that state the most tokens per row."""
TO_LIMIT = "pad_to_max_length"
UNKNOWN = "memcheck does not know how the script makes rows: `padded` if each row is one text of its own length"


def rows_of(draft: Draft, *, alone: bool, opened: bool) -> Generator[Record, None, int]:
    """How long rows are and how they lie; returns the multiple of tokens to which the collator pads each row.

    ``alone``: the script is TRL's own; ``opened``: it is open-instruct's.
    """
    stated_none = any(name in draft.config.values and not draft.config.has(name) for name in LENGTHS)
    cut = not any(each.startswith(key_table("trl").names["uncut"]) for each in commands(draft.config))
    default, why = (1024, "TRL's default max_length") if alone and cut and not stated_none else _own_limit(draft)
    packed = on(draft, "packing")
    full = "" if packed or alone or opened else _full(draft)
    yield RowArguments(paths=LENGTHS, default=default, packed=packed or bool(full), why=why, full=full)
    if not (packed or full):
        _pad_to_limit(draft)
    draft.config.see("packing", "line_by_line", TO_LIMIT, *LENGTHS)
    help = "state the longest that a row gets: --sequence-length 4096"
    draft.ask("training.sequence_length", "how long a sequence is", help)
    key, path = "training.sequence_length", "pad_to_multiple_of"
    longest, multiple = draft.value(key), draft.whole(path, key) or 1
    if isinstance(longest, int) and longest % multiple:
        draft.set(key, longest + multiple - longest % multiple, path)
    return multiple


def _example_of(draft: Draft) -> str:
    """The example whose name the script has or starts with: ``glue`` for ``run_glue_no_trainer.py``."""
    known = (*GROUPED, *PADDED, *SHORT)
    for name in commands(draft.config):
        found = [each for each in known if name == each or name.startswith(f"{each}_")]
        if found:
            return max(found, key=len)
    return ""


def _own_limit(draft: Draft) -> tuple[int | None, str]:
    """The limit that an example has where none is stated, and who says so."""
    name = _example_of(draft)
    return LIMITS.get(name), f"the default of run_{name}.py"


def _full(draft: Draft) -> str:
    """Why every row has the limit's tokens; empty where a row is one text, which may be shorter.

    Rows of a script that memcheck does not know are taken as full: a short row is no reason to pass.
    """
    name = _example_of(draft)
    if name in GROUPED and not (name in BY_LINE and on(draft, "line_by_line")):
        return f"run_{name}.py joins all texts and cuts them into full rows"
    if not name and draft.config.has("block_size"):
        return "`block_size`: texts are joined and cut into full rows"
    if not name:
        return UNKNOWN
    return ""


def _pad_to_limit(draft: Draft) -> None:
    """State that the longest row has the limit's tokens, where a script pads every row to the limit."""
    name, limit = _example_of(draft), draft.value("training.sequence_length")
    switched = any(each.endswith("_no") for each in commands(draft.config))  # `run_glue_no_trainer.py`
    pads = on(draft, TO_LIMIT) or (name in PADDED and not switched and not off(draft, TO_LIMIT))
    if not pads or not isinstance(limit, int):
        return
    if draft.config.has(TO_LIMIT):
        draft.set("training.longest_row", limit, TO_LIMIT)
    else:
        draft.assume("training.longest_row", limit, f"run_{name}.py pads every row to the limit")


TRL, TRAINER = key_table("trl"), key_table("transformers")
OBJECTIVE, METHOD, WEIGHTS = "training.objective", "training.method", "training.precision.params"
_ANSWERS = {OBJECTIVE: "sft", METHOD: "full", WEIGHTS: "bf16"}
_OPEN = {
    OBJECTIVE: "what it optimizes",
    METHOD: "whether it trains all weights or adapters",
    WEIGHTS: "which dtype it loads the weights in",
}
_NAMED = re.compile(r"(?:^|[\s/\"'=])((?:[\w.-]*[\w-])\.py)\b|\s(?:-m|--module)[\s=]+([A-Za-z_][\w.]*)")
_LAUNCHERS = ("torch.distributed", "accelerate.", "deepspeed.", "torchrun")
_STARTERS = frozenset(
    """
    autotuning bind_cores_to_core config_file container_image container_mounts cpu_bind cpus_per_task
    deepspeed_hostfile deepspeed_multinode_launcher dynamo_mode dynamo_use_dynamic dynamo_use_fullgraph
    enable_each_rank_log export gpus_per_node gres job_id job_name jobid kill_on_bad_exit label launcher local_addr
    local_rank local_ranks_filter log_dir main_training_function mixed_precision mpi no_local_rank no_python nodelist
    nodes ntasks ntasks_per_node num_nodes partition rank role save_pid start_method tee unbuffered use_env wait
    """.split()  # noqa: SIM905  # a list of fifty quoted names is harder to read
)
"""Arguments of srun, torchrun, deepspeed and accelerate launch on the same line."""


def takes(config: ConfigFile, *fields: Iterable[str]) -> bool:
    """Whether a script with these arguments takes all that a launch states; ``fields`` of its dataclasses."""
    return not others(config, *fields)


def others(config: ConfigFile, *fields: Iterable[str]) -> list[str]:
    """Arguments that neither these dataclasses have nor what starts the script."""
    started = {
        *TRAINER.words["launcher"],
        *TRAINER.inside["launcher"],
        *(each.rpartition(".")[2] for each in LAUNCHED),
    } | _STARTERS
    known = started.union(*fields)
    stated = dict.fromkeys(key.partition(".")[0] for key in config.values)
    return [name for name in stated if name not in known and not name.startswith("fsdp")]


def ask(draft: Draft, *, objective: bool, weights: bool) -> None:
    """What decides the size and no argument says: one question for each, with an answer to all of them.

    ``objective``, ``weights``: what is optimized, and what the weights are loaded in, are assumptions. Arguments that
    no list here has are asked about until one of the answers stands.
    """
    asked = {key for problem in draft.problems for key in problem.keys}
    method = draft.settings.get(METHOD)
    assumed = {OBJECTIVE: objective, METHOD: method is not None and method.location is None, WEIGHTS: weights}
    left = [key for key, is_open in assumed.items() if is_open and key not in asked]
    if METHOD in left:
        del draft.settings[METHOD]
    name, at = script_of(draft.config)
    help = f"state what it does: {' '.join(f'--set {key}={_ANSWERS[key]}' for key in left or [OBJECTIVE])}"
    for key in left:
        message = f"memcheck does not know the script `{name}`, and no argument says {_OPEN[key]}"
        draft.problems.append(ConfigProblem(at, message, help, keys=(key,)))
    unread = [key for key in draft.config.unread() if draft.config.has(key)]
    if unread:
        listed = ", ".join(f"`{key}`" for key in unread)
        message = f"{listed}: what `{name}` does with such arguments is not known"
        draft.problems.append(ConfigProblem(draft.config.at(unread[0]), message, help, keys=tuple(_ANSWERS)))


def retrieves(draft: Draft) -> None:
    """A row of such a job is a question and a group of passages, and its loss compares them over the batch."""
    name = next((each for each in TRL.names["retrieval"] if draft.config.has(each)), "")
    if name:
        message = f"`{name}`: the job is retrieval, with groups of passages, which has no memory model here"
        draft.refuse(name, message, keys=("training.objective",))


def towers(draft: Draft) -> None:
    """Refuse a script whose arguments name a tower, heads or experts that it adds to a language model.

    Such a script names the language model alone, so that the size of the added parts is not known.
    """
    known = architecture_named(draft)
    parts = (
        TRL.as_set("more_words")
        if known is not None and known.vision is not None
        else TRL.as_set("more_words", "tower_words")
    )
    for name in draft.config.unread():
        words = set(name.lower().split("_"))
        switched = str(draft.config.values[name]).lower() in ("false", "0", "no") and words.isdisjoint(
            TRL.names["held_words"]
        )
        if not words & parts or not draft.config.has(name) or switched:
            continue
        message = f"`{name}`: the script trains on images or sound, and what it builds for them is not known"
        if not words.isdisjoint(TRL.names["more_words"]):
            message = f"`{name}`: the script adds heads or experts to the model, and what it trains is not known"
        draft.refuse(name, message, "write a plan of a model that has them (`memcheck list models`)")
        return


def script_of(config: ConfigFile) -> tuple[str, Location]:
    """The script that a launch runs, and where it is named."""
    for number, line in enumerate(config.lines, 1):
        for found in _NAMED.finditer(without_comment(line)[:2000]):
            which = 1 if found[1] else 2
            if not found[which].startswith(_LAUNCHERS):
                span = Span(number, found.start(which) + 1, number, found.end(which) + 1)
                return found[which], Location(config.path, span)
    other, at = started_by(config)
    return (other, at) if at is not None else ("the script", config.at(""))
