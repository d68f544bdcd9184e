"""What the programs of prologues and epilogues call is in the headers of every core that computes them."""

from __future__ import annotations

import pytest

from onnxopt.codegen import included
from onnxopt.fusion.core_growth import CoreKind
from onnxopt.kinds import KINDS
from onnxopt.program.core import Core

_CORES = [kind for kind in KINDS if isinstance(kind, CoreKind) and issubclass(kind.meaning, Core)]


@pytest.mark.parametrize("kind", _CORES, ids=lambda kind: kind.name)
def test_functions_of_programs_are_included(kind: CoreKind) -> None:
    """Also where no other kernel of the model brings them."""
    source = "\n".join(f'#include "{header}"' for header in kind.headers([]))
    assert {"device/approximate.cuh", "device/scalar.cuh"} <= set(included.headers(source))
