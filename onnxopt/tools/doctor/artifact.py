"""The artifact: its files, what it needs, and which of its configurations this machine takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from onnxopt.artifact import manifest as manifests
from onnxopt.artifact.contents import check_files
from onnxopt.artifact.open import read_manifest
from onnxopt.artifact.signing import SignatureError
from onnxopt.artifact.summary import counted, executed_text, status_text, weak_lines
from onnxopt.errors import ArtifactError
from onnxopt.runtime import devices, operator_schemas
from onnxopt.runtime.configuration import configuration_for
from onnxopt.runtime.releases import TRIED, parts
from onnxopt.runtime.sessions import CUDA, cuda_is_usable
from onnxopt.tools.doctor.finding import Finding, Subject

_COPY_AGAIN = "copy the artifact again, all of it; or make it again with `onnxopt optimize`"


def files(folder: Path) -> tuple[Subject | None, list[Finding]]:
    """Check every file's hash. Returns the subject of further checks, None where there is no manifest, and findings.

    SignatureError where the artifact is not signed as ONNXOPT_PUBLIC_KEY asks; ArtifactError for an optimized folder of
    models.
    """
    try:
        manifest = read_manifest(folder)
    except SignatureError:
        raise
    except ArtifactError as error:
        if manifests.holds_many(folder):
            raise
        return None, [Finding("artifact", "problem", str(error), _COPY_AGAIN)]
    try:
        check_files(folder, manifest.files)
    except ArtifactError as error:
        return Subject(folder, manifest, opened=False), [Finding("artifact", "problem", str(error), _COPY_AGAIN)]
    places = sum(len(k.sites) for k in manifest.kernels)
    functions = counted(len(manifest.kernels), "fused function")
    text = f"{len(manifest.files)} files as packaged; {counted(places, 'call')} of {functions}"
    return Subject(folder, manifest, opened=True), [Finding("artifact", "ok", text)]


def versions(subject: Subject) -> Iterator[Finding]:
    """Whether ONNX Runtime is as new as the artifact needs."""
    import onnxruntime as ort

    needs = subject.manifest.requires
    oldest, what = needs.onnxruntime, "to open it"
    if cuda_is_usable():
        oldest, what = max((oldest, needs.onnxruntime_cuda), key=parts), "to run it on the GPU"
    if parts(ort.__version__) < parts(oldest):
        yield Finding(
            "versions",
            "problem",
            f"the artifact needs ONNX Runtime {oldest} {what}, this is {ort.__version__} ({'; '.join(needs.because)})",
            f"pip install 'onnxruntime-gpu>={oldest}'",
        )
    else:
        yield Finding("versions", "ok", f"ONNX Runtime {ort.__version__} is new enough: {oldest} is needed {what}")
    if parts(ort.__version__)[:2] > parts(TRIED[-1])[:2]:
        text = f"ONNX Runtime {ort.__version__} is newer than {TRIED[-1]}, the newest that this onnxopt was tried with"
        yield Finding("versions", "note", text)


def operators(subject: Subject) -> Iterator[Finding]:
    """Whether operators that ONNX Runtime alone defines are what they were when the artifact was made."""
    import onnxruntime as ort

    recorded = subject.manifest.requires.operators
    different = operator_schemas.differences(recorded)
    for text in different:
        yield Finding(
            "operators",
            "problem",
            f"{text} in ONNX Runtime {ort.__version__}, which the artifact was not made with",
            "optimize the model again with this ONNX Runtime; with --portable, onnxopt.load has another model to open",
        )
    if recorded and not different:
        names = ", ".join(f"{schema}" for schema in recorded)
        yield Finding("operators", "ok", f"as they were when the artifact was made: {names}")


def architectures(subject: Subject) -> Iterator[Finding]:
    """Whether the artifact has code for each GPU here, and the driver is new enough for it."""
    if not subject.manifest.kernels:
        yield Finding("kernels", "note", "nothing was fused: the artifact is the normalized model, and has no kernels")
        return
    archs = subject.manifest.archs
    for device in _devices():
        if device.arch not in archs:
            yield Finding(
                "kernels",
                "problem",
                f"{device.name} is {device.arch}, the artifact has code for {', '.join(archs) or 'no GPU'}: "
                "its kernels are not used there",
                f"onnxopt optimize MODEL -o ARTIFACT --arch {device.arch}, or without --arch for every GPU",
            )
            continue
        served, needed = devices.cuda_version() or "0", subject.manifest.requires.cuda_driver.get(device.arch, "0")
        if parts(served) < parts(needed):
            yield Finding(
                "kernels",
                "problem",
                f"kernels for {device.arch} need a driver for CUDA {needed}, this one serves up to {served}",
                f"update the NVIDIA driver to one for CUDA {needed} or later",
            )
        else:
            yield Finding("kernels", "ok", f"has code for {device.arch} ({device.name})")


def configuration(subject: Subject) -> Iterator[Finding]:
    """Which file of providers/ `load` takes here."""
    try:
        chosen = configuration_for(subject.folder)
    except ArtifactError as error:
        yield Finding("configuration", "problem", str(error), _COPY_AGAIN)
        return
    tuned = " and tuned" if "tuned" in chosen.data else ""
    generic = chosen.provider == CUDA and chosen.name == "cuda"
    text = f"load takes {chosen.path.parent.name}/{chosen.path.name}{tuned}: {chosen.reason}"
    yield Finding("configuration", "note" if generic else "ok", text)
    release = chosen.data.get("tuned", {}).get("onnxruntime")
    import onnxruntime as ort

    if release and release != ort.__version__:
        yield Finding(
            "configuration", "note", f"it was tuned on ONNX Runtime {release}, this is {ort.__version__}: tune again"
        )


def _devices() -> tuple[devices.Device, ...]:
    try:
        return devices.devices()
    except devices.DriverError:
        return ()


def verification(subject: Subject) -> Iterator[Finding]:
    """Whether the artifact was verified, and on a machine with a GPU, whether its CUDA kernels were."""
    report, archs = subject.manifest.verify, subject.manifest.archs
    executed = executed_text(report, archs)
    text = status_text(report) + (f"; kernels executed: {executed}" if executed else "")
    on_cuda = any(row.provider == CUDA for row in report.executed or ())
    if report.status == "failed":
        fix = "optimize the model again on this machine, and report it if that fails too"
        yield Finding("verify", "problem", f"{text}: {report.reason}", fix)
    elif not report.agrees:
        where = "cuda" if cuda_is_usable() else "cpu"
        fix = f"onnxopt verify ORIGINAL {subject.folder} --on {where}"
        yield Finding("verify", "note", f"the artifact was never compared with its original ({text})", fix)
    elif archs and not on_cuda and cuda_is_usable():
        fix = f"onnxopt verify ORIGINAL {subject.folder} --on cuda"
        yield Finding("verify", "note", f"{text}; the CUDA kernels were never compared with the original", fix)
    elif report.status == "undecided":
        fix = f"onnxopt verify ORIGINAL {subject.folder} --data INPUTS.npz"
        yield Finding("verify", "note", f"{text}: {'; '.join(weak_lines(report))}", fix)
    else:
        yield Finding("verify", "ok", text)
