"""Session: an artifact as an ordinary onnxruntime.InferenceSession. What `load` does is three lines in any language.

What is opened is what was hashed, although ONNX Runtime and the dynamic loader open files by path:

- The library, what lies beside it, and providers/ run or decide what runs. They are copied to a folder of this process
  (artifact/private.py), hashed while they are copied, and used from there. They are small. Sessions of one artifact
  share one copy, as the dynamic loader takes two copies for two libraries. Only where no folder can be written and the
  artifact lies on a read-only file system, as in a container, they are used where they are.
- The model and its weights may be large, and ONNX Runtime takes weights from beside the model only, and through no link
  that leaves the folder. So they stay where they are. The folder is held by a descriptor, and ONNX Runtime gets the
  path through that descriptor: renaming folders leads nowhere else. When the session is there, the files under these
  names must be those that were hashed, with the same times of their last change; else everything is done again.

Whoever may write into the weights in place can still change them once the session maps them, as with every model: sign
what must not change, and deploy it where only its owner writes.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from onnxopt.artifact import layout, private
from onnxopt.artifact.contents import HeldFolder
from onnxopt.artifact.open import Opened, opened
from onnxopt.errors import ArtifactError, UsageError
from onnxopt.paths import StrPath
from onnxopt.runtime import configuration as configurations
from onnxopt.runtime import operator_schemas, releases
from onnxopt.runtime.configuration import Configuration, configuration_for
from onnxopt.runtime.sessions import CPU, CUDA, RunError, Session, check_providers, one_line

if TYPE_CHECKING:
    import onnxruntime as ort

_Providers = Sequence[str | tuple[str, dict[str, Any]]]
_COPIED = (f"{layout.LIBRARY_FOLDER}/", f"{layout.PROVIDERS}/")
_ALONE = "standard operators alone, without onnxopt's kernels"
_ATTEMPTS = 3  # a deployment may replace the artifact meanwhile


def load(
    path: StrPath,
    *,
    providers: Sequence[str | tuple[str, dict[str, Any]]] | None = None,
    session_options: ort.SessionOptions | None = None,
    library: bool = True,
    cuda_graph: bool = False,
    stream: int | None = None,
    configuration: str | None = None,
    public_key: StrPath | None = None,
) -> Session:
    """Open an artifact, a folder or an archive of `onnxopt pack`, after checking every file's hash.

    Returns an onnxruntime.InferenceSession; `Session` is its type, as ONNX Runtime ships none.

    providers: as ONNX Runtime takes them, names or pairs of name and options. Default: those of the artifact's file for
    this machine (`configuration_for` says which and why); where CUDA does not start, the CPU's with a warning.
    session_options: the library is registered on them; default: those of the file. library=False:
    without the library, ONNX Runtime runs the original nodes.

    cuda_graph: the session captures and replays CUDA graphs. A run with an IO binding whose inputs and outputs all have
    fixed addresses on the device is captured once and replayed; every other run, `session.run` included, goes without a
    graph and is right at any shape. UsageError names the nodes that prevent a graph.

    stream: address of a CUDA stream that runs go on, such as torch.cuda.Stream().cuda_stream; it has to outlive the
    session. Default: a stream of the session's own. UsageError where CUDA does not run the artifact.

    configuration: a file of the artifact's providers/ by name ("h200.tensorrt") instead of this machine's. public_key:
    minisign's, as a path or its base64 line; an artifact that is not signed by it is refused. Default: the environment
    variable ONNXOPT_PUBLIC_KEY; where it is unset, no signature is checked.

    Operators of com.microsoft that the artifact uses are compared with those of this ONNX Runtime. Where one differs,
    model.portable.onnx is opened with a warning, if the artifact has it.

    Raises ArtifactError where a file is missing or changed, this ONNX Runtime is too old or refuses the model, or an
    operator differs in it;
    UsageError where this ONNX Runtime lacks a provider that was asked for.
    """
    if providers is not None and (cuda_graph or stream is not None or configuration is not None):
        raise UsageError(
            "cuda_graph, stream and configuration take the artifact's own providers: leave `providers` out"
        )
    options = _Options(providers, session_options, library, cuda_graph, stream, configuration, set())
    changed: Path | None = None
    for _ in range(_ATTEMPTS):
        with opened(path, public_key=public_key) as (artifact, held_folder):
            try:
                session = _loaded(artifact, held_folder, options)
            except ArtifactError:
                changed = held_folder.changed(_models(artifact))
                if changed is None:
                    raise
                continue
            changed = held_folder.changed(_models(artifact))
            if changed is None:
                # ONNX Runtime opens this path again where the caller sets other providers.
                session._model_path = str(artifact.folder / Path(session._model_path).name)
                return session
    raise ArtifactError(f"{changed}: was changed while it was being opened")


class _Options(NamedTuple):
    """What the caller of `load` asked for. registered: the libraries that its session options have by now."""

    providers: _Providers | None
    session_options: ort.SessionOptions | None
    library: bool
    cuda_graph: bool
    stream: int | None
    configuration: str | None
    registered: set[Path]


def _models(artifact: Opened) -> list[str]:
    """The files that ONNX Runtime may open by path: models and their weights."""
    return [name for name in artifact.manifest.files if "/" not in name and name != layout.REPORT]


def _loaded(artifact: Opened, held_folder: HeldFolder, options: _Options) -> ort.InferenceSession:
    """The session of an artifact that was checked. Messages have its own paths, not those that are opened instead."""
    _check_version(artifact, artifact.manifest.requires.onnxruntime, "to open it")
    standard = _runs_standard_operators(artifact)
    listed = {name: file for name, file in artifact.manifest.files.items() if name.startswith(_COPIED)}
    digest = hashlib.sha256(repr(sorted((name, file.sha256) for name, file in listed.items())).encode())
    try:
        copied = private.copies(held_folder, digest.hexdigest(), listed)
    except UsageError:
        if not held_folder.is_read_only():
            raise
        copied = artifact.folder.absolute()
    files = _Files(artifact.folder, held_folder.path, copied, layout.PORTABLE_MODEL if standard else None)
    has_library = options.library and artifact.library is not None and not standard
    library = copied / layout.LIBRARY_PATH if has_library else None
    try:
        return _session(artifact, files, options, library)
    except (ArtifactError, UsageError) as error:
        raise type(error)(files.shown(str(error))) from error


def _runs_standard_operators(artifact: Opened) -> bool:
    """Whether the model of standard operators alone runs, with a warning: others differ in this ONNX Runtime.

    ArtifactError where the artifact has no such model.
    """
    import onnxruntime as ort

    different = operator_schemas.differences(artifact.manifest.requires.operators)
    if not different:
        return False
    made = f"{artifact.folder}: was made with other operators than ONNX Runtime {ort.__version__} has: "
    shown = "; ".join(different[:3]) + (f"; and {len(different) - 3} more" if len(different) > 3 else "")
    if layout.PORTABLE_MODEL not in artifact.manifest.files:
        raise ArtifactError(
            f"{made}{shown}. Optimize the model again with this release; --portable also writes {_ALONE}"
        )
    warnings.warn(f"{made}{shown}. {layout.PORTABLE_MODEL} runs in its place: {_ALONE}", RuntimeWarning, stacklevel=4)
    return True


class _Files(NamedTuple):
    """Where files of an artifact are opened. folder: its own. models: the same folder, held. copied: lib, providers.

    model: the name of the file that is opened, default that of the configuration.
    """

    folder: Path
    models: Path
    copied: Path
    model: str | None = None

    def shown(self, text: str) -> str:
        """A message with the artifact's own folder in place of the others."""
        return text.replace(str(self.copied), str(self.folder)).replace(str(self.models), str(self.folder))


