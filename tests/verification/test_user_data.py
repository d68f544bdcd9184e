"""--data and data=: the user's own inputs are checked, then taken for every comparison."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import onnxopt
from onnxopt.errors import NotVerifiedError, UsageError
from onnxopt.graph.signature import Tensor
from onnxopt.verification.sampling.user_data import read_data
from tests.support.command import run
from tests.support.small_models import CHAIN, TOKENS, write

INPUTS = (Tensor("ids", "int64", ("batch", "sequence")), Tensor("mask", "bool", ("batch", 4)))
IDS, MASK = np.zeros((2, 3), np.int64), np.ones((2, 4), bool)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"ids": IDS}, "input 'mask' is missing; it holds ids"),
        ({"ids": IDS, "mask": MASK, "other": MASK}, "'other' is no input of the model; its inputs are ids, mask"),
        ({"ids": IDS.astype(np.int32), "mask": MASK}, "input 'ids' has dtype int32, the model declares int64"),
        ({"ids": IDS, "mask": MASK[0]}, "shape of mask: the input has 2 dims"),
        ({"ids": IDS, "mask": MASK[:, :3]}, "shape of mask: dim 1 is 4, not 3"),
        ({"ids": IDS, "mask": MASK[:1]}, "dim 'batch' is 1 here and 2 elsewhere"),
    ],
)
def test_unfit_inputs_are_named(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        read_data([path], INPUTS)
    assert str(error.value).startswith(str(path))
    with pytest.raises(UsageError, match=re.escape(message)):
        read_data([arrays], INPUTS)


@pytest.mark.parametrize("one", ["x.npz", Path("x.npz"), {"ids": IDS, "mask": MASK}], ids=["text", "path", "arrays"])
def test_one_set_of_inputs_is_no_list(one: Any, tmp_path: Path, artifact: Path) -> None:
    with pytest.raises(UsageError, match=r"as a list of files, or of arrays by name: give \[...\] around"):
        read_data(one, INPUTS)
    with pytest.raises(UsageError, match="as a list of files"):
        onnxopt.optimize(write(tmp_path / "m.onnx", CHAIN), artifact, archs=(), data=one)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    good = tmp_path / "good.npz"
    np.savez(good, ids=IDS, mask=MASK)
    contents = good.read_bytes()
    for broken in (b"", contents[:60], contents[:-30], contents[: len(contents) // 2], b"not zipped"):
        path = tmp_path / "broken.npz"
        path.write_bytes(broken)
        with pytest.raises(UsageError, match=r"broken.npz: cannot be read as an .npz file") as refused:
            read_data([path], INPUTS)
        assert "unsafely" not in str(refused.value)
    damaged = bytearray(contents)
    damaged[contents.index(b"NUMPY") + 130] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(UsageError, match=r"broken.npz: cannot be read"):
        read_data([path], INPUTS)
    np.save(tmp_path / "one.npy", IDS)
    with pytest.raises(UsageError, match="holds one array without a name"):
        read_data([tmp_path / "one.npy"], INPUTS)
    with pytest.raises(UsageError, match="no such file"):
        read_data([tmp_path / "none.npz"], INPUTS)


def test_dtypes_that_numpy_lacks_and_text_survive_the_file(tmp_path: Path) -> None:
    inputs = (Tensor("x", "bfloat16", ("n",)), Tensor("text", "string", ("n",)))
    x = np.array([0.5, 2.0], ml_dtypes.bfloat16)
    np.savez(tmp_path / "data.npz", x=x, text=np.array(["a", "words"]))
    (row,) = read_data([tmp_path / "data.npz"], inputs)
    assert row.inputs["x"].dtype == x.dtype
    assert (row.inputs["x"] == x).all()
    assert row.inputs["text"].tolist() == ["a", "words"]
    assert row.sizes == {"n": 2}


@pytest.mark.usefixtures("without_footprints")
def test_verify_optimize_and_bench_take_the_data(tmp_path: Path, artifact: Path) -> None:
    model = write(tmp_path / "m.onnx", CHAIN)
    declared = onnxopt.optimize(model, tmp_path / "drawn", archs=(), verify=False).manifest.inputs
    arrays = {t.name: np.full([d if isinstance(d, int) else 5 for d in t.dims or ()], 0.25, t.dtype) for t in declared}
    paths = [tmp_path / name for name in ("one.npz", "two.npz")]
    for path in paths:
        np.savez(path, **arrays)
    made = onnxopt.optimize(model, artifact, archs=(), data=paths)
    assert {check.case.split(", data ")[1] for check in made.manifest.verify.checks} == {"one.npz", "two.npz"}
    report = onnxopt.verify(model, artifact, data=[arrays])
    assert {check.case.split(", data ")[1] for check in report.checks} == {"set 0"}
    result = onnxopt.bench(artifact, data=paths, provider="CPUExecutionProvider", iterations=3)
    assert result.case.endswith("data one.npz")
    with pytest.raises(UsageError, match="shapes and data cannot be given together"):
        onnxopt.verify(model, artifact, data=paths, shapes={"batch": (2,)})
    ended = run("verify", model, artifact, "--data", tmp_path / "none.npz")
    assert ended.exit_code == 2
    assert ended.stderr == f"error: {tmp_path / 'none.npz'}: no such file\n"


def test_data_that_the_original_refuses_is_not_verified(tmp_path: Path, artifact: Path) -> None:
    model = write(tmp_path / "m.onnx", TOKENS)
    data = {"ids": np.array([[3]])}  # the table has three rows
    with pytest.raises(NotVerifiedError, match=r"refuses the inputs of set 0: .*out of data bounds"):
        onnxopt.optimize(model, artifact, archs=(), data=[data])
    assert onnxopt.verify(model, model, data=[data]).status == "not_run"
