"""What the service counts and measures, for Prometheus."""

from __future__ import annotations

from fastapi import Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

# Seconds: from a small model in a CUDA graph to a large one on a CPU.
_BUCKETS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)


class Metrics:
    """A registry of its own, so that several services fit in one process."""

    def __init__(self, model: str):
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        names = ("model",)

        requests = Counter("inference_requests", "Requests by HTTP status", (*names, "status"), registry=self._registry)
        self._requests = requests
        self._model = model
        self._seconds = self._histogram("inference_request_seconds", "From the first byte to the answer").labels(model)
        self.inference = self._histogram("inference_run_seconds", "In ONNX Runtime, with waiting for it").labels(model)
        waiting = Gauge("inference_waiting", "Requests that wait or run", names, registry=self._registry)
        self.waiting = waiting.labels(model)
        ready = Gauge("model_ready", "1 once the model answers", (*names, "configuration"), registry=self._registry)
        self._ready = ready
        opening = Gauge("model_open_seconds", "Opening and warming up", names, registry=self._registry)
        self._opening = opening.labels(model)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(name, text, ("model",), buckets=_BUCKETS, registry=self._registry)

    def ready(self, configuration: str, seconds: float) -> None:
        self._ready.labels(self._model, configuration).set(1)
        self._opening.set(seconds)

    def answered(self, status: int, seconds: float) -> None:
        """One request was answered."""
        self._requests.labels(self._model, str(status)).inc()
        self._seconds.observe(seconds)

    def response(self) -> Response:
        return Response(generate_latest(self._registry), media_type=CONTENT_TYPE_LATEST)
