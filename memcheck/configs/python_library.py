"""What calls of transformers, TRL, PEFT, unsloth and torch make, for a reading that runs none of them.

Read at transformers 5.23.0 (``trainer.py``), TRL 1.9 (``trainer``, ``scripts/utils.py``), unsloth 2026.7
(``models/loader.py``) and PEFT 0.21 (``mapping_func.py``, ``utils/other.py``, prepare_model_for_kbit_training).
"""

from __future__ import annotations

import ast
import json
import posixpath
from collections.abc import Callable
from typing import Any

from memcheck.configs import python_bridge as bridge
from memcheck.configs.key_table import key_table
from memcheck.configs.python_code import LibraryCall, LocalClass, LocalFunction, named
from memcheck.configs.python_expressions import NAMES, FollowedCode
from memcheck.configs.python_options import CONFIGS, environment, instance, of_dataclasses, of_parser, with_option
from memcheck.configs.python_values import (
    LONGEST,
    UNKNOWN,
    ImportedName,
    MadeObject,
    PythonValue,
    joined,
    parent_of,
    placed,
    plain,
)
from memcheck.plan.finding import Location
from memcheck.record import Record


class StatedGpu(Record):
    """The GPU that the user states, as far as scripts ask for it."""

    capability: tuple[int, int] | None = None
    """None: no GPU is stated, or it has none, as AMD's."""
    bf16: bool | None = None
    memory_bytes: int | None = None
    gpus: int | None = None


class LoadedModel(MadeObject):
    """A model that the file loads, with everything that is done to it before it is trained."""

    def __init__(self, name: str, arguments: list[PythonValue], keywords: dict[str, PythonValue], at: Location) -> None:
        super().__init__(name, arguments, keywords, at)
        self.adapter: PythonValue | None = None
        """The LoraConfig of its adapters."""
        self.prepared: PythonValue | None = None
        """The call of ``prepare_model_for_kbit_training``."""
        self.recompute: PythonValue | None = None
        """Whether a call turned gradient checkpointing on, or ``unsloth``."""
        self.recompute_arguments: PythonValue | None = None
        self.dtype: PythonValue | None = None
        """The dtype of a later conversion."""
        self.changes: list[tuple[str, Location]] = []
        """What else is done to it that bears on memory, such as ``merge_and_unload``."""

    def joined_with(self, other: MadeObject, unknown: PythonValue, depth: int) -> MadeObject | None:
        """The model of which nobody knows whether it is this one or ``other``."""
        found = super().joined_with(other, unknown, depth)
        if isinstance(found, LoadedModel) and isinstance(other, LoadedModel):
            for name in ("adapter", "prepared", "recompute", "recompute_arguments", "dtype"):
                one, another = getattr(self, name), getattr(other, name)
                alike = one is another or (one is not None and another is not None)
                setattr(found, name, (another and joined(one, another, unknown, depth)) if alike else unknown)
            found.changes = [*self.changes, *other.changes]
        return found


TRAINERS = {
    "Trainer": "",
    "Seq2SeqTrainer": "",
    "UnslothTrainer": "sft",
    "SFTTrainer": "sft",
    "DPOTrainer": "dpo",
    "KTOTrainer": "kto",
    "RewardTrainer": "reward",
    "ORPOTrainer": "orpo",
    "CPOTrainer": "cpo",
    "loss.backward": "",
}
UNSLOTH = frozenset(
    {"FastLanguageModel", "FastModel", "FastVisionModel", "FastLlamaModel", "FastMistralModel", "FastQwen2Model"}
)
NO_MODELS = (
    "Tokenizer",
    "TokenizerFast",
    "Config",
    "Processor",
    "FeatureExtractor",
    "Pipeline",
    "Scheduler",
    "Dataset",
)


