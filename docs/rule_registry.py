"""Writes the registries of rules from the rules' own modules, so that adding a rule means writing the rule.

Only here is the folder searched. What runs imports the literal tuples that are written.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from memcheck.rules import GATE
from memcheck.rules.types import Rule

RULES_FOLDER = Path(__file__).resolve().parent.parent / "memcheck" / "rules"
WRITTEN = "# Written by `python -m docs.generate` from the rules' modules: add or change a module and run it again.\n"


FILE_RULES = ("config_rules", "plan_rules", "text_rules")
"""The modules with rules that have a page and no check."""


def rules() -> dict[str, Rule]:
    """Every rule by its place, ``module.NAME``, in the order of their codes."""
    names = [f"{path.stem}.RULE" for path in RULES_FOLDER.glob("mem[0-9]*.py")]
    for module in FILE_RULES:
        names += [f"{module}.{name}" for name in vars(import_module(f"memcheck.rules.{module}")) if name[:3] == "MEM"]
    places = ((place, *place.split(".")) for place in names)
    found = {place: getattr(import_module(f"memcheck.rules.{module}"), name) for place, module, name in places}
    return dict(sorted(found.items(), key=lambda item: item[1].code))


def registries() -> dict[Path, str]:
    """The three registries: what a check in the gate imports, what other profiles add, and all there is."""
    every = rules()
    gate = [name for name, rule in every.items() if rule.check is not None and rule.profile == GATE]
    further = {name: rule for name, rule in every.items() if rule.profile != GATE}
    beyond = "".join(f'    "{rule.code}": "{rule.profile}",\n' for rule in further.values())
    texts = {
        "checks.py": _gated({name: every[name] for name in gate})
        + f'\nBEYOND_GATE = {{\n{beyond}}}\n"""The rules of `further.py`, and the profile that has them."""\n',
        "further.py": _module("The rules that only other profiles than the gate have.", list(further), "FURTHER"),
        "registry.py": _module(
            "Every rule: those with a check, and those that speak while a file is read or a model is priced.",
            list(every),
            "RULES",
        )
        + '"""In the order of their codes."""\n',
    }
    return {RULES_FOLDER / name: text for name, text in texts.items()}


def _gated(gate: dict[str, Rule]) -> str:
    """The rules of the gate by what is asked before one is loaded."""
    items = ""
    for place, rule in gate.items():
        name = place.removesuffix(".RULE")
        when = "always" if rule.when is None else rule.when.__name__
        marks = "".join(f", {mark}=True" for mark in ("needs_estimate", "blocking", "batch") if getattr(rule, mark))
        items += f'    Gated("{rule.code}", "{name}", when.{when}{marks}),\n'
    return (
        '"""The rules of the gate with a check of their own, in order: a check loads those that a plan is about."""\n\n'
        f"{WRITTEN}\nfrom __future__ import annotations\n\n"
        "from memcheck.rules import when\nfrom memcheck.rules.when import Gated\n\n"
        f"CHECKS: tuple[Gated, ...] = (\n{items})\n"
    )


def _module(doc: str, places: list[str], registry: str) -> str:
    imports = "".join(f"    {name},\n" for name in sorted({place.partition(".")[0] for place in places}))
    items = "".join(f"    {place},\n" for place in places)
    return (
        f'"""{doc}"""\n\n{WRITTEN}\nfrom __future__ import annotations\n\n'
        f"from memcheck.rules import (\n{imports})\nfrom memcheck.rules.types import Rule\n\n"
        f"{registry}: tuple[Rule, ...] = (\n{items})\n"
    )
