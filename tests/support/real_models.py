"""Models of the collection for tests: one that cannot be downloaded here skips its test, and the reason says why."""

from __future__ import annotations

from pathlib import Path

import pytest

import models


def path(name: str) -> Path:
    """The model's file, fetched or exported if needed.

    A trained model whose package cannot be had skips the test. An export that fails is a failure: it needs only what
    is installed.
    """
    try:
        return models.path(name)
    except models.ModelUnavailable as error:
        if models.entry(name).kind == "exported":
            raise
        pytest.skip(str(error))