def library(run: FollowedCode, call: LibraryCall) -> PythonValue | None:
    """What a call makes; None where nothing is known of it."""
    of_bridge = bridge.called(run, call)
    if of_bridge is not None:
        return of_bridge
    if call.owner is None:
        return _function(run, call)
    if call.name in ("backward", "clip_grad_norm_"):
        run.things.append(MadeObject("clip" if "clip" in call.name else call.name, call.arguments, {}, call.at))
        return PythonValue(None, call.at)
    if isinstance(call.held, MadeObject) and call.held.name == OPENED and call.name in ("read", "read_text"):
        return call.owner
    for kind, handler in _METHODS:
        if isinstance(call.owner.of, kind):
            return handler(run, call)
    if call.name == "map":
        _mapped(run, call)
    _tokenized(run, named(call.node.func), call)
    return None


def _of_list(run: FollowedCode, call: LibraryCall) -> PythonValue | None:
    held, first = call.held, call.first
    if run.pending:
        return None
    if call.name == "append" and first is not None and len(held) < LONGEST:
        held.append(first)
    elif call.name == "extend" and first is not None and isinstance(first.of, list):
        held.extend(first.of[:LONGEST])
    return PythonValue(None, call.at)


def _of_text(run: FollowedCode, call: LibraryCall) -> PythonValue | None:
    said, text = [plain(each) for each in call.arguments], call.held
    found: object = None
    if call.name in _TEXT and all(isinstance(each, str) for each in said):
        try:
            found = getattr(text, call.name)(*said)
        except TypeError:
            return None
    elif call.name in ("resolve", "absolute", "expanduser"):
        found = text
    elif call.name in ("open", "read_text"):
        return PythonValue(MadeObject(OPENED, [PythonValue(text, call.at)], {}, call.at), call.at)
    elif call.name in ("startswith", "endswith") and len(said) == 1 and isinstance(said[0], str):
        found = getattr(text, call.name)(said[0])
    elif call.name == "split" and len(said) <= 1 and all(isinstance(each, str) and each for each in said):
        found = [PythonValue(each, call.at) for each in text.split(*said)[:LONGEST]]
    if found is None or call.owner is None:
        return None
    return call.owner._replace(of=found if not isinstance(found, str) or len(found) <= LONGEST else UNKNOWN)


def _of_mapping(run: FollowedCode, call: LibraryCall) -> PythonValue | None:
    held, key = call.held, plain(call.first)
    if call.name in ("get", "pop", "setdefault") and isinstance(key, (str, int)):
        found: PythonValue = held[key] if key in held else call.second or PythonValue(None, call.at)
        return found
    if call.name in ("items", "keys", "values") and len(held) <= LONGEST:
        pairs = [(PythonValue(name, each.at, option=each.option), each) for name, each in held.items()]
        listed = [
            PythonValue(list(pair), pair[1].at) if call.name == "items" else pair[call.name == "values"]
            for pair in pairs
        ]
        return PythonValue(listed, call.at)
    if call.name == "update" and not run.pending:
        more = call.first.of if call.first is not None and isinstance(call.first.of, dict) else {}
        held.update({**more, **call.keywords})
        return PythonValue(None, call.at)
    if call.name != "copy" or call.owner is None:
        return None
    return call.owner._replace(of=dict(held))


def _function(run: FollowedCode, call: LibraryCall) -> PythonValue | None:
    """A function or class of a library, by the last parts of its name."""
    for test, handler in _FUNCTIONS:
        if test(call):
            found = handler(run, call)
            if found is not None:
                return found
    _tokenized(run, call.name, call)
    return _thing(run, call) if call.name[:1].isupper() and call.path else None


def _thing(run: FollowedCode, call: LibraryCall) -> PythonValue:
    """An object of a class of which only name and arguments count."""
    thing = MadeObject(call.name, call.arguments, call.keywords, call.at)
    thing.path, thing.depth = call.path, len(run.pending)
    if run.pending:
        thing.keywords["?"] = run.unknown(call.node, run.pending[-1])
    run.things.append(thing)
    return PythonValue(thing, call.at)


def _joined(run: FollowedCode, call: LibraryCall) -> PythonValue | None:
    if not all(isinstance(each.of, str) for each in call.arguments):
        return None
    parts = [each.of for each in call.arguments if each.of != "."]
    return PythonValue(posixpath.join("", *parts)[:LONGEST], call.at)


