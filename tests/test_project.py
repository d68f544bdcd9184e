"""The project around the code: what setup.cfg says must be what the tree holds."""

from __future__ import annotations

import configparser
from pathlib import Path

from setuptools import find_packages

ROOT = Path(__file__).resolve().parent.parent


def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def test_every_package_of_the_tree_is_listed() -> None:
    listed = set(setup_cfg()["options"]["packages"].split())
    assert listed == {*find_packages(str(ROOT), include=["onnxopt", "onnxopt.*"]), "onnxopt.cuda_kernels"}


def test_the_command_reports_the_version_of_setup_cfg() -> None:
    import onnxopt

    assert onnxopt.__version__ == setup_cfg()["metadata"]["version"]


def test_files_that_are_not_python_are_installed() -> None:
    listed = setup_cfg()["options.package_data"]["onnxopt"].split()
    for path in (ROOT / "onnxopt").glob("*.json"):
        assert path.name in listed or "*.json" in listed
