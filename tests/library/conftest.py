"""What several tests of the library share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fakes import fake_cudnn


@pytest.fixture(scope="session")
def program() -> Path:
    """The program that drives the library's code with a stand-in for cuDNN."""
    return fake_cudnn.program()
