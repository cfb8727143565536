"""PyYAML with libyaml's parser at hand, and all else of it imported when it is first asked for.

A check needs the events that libyaml's parser gives, and the errors. ``import yaml`` brings PyYAML's own reader,
resolver, constructor and emitter along, with patterns over the whole of Unicode and ``datetime``: more than what a plan
takes to be judged. So the package is entered into ``sys.modules`` without being run, with what the parser needs in it,
and is run by the first look at any other name of it. Without libyaml, or where PyYAML was imported already, it is
imported as ever.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

RAISED = {
    "reader": "ReaderError",
    "scanner": "ScannerError",
    "parser": "ParserError",
    "composer": "ComposerError",
    "constructor": "ConstructorError",
    "emitter": "EmitterError",
    "serializer": "SerializerError",
    "representer": "RepresenterError",
}
"""The modules of which libyaml's binding takes nothing but an error to raise."""


def _entered() -> ModuleType:
    """The package ``yaml``, not yet run but for its events, tokens, nodes, errors and libyaml's binding.

    Raises:
        ImportError: there is no PyYAML, or none with libyaml.
    """
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import PathFinder

    spec = PathFinder.find_spec("yaml")
    if spec is None:
        raise ImportError
    package: ModuleType = module_from_spec(spec)
    sys.modules["yaml"] = package
    try:
        from yaml import error, events, nodes, tokens  # noqa: F401 - the binding looks for all of them

        for module in (error, events):
            vars(package).update({name: value for name, value in vars(module).items() if name[0] != "_"})
        _bind(package)
    except BaseException:
        for name in [name for name in sys.modules if name == "yaml" or name.startswith("yaml.")]:
            del sys.modules[name]
        raise
    vars(package)["__getattr__"] = lambda name: getattr(_run(package), name)
    return package


def _bind(package: ModuleType) -> None:
    """Import libyaml's binding with an error of each module in the module's place."""
    placeholders = {module: type(sys)(f"yaml.{module}") for module in RAISED}
    for module, error in RAISED.items():
        setattr(placeholders[module], error, _late(package, module, error))
    vars(package).update(placeholders)
    sys.modules.update({each.__name__: each for each in placeholders.values()})
    try:
        from yaml import _yaml  # noqa: F401 - it enters itself
    finally:
        for module, each in placeholders.items():
            del sys.modules[each.__name__], vars(package)[module]


def _late(package: ModuleType, module: str, error: str) -> Callable[..., Any]:
    """Makes an error of a module that is imported when the first one is raised."""

    def made(*values: Any) -> Any:
        return getattr(getattr(_run(package), module), error)(*values)

    return made


def _run(package: ModuleType) -> ModuleType:
    """The package, run now if it was not."""
    if vars(package).pop("__getattr__", None) is not None:
        _compiling_late(lambda: package.__spec__.loader.exec_module(package))  # type: ignore[union-attr]
    return package


class LatePattern:
    """A regular expression that is compiled when it is first asked for something."""

    __slots__ = ("_arguments", "_compile", "_pattern")

    def __init__(self, compiled: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._compile = compiled
        self._arguments = arguments
        self._pattern: Any = None

    def __getattr__(self, name: str) -> Any:
        """What the compiled pattern has under that name."""
        if self._pattern is None:
            self._pattern = self._compile(*self._arguments)
        return getattr(self._pattern, name)


def _compiling_late(run: Callable[[], object]) -> None:
    """Run what imports modules of PyYAML, whose patterns compile late; others imported along compile as ever.

    PyYAML's ``reader`` and ``resolver`` compile patterns over the whole of Unicode when they are imported: a third of
    the time that importing it takes.
    """
    import re

    compiled = re.compile

    def late(*arguments: Any) -> Any:
        of_yaml = sys._getframe(1).f_globals.get("__name__", "").startswith("yaml.")  # noqa: SLF001 - no other way
        return LatePattern(compiled, arguments) if of_yaml else compiled(*arguments)

    re.compile = late  # type: ignore[assignment]
    try:
        run()
    finally:
        re.compile = compiled


def scalar_patterns() -> dict[str, Any]:
    """PyYAML's patterns of scalars by the first character, which most plans have no need for."""
    _compiling_late(lambda: __import__("yaml.resolver"))
    from yaml.resolver import Resolver

    found: dict[str, Any] = Resolver.yaml_implicit_resolvers
    return found


if TYPE_CHECKING or "yaml" in sys.modules:
    import yaml
else:
    try:
        yaml = _entered()
    except Exception:  # noqa: BLE001 - another PyYAML than those we know: as ever
        import yaml

__all__ = ["scalar_patterns", "yaml"]
