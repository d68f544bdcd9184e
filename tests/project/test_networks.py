"""The benchmark of every network: what it runs, what it prints, and a whole run on the CPU."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from benchmarks.models import networks
from benchmarks.support.networks import NETWORKS, named
from benchmarks.support.workers import Job, Workers

ROWS = {
    "hifigan": {"ORT": 2.0, "ORT cosine": 0.9, "ORT, both options": 1.0, "onnxopt": 2.0, "onnxopt agrees": True,
                "torch.compile reduce-overhead": 8.0, "torch.compile channels_last": 4.0},
    "unet1d": {"ORT": 8.0, "ORT, both options": "ended the process", "onnxopt": 1.0, "onnxopt agrees": True},
    "dit": {"failed": "Traceback:\nno memory\n"},
    "gpt2": {"ORT": 1.0, "onnxopt": 1.0, "onnxopt cosine": 0.5, "onnxopt agrees": False},
}  # fmt: skip


def test_networks_are_named_by_groups_and_patterns() -> None:
    groups = {network.group for network in NETWORKS.values()}
    assert groups == {"open", "further", "convolutions", "transformers", "dynamic", "catalogue"}
    assert len(networks.chosen(["open"])) == 14
    assert len(networks.chosen(["transformers"])) == 104
    assert networks.chosen(["dlrm*", "gru", "dlrm"]) == ["dlrm", "dlrm_f32", "gru"]
    assert not [name for name in networks.chosen([]) if name.endswith("_dynamic")]
    with pytest.raises(SystemExit, match="nothing is no group and no network"):
        networks.chosen(["nothing"])


def test_networks_of_libraries_have_names_of_their_own() -> None:
    assert networks.chosen(["timm:resnet50", "torchvision:fcn_resnet50:float32", "gru"]) == [
        "timm:resnet50", "torchvision:fcn_resnet50:float32", "gru"
    ]  # fmt: skip
    assert (named("timm:resnet50").dtype, named("torchvision:fcn_resnet50:float32").dtype) == ("float16", "float32")
    assert named("gru") is NETWORKS["gru"]
    for wrong in ("keras:resnet50", "timm:", "timm:resnet50:half"):
        with pytest.raises(SystemExit, match=f"{wrong} is no network; those of libraries are timm:NAME or"):
            networks.chosen([wrong])


def test_the_report_names_the_worst_and_what_misses_the_goals() -> None:
    assert list(networks.report(ROWS)) == [
        "worst beside ORT's best: hifigan 0.50, gpt2 1.00, unet1d 8.00",
        "geometric mean: 1.59 (3); open 0.50 (1)",
        "below 1 of ORT's best: hifigan",
        "worst beside torch's best: hifigan 2.00",
        "geometric mean: 2.00 (1); open 2.00 (1)",
        "below 0.95 of torch's best: none",
        "2 of 4 agree; not dit, gpt2",
    ]
    printed = [networks.line(name, row).split() for name, row in ROWS.items()]
    assert printed[0] == ["hifigan", "1.000", "4.000", "2.000", "0.50", "2.00"]
    assert networks.faster_without(
        {"onnxopt": 2.0, "without pool": 1.5, "without pool cosine": 1.0, "without gemm": 1.99}
    ) == {"pool": 1.5}
    assert printed[2] == ["dit", *"-" * 5, "FAILED:", "no", "memory"]
    assert printed[3] == ["gpt2", "1.000", "-", "1.000", "1.00", "-", "DIFFERS", "(0.5)"]


def test_workers_that_end_or_are_late_say_so(tmp_path: Path) -> None:
    programs = {
        "good": "import sys; print('{\"ready\": 1}', flush=True); sys.stdin.readline(); print('{\"ms\": 2}')",
        "ends": "pass",
        "mute": "print('{\"ready\": 1}', flush=True); import time; time.sleep(60)",
        "late": "import time; time.sleep(60)",
        "never": "pass",
    }
    with (tmp_path / "log").open("w") as log:
        jobs = {name: Job((sys.executable, "-c", text)) for name, text in programs.items()}
        workers = Workers(jobs, log, at_once=1)
        said = dict(workers.ready(time.perf_counter() + 2))
        assert said["good"] == said["mute"] == {"ready": 1}
        assert [said[name]["failed"].partition(":")[2] for name in ("late", "never")] == [
            " not ready when the workers were stopped", " not begun when the workers were stopped"
        ]  # fmt: skip
        assert said["ends"] == {"failed": "it ended; see the log"}
        assert workers.answer("good") == {"ms": 2}
        assert workers.answer("mute", 0.2)["failed"].startswith("ran out of time")
        workers.end()


def test_those_that_are_ready_count_as_alive_until_they_are_ended(tmp_path: Path) -> None:
    """One begins when the one before has answered and is ended, not when it is ready."""
    begun = (
        "import pathlib, sys; pathlib.Path({!r}).touch(); print('{{\"ready\": 1}}', flush=True); sys.stdin.readline()"
    )
    places = {name: tmp_path / name for name in ("first", "second")}
    jobs = {name: Job((sys.executable, "-c", begun.format(str(place)))) for name, place in places.items()}
    order = []
    with (tmp_path / "log").open("w") as log:
        workers = Workers(jobs, log, at_once=2, alive=1)
        for name, said in workers.ready(time.perf_counter() + 20):
            time.sleep(0.5)  # enough for another process to begin
            order.append((name, said, sum(place.exists() for place in places.values())))
            workers.end(name)
    assert order == [("first", {"ready": 1}, 1), ("second", {"ready": 1}, 2)]


def test_a_network_is_measured_and_a_later_call_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the CPU, beside ONNX Runtime alone."""
    out = tmp_path / "rows.json"
    options = [
        "--device",
        "cpu",
        "--without-torch",
        "--jobs",
        "1",
        "--kinds",
        "--folder",
        str(tmp_path),
        "--out",
        str(out),
    ]
    monkeypatch.setattr(sys, "argv", ["networks", "pointnet", *options])
    assert networks.main() == 0, (tmp_path / "log").read_text()[-2000:]
    row = json.loads(out.read_text())["pointnet"]
    assert row["group"] == "open" and row["onnxopt agrees"] is True and row["ORT cosine"] > 0.999
    assert isinstance(row["without gemm"], float) and row["without gemm agrees"]
    assert isinstance(row["ORT"], float) and isinstance(row["onnxopt"], float)
    assert not list((tmp_path / "work").iterdir())
    assert "1 of 1 agree" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["networks", "pointnet", "gru", "--limit", "0", *options])
    assert networks.main() == 0
    printed = capsys.readouterr().out
    assert "1 have no row yet, and the next call continues with gru" in printed and "1 of 1 agree" in printed
