"""What several tests of the library share."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import fake_cudnn


@pytest.fixture(scope="session")
def compiler() -> str:
    found = shutil.which("g++")
    if found is None:
        pytest.skip("no g++")
    return found


@pytest.fixture(scope="session")
def headers() -> Path:
    """Those that the library is built with."""
    folder = fake_cudnn.ROOT / "build" / "deps"
    subprocess.run([fake_cudnn.ROOT / "custom_ops" / "fetch_headers.sh", folder], check=True, capture_output=True)
    return folder / "include"


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory, compiler: str, headers: Path) -> Path:
    """The program that drives the library's code with a stand-in for cuDNN."""
    return fake_cudnn.build(tmp_path_factory.mktemp("cudnn"), compiler, headers)