def _unsloth(run: FollowedCode, call: LibraryCall) -> PythonValue:
    if call.name == "from_pretrained":
        return PythonValue([_model(run, call, call.class_name), _tokenizer(run, call)], call.at)
    given = _given(call)
    if given is None:
        return run.unknown(call.node)
    own = {name: each for name, each in call.keywords.items() if name not in ("model", "use_gradient_checkpointing")}
    given.of.adapter = _settled(run, given.of, PythonValue(MadeObject("LoraConfig", [], own, call.at), call.at))
    given.of.recompute = call.keywords.get("use_gradient_checkpointing", PythonValue("unsloth", call.at))
    return given


LOOPS = frozenset({"autocast", "initialize", "fully_shard", "FullyShardedDataParallel", "FSDP", "DataParallel"})
"""Calls that a loop of one's own makes around its model."""
OPENED = "open"
"""The name of an opened file."""


def _opened(run: FollowedCode, call: LibraryCall) -> PythonValue:
    return PythonValue(MadeObject(OPENED, call.arguments, {}, call.at), call.at)


def _copied(run: FollowedCode, call: LibraryCall) -> PythonValue | None:
    """A copy of a value, in which changes stay apart; an object's fields as a mapping."""
    held = call.first.of if call.first is not None else None
    if isinstance(held, MadeObject):
        held = held.keywords
    return (
        call.first._replace(of=held.copy()) if call.first is not None and isinstance(held, (dict, list)) else call.first
    )


_MAPPINGS = frozenset(
    {"Box", "EasyDict", "edict", "munchify", "Munch", "DotMap", "AttrDict", "DotDict", "ConfigDict", "to_container"}
)
"""Classes and functions that give a mapping whose keys are attributes, too."""
_PARSES = ("simple_parsing.parse", "pyrallis.parse")


def _mapping(run: FollowedCode, call: LibraryCall) -> PythonValue | None:
    """A mapping with attributes, of another one; ``OmegaConf.merge`` of several, of which the last says most."""
    held = [each.of for each in call.arguments]
    if not held or not all(isinstance(each, dict) for each in held) or call.first is None:
        return None
    return call.first._replace(of=_merged(held) if call.name == "merge" else held[0])


def _merged(tables: list[dict[Any, PythonValue]], depth: int = 0) -> dict[Any, PythonValue]:
    found = dict(tables[0])
    for key, each in (pair for table in tables[1:] for pair in table.items()):
        own = found[key].of if key in found else None
        if isinstance(own, dict) and isinstance(each.of, dict) and depth < MOST_MERGED:
            found[key] = each._replace(of=_merged([own, each.of], depth + 1))
        else:
            found[key] = each
    return found


MOST_MERGED = 20
"""Sections inside each other that are merged."""


def _replaced(run: FollowedCode, call: LibraryCall) -> PythonValue | None:
    """``dataclasses.replace``: the object with other values."""
    held = call.first.of if call.first is not None else None
    if not isinstance(held, MadeObject):
        return None
    made = MadeObject(held.name, held.arguments, {**held.keywords, **call.keywords}, call.at)
    made.path, made.kind, made.open, made.depth = held.path, held.kind, held.open, held.depth
    return PythonValue(made, call.at)


def _document(run: FollowedCode, call: LibraryCall) -> PythonValue | None:
    """What a YAML or JSON file holds that the code opens by a literal path."""
    given = call.first
    held = given.of if given is not None else None
    name = held.argument(0) if isinstance(held, MadeObject) and held.name == OPENED else given
    path = plain(name)
    if call.path == "json.loads" and name is given:
        written = call.node.args[0] if call.node.args else None
        path = written.value if isinstance(written, ast.Constant) else path
        return literal(path, call.at) if isinstance(path, str) and len(path) <= LONGEST_TEXT else None
    found = run.near.document(path) if run.near is not None and isinstance(path, str) else None
    if found is not None:
        option = name.option if name is not None else ""
        return PythonValue(with_option(found, f"{option} {path}") if option else found, call.at)
    return run.unknown(call.node, f"the file `{path}`") if isinstance(path, str) else None


