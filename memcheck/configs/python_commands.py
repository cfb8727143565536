"""What the command line and the environment say to a Python file: argparse, HfArgumentParser, ``os.environ``.

The value of an option that the file leaves to its command line is its default, marked with the option's name. The user
may state it: ``--define NAME=VALUE``.
"""

from __future__ import annotations

from memcheck.configs.python_expressions import FollowedCode
from memcheck.configs.python_scope import LibraryCall, LocalClass, stated_value
from memcheck.configs.python_values import UNSET, ImportedName, MadeObject, PythonValue, plain

NEEDS = "needs"
"""The name of a thing that stands for an option without a default."""
CONFIGS = {
    "TrainingArguments": "",
    "Seq2SeqTrainingArguments": "",
    "UnslothTrainingArguments": "",
    "SFTConfig": "sft",
    "DPOConfig": "dpo",
    "KTOConfig": "kto",
    "RewardConfig": "reward",
    "ORPOConfig": "orpo",
    "CPOConfig": "cpo",
}
"""Classes of arguments, and the objective of those that have one."""


def environment(run: FollowedCode, call: LibraryCall) -> PythonValue:
    """``os.environ.get(NAME, default)``: what the user or the file sets, else the default."""
    name = plain(call.first)
    stated = run.defines.get(name) if isinstance(name, str) else None
    if stated is not None:
        return PythonValue(stated_value(stated), call.at)
    set_here = run.main.names.get(f"os.environ[{name}]")
    if set_here is not None:
        return set_here
    if name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        return run.unknown(call.node, f"`{name}` of the launcher")
    return call.second or run.unknown(call.node, f"`{name}` {UNSET}")


def of_parser(run: FollowedCode, call: LibraryCall) -> PythonValue | None:
    """argparse: the options and their defaults, which an empty list of arguments makes the job's own."""
    parser: MadeObject = call.held
    if call.name in ("add_argument_group", "add_mutually_exclusive_group"):
        return call.owner
    if call.name == "set_defaults":
        parser.keywords.update(call.keywords)
    elif call.name == "add_argument":
        _option(run, parser, call)
    elif call.name in ("parse_args", "parse_known_args", "parse_intermixed_args"):
        return _parsed(run, parser, call)
    return PythonValue(None, call.at)


def _option(run: FollowedCode, parser: MadeObject, call: LibraryCall) -> None:
    """One option of a parser: its default, with the option's name."""
    flags = [str(plain(each)) for each in call.arguments]
    long = next((each for each in flags if each.startswith("--")), flags[0] if flags else "")
    said, action = plain(call.keywords.get("dest")), plain(call.keywords.get("action"))
    name = said if isinstance(said, str) else long.lstrip("-").replace("-", "_")
    value = call.keywords.get("default") or PythonValue(action == "store_false" if action else None, call.at)
    needed = plain(call.keywords.get("required")) is True or not long.startswith("-")
    stated = run.option(name)
    if stated is not None:
        parser.keywords[name] = PythonValue(stated_value(stated), call.at)
        return
    if needed and "default" not in call.keywords:
        value = run.unknown(call.node, f"`{long}` of the command line")
        parser.open = parser.open or long
    kind = call.keywords.get("type")
    if kind is not None and isinstance(kind.of, ImportedName) and kind.of.path in ("int", "float"):
        value = value._replace(of=stated_value(value.of)) if isinstance(value.of, str) else value
    parser.keywords[name] = value._replace(option=long if run.options is None else "")


def _parsed(run: FollowedCode, parser: MadeObject, call: LibraryCall) -> PythonValue:
    given = call.keywords.get("args") or call.first
    closed = given is not None and given.of == []
    run.takes_all |= "known" in call.name
    found = MadeObject("Namespace", [], {}, call.at)
    for name, value in parser.keywords.items():
        found.keywords[name] = value._replace(option="") if closed else value
    if not closed and parser.open and run.options is None:
        run.things.append(MadeObject(NEEDS, [PythonValue(parser.open, call.at)], {}, call.at))
    space = PythonValue(found, call.at)
    return PythonValue([space, PythonValue([], call.at)], call.at) if "known" in call.name else space


def of_dataclasses(run: FollowedCode, call: LibraryCall) -> PythonValue:
    """HfArgumentParser and TrlParser: an object of each class, whose fields are options of the command line."""
    parser: MadeObject = call.held
    kinds = parser.argument(0, "dataclass_types", "dataclass_type")
    listed = [] if kinds is None else kinds.of if isinstance(kinds.of, list) else [kinds]
    given = call.first.of if call.first is not None and isinstance(call.first.of, dict) else {}
    closed = call.name == "parse_dict" and call.first is not None and isinstance(call.first.of, dict)
    return PythonValue([_instance(run, each, given if closed else None, call) for each in listed], call.at)


def _instance(
    run: FollowedCode, kind: PythonValue, given: dict[str, PythonValue] | None, call: LibraryCall
) -> PythonValue:
    """An object of one class. ``given``: the values that the file itself states; None: its command line does."""
    local = kind.of if isinstance(kind.of, LocalClass) else None
    option = "" if given is not None or run.options is not None else "--"
    fields = run.fields(local, option) if local is not None else {}
    run.taken.update(fields)
    own = local.node.name if local is not None else kind.of.last if isinstance(kind.of, ImportedName) else "arguments"
    name = next((base for base in (local.bases if local is not None else ()) if base in CONFIGS), own)
    thing = MadeObject(name, [], fields, call.at)
    thing.kind = local
    if given is not None:
        thing.keywords.update((key, each) for key, each in given.items() if key in fields or name in CONFIGS)
    else:
        thing.open = "the command line" if run.options is None else ""
        said = {**run.defines, **(run.options or {})}
        stated = {key: PythonValue(stated_value(text), call.at) for key, text in said.items()}
        whole = name in CONFIGS or not fields
        run.takes_all |= whole
        thing.keywords.update((key, each) for key, each in stated.items() if key in fields or whole)
    needed = next((key for key, each in thing.keywords.items() if not each.known and each.option), "")
    if needed:
        run.things.append(MadeObject(NEEDS, [PythonValue(f"--{needed}", call.at)], {}, call.at))
    run.things.append(thing)
    return PythonValue(thing, call.at)
