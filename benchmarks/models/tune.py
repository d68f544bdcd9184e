"""`onnxopt tune` on exported models: killed and resumed, compared with the rule-made file, and loaded afterwards.

    python -m benchmarks.models.tune prepare DIR     on any machine, without a GPU; needs .gpu/
    python -m benchmarks.models.tune run DIR OUT     on the GPU machine: onnxruntime, torch, onnx_ir, rich, pydantic

DIR holds artifacts without weights (see skeletons.py). `run` restores the weights in a temporary folder, compares each
artifact with its original, and then runs the commands as a user would. OUT gets the output of every command and the
tuned files. If the GPU machine lacks pydantic, bring its wheels for that machine's Python, unpack them, and put them on
PYTHONPATH.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from typing import Any

import numpy as np
import onnx

from benchmarks.models.exports import compare, feeds
from benchmarks.support import skeletons
from benchmarks.support.arguments import command
from onnxopt.codegen import sealed_json

MODELS = ("convnext", "efficientnet", "bert", "unet", "vit", "llama", "bert_dyn")
_KILLED_AFTER_TRIALS = 3
_PTX = 1  # kind of an image in a fatbin


def prepare(folder: pathlib.Path, arch: str, names: list[str], *, launch_choices: bool) -> None:
    """Write every model's artifact, its weights left out. launch_choices: with entry points for tune to measure."""
    import onnxopt

    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            source = skeletons.original(name)
            model = pathlib.Path(scratch) / f"{name}.onnx"
            onnx.save(source, model)
            made = onnxopt.optimize(
                model,
                pathlib.Path(scratch) / "artifacts" / name,
                archs=[arch],
                verify=False,
                launch_choices=launch_choices,
            ).path
            size = skeletons.strip(onnx.load(made / "model.onnx"), source, folder / f"{name}.onnx.xz")
            (made / "model.onnx").unlink()
            blank_ptx(made)
            model.unlink()
            print(f"{name}: {size / 1e3:.0f} KB", flush=True)
        with tarfile.open(folder / "artifacts.tar.xz", "w:xz", preset=9) as archive:
            archive.add(pathlib.Path(scratch) / "artifacts", "artifacts")
    print(f"{sum(f.stat().st_size for f in folder.iterdir()) / 1e6:.2f} MB in all")


def blank_ptx(artifact: pathlib.Path) -> None:
    """Zero the PTX of an artifact's fatbin, which a GPU of the compiled architecture does not read: zeros pack well."""
    path, described = artifact / "lib" / "kernels.fatbin", artifact / "lib" / "kernels.json"
    data = bytearray(path.read_bytes())
    at = struct.unpack_from("<IHH", data)[2]  # behind the container's header
    while at < len(data):
        kind, _, header, payload = struct.unpack_from("<HHIQ", data, at)
        if kind == _PTX:
            data[at + header : at + header + payload] = bytes(payload)
        at += header + payload
    path.write_bytes(data)
    document = sealed_json.unseal(described.read_text())
    document["fatbin"]["sha256"] = hashlib.sha256(data).hexdigest()
    described.write_text(sealed_json.seal(document))
    _hash_again(artifact, "lib/kernels.fatbin", "lib/kernels.json")


def _hash_again(artifact: pathlib.Path, *changed: str) -> None:
    from onnxopt.artifact import manifest as manifests
    from onnxopt.artifact.folder import hash_file, write_manifest

    manifest = manifests.load(artifact)
    files = {**manifest.files, **{name: hash_file(artifact / name) for name in changed}}
    write_manifest(artifact, manifest.model_copy(update={"files": files}))


def restore(folder: pathlib.Path, name: str, artifacts: pathlib.Path) -> tuple[pathlib.Path, dict[str, Any]]:
    """The artifact of a model with its weights, and how it compares with the original on this device."""
    from onnxopt.runtime import sessions

    source = skeletons.original(name)
    given = feeds(source, name)
    artifact = artifacts / name
    onnx.save(skeletons.restore(folder / f"{name}.onnx.xz", source), artifact / "model.onnx")
    _hash_again(artifact, "model.onnx")
    original = artifacts / f"{name}.onnx"
    onnx.save(source, original)
    provider = sessions.CUDA if sessions.cuda_is_usable() else sessions.CPU
    library = artifact / "lib" / "libonnxopt_ops.so"
    pairs = ((original, None), (artifact / "model.onnx", library if library.is_file() else None))
    outputs = [
        next(iter(sessions.run(sessions.open_session(m, provider=provider, library=lib), given).values()))
        for m, lib in pairs
    ]
    original.unlink()
    return artifact, compare(outputs[1], outputs[0])


