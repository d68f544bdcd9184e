"""The options of `refit`: a field each, from which its keywords and the command's options are made."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from onnxopt.option_fields import option, same_option
from onnxopt.paths import StrPath
from onnxopt.pipeline.options import Options
from onnxopt.verification.sampling.data_source import DataSource


@dataclasses.dataclass(frozen=True)
class RefitOptions:
    """How `refit` finds the model and the initializers that get new weights."""

    original: StrPath | None = option(
        None, "The model that the artifact was made of, where it is no longer in its place.", value="MODEL", of=Path
    )
    old_weights: StrPath | None = option(
        None, "The weights that the model was exported with: finds initializers that an exporter renamed or "
        "transposed, by their values.",
        value="WEIGHTS", of=Path,
    )  # fmt: skip
    partial: bool = option(False, "Keep the model's values where the weights have none.")
    save_model: StrPath | None = option(
        None, "Also write the model with the new weights, which the artifact then names as its original. Must not "
        "exist.",
        value="FILE.onnx", of=Path,
    )  # fmt: skip
    data: Sequence[DataSource] = same_option(Options, "data")


class RefitChanges(TypedDict, total=False):
    """The fields of `RefitOptions` as keywords, for type checkers; a test compares them."""

    original: StrPath | None
    old_weights: StrPath | None
    partial: bool
    save_model: StrPath | None
    data: Sequence[DataSource]
