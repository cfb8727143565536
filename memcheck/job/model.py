"""From ``model`` to an architecture, with every problem at its place in the plan."""

from __future__ import annotations

from memcheck.catalog.config_file import ConfigFileError
from memcheck.catalog.names import UnknownNameError
from memcheck.families.architecture import architecture_of
from memcheck.job.errors import JobProblem, ResolutionError
from memcheck.models.errors import ArchitectureError
from memcheck.models.types import Architecture, Rough
from memcheck.plan import types as plan_types


def resolve_model(model: plan_types.ModelSpec, *, base_dir: str) -> Architecture | Rough:
    """The architecture that the plan names; ``base_dir`` is where relative config paths start.

    Raises:
        ResolutionError: unknown name, unreadable config.json, or a configuration that no family reads.
    """
    if model == plan_types.ModelSpec(overrides=model.overrides):
        raise ResolutionError(
            (JobProblem("missing", "/model", "the plan names no model", help="write `model: llama-3.1-8b`"),)
        )
    try:
        return architecture_of(model, base_dir)
    except UnknownNameError as error:
        raise ResolutionError((JobProblem("model", _name_pointer(model), error.message, help=error.help),)) from None
    except ConfigFileError as error:
        raise ResolutionError((JobProblem("config", "/model/config", error.message, help=error.help),)) from None
    except ArchitectureError as error:
        pointer = _key_pointer(error.key, model)
        kind = "architecture" if error.key in {"", "model_type"} else "config-key"
        raise ResolutionError((JobProblem(kind, pointer, error.message, help=error.help),)) from None


def _name_pointer(model: plan_types.ModelSpec) -> str:
    return "/model" if model.overrides is None else "/model/name"


def _key_pointer(key: str, model: plan_types.ModelSpec) -> str:
    """Where the configuration key stands in the plan, if it stands there."""
    head = key.split(".", maxsplit=1)[0]
    if model.overrides and head in model.overrides:
        return "/model/overrides/" + key.replace(".", "/")
    if model.architecture is not None:
        where = "/model/architecture"
        return where + "/" + key.replace(".", "/") if head in model.architecture else where
    return "/model/config" if model.config is not None else _name_pointer(model)