LONGEST_TEXT = 100_000


def literal(text: str, at: Location) -> PythonValue | None:
    """The values of a JSON text that the code holds."""
    try:
        return placed(json.loads(text), at)
    except (ValueError, RecursionError):
        return None


def _tokenizer(run: FollowedCode, call: LibraryCall) -> PythonValue:
    return PythonValue(MadeObject("tokenizer", call.arguments, call.keywords, call.at), call.at)


def _loaded(run: FollowedCode, call: LibraryCall) -> PythonValue | None:
    """``from_pretrained`` and ``from_config`` of a class: a model, or what goes with one."""
    owner = call.class_name
    if owner.startswith("Peft"):
        return _resumed(run, call)
    if owner.endswith(NO_MODELS):
        text = "Token" in owner or "Process" in owner
        return (
            _tokenizer(run, call)
            if text
            else PythonValue(MadeObject(owner, call.arguments, call.keywords, call.at), call.at)
        )
    return _model(run, call, owner if call.name == "from_pretrained" else f"{owner}.from_config")


def _model(run: FollowedCode, call: LibraryCall, kind: str) -> PythonValue:
    model = LoadedModel(kind, call.arguments, call.keywords, call.at)
    model.depth = len(run.pending)
    run.things.append(model)
    return PythonValue(model, call.at)


def _settled(run: FollowedCode, model: MadeObject, value: PythonValue) -> PythonValue:
    """The effect on a model, or an unknown one inside a condition that is not decided and not around the model, too."""
    return value if len(run.pending) <= model.depth else value._replace(of=UNKNOWN, why=run.pending[-1])


def _parser(run: FollowedCode, call: LibraryCall) -> PythonValue:
    return PythonValue(MadeObject(call.name, call.arguments, {}, call.at), call.at)


def _accelerator(run: FollowedCode, call: LibraryCall) -> PythonValue:
    """``Accelerator()``, which knows its processes: as many as the stated GPUs, or one."""
    made = MadeObject(call.name, call.arguments, dict(call.keywords), call.at)
    run.things.append(made)
    machine: StatedGpu = run.machine
    said = {"num_processes": machine.gpus or 1, "process_index": 0, "local_process_index": 0, "is_main_process": True}
    made.keywords.update({name: PythonValue(value, call.at) for name, value in said.items()})
    return PythonValue(made, call.at)


def _command_line(run: FollowedCode, call: LibraryCall) -> PythonValue | None:
    """``fire.Fire(main)`` and its kin: the parameters are options."""
    function = call.first or call.keywords.get("config_class")
    if function is not None and isinstance(function.of, LocalClass):
        return instance(run, function, None, call)
    if function is None or not isinstance(function.of, LocalFunction):
        return None
    run.call(function.of, [], {}, call.node, blank=call.path)
    return PythonValue(None, call.at)


def _given(call: LibraryCall) -> PythonValue | None:
    """The model that a function gets."""
    found = call.keywords.get("model") or call.first
    return found if found is not None and isinstance(found.of, LoadedModel) else None


def _torch(run: FollowedCode, call: LibraryCall) -> PythonValue | None:
    """What the file asks of the GPU."""
    machine: StatedGpu = run.machine
    known: dict[str, object] = {
        **dict.fromkeys(("is_bf16_supported", "is_bfloat16_supported", "is_torch_bf16_gpu_available"), machine.bf16),
        "get_device_capability": machine.capability,
        "device_count": machine.gpus,
        "is_available": call.path.startswith("torch.cuda"),
        "get_device_properties": machine,
    }
    if call.name not in known:
        return None

    def of_gpu(value: object) -> PythonValue:
        found = UNKNOWN if value is None else value
        return PythonValue(found, call.at, why=f"`{call.name}`, of the GPU", by_gpu=call.name != "is_available")

    found = known[call.name]
    if call.name == "get_device_properties":
        thing = MadeObject("properties", [], {}, call.at)
        major, minor = machine.capability or (None, None)
        thing.keywords.update(
            {"total_memory": of_gpu(machine.memory_bytes), "major": of_gpu(major), "minor": of_gpu(minor)}
        )
        return of_gpu(thing)
    return of_gpu([of_gpu(each) for each in found] if isinstance(found, tuple) else found)


