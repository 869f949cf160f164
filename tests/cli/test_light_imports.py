"""Starting is quick: what a command does not need is not imported."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cli.support import Cli

HEAVY = {"sqlalchemy", "fastapi", "optuna", "ray", "torch", "numpy", "alembic", "uvicorn"}
SHOW = "import json, sys; print(json.dumps([name for name in sys.modules if '.' not in name]), file=sys.stderr)"


def modules_after(code: str, cli: Cli | None = None) -> set[str]:
    environment = None if cli is None else cli.environment()
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{SHOW}"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        timeout=60,
    )
    found: list[str] = json.loads(done.stderr.splitlines()[-1])
    return set(found)


def test_importing_x5tune_needs_the_standard_library_only() -> None:
    loaded = modules_after("import x5tune") - modules_after("pass")  # some Pythons bring a sitecustomize
    assert not loaded & (HEAVY | {"httpx", "yaml", "rich", "typer"})
    assert {name for name in loaded if not name.startswith("_")} - set(sys.stdlib_module_names) == {"x5tune"}


def test_names_are_found_when_they_are_used() -> None:
    assert "httpx" in modules_after("import x5tune; x5tune.Client, x5tune.InvalidSpec")
    import x5tune

    assert set(x5tune.__all__) <= set(dir(x5tune))
    with pytest.raises(AttributeError, match="wat"):
        x5tune.wat  # noqa: B018


def test_help_needs_no_network_and_no_yaml() -> None:
    loaded = modules_after("from x5tune.cli import main; main(['--help'])")
    assert not loaded & (HEAVY | {"httpx", "yaml"})


@pytest.mark.parametrize("arguments", [["jobs"], ["submit", "-w", "quadratic"], ["export", "last"]])
def test_talking_commands_need_no_part_of_the_service(cli: Cli, arguments: list[str]) -> None:
    loaded = modules_after(f"from x5tune.cli import main; main({arguments!r})", cli)
    assert not loaded & HEAVY
    assert "httpx" in loaded
