"""What the command line and the environment say to a Python file, by argparse and its kin, and ``os.environ``.

The value of an option that the file leaves to its command line is its default, marked with the option's name. The user
may state it: ``--define NAME=VALUE``.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from memcheck.configs.python_code import LibraryCall, LocalClass, stated_value
from memcheck.configs.python_expressions import FollowedCode
from memcheck.configs.python_values import UNSET, ImportedName, MadeObject, PythonValue, plain
from memcheck.plan.finding import Location

NO_VALUES: Mapping[str, PythonValue] = {}
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
    """HfArgumentParser and TrlParser: an object of each class, whose fields are options of the command line.

    ``parse_json_file`` and ``parse_yaml_file`` take a file's values instead; ``parse`` and ``parse_args_and_config``
    those of a file that the command line names, and its options over them.
    """
    parser: MadeObject = call.held
    kinds = parser.argument(0, "dataclass_types", "dataclass_type")
    listed = [] if kinds is None else kinds.of if isinstance(kinds.of, list) else [kinds]
    given, below = call.first.of if call.first is not None else None, {}
    if call.name in _FILES:
        named = call.keywords.get(_FILES[call.name]) or call.first
        given = _values(run, named)
    elif call.name in ("parse", "parse_args_and_config"):
        words = [each for each in (run.option("config"), *run.words) if each is not None and each.endswith(_DOCUMENTS)]
        below = _values(run, PythonValue(words[0], call.at)) or {} if words else {}
    closed = call.name in ("parse_dict", *_FILES) and isinstance(given, dict)
    return PythonValue([instance(run, each, given if closed else None, call, below) for each in listed], call.at)


_FILES = {"parse_json_file": "json_file", "parse_yaml_file": "yaml_file"}
"""Methods that take a file's values, and the names of their arguments."""
_DOCUMENTS = (".yaml", ".yml", ".json")


def _values(run: FollowedCode, named: PythonValue | None) -> dict[str, PythonValue] | None:
    """The values of a file with its path; None where it cannot be read."""
    path = plain(named)
    found = run.near.document(path) if run.near is not None and isinstance(path, str) else None
    if found is None or named is None or not named.option:
        return found
    return with_option(found, f"{named.option} {path}")


def with_option(found: dict[Any, PythonValue], option: str) -> dict[Any, PythonValue]:
    """The values of a file that an option of the command line names."""
    return {
        key: each._replace(of=with_option(each.of, option) if isinstance(each.of, dict) else each.of, option=option)
        for key, each in found.items()
    }


def declared(run: FollowedCode, decorator: ast.Call, name: str) -> PythonValue | None:
    """The value that a decorator gives to a parameter: an option of click's, or the config of ``hydra.main``."""
    called = run.value(decorator.func).of
    path = called.path if isinstance(called, ImportedName) else ""
    if path == "hydra.main":
        return _of_hydra(run, decorator)
    if path not in ("click.option", "click.argument"):
        return None
    flags = [each.value for each in decorator.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    plain_names = [each for each in flags if not each.startswith("-")]
    long = next((each for each in flags if each.startswith("--")), flags[0] if flags else "").partition("/")[0]
    if name != (plain_names[0] if plain_names else long.lstrip("-")).replace("-", "_"):
        return None
    stated = run.option(name)
    keywords = {each.arg: each.value for each in decorator.keywords}
    if stated is not None:
        return PythonValue(stated_value(stated), run.at(decorator))
    if "default" in keywords:
        return run.value(keywords["default"])._replace(option=long if run.options is None else "")
    if "is_flag" in keywords:
        return PythonValue(False, run.at(decorator))
    if path == "click.argument" or "required" in keywords:
        found = run.unknown(decorator, f"`{long}` of the command line", option=long)
        run.things.append(MadeObject(NEEDS, [PythonValue(long, found.at)], {}, found.at))
        return found
    return PythonValue(None, run.at(decorator))


def _of_hydra(run: FollowedCode, decorator: ast.Call) -> PythonValue | None:
    """The config of ``hydra.main``: its YAML, with the files that its ``defaults`` name, and the launch line's values.

    Read at Hydra 1.3 (``core/default_element.py``): a file of a group stands under the group's name.
    """
    said = {each.arg: plain(run.value(each.value)) for each in decorator.keywords}
    folder, name = str(said.get("config_path") or "."), str(said.get("config_name") or "config").removesuffix(".yaml")
    found = run.near.document(f"{folder}/{name}.yaml") if run.near is not None else None
    if found is None:
        return run.unknown(decorator, f"the file `{folder}/{name}.yaml`")
    listed = found.pop("defaults", None)
    for each in listed.of[:MOST_DEFAULTS] if listed is not None and isinstance(listed.of, list) else []:
        chosen = plain(each)
        for group, choice in chosen.items() if isinstance(chosen, dict) else ():
            path = f"{folder}/{group}/{(run.options or {}).get(group, choice)}.yaml"
            found[group] = _group(run, decorator, found.get(group), path, each.at)
    for key, text in (run.options or {}).items():
        _override(run, decorator, found, key, text)
    path = f"overrides {folder}/{name}.yaml"
    return PythonValue(found if run.options is not None else with_option(found, path), run.at(decorator))


def _group(run: FollowedCode, decorator: ast.Call, own: PythonValue | None, path: str, at: Location) -> PythonValue:
    """The file of a group of a Hydra config, under the values ``own`` that the config itself states for the group."""
    file = run.near.document(path) if run.near is not None else None
    if file is None:
        return run.unknown(decorator, f"the file `{path}`")
    if own is not None and not isinstance(own.of, dict):
        return own
    return PythonValue({**file, **({} if own is None else own.of)}, at)


def _override(run: FollowedCode, decorator: ast.Call, config: dict[Any, PythonValue], key: str, text: str) -> None:
    """Set a dotted key of a Hydra config to what the launch line says; a word without dots only where the key is."""
    *sections, last = key.split(".")
    table: Any = config
    for section in sections:
        table = table[section].of if isinstance(table, dict) and section in table else None
    if not isinstance(table, dict) or (not sections and last not in table):
        return
    if last in table and isinstance(table[last].of, dict):
        return  # a section: the launch line chose its file
    table[last] = PythonValue(stated_value(text), run.at(decorator))
    run.taken.add(key.partition(".")[0])


MOST_DEFAULTS = 20
"""Files that a Hydra config names."""


def instance(
    run: FollowedCode,
    kind: PythonValue,
    given: dict[str, PythonValue] | None,
    call: LibraryCall,
    below: Mapping[str, PythonValue] = NO_VALUES,
) -> PythonValue:
    """An object of one class. ``given``: the values that the file itself states; None: its command line does.

    ``below``: values that the command line's options go over.
    """
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
        thing.keywords.update((key, each) for key, each in below.items() if key in fields or whole)
        thing.keywords.update((key, each) for key, each in stated.items() if key in fields or whole)
    needed = next((key for key, each in thing.keywords.items() if not each.known and each.option), "")
    if needed:
        run.things.append(MadeObject(NEEDS, [PythonValue(f"--{needed}", call.at)], {}, call.at))
    run.things.append(thing)
    return PythonValue(thing, call.at)
