"""Serves an artifact over HTTP, with plain ONNX Runtime:

    pip install fastapi uvicorn prometheus-client
    ARTIFACT=path/to/artifact uvicorn --app-dir examples/fastapi --factory app:create_app
    python examples/triton/client.py localhost:8000 model x=8x128

It speaks KServe's protocol v2, as Triton does, so clients of Triton are clients of this service:

    GET  /v2/health/live, /v2/health/ready      live: it can still become ready; ready: it answers now
    GET  /v2/models/model, .../ready            inputs and outputs
    POST /v2/models/model/infer                 JSON, or JSON with binary data behind it
    GET  /metrics                               Prometheus

Environment:

    MODEL_NAME      in the paths above; default: model
    CONFIGURATION   a file of the artifact's providers/ by name; default: what `onnxopt tune` wrote for this GPU,
                    else cuda.json or cpu.json
    WARM            shapes to run before the service is ready, by dim or by input: "batch=1,tokens=128;batch=8,x=8x128";
                    default: the model's own shape where it has no open dims
    LIMITS          the largest sizes of open dims that are served: "batch=64,tokens=512"
    MAX_BODY_MB     of one request; default: 64
    MAX_WAITING     requests that wait or run at one time; more get status 503; default: 64
    MAX_READING_MB  of bodies that have come in part; more get status 503; default: 4 times MAX_BODY_MB
    READ_SECONDS    how long the next part of a body may take, and the whole body beside a second for each 100 kB of
                    it; then the status is 408; default: 30
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import onnxruntime as ort
import v2
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from metrics import Metrics
from model import Model, RefusedInputs
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

_log = logging.getLogger("uvicorn.error")
_BYTES_A_SECOND = 100e3  # that a client has to send


@dataclasses.dataclass(frozen=True)
class Settings:
    """The environment, read. max_body, max_reading: bytes."""

    artifact: Path
    name: str = "model"
    configuration: str = ""
    warm: tuple[dict[str, str], ...] = ()
    limits: dict[str, int] = dataclasses.field(default_factory=dict)
    max_body: int = 64 << 20
    max_waiting: int = 64
    max_reading: int = 256 << 20
    read_seconds: float = 30.0

    @classmethod
    def read(cls, environment: dict[str, str]) -> Settings:
        if "ARTIFACT" not in environment:
            raise ValueError("set ARTIFACT to the folder that `onnxopt optimize` wrote")
        body_mb = int(environment.get("MAX_BODY_MB", cls.max_body >> 20))
        return cls(
            artifact=Path(environment["ARTIFACT"]).absolute(),
            name=environment.get("MODEL_NAME", cls.name),
            configuration=environment.get("CONFIGURATION", ""),
            warm=tuple(_pairs(case) for case in environment.get("WARM", "").split(";") if case),
            limits={name: int(size) for name, size in _pairs(environment.get("LIMITS", "")).items()},
            max_body=body_mb << 20,
            max_waiting=int(environment.get("MAX_WAITING", cls.max_waiting)),
            max_reading=int(environment.get("MAX_READING_MB", 4 * body_mb)) << 20,
            read_seconds=float(environment.get("READ_SECONDS", cls.read_seconds)),
        )


class Service:
    """A model that is opened and warmed up in a thread of its own, so that the server can say that it is not ready."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.metrics = Metrics(settings.name)
        self.model: Model | None = None
        self.failure: str | None = None
        self.waiting = 0
        self.reading = 0  # bytes of bodies that have come in part

    def open(self) -> None:
        """Make the model ready; `failure` says why it cannot be."""
        try:
            started = time.perf_counter()
            model = Model(self.settings.artifact, self.settings.configuration)
            if unknown := self.settings.limits.keys() - model.open_dims:
                raise ValueError(f"LIMITS: the model has no open dim {', '.join(sorted(unknown))}")
            for case in self.settings.warm or ([{}] if model.has_one_shape else []):
                model.warm_up(case)
        except Exception as error:  # noqa: BLE001  whatever it is, this service cannot become ready
            self.failure = str(error)
            _log.error("the model cannot be served: %s", error)
            return
        self.metrics.ready(model.configuration, time.perf_counter() - started)
        _log.info("%s is ready on %s, providers/%s.json", self.settings.name, model.provider, model.configuration)
        self.model = model

    def ready_model(self, name: str) -> Model:
        """RequestError where there is no such model, or it is not ready."""
        if name != self.settings.name:
            raise v2.RequestError(f"there is no model {name}; this service has {self.settings.name}", 404)
        if self.model is None:
            raise v2.RequestError(f"{name} is not ready: {self.failure or 'it is being opened'}", 503)
        return self.model

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """RequestError where too many requests are here already."""
        if self.waiting >= self.settings.max_waiting:
            raise v2.RequestError(f"{self.waiting} requests are being served: try again later", 503)
        self.waiting += 1
        self.metrics.waiting.set(self.waiting)
        try:
            yield
        finally:
            self.waiting -= 1
            self.metrics.waiting.set(self.waiting)

    def infer(self, model: Model, body: bytes, header_length: str | None) -> Response:
        """The answer to one request."""
        request = v2.read_request(body, header_length, model.inputs, model.outputs, self.settings.limits)
        started = time.perf_counter()
        try:
            results = model.run(request.feeds)
        except RefusedInputs as error:
            raise v2.RequestError(f"ONNX Runtime refuses the inputs: {error}") from error
        self.metrics.inference.observe(time.perf_counter() - started)
        answer, length = v2.write_response(self.settings.name, request, results)
        if length is None:
            return Response(answer, media_type="application/json")
        return Response(answer, media_type="application/octet-stream", headers={v2.HEADER_LENGTH: str(length)})


