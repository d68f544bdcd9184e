"""Where a kernel with index operations reads is checked for every shape that it is called with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onnxopt.codegen import sealed_json
from tests.fuzz.library import corpus
from tests.support.custom_ops import custom_ops_artifact as artifact

pytestmark = pytest.mark.usefixtures("library")


def test_shapes_that_were_found_good_hide_no_others(tmp_path: Path) -> None:
    """The kernel reads as many elements of x1, which has 8, as x0 has rows. One session sees many row counts."""
    (kernel,) = sealed_json.unseal(corpus.files("rotary")["kernels.json"].decode())["kernels"]
    kernel["cpu"] = True
    kernel["index"]["accesses"][2]["terms"] = [[1, [1, 0], 1]]
    library = artifact.write(tmp_path, [kernel])
    rows = [("float32", ["n", 8]), ("float32", [8])]
    body = artifact.wrong_body("float32", "float32")
    session = artifact.session(artifact.model(body, rows, [("float32", None)] * 2, kernel["name"]), library)
    first: dict[int, bytes] = {}
    for count in [8, 9, 8, 100, *range(1, 9), 9, *range(8, 0, -1), *range(9, 80), 8]:
        feeds = [np.arange(count * 8, dtype=np.float32).reshape(count, 8), np.arange(8, dtype=np.float32)]
        if count > 8:
            with pytest.raises(Exception, match="access 2 would read outside of input 1, which is \\[8\\]"):
                artifact.run(session, feeds)
        else:
            found = b"".join(output.tobytes() for output in artifact.run(session, feeds))
            assert first.setdefault(count, found) == found
