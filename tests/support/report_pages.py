"""What the tests of the report share: pages read as text and tags, and results of a benchmark that nobody ran."""

from __future__ import annotations

import html.parser
import json
from pathlib import Path

from click.testing import CliRunner, Result

from onnxopt.artifact import manifest as manifests
from onnxopt.artifact.report.facts import Facts, read_facts
from onnxopt.tools.cli import main
from tests.support.small_models import CHAIN

STATIC = CHAIN.replace("batch", "64")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def timing(p50: float) -> dict[str, object]:
    quantiles = [round(p50 * (0.9 + 0.01 * k), 4) for k in range(21)]
    return {"p50": p50, "p95": 1.09 * p50, "mean": p50, "best": 0.9 * p50, "runs": 100, "quantiles": quantiles}


def bench_result(**changes: object) -> dict[str, object]:
    result = {"provider": "CUDAExecutionProvider", "case": "static, seed 0", "against": "original chain.onnx"}
    return {**result, "baseline": timing(3.0), "artifact": timing(2.0), "ratio": 1.5, "compared": 0.01, **changes}


def bench_file(path: Path, *results: dict[str, object]) -> Path:
    path.write_text(json.dumps(results[0] if len(results) == 1 else results))
    return path


class PageText(html.parser.HTMLParser):
    """Visible text, and every start tag with its attributes; fails where elements are not closed in order."""

    VOID = frozenset({"meta", "link", "input", "wbr", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


def read(artifact: Path) -> PageText:
    return PageText((artifact / "report.html").read_text("utf-8"))


def facts_of(artifact: Path) -> Facts:
    return read_facts(artifact, manifests.load(artifact))
