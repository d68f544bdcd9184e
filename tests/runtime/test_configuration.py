"""Which configuration is this machine's: by what the driver says, never by a guess."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

import onnxopt
from onnxopt.artifact import session
from onnxopt.errors import UsageError
from onnxopt.runtime import configuration, devices, graph_session, providers, sessions
from onnxopt.runtime.configuration import configuration_for
from tests.support.artifacts import make
from tests.support.small_models import CHAIN, write

pytestmark = pytest.mark.usefixtures("library")

GB = 10**9


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact with files for the GPUs of sm_90; its kernels are not compiled, nothing here runs on a GPU."""
    folder = tmp_path_factory.mktemp("configuration")
    path = onnxopt.optimize(write(folder / "chain.onnx", CHAIN), folder / "artifact", archs=()).path
    from onnxopt.graph import read

    providers.write(path, read.load(path / "model.onnx").model, ("sm_90",))
    return path


def pretend(monkeypatch: pytest.MonkeyPatch, name: str, compute_capability: str) -> None:
    """A machine whose driver reports this device."""
    device = devices.Device(0, name, compute_capability, 80 * GB, 50 << 20, 132)
    monkeypatch.setattr(devices, "first", lambda: device)
    monkeypatch.setattr(configuration, "cuda_is_usable", lambda: True)


@pytest.mark.parametrize(
    ("name", "capability", "file", "reason"),
    [
        ("NVIDIA H100 80GB HBM3", "9.0", "h100_sxm", "the driver reports NVIDIA H100 80GB HBM3"),
        ("NVIDIA H100 PCIe", "9.0", "h100_pcie", "the driver reports"),
        ("NVIDIA H200", "9.0", "h200", "the driver reports NVIDIA H200, compute capability 9.0"),
        ("NVIDIA H200", "9.1", "cuda", "is for compute capability 9.0, this NVIDIA H200 has 9.1"),
        ("NVIDIA A10G", "8.6", "cuda", "no code for sm_86 when the artifact was made"),
        ("NVIDIA H100 NVL", "9.0", "cuda", "no entry in the GPU catalogue"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "9.0", "cuda", "no entry in the GPU catalogue"),
        ("Tesla V100-SXM2-16GB", "7.0", "cuda", "no code for sm_70"),
    ],
)
def test_the_driver_decides(
    made: Path, monkeypatch: pytest.MonkeyPatch, name: str, capability: str, file: str, reason: str
) -> None:
    pretend(monkeypatch, name, capability)
    chosen = configuration_for(made)
    assert chosen.name == file
    assert chosen.path == made / "providers" / f"{file}.json"
    assert reason in chosen.reason
    assert chosen.data == json.loads(chosen.path.read_text())
    assert chosen.device is not None and chosen.device.name == name


def test_without_a_gpu_it_is_the_cpus(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration, "cuda_is_usable", lambda: False)
    monkeypatch.setattr(devices, "first", lambda: None)
    chosen = configuration_for(made)
    assert (chosen.name, chosen.provider, chosen.device) == ("cpu", sessions.CPU, None)
    assert chosen.reason in (
        "the driver reports no CUDA device",
        "this ONNX Runtime has no CUDA execution provider",
    )


def test_a_file_can_be_asked_for_by_name(made: Path) -> None:
    assert configuration.named(made, "h200.tensorrt").data["provider"] == "TensorrtExecutionProvider"
    with pytest.raises(UsageError, match=r"has no configuration 'a10g'; it has cpu, cuda, h100_pcie"):
        configuration.named(made, "a10g")


