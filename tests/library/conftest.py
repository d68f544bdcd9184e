"""What several tests of the library share."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import fake_cudnn


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that drives the library's code with a stand-in for cuDNN."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    folder = tmp_path_factory.mktemp("cudnn")
    headers = fake_cudnn.ROOT / "build" / "deps"
    subprocess.run([fake_cudnn.ROOT / "custom_ops" / "fetch_headers.sh", headers], check=True, capture_output=True)
    return fake_cudnn.build(folder, compiler, headers / "include")
