"""The forms in which a user gives a whole set of inputs. Options hold it, so that this module imports numpy alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
DataSource = str | Path | Mapping[str, Array]