def onnxopt_command(*arguments: str | pathlib.Path, out: pathlib.Path) -> tuple[int, str]:
    """Run the command; its output goes to the file `out`. Exit code and stdout."""
    done = subprocess.run([sys.executable, "-m", "onnxopt", *map(str, arguments)], capture_output=True, text=True)
    out.write_text(f"$ onnxopt {' '.join(map(str, arguments))}\n{done.stdout}{done.stderr}(exit {done.returncode})\n")
    return done.returncode, done.stdout


def killed(artifact: pathlib.Path, budget: str) -> dict[str, Any]:
    """Start tune, and kill -9 it after a few trials; what its state file then holds."""
    process = subprocess.Popen(
        [sys.executable, "-m", "onnxopt", "tune", str(artifact), "--budget", budget], stdout=subprocess.DEVNULL
    )
    started = time.monotonic()
    trials: list[Any] = []
    while process.poll() is None and time.monotonic() - started < 60:
        time.sleep(0.2)
        for state in artifact.parent.glob(f"{artifact.name}.tune-*.json"):  # the library's files lie there too
            trials = json.loads(state.read_text()).get("trials", trials)
        if len(trials) >= _KILLED_AFTER_TRIALS:
            break
    process.send_signal(signal.SIGKILL)
    process.wait()
    return {"exit": process.returncode, "trials": len(trials), "seconds": round(time.monotonic() - started, 1)}


def loaded(artifact: pathlib.Path) -> dict[str, Any]:
    """Which file load takes; a CUDA graph replayed with other contents, and plain runs, against a plain session."""
    import onnxopt
    from onnxopt.artifact import manifest as manifests
    from onnxopt.graph.input_uses import Use
    from onnxopt.runtime import sessions
    from onnxopt.runtime.bound_run import BoundRun
    from onnxopt.runtime.configuration import configuration_for
    from onnxopt.verification.sampling import samples

    chosen = configuration_for(artifact)
    inputs = manifests.load(artifact).inputs
    uses = {
        t.name: (Use("index", (100,)),) for t in inputs if t.dtype.startswith("int")
    }  # token ids that every vocabulary has
    plain = onnxopt.load(artifact)
    session = onnxopt.load(artifact, cuda_graph=chosen.provider == sessions.CUDA)
    found = []
    for sizes in _sizes(inputs):
        draws = [samples.draw(inputs, sizes, seed, uses) for seed in (0, 1, 2)]
        run = BoundRun(session, draws[0], chosen.provider)
        for draw in [*draws, draws[0]]:
            expected = sessions.run(plain, draw)
            run.refill(draw)
            run()
            unbound = sessions.run(session, draw)  # without a graph, in between
            found += [
                compare(got, np.asarray(expected[name]))
                for outputs in (run.outputs(), unbound)
                for name, got in outputs.items()
            ]
    return {
        "file": chosen.path.name,
        "reason": chosen.reason,
        "tuned": "tuned" in chosen.data,
        "graphs": len(session._graph_ids) if chosen.provider == sessions.CUDA else None,
        "agree": all(f["agrees"] for f in found),
        "worst": max(f["max_abs"] for f in found),
    }


def _sizes(inputs: Any) -> list[dict[str, int]]:
    """Two sets of sizes for a model with dynamic dims, one for a static one."""
    from onnxopt.graph import signature

    names, (batch, _) = signature.symbols(inputs), signature.roles(inputs)
    if not names:
        return [{}]
    return [{n: b if n in batch else s for n in names} for b, s in ((2, 128), (3, 64))]