def _wrapped(run: FollowedCode, call: LibraryCall) -> PythonValue | None:
    """``get_peft_model``: the model gets the adapters of a config."""
    given = _given(call)
    if given is not None:
        given.of.adapter = _settled(
            run, given.of, call.keywords.get("peft_config") or call.second or run.unknown(call.node)
        )
    return given


def _prepared(run: FollowedCode, call: LibraryCall) -> PythonValue | None:
    """``prepare_model_for_kbit_training``, which turns gradient checkpointing on unless it is told not to."""
    given = _given(call)
    if given is None:
        return None
    model: LoadedModel = given.of
    model.prepared = _settled(run, model, PythonValue(True, call.at))
    switch = call.keywords.get("use_gradient_checkpointing") or call.second or PythonValue(True, call.at)
    if switch.of is not False:
        model.recompute = _settled(run, model, switch._replace(at=call.at))
        model.recompute_arguments = call.keywords.get("gradient_checkpointing_kwargs", model.recompute_arguments)
    return given


def _resumed(run: FollowedCode, call: LibraryCall) -> PythonValue:
    """``PeftModel.from_pretrained``: adapters of a folder, which are trained on, or used after the training."""
    given = _given(call)
    if given is None:
        return PythonValue(MadeObject("PeftModel", call.arguments, call.keywords, call.at), call.at)
    if not any(each.name.endswith("Trainer") for each in run.things):
        given.of.adapter = run.unknown(call.node, "adapters that are loaded from a folder")
    return given


def _of_model(run: FollowedCode, call: LibraryCall) -> PythonValue | None:
    model: LoadedModel = call.held
    said = (*call.arguments, *call.keywords.values())
    if call.name == "gradient_checkpointing_enable":
        model.recompute = _settled(run, model, PythonValue(True, call.at))
        model.recompute_arguments = call.keywords.get("gradient_checkpointing_kwargs") or call.first
    elif call.name == "gradient_checkpointing_disable":
        model.recompute = _settled(run, model, PythonValue(None, call.at))
    elif call.name in _CASTS:
        model.dtype = _settled(run, model, PythonValue(_CASTS[call.name], call.at))
    elif call.name == "to":
        dtype = next((each for each in said if str(plain(each)) in _CASTS.values()), None)
        model.dtype = model.dtype if dtype is None else _settled(run, model, dtype)
        model.changes += [("to cpu", call.at)] if "cpu" in map(str, map(plain, said)) else []
    elif call.name == "requires_grad_":
        run.things.append(MadeObject("requires_grad", list(said) or [PythonValue(True, call.at)], {}, call.at))
    elif call.name == "add_adapter":
        model.adapter = _settled(run, model, (*said, run.unknown(call.node))[0])
    elif call.name in ("parameters", "named_parameters", "modules", "named_modules"):
        return PythonValue([], call.at)
    elif call.name == "merge_and_unload":
        model.changes.append((call.name, call.at))
    kept = call.name in _SAME or call.name in _CASTS or call.name.startswith(("gradient_checkpointing", "resize_"))
    return call.owner if kept else None


_CASTS = {"half": "float16", "bfloat16": "bfloat16", "float": "float32"}
_SAME = frozenset(
    {"to", "cuda", "cpu", "train", "eval", "requires_grad_", "tie_weights", "enable_input_require_grads"}
    | {"merge_and_unload", "bettertransformer", "to_bettertransformer"}
)
"""Methods of a model that give the model back, or that are called for what they do to it."""