def create_app(settings: Settings | None = None) -> FastAPI:
    """The service of these settings, default: those of the environment."""
    service = Service(settings or Settings.read(dict(os.environ)))

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        threading.Thread(target=service.open, daemon=True).start()
        yield

    app = FastAPI(title="onnxopt artifact", lifespan=lifespan)
    app.state.service = service
    _answer_errors(app)
    _add_health(app, service)
    _add_model(app, service)
    return app


def _add_health(app: FastAPI, service: Service) -> None:
    @app.get("/v2/health/live")
    def live() -> JSONResponse:
        # An opened model stays alive; one that cannot be opened should be started again, or looked at.
        return JSONResponse({"live": service.failure is None}, 200 if service.failure is None else 503)

    @app.get("/v2/health/ready")
    def ready() -> JSONResponse:
        service.ready_model(service.settings.name)
        return JSONResponse({"ready": True})

    @app.get("/metrics")
    def metrics() -> Response:
        return service.metrics.response()


def _add_model(app: FastAPI, service: Service) -> None:
    @app.get("/v2")
    def server() -> dict[str, Any]:
        return {"name": "onnxopt example", "version": ort.__version__, "extensions": ["binary_tensor_data"]}

    @app.get("/v2/models/{name}")
    def metadata(name: str) -> dict[str, Any]:
        model = service.ready_model(name)
        return {
            "name": name,
            "versions": ["1"],
            "platform": "onnxruntime_onnx",
            "inputs": [v2.described(tensor) for tensor in model.inputs],
            "outputs": [v2.described(tensor) for tensor in model.outputs],
        }

    @app.get("/v2/models/{name}/ready")
    def model_ready(name: str) -> dict[str, Any]:
        service.ready_model(name)
        return {"name": name, "ready": True}

    @app.post("/v2/models/{name}/infer")
    async def infer(name: str, request: Request) -> Response:
        started, status = time.perf_counter(), 500
        try:
            model = service.ready_model(name)
            body = await _body(request, service)  # without a place, which a client that sends slowly would hold
            with service.place():
                answer = await run_in_threadpool(service.infer, model, body, request.headers.get(v2.HEADER_LENGTH))
            status = answer.status_code
            return answer
        except v2.RequestError as error:
            status = error.status
            raise
        except ClientDisconnect:
            status = 499  # as nginx counts a client that hung up; nobody reads the answer
            return Response(status_code=status)
        finally:
            service.metrics.answered(status, time.perf_counter() - started)


def _answer_errors(app: FastAPI) -> None:
    """Errors as the protocol has them: an object with one line."""

    @app.exception_handler(v2.RequestError)
    def refused(_: Request, error: v2.RequestError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, error.status, {"Retry-After": "1"} if error.status == 503 else None)

    @app.exception_handler(Exception)
    def failed(_: Request, error: Exception) -> JSONResponse:
        _log.error("an inference failed", exc_info=error)
        return JSONResponse({"error": "the inference failed; the server's log says more"}, 500)


async def _body(request: Request, service: Service) -> bytes:
    """The whole body. RequestError as soon as it is too large, announced to be, or too slow; ClientDisconnect."""
    if encoding := request.headers.get("content-encoding"):
        raise v2.RequestError(f"Content-Encoding {encoding} is not read here: send the body as it is", 415)
    settings, parts, size = service.settings, [], 0
    most = settings.max_body
    too_large = v2.RequestError(f"the body is larger than {most >> 20} MB, the most that this service reads", 413)
    if v2.number_in(request.headers.get("content-length", "0"), most) is None:
        raise too_large
    stream, started = request.stream(), time.monotonic()

    def seconds_left() -> float:
        whole = started + settings.read_seconds + size / _BYTES_A_SECOND - time.monotonic()
        return max(0.0, min(settings.read_seconds, whole))

    try:
        while part := await asyncio.wait_for(anext(stream, b""), seconds_left()):
            size += len(part)
            service.reading += len(part)
            if size > most:
                raise too_large
            if service.reading > settings.max_reading:
                raise v2.RequestError("too many bodies are being read: try again later", 503)
            parts.append(part)
    except TimeoutError:
        raise v2.RequestError(
            f"the body came too slowly, or no more of it in {settings.read_seconds:g} seconds", 408
        ) from None
    finally:
        service.reading -= size
    return b"".join(parts)


def _pairs(text: str) -> dict[str, str]:
    """ "batch=8,x=8x128" as a dict. ValueError where it is something else."""
    pairs = [part.strip().rpartition("=") for part in text.split(",") if part.strip()]
    for name, _, size in pairs:
        if not name or not all(d.isdecimal() for d in size.split("x")):
            raise ValueError(f"{text!r}: expected NAME=SIZE,NAME=SIZE, as in batch=8,tokens=128")
    return {name: size for name, _, size in pairs}
