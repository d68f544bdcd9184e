"""`python -m tests.fuzz`: random graphs through the whole pipeline, for as long as asked; see graphs.py."""

from __future__ import annotations

from tests.fuzz import graphs

graphs.main()
