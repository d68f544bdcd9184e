"""Importing modules on first use, without looking for garbage among what they make, which stays."""

from __future__ import annotations

import gc
import importlib
import sys
from types import ModuleType


def imported(name: str) -> ModuleType:
    """The module of this name.

    The collector would go through the objects of a module three times, which takes a fifth of the import: they become
    old at once. So do the caller's objects; those that the caller froze stay so.
    """
    if name in sys.modules or not gc.isenabled() or gc.get_freeze_count():
        return importlib.import_module(name)
    gc.disable()
    try:
        return importlib.import_module(name)
    finally:
        gc.freeze()
        gc.unfreeze()  # into the oldest generation
        gc.enable()