def _of_thing(run: FollowedCode, call: LibraryCall) -> PythonValue | None:
    owner: MadeObject = call.held
    if owner.name == "ArgumentParser":
        return of_parser(run, call)
    if owner.name in DATACLASS_PARSERS and call.name.startswith("parse"):
        return of_dataclasses(run, call)
    if owner.name == "Accelerator" and call.name == "prepare":
        return call.first if len(call.arguments) == 1 else PythonValue(list(call.arguments), call.at)
    if call.name == "train" and owner.name.endswith("Trainer"):
        owner.keywords.setdefault("?trained", PythonValue(True, call.at))
        return PythonValue(None, call.at)
    if owner.name == NAMES and call.name == "keys":
        return call.owner
    if call.name == "fit" and owner.name == "Trainer" and "lightning" in owner.path:
        return _fitted(run, call, owner)
    if call.name == "map":
        _mapped(run, call)
    _tokenized(run, owner.name if owner.name == "tokenizer" else named(call.node.func), call)
    if call.name in _CHAINED:
        return call.owner
    return PythonValue(dict(owner.keywords), call.at) if call.name in ("to_dict", "dict", "model_dump") else None


def _fitted(run: FollowedCode, call: LibraryCall, trainer: MadeObject) -> PythonValue:
    """``Trainer.fit`` of Lightning, which calls the methods of the user's modules and takes the steps itself."""
    for given in (*call.arguments, *call.keywords.values()):
        for name in ("configure_optimizers", "setup", "train_dataloader", "val_dataloader"):
            method = run.method(given.of, name) if isinstance(given.of, MadeObject) else None
            if method is not None:
                run.call(method, [], {}, method.node)
    trainer.keywords["?fits"] = PythonValue(True, call.at)
    run.things.append(MadeObject("backward", [], {}, call.at))
    return PythonValue(None, call.at)


def _mapped(run: FollowedCode, call: LibraryCall) -> None:
    """A function that is called for every row: its calls of the tokenizer say how long rows are."""
    function, extra = call.keywords.get("function") or call.first, call.keywords.get("fn_kwargs")
    if function is None or not isinstance(function.of, LocalFunction):
        return
    more = extra.of if extra is not None and isinstance(extra.of, dict) else {}
    run.rows += 1
    try:
        run.call(function.of, [], {str(name): value for name, value in more.items()}, function.of.node)
    finally:
        run.rows -= 1


def _signature(run: FollowedCode, call: LibraryCall) -> PythonValue | None:
    """``inspect.signature`` and ``dataclasses.fields`` of a class of transformers or TRL: which names it takes.

    Scripts ask so for a name that a release renamed. The newest release answers, and of other names nothing is known.
    """
    asked = call.first.of if call.first is not None else None
    parts = asked.path.split(".") if isinstance(asked, ImportedName) else []
    if not any(each in CONFIGS or each in TRAINERS for each in parts[-2:]):
        return None
    words = key_table("python").words["renamed"]
    fields = key_table("transformers").as_set("training_arguments", "trl")
    known = {**dict.fromkeys(fields, True), **dict.fromkeys(words.values(), True), **dict.fromkeys(words, False)}
    names = {name: PythonValue(value, call.at) for name, value in known.items()}
    thing = MadeObject(NAMES, [], names, call.at)
    thing.keywords["parameters"] = PythonValue(thing, call.at)
    return PythonValue(thing, call.at)


def _tokenized(run: FollowedCode, called: str, call: LibraryCall) -> None:
    """Take down the length at which a tokenizer cuts its rows."""
    length = call.keywords.get("max_length")
    named_so = "token" in called.lower() or "encode" in called.lower()
    cut = plain(call.keywords.get("truncation")) in (True, "longest_first", "only_first")
    held = call.held if call.owner is not None else run.value(call.node.func).of
    if length is None and cut and isinstance(held, MadeObject):
        length = held.get("model_max_length")
        if length is None and run.rows:
            run.things.append(MadeObject("cut", [], call.keywords, call.at))
    if length is not None and length.of is not None and named_so:
        run.things.append(MadeObject("rows", [length], call.keywords, call.at))


