"""The project around the code: what setup.cfg says must be what the tree holds."""

from __future__ import annotations

import configparser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def test_the_command_reports_the_version_of_setup_cfg() -> None:
    import onnxopt

    assert onnxopt.__version__ == setup_cfg()["metadata"]["version"]


def test_every_data_file_of_the_package_is_installed() -> None:
    """What lies beside the Python files (templates, style sheets, tables) is named by package_data."""
    patterns = setup_cfg()["options.package_data"]
    for folder in sorted({p.parent for p in (ROOT / "onnxopt").rglob("*.py")}):
        package = ".".join(folder.relative_to(ROOT).parts)
        listed = {p for pattern in patterns.get(package, "").split() for p in folder.glob(pattern)}
        others = {p for p in folder.iterdir() if p.is_file() and p.suffix not in (".py", ".pyc")}
        assert others <= listed, package