def test_options_reach_ort() -> None:
    data = {
        "session_options": {
            "graph_optimization_level": "extended",
            "execution_mode": "parallel",
            "intra_op_num_threads": 3,
            "enable_cpu_mem_arena": False,
        },
        "session_config": {"session.intra_op.allow_spinning": "0"},
    }
    options = configuration.session_options(data)
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    assert options.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert (options.intra_op_num_threads, options.enable_cpu_mem_arena) == (3, False)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_providers_in_order_with_folders_of_the_artifact(made: Path) -> None:
    listed = configuration.provider_list(configuration.named(made, "h200.tensorrt").data, made)
    assert [p if isinstance(p, str) else p[0] for p in listed] == [
        "TensorrtExecutionProvider",
        "CUDAExecutionProvider",
        "CPUExecutionProvider",
    ]
    folder = Path(listed[0][1]["trt_engine_cache_path"])
    assert folder.is_absolute() and folder.is_dir() and made in folder.parents
    data = configuration.named(made, "h200").data
    options = configuration.provider_list(session._on_stream(data, 64), made, cuda_graph=True)[0][1]
    own = configuration.provider_list(session._on_stream(data, None), made)[0][1]
    assert options == own | {"enable_cuda_graph": "1", "user_compute_stream": "64"}


def test_tensorrt_takes_the_portable_graph_where_there_is_one(made: Path) -> None:
    chosen = configuration.named(made, "h200.tensorrt")
    assert session.model_of(made, chosen) == made / "model.onnx"
    (made / "model.portable.onnx").write_bytes(b"")
    try:
        assert session.model_of(made, chosen) == made / "model.portable.onnx"
        assert session.model_of(made, configuration.named(made, "h200")) == made / "model.onnx"
    finally:
        (made / "model.portable.onnx").unlink()


# --- load ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return make(tmp_path / "artifact")


def test_a_graph_where_there_is_no_gpu_is_refused(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configuration, "cuda_is_usable", lambda: False)
    for name, option in {"cuda_graph": {"cuda_graph": True}, "stream": {"stream": 0}}.items():
        with pytest.raises(UsageError, match=rf"{name} needs CUDAExecutionProvider, and cpu\.json is taken here"):
            onnxopt.load(plain, **option)


def test_a_graph_that_cannot_be_names_the_nodes(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "NVIDIA H100 NVL", "9.0")
    blocked = {"qualifies": False, "blocking": [{"node": "loop_3", "reason": "Loop decides on the host"}]}
    monkeypatch.setattr(
        providers, "read", lambda *_: {"provider": sessions.CUDA, "cuda_graph": blocked, "session_config": {}}
    )
    with pytest.raises(UsageError, match="cannot be captured: loop_3: Loop decides on the host"):
        onnxopt.load(plain, cuda_graph=True)


def test_own_providers_and_the_artifacts_do_not_mix(plain: Path) -> None:
    for own in ({"configuration": "cpu"}, {"stream": 1}, {"cuda_graph": True}):
        with pytest.raises(UsageError, match="leave `providers` out"):
            onnxopt.load(plain, providers=[sessions.CPU], **own)


def test_a_gpu_that_does_not_start_is_told_about(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if sessions.cuda_is_usable():
        pytest.skip("CUDA starts here")
    if sessions.CUDA not in ort.get_available_providers():
        pytest.skip("this ONNX Runtime has no CUDA execution provider to fail")
    pretend(monkeypatch, "NVIDIA H100 NVL", "9.0")
    with pytest.warns(RuntimeWarning, match="runs on the CPU: .*onnxopt doctor"):
        opened = onnxopt.load(plain)
    assert opened.get_providers() == [sessions.CPU]


# --- CUDA graphs -----------------------------------------------------------------------------------------------------


def graph_run(plain: Path) -> tuple[graph_session.GraphSession, dict[str, Any]]:
    opened = graph_session.open_session(str(plain / "model.onnx"), providers=[sessions.CPU])
    random = np.random.default_rng(0)
    shapes = {"x": (5, 8), "bias": (8,), "weight": (8, 8)}
    return opened, {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def test_every_way_to_run_gives_the_same_without_a_graph(plain: Path) -> None:
    opened, given = graph_run(plain)
    expected = opened.run(None, given)[0]
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in given.items()}
    np.testing.assert_array_equal(opened.run_with_ort_values(None, values)[0].numpy(), expected)
    binding = opened.io_binding()
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    binding.bind_output("y")
    opened.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], expected)
    assert binding.places() is None  # nothing lies on a device: no graph


