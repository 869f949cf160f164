"""Pausing, as far as a script is concerned: save, stop, load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import x5tune
from tests.probing.server import serving
from tests.probing.test_reporting import a_new_process, disconnect, inside
from x5tune import probing

__all__ = ["a_new_process"]


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Go on as another process."""
    disconnect()
    monkeypatch.setattr(probing, "_state", probing._State())


def test_a_pause_saves_and_stops_and_the_next_run_loads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loaded: list[str] = []
    with serving({"go": "pause", "reason": "paused"}) as server:
        inside(monkeypatch, server, checkpoint_dir=str(tmp_path / "1"))
        assert not x5tune.checkpoint(save=lambda path: Path(path).write_text("step 1"), load=loaded.append)
        with pytest.raises(x5tune.Stop, match="paused"):
            x5tune.report(step=1, val_loss=1)
        forget(monkeypatch)
        inside(monkeypatch, server, resume_dir=str(tmp_path / "1"), checkpoint_dir=str(tmp_path / "2"))
        assert x5tune.checkpoint(save=loaded.append, load=loaded.append)

    assert [Path(path).read_text() for path in loaded] == ["step 1"]
    assert [path.name for path in (tmp_path / "1").iterdir()] == ["script"]
    assert server.connections[0][1:] == [
        {"type": "report", "step": 1, "metrics": {"val_loss": 1.0}, "can_pause": True},
        {"type": "end", "outcome": "paused", "reason": "paused"},
    ]


def test_a_state_may_be_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def save(path: str) -> None:
        Path(path).mkdir()
        Path(path, "model").write_text("weights")

    with serving({"go": "pause"}) as server:
        inside(monkeypatch, server, checkpoint_dir=str(tmp_path))
        x5tune.checkpoint(save=save, load=lambda path: None)
        with pytest.raises(x5tune.Stop):
            x5tune.report(step=1, val_loss=1)
        disconnect()

    assert [(path.name, Path(path, "model").read_text()) for path in tmp_path.iterdir()] == [("script", "weights")]


def test_a_save_that_fails_is_an_error_of_the_script_and_leaves_nothing_that_looks_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def save(path: str) -> None:
        Path(path).write_text("half")
        raise OSError("disk full")

    with serving({"go": "pause"}) as server:
        inside(monkeypatch, server, checkpoint_dir=str(tmp_path))
        x5tune.checkpoint(save=save, load=lambda path: None)
        with pytest.raises(OSError, match="disk full"):
            x5tune.report(step=1, val_loss=1)
        disconnect()

    assert not (tmp_path / "script").exists()
    assert [message["type"] for message in server.connections[0]] == ["hello", "report"]


def test_a_save_that_writes_nothing_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with serving({"go": "pause"}) as server:
        inside(monkeypatch, server, checkpoint_dir=str(tmp_path))
        x5tune.checkpoint(save=lambda path: None, load=lambda path: None)
        with pytest.raises(RuntimeError, match="has written nothing"):
            x5tune.report(step=1, val_loss=1)
        disconnect()


def test_a_state_that_is_gone_is_an_error_and_no_new_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with serving() as server:
        inside(monkeypatch, server, resume_dir=str(tmp_path))
        with pytest.raises(RuntimeError, match="is to go on from"):
            x5tune.checkpoint(save=lambda path: None, load=lambda path: None)


@pytest.mark.parametrize("config", [{}, {"checkpoint_dir": "/nowhere"}])
def test_a_run_without_a_folder_or_without_a_save_says_that_it_cannot_be_paused(
    monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]
) -> None:
    with serving() as server:
        inside(monkeypatch, server, **config)
        if not config:
            x5tune.checkpoint(save=lambda path: None, load=lambda path: None)
        x5tune.report(step=1, val_loss=1)
        disconnect()

    assert "can_pause" not in server.reports[0]