def _session(artifact: Opened, files: _Files, options: _Options, library: Path | None) -> ort.InferenceSession:
    if options.providers is not None:
        _check_providers(artifact, options.providers)
    if options.session_options is not None and library is not None and library not in options.registered:
        _register(options.session_options, library)
        options.registered.add(library)
    if options.providers is not None:
        # Only its session options are used: the caller's providers decide the rest.
        return _open(files, configuration_for(files.copied, CPU), options, library)
    name = options.configuration
    chosen = configurations.named(files.copied, name) if name else configuration_for(files.copied)
    _check_configuration(artifact, chosen, options)
    try:
        return _open(files, chosen, options, library)
    except ArtifactError as error:
        # A driver and a device do not yet make a working EP: cuDNN may be missing, or the GPU's memory be taken.
        if options.cuda_graph or options.stream is not None or name or chosen.provider == CPU:
            raise
        session = _open(files, configuration_for(files.copied, CPU), options, library)
        message = f"{artifact.folder} runs on the CPU: {files.shown(str(error))}; `onnxopt doctor` says more"
        warnings.warn(message, RuntimeWarning, stacklevel=4)
        return session


def _check_providers(artifact: Opened, providers: _Providers) -> None:
    """UsageError or ArtifactError unless this ONNX Runtime has the providers and can run the artifact on them."""
    names = [provider if isinstance(provider, str) else provider[0] for provider in providers]
    check_providers(names)
    if CUDA in names:
        _check_version(artifact, artifact.manifest.requires.onnxruntime_cuda, f"to run it on {CUDA}")


