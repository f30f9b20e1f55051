"""The one place where a module is imported late.

Lives here: loading by name for verbs (so that `--help` stays quick) and for extras (so that a missing one is named).
Names are literal strings at the call: the architecture test reads them and holds them to the floors like any import.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

from phasemeter.errors import UserError


def load(name: str) -> ModuleType:
    """The module `name`, imported when first asked for."""
    return importlib.import_module(name)


def load_extra(name: str, extra: str) -> ModuleType:
    """A module that an optional dependency brings.

    Raises UserError naming the extra to install.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        raise UserError(f"{name} is not installed: pip install 'phasemeter[{extra}]'") from missing


def load_optional(name: str) -> ModuleType | None:
    """A module that some systems lack (`resource` on Windows), or None."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def exported(name: str, names: tuple[str, ...]) -> Callable[[str], object]:
    """A package's `__getattr__` (PEP 562): `names` come from the module `name`, which is imported when one is asked for."""

    def found(asked: str) -> object:
        if asked in names:
            return getattr(importlib.import_module(name), asked)
        raise AttributeError(f"module 'phasemeter' has no attribute {asked!r}")

    return found
