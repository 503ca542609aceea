"""The wheel, built once."""

from __future__ import annotations

from pathlib import Path

import pytest
from distributions import ROOT, built


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", ROOT, tmp_path_factory.mktemp("dist"))