def measure(
    folder: pathlib.Path, out: pathlib.Path, name: str, artifacts: pathlib.Path, budget: str, kill: bool
) -> Any:
    artifact, agreement = restore(folder, name, artifacts)
    row: dict[str, Any] = {"compare": agreement}
    rule_made = _texts(artifact)
    if kill:
        row["killed"] = killed(artifact, budget)
    started = time.monotonic()
    code, text = onnxopt_command("tune", artifact, "--budget", budget, "--json", out=out / f"{name}.tune.txt")
    row["tune_seconds"] = round(time.monotonic() - started, 1)
    row["exit"], row["tune"] = code, json.loads(text) if text.startswith("{") else text[-500:]
    for file, text in _texts(artifact).items():
        if text != rule_made.get(file):
            (out / f"{name}.{file}").write_text(text)
    try:
        row["loaded"] = loaded(artifact)
    except Exception as error:  # noqa: BLE001 - what was tuned is worth having
        row["loaded"] = {"file": None, "error": f"{type(error).__name__}: {error}"[:400]}
    if kill:  # once is enough
        row["doctor_exit"], _ = onnxopt_command("doctor", artifact, out=out / f"{name}.doctor.txt")
    shutil.rmtree(artifact)
    return row


def _texts(artifact: pathlib.Path) -> dict[str, str]:
    """What tune may write, by file name."""
    files = [*(artifact / "providers").glob("*.json"), *(artifact / "lib").glob("*.json")]
    return {file.name: file.read_text() for file in files}


def table(rows: dict[str, Any]) -> str:
    """The rows as markdown."""
    head = ["model", "agrees", "mode", "rule-made ms", "tuned ms", "ratio", "98 %", "trials (resumed)", "s", "changes"]
    lines = ["| " + " | ".join([*head, "load"]) + " |", "|" + "---|" * (len(head) + 1)]
    for name, row in rows.items():
        tuned = row.get("tune")
        if "error" in row or not isinstance(tuned, dict):
            lines.append(f"| {name} | {row.get('error', tuned)} |" + " |" * (len(head) - 1))
            continue
        changes = "; ".join(f"{c['option']}: {c['before']} -> {c['after']}" for c in tuned["changes"])
        for mode, c in tuned["comparisons"].items():
            cells = [name, row["compare"]["agrees"], mode]
            cells += [f"{c[k]:.3f}" for k in ("first_ms", "second_ms", "ratio")]
            cells += [f"{c['low']:.3f} to {c['high']:.3f}", f"{tuned['trials']} ({tuned['resumed']})"]
            cells += [tuned["seconds"], changes, row["loaded"]["file"]]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def run(folder: pathlib.Path, out: pathlib.Path, names: list[str], budget: str, seconds: float, *, kill: bool) -> None:
    """Measure the models one after the other, as many as fit in `seconds`."""
    started = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        with tarfile.open(folder / "artifacts.tar.xz") as archive:
            archive.extractall(scratch, filter="data")
        onnxopt_command("doctor", out=out / "machine.doctor.txt")
        for index, name in enumerate(names):
            if time.monotonic() - started > seconds:
                rows[name] = {"error": "no time was left"}
                continue
            at = time.monotonic()
            try:
                rows[name] = measure(
                    folder, out, name, pathlib.Path(scratch) / "artifacts", budget, kill=kill and index == 0
                )
            except Exception as error:  # noqa: BLE001 - the other models' numbers are worth having
                rows[name] = {"error": f"{type(error).__name__}: {error}"[:400]}
            shown = {k: v for k, v in rows[name].items() if k != "tune"}
            print(f"{name} ({time.monotonic() - at:.0f} s): {json.dumps(shown)}", flush=True)
            (out / "tune.json").write_text(json.dumps(rows, indent=1))
    for text in sorted(out.glob("*.doctor.txt"))[:2]:
        print(text.read_text())
    print(table(rows))


def main() -> int:
    parser, (prepared, ran) = command(__doc__)
    ran.add_argument("out", type=pathlib.Path)
    ran.add_argument("--budget", default="45s")
    ran.add_argument("--seconds", type=float, default=200.0)
    ran.add_argument("--no-kill", action="store_true", help="let the first model's tune run through")
    for verb in (prepared, ran):
        verb.add_argument("--only", nargs="*", default=list(MODELS))
    prepared.add_argument("--no-launch-choices", action="store_true", help="the entry points of the rules alone")
    args = parser.parse_args()
    if args.verb == "prepare":
        prepare(args.folder, args.arch, args.only, launch_choices=not args.no_launch_choices)
    else:
        run(args.folder, args.out, args.only, args.budget, args.seconds, kill=not args.no_kill)
    return 0


if __name__ == "__main__":
    sys.exit(main())