DATACLASS_PARSERS = ("HfArgumentParser", "TrlParser", "H4ArgumentParser")
_FORMATS = frozenset({"yaml", "json", "omegaconf", "toml", "tomllib", "tomli"})
_CHAINED = frozenset(
    {"map", "filter", "shuffle", "select", "with_format", "remove_columns", "rename_column", "set_format", "to"}
)
_TEXT = frozenset({"strip", "lower", "upper", "lstrip", "rstrip", "replace", "removeprefix", "removesuffix"})
Handler = Callable[[FollowedCode, LibraryCall], "PythonValue | None"]
_METHODS: tuple[tuple[type, Handler], ...] = (
    (LoadedModel, _of_model),
    (MadeObject, _of_thing),
    (dict, _of_mapping),
    (list, _of_list),
    (str, _of_text),
)
_FUNCTIONS: tuple[tuple[Callable[[LibraryCall], bool], Handler], ...] = (
    (lambda call: call.path in ("os.environ.get", "os.getenv"), environment),
    (lambda call: call.path.startswith("torch.") or "bf16" in call.name or "bfloat16" in call.name, _torch),
    (lambda call: call.path in ("os.path.join", "pathlib.Path"), _joined),
    (
        lambda call: call.path in ("os.path.dirname", "os.path.abspath", "os.path.realpath"),
        lambda run, call: (
            None
            if call.first is None or not isinstance(call.first.of, str)
            else call.first._replace(of=parent_of(call.first.of) if call.name == "dirname" else call.first.of)
        ),
    ),
    (lambda call: call.path in ("os.getcwd", "pathlib.Path.cwd"), lambda run, call: PythonValue(".", call.at)),
    (lambda call: call.path == "open", _opened),
    (lambda call: call.path in ("inspect.signature", "dataclasses.fields"), _signature),
    (lambda call: call.path.partition(".")[0] in _FORMATS and "load" in call.name, _document),
    (lambda call: call.name.endswith(("Trainer", "Config", "TrainingArguments")), _thing),
    (lambda call: call.class_name in UNSLOTH and call.name in ("from_pretrained", "get_peft_model"), _unsloth),
    (lambda call: call.name in ("from_pretrained", "from_config"), _loaded),
    (
        lambda call: bool(call.path) and call.name.endswith(("ForCausalLM", "LMHeadModel")),
        lambda run, call: _model(run, call, f"{call.name}.from_config"),
    ),
    (lambda call: call.name == "get_peft_model", _wrapped),
    (lambda call: call.name in ("prepare_model_for_kbit_training", "prepare_model_for_int8_training"), _prepared),
    (lambda call: call.name == "setup_chat_format", lambda run, call: PythonValue(call.arguments[:2], call.at)),
    (lambda call: call.path in ("copy.deepcopy", "copy.copy", "dataclasses.asdict"), _copied),
    (lambda call: call.path in ("typing.cast", "typing_extensions.cast"), lambda run, call: call.second),
    (lambda call: call.name in LOOPS, _thing),
    (lambda call: call.name in ("DistributedDataParallel", "DDP"), lambda run, call: call.first),
    (lambda call: call.path == "torch.compile", lambda run, call: call.first),
    (lambda call: call.name in ("Accelerator", "PartialState"), _accelerator),
    (lambda call: call.name in ("ArgumentParser", *DATACLASS_PARSERS), _parser),
    (lambda call: call.name in ("Fire", "run", "cli") or call.path in _PARSES, _command_line),
    (lambda call: call.name in _MAPPINGS or "omegaconf" in call.path, _mapping),
    (lambda call: call.path == "dataclasses.replace", _replaced),
    (lambda call: call.path in ("typer.Option", "typer.Argument"), lambda run, call: call.first),
    (lambda call: call.path in ("sys.exit", "exit", "quit"), lambda run, call: PythonValue(None, call.at)),
)
"""Calls that are known: the first handler whose test holds, and that knows the arguments, answers."""