def test_one_graph_a_set_of_buffers(plain: Path) -> None:
    opened, _ = graph_run(plain)

    def places(address: int, rows: int = 4) -> tuple[graph_session.Place, ...]:
        return (("cuda:0", address, (rows, 8), "float"),)

    first, second = opened.graph_id(places(4096)), opened.graph_id(places(8192))
    assert {first, second} == {1, 2}
    assert opened.graph_id(places(4096)) == first
    assert opened.graph_id(places(4096, rows=3)) not in (first, second)
    assert opened.graph_id(None) == -1


def test_graphs_are_limited(plain: Path) -> None:
    opened, _ = graph_run(plain)
    ids = [opened.graph_id((("cuda:0", 64 * k, (4,), "float"),)) for k in range(40)]
    assert ids == [*range(1, 33), *[-1] * 8]
    assert opened.graph_id((("cuda:0", 0, (4,), "float"),)) == 1


def test_a_binding_knows_what_stays_in_place(plain: Path) -> None:
    assert graph_session._place("cuda", 0, 1, (4,), 4096) == ("cuda:0", 4096, (4,), "1")
    assert graph_session._place("cpu", 0, 1, (4,), 4096) is None
    assert graph_session._place("cuda", 0, None, None, None) is None  # ORT allocates it anew each run
    opened, _ = graph_run(plain)
    binding = opened.io_binding()
    for kind, name in (("in", "x"), ("in", "bias"), ("in", "weight"), ("out", "y")):
        binding._note(kind, name, ("cuda:0", 64, (4,), "1"))
    places = binding.places()
    assert places is not None and len(places) == 4
    binding.clear_binding_outputs()
    assert binding.places() is None


def test_options_that_are_used_again_get_an_entry_where_it_changes() -> None:
    """ONNX Runtime warns about each entry that is set again."""

    class Options(ort.RunOptions):
        written = 0

        def add_run_config_entry(self, key: str, value: str) -> None:
            self.written += 1
            super().add_run_config_entry(key, value)

    options = Options()
    for graph, written in ((1, 1), (1, 1), (2, 2), (2, 2)):
        graph_session._with_graph(options, graph)
        assert (options.get_run_config_entry("gpu_graph_id"), options.written) == (str(graph), written)


@pytest.mark.gpu
def test_graphs_at_changing_shapes_and_plain_runs_in_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxopt.runtime.bound_run import BoundRun

    made = onnxopt.optimize(write(tmp_path / "chain.onnx", CHAIN), tmp_path / "artifact").path
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened = onnxopt.load(made, cuda_graph=True)
    plain_session = onnxopt.load(made)
    random = np.random.default_rng(0)
    bound: dict[int, BoundRun] = {}
    graphs: dict[int, set[int]] = {}
    graph_id = opened.graph_id

    def recorded(places: Any) -> int:
        number = graph_id(places)
        graphs.setdefault(rows, set()).add(number)
        return number

    monkeypatch.setattr(opened, "graph_id", recorded)
    for rows in (5, 3, 5, 7, 3):
        shapes = {"x": (rows, 8), "bias": (8,), "weight": (8, 8)}
        given = {name: random.standard_normal(shape, np.float32) for name, shape in shapes.items()}
        expected = plain_session.run(None, given)[0]
        run = bound.setdefault(rows, BoundRun(opened, given, sessions.CUDA))
        run.refill(given)
        for _ in range(3):
            run()
        np.testing.assert_allclose(run.outputs()["y"], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(opened.run(None, given)[0], expected, rtol=1e-5, atol=1e-6)
    assert graphs == {5: {-1, 1}, 3: {-1, 2}, 7: {-1, 3}}  # -1: the first run of each, whose outputs lie anywhere
