"""`make check` reads the subjects of commits: the form, the length and the scope."""

from __future__ import annotations

import pytest

from tests.support import commit_subjects

SCOPES = commit_subjects.scopes_of(
    ["onnxopt/graph/rewrite/table.py", "docs/verify.md", "Makefile", "custom_ops/cpu/scan.cc"]
)


@pytest.mark.parametrize(
    ("subject", "problem"),
    [
        ("rewrite: state all rules in one table", ""),
        ("table, docs: name what follows where rules apply", ""),
        ("custom_ops/cpu: sum float32 in float64", ""),
        ("onnxopt/graph/rewrite: state all rules in one table", ""),
        ("make: install hadolint", ""),
        ("makefile: install what the demo runs", ""),
        ("Rewrite rules are stated in one table", "is not `scope: verb object`"),
        ("rewrite: State all rules in one table", "is not `scope: verb object`"),
        ("rewrite: state all rules in one table.", "is not `scope: verb object`"),
        ("rewrite: state", "is not `scope: verb object`"),
        ("rewrite: state " + "x" * 58, "has 73 characters, 72 at most"),
        ("rules: state all rules in one table", "names 'rules', which is no folder or file of the tree"),
    ],
)
def test_subjects(subject: str, problem: str) -> None:
    found = commit_subjects.wrong(subject, SCOPES)
    assert found.startswith(problem) and bool(found) == bool(problem)
