"""One cache folder for the tests of this folder, so that they neither read nor leave a user's."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _data_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = os.environ.get("X5TUNE_DATA")
    os.environ["X5TUNE_DATA"] = str(tmp_path_factory.mktemp("data"))
    torch.set_num_threads(1)
    yield
    if before is None:
        del os.environ["X5TUNE_DATA"]
    else:
        os.environ["X5TUNE_DATA"] = before
