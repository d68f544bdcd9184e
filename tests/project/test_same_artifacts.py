"""The script that compares artifacts of two versions: what may differ, and that everything else is found."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

import onnxopt
from benchmarks.cpu import same_artifacts
from benchmarks.support import fatbins
from onnxopt.codegen import nvrtc
from tests.support.small_models import CHAIN, write


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """before/chain and after/chain: two artifacts of one model, made from different places."""
    folder = tmp_path_factory.mktemp("artifacts")
    for which in ("before", "after"):
        (folder / which).mkdir()
        model = write(folder / which / "chain.onnx", CHAIN)
        onnxopt.optimize(model, folder / which / "chain", archs=("sm_90",))
    return folder


@pytest.fixture
def pair(made: Path, tmp_path: Path) -> tuple[Path, Path]:
    shutil.copytree(made / "before" / "chain", tmp_path / "before" / "chain")
    shutil.copytree(made / "after" / "chain", tmp_path / "after" / "chain")
    return tmp_path / "before", tmp_path / "after"


def edit(path: Path, change: Callable[[Any], None]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document, indent=2))


def test_two_runs_of_one_version_are_the_same(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    before, after = pair
    texts = [(folder / "chain" / "manifest.json").read_bytes() for folder in pair]
    assert texts[0] != texts[1]  # the place of the original, at least
    assert same_artifacts.main(["compare", str(before), str(after)]) == 0
    assert capsys.readouterr().out == "chain: the same\n"


def test_versions_times_and_files_that_are_not_compared_may_differ(pair: tuple[Path, Path]) -> None:
    before, after = pair[0] / "chain", pair[1] / "chain"

    def change(manifest: dict[str, Any]) -> None:
        manifest["onnxopt"], manifest["versions"] = "9.9", {"onnx": "9.9"}
        manifest["seconds"] = {"another phase": 1.0}
        manifest["files"]["report.html"] = {"sha256": "0" * 64, "bytes": 1}

    edit(after / "manifest.json", change)
    (after / "report.html").write_text("another")
    (after / "lib" / "libonnxopt_ops.so").write_bytes(b"another")
    model = onnx.load(after / "model.onnx")
    next(entry for entry in model.metadata_props if entry.key == "onnxopt.version").value = "9.9"
    onnx.save(model, after / "model.onnx")
    assert same_artifacts.differences(before, after) == []


def _rename_node(path: Path) -> None:
    model = onnx.load(path)
    model.graph.node[0].name += "x"
    onnx.save(model, path)


def _change_code(path: Path) -> None:
    """Another last instruction of the first kernel."""
    fatbin = path.read_bytes()
    section = next(data for (_, name), data in fatbins.code(fatbin).items() if name.startswith(".text."))
    end = fatbin.index(section) + len(section)
    path.write_bytes(fatbin[: end - 16] + bytes(byte ^ 0xFF for byte in fatbin[end - 16 : end]) + fatbin[end:])


CHANGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "model": (lambda a: _rename_node(a / "model.onnx"), "model.onnx: the graphs or their weights differ"),
    "code": (lambda a: _change_code(a / "lib" / "kernels.fatbin"), "lib/kernels.fatbin: "),
    "kernels.json": (
        lambda a: edit(a / "lib" / "kernels.json", lambda d: d["kernels"][0].update(kind="scan")),
        r"lib/kernels.json: kernels\[0\].kind: 'pointwise' and 'scan'",
    ),
    "layout of kernels.json": (
        lambda a: edit(a / "lib" / "kernels.json", lambda d: None),
        "lib/kernels.json: the same members, but other bytes",
    ),
    "provider option": (
        lambda a: edit(a / "providers" / "cpu.json", lambda d: d["session_options"].update(intra_op_num_threads=1)),
        "providers/cpu.json: session_options.intra_op_num_threads: 0 and 1",
    ),
    "missing file": (lambda a: (a / "providers" / "cuda.json").unlink(), "providers/cuda.json: only before"),
    "new file": (lambda a: (a / "more.txt").write_text(""), "more.txt: only after"),
    "kernel in the manifest": (
        lambda a: edit(a / "manifest.json", lambda d: d["kernels"].pop()),
        "manifest.json: kernels has .* and .* members",
    ),
    "hash of a file": (
        lambda a: edit(a / "manifest.json", lambda d: d["files"]["model.onnx"].update(sha256="0" * 64)),
        "manifest.json: files.model.onnx.sha256: ",
    ),
    "verification": (
        lambda a: edit(a / "manifest.json", lambda d: d["verify"].update(status="skipped")),
        "manifest.json: verify.status: 'passed' and 'skipped'",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize(("reworded", "same_code"), [(False, False), (True, False), (False, True)])
def test_every_other_change_is_found(
    name: str, reworded: bool, same_code: bool, pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    change, expected = CHANGES[name]
    change(pair[1] / "chain")
    (found,) = same_artifacts.differences(
        pair[0] / "chain", pair[1] / "chain", same_artifacts.Allowed(reworded, same_code)
    )
    assert re.match(expected, found)
    options = ["--reworded"] * reworded + ["--same-code"] * same_code
    assert same_artifacts.main(["compare", str(pair[0]), str(pair[1]), *options]) == 1
    assert capsys.readouterr().out == f"chain: 1 differences\n    {found}\n"


def test_other_sentences_are_allowed_on_request_alone(pair: tuple[Path, Path]) -> None:
    before, after = pair[0] / "chain", pair[1] / "chain"
    refusal = {"node": "n", "op_type": "Gelu", "neighbour": "m", "reason": "as it was said"}
    for artifact, reason in ((before, "as it was said"), (after, "in other words")):
        edit(artifact / "manifest.json", lambda d, r=reason: d.update(refusals=[{**refusal, "reason": r}], notes=[r]))
    edit(after / "providers" / "cpu.json", lambda d: d.update(why={"threads": "in other words"}))
    strict = same_artifacts.differences(before, after)
    assert {line.split(": ")[0] for line in strict} == {"manifest.json", "providers/cpu.json"}
    assert "manifest.json: refusals[0].reason: 'as it was said' and 'in other words'" in strict
    assert same_artifacts.differences(before, after, same_artifacts.Allowed(reworded=True)) == []
    edit(after / "manifest.json", lambda d: d["refusals"][0].update(node="another"))
    assert len(same_artifacts.differences(before, after, same_artifacts.Allowed(reworded=True))) == 1


def test_an_artifact_of_one_folder_alone_is_a_difference(pair: tuple[Path, Path]) -> None:
    before, after = pair
    shutil.copytree(before / "chain", before / "more")
    assert same_artifacts.main(["compare", str(before), str(after)]) == 1


def test_folders_without_artifacts_are_not_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a").mkdir()
    assert same_artifacts.main(["compare", str(tmp_path / "a"), str(tmp_path / "a")]) == 1
    assert capsys.readouterr().out == "neither folder holds an artifact\n"


@pytest.mark.models
def test_make_uses_the_tree_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(same_artifacts, "CASES", {"logreg_iris": {}})
    monkeypatch.setattr(same_artifacts, "ARCHS", ())
    assert same_artifacts.main(["make", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "logreg_iris" / "manifest.json").is_file()
    with pytest.raises(SystemExit):
        same_artifacts.main(["make", str(tmp_path / "other"), "nosuch"])
    assert not (tmp_path / "other").exists()
    assert same_artifacts.main(["make", str(tmp_path / "other"), "--tree", str(tmp_path)]) == 1
    assert f"logreg_iris: onnxopt of {tmp_path} failed" in capsys.readouterr().err


def _fatbin(variables: str, body: str = "x[threadIdx.x] = sinf(x[threadIdx.x]);") -> bytes:
    """Of one kernel and these variables. The sine of a large angle reads a table, by its address."""
    return nvrtc.compile_cuda(f'{variables} extern "C" __global__ void sine(float* x) {{ {body} }}', ["sm_80", "sm_90"])


def test_other_variables_leave_the_code_the_same() -> None:
    before, after = _fatbin(""), _fatbin("constexpr char kA = 'a', kB = 'b';")
    assert before != after
    assert fatbins.code(before) != fatbins.code(after)  # the address of the table lies elsewhere
    assert fatbins.different_code(before, after) == []
    assert {name for _, name in fatbins.code(before)} >= {".text.sine"}


def test_other_instructions_are_other_code() -> None:
    changed = fatbins.different_code(_fatbin(""), _fatbin("", "x[threadIdx.x] = cosf(x[threadIdx.x]);"))
    assert changed == [(80, ".text.sine"), (90, ".text.sine")]
    with pytest.raises(ValueError, match="no fatbin: there is no header at byte 0"):
        fatbins.code(b"not a fatbin at all")


def test_verifications_are_compared_where_they_ran_the_same_cases(pair: tuple[Path, Path]) -> None:
    before, after = pair[0] / "chain", pair[1] / "chain"
    edit(after / "manifest.json", lambda d: d["verify"]["checks"].pop())
    assert same_artifacts.differences(before, after) == []
    edit(after / "manifest.json", lambda d: d["verify"]["checks"][0].update(error="it failed"))
    (found,) = same_artifacts.differences(before, after)
    assert found.startswith("manifest.json: verify.checks.") and found.endswith(".error: '' and 'it failed'")
    edit(after / "manifest.json", lambda d: d["verify"].update(checks=[]))
    assert same_artifacts.differences(before, after) != []


def test_the_hash_of_a_file_that_differs_is_no_difference_of_its_own(pair: tuple[Path, Path]) -> None:
    before, after = pair[0] / "chain", pair[1] / "chain"
    _change_code(after / "lib" / "kernels.fatbin")
    edit(after / "manifest.json", lambda d: d["files"]["lib/kernels.fatbin"].update(sha256="0" * 64))
    kernels = after / "lib" / "kernels.json"
    kernels.write_text(kernels.read_text().replace('"sha256": "', '"sha256": "0'))
    assert len(same_artifacts.differences(before, after)) == 1