def _check_configuration(artifact: Opened, chosen: Configuration, options: _Options) -> None:
    """UsageError or ArtifactError unless this ONNX Runtime can run the artifact with this configuration."""
    check_providers([chosen.provider])
    if chosen.provider != CPU:
        _check_version(artifact, artifact.manifest.requires.onnxruntime_cuda, f"to run it on {chosen.provider}")
    if "onnxruntime" in chosen.data:  # newer than the artifact needs otherwise
        _check_version(artifact, chosen.data["onnxruntime"], f"to take {chosen.path.name}")
    if options.stream is not None and chosen.provider != CUDA:
        raise UsageError(f"stream needs {CUDA}, and {chosen.name}.json is taken here: {chosen.reason}")
    if options.cuda_graph:
        _check_graph(chosen)


def _check_graph(chosen: Configuration) -> None:
    """UsageError unless this configuration runs as a CUDA graph."""
    if chosen.provider != CUDA:
        raise UsageError(f"cuda_graph needs {CUDA}, and {chosen.name}.json is taken here: {chosen.reason}")
    if chosen.blocking is None:
        raise UsageError(f"{chosen.path}: does not say whether a CUDA graph is possible; optimize the model again")
    if chosen.blocking:
        shown = "; ".join(f"{node}: {reason}" for node, reason in chosen.blocking[:3])
        others = f" and {len(chosen.blocking) - 3} more" if len(chosen.blocking) > 3 else ""
        raise UsageError(f"cuda_graph: the model cannot be captured: {shown}{others}")


def _open(files: _Files, chosen: Configuration, options: _Options, library: Path | None) -> ort.InferenceSession:
    import onnxruntime as ort

    try:
        return configurations.open_session(
            files.models / files.model if files.model else model_of(files.models, chosen),
            library,
            _on_stream(chosen.data, options.stream),
            files.folder,
            cuda_graph=options.cuda_graph,
            options=options.session_options,
            providers=options.providers,
            quiet=False,
        )
    except RunError as error:
        raise ArtifactError(f"{files.folder}: ONNX Runtime {ort.__version__} refused it: {error}") from error


def _on_stream(data: dict[str, Any], stream: int | None) -> dict[str, Any]:
    """A configuration whose provider runs on the stream at this address, where one is given."""
    if stream is None:
        return data
    return data | {"provider_options": data["provider_options"] | {"user_compute_stream": str(stream)}}


def model_of(folder: Path, chosen: Configuration) -> Path:
    """The model file that a configuration is for: the first that exists of those it names."""
    names = chosen.data.get("model", layout.MODEL)
    candidates = [folder / name for name in ([names] if isinstance(names, str) else names)]
    return next((path for path in candidates if path.is_file()), folder / layout.MODEL)


def _register(options: ort.SessionOptions, library: Path) -> None:
    try:
        options.register_custom_ops_library(str(library))
    except Exception as error:  # ONNX Runtime raises a dozen unrelated classes
        raise ArtifactError(f"{library}: ONNX Runtime cannot use it: {one_line(error)}") from error


def _check_version(artifact: Opened, oldest: str, what: str) -> None:
    import onnxruntime as ort

    if releases.parts(ort.__version__) < releases.parts(oldest):
        reasons = "; ".join(artifact.manifest.requires.because)
        raise ArtifactError(
            f"{artifact.folder}: needs ONNX Runtime {oldest} {what}, this is {ort.__version__} ({reasons})"
        )
