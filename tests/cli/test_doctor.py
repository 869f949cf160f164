"""`doctor`: what is wrong is found where it is really wrong, and nothing that fails hides the rest."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bench.faults import free_port
from bench.postgres_server import find_binaries, postgres_server
from service import migrate
from tests.cli.support import COMMAND, Cli, Run

ROOT = Path(__file__).parents[2]
NOBODY = 65534
IS_ROOT = os.getuid() == 0
needs_root = pytest.mark.skipif(not IS_ROOT or not shutil.which("setpriv"), reason="needs root to become somebody else")
# An interpreter of root's own has to be readable; whoever may read everything is an ordinary user in all else.
READ_ALL = ["--inh-caps", "-all,+dac_read_search", "--ambient-caps", "-all,+dac_read_search"]


@pytest.fixture
def own_cli(home: Path) -> Cli:
    """The command line on a home whose database is ready, private as `serve` would have made it."""
    home.chmod(0o700)
    return Cli(home, {"X5TUNE_PORT": str(free_port())})


def findings(done: Run) -> dict[str, dict[str, Any]]:
    """What was found, by check; and that the exit code says the same."""
    document = done.json
    found = {each["name"]: each for each in document["checks"]}
    assert len(found) == len(document["checks"]) == 20
    has_problem = any(each["level"] == "problem" for each in found.values())
    assert (done.code, document["can_run_jobs"]) == ((1, False) if has_problem else (0, True)), done.err
    return found


def doctor(cli: Cli, *arguments: str, **more: str) -> dict[str, dict[str, Any]]:
    return findings(cli("doctor", "--json", *arguments, **more))


def as_ordinary_user(*arguments: str, folder: Path, uid: int = NOBODY, **variables: str) -> Run:
    become = ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups", *READ_ALL]
    done = subprocess.run(
        [*become, *COMMAND, *arguments],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "TMPDIR": str(folder), "PYTHONDONTWRITEBYTECODE": "1", **variables},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return Run(done.returncode, done.stdout, done.stderr)


def test_a_machine_that_can_run_jobs(own_cli: Cli) -> None:
    before = sorted(own_cli.folder.iterdir())
    found = doctor(own_cli)

    assert not {name for name, each in found.items() if each["level"] == "problem"}
    assert migrate.head() in found["database"]["found"]
    assert "free" in found["port"]["found"]
    assert sys.executable in found["python"]["found"]
    assert sorted(own_cli.folder.iterdir()) == before


def test_people_read_a_line_a_check_and_what_to_do(own_cli: Cli) -> None:
    (own_cli.folder / "client.json").write_text('{"url": "http://127.0.0.1:1", "token": "secret"}')
    (own_cli.folder / "client.json").chmod(0o644)
    done = own_cli("doctor")

    assert done.code == 1
    lines = done.out.splitlines()
    at = next(index for index, line in enumerate(lines) if line.split()[:2] == ["problem", "client.json"])
    assert "mode 644" in lines[at]
    assert lines[at + 1].strip() == f"chmod 600 {own_cli.folder / 'client.json'}"
    assert lines[-1].startswith("Jobs cannot run here: 1 problem")
    assert "secret" not in done.out


@pytest.mark.postgres
def test_postgres_that_is_down_is_said_and_its_password_is_not(own_cli: Cli) -> None:
    if find_binaries() is None and not os.environ.get("CI"):
        pytest.skip("PostgreSQL is not here")
    with postgres_server(is_durable=False) as server:
        server.stop()
        folder = server.url.partition("host=")[2]
        done = own_cli("doctor", "--json", "--database-url", f"postgresql://me:hush-hush@/x?host={folder}")
    found = findings(done)

    assert found["database"]["level"] == "problem"
    assert "X5TUNE_DATABASE_URL" in found["database"]["action"]
    assert found["clock"]["found"] == "not looked at"
    assert "hush" not in done.out + done.err


def test_refused_settings_hide_only_what_depends_on_them(own_cli: Cli) -> None:
    found = doctor(own_cli, X5TUNE_DATABASE_URL="mysql://x", X5TUNE_PORT="99999")

    assert found["settings"]["level"] == "problem"
    assert "only sqlite and postgresql" in found["settings"]["found"]
    assert "X5TUNE_PORT" in found["settings"]["found"]
    assert found["database"]["found"] == found["port"]["found"] == "not looked at"
    assert found["home"]["level"] == "ok"


@needs_root
def test_an_ordinary_user_with_an_unwritable_home_and_without_namespaces() -> None:
    with folder_of(NOBODY) as folder:
        home = folder / "roots"
        home.mkdir(mode=0o755)
        done = as_ordinary_user("doctor", "--json", folder=folder, X5TUNE_HOME=str(home), HOME=str(folder))

    found = findings(done)
    assert (found["home"]["level"], "Permission denied" in found["home"]["found"]) == ("problem", True)
    assert found["home"]["action"] == "Set X5TUNE_HOME to a folder that you may write."
    assert (found["namespaces"]["level"], found["temporary files"]["level"]) == ("warning", "ok")
    assert (found["torch"]["level"], found["ray"]["level"]) == ("ok", "ok")


@needs_root
def test_somebody_without_any_home() -> None:
    with folder_of(54321) as folder:
        done = as_ordinary_user("doctor", "--json", folder=folder, uid=54321)

    found = findings(done)
    assert "there is no home directory; set X5TUNE_HOME" in found["settings"]["found"]
    for name in ("home", "disk", "client.json", "database"):
        assert found[name]["found"] == "not looked at"
    assert found["python"]["level"] == found["torch"]["level"] == "ok"


@contextmanager
def folder_of(uid: int) -> Iterator[Path]:
    """A temporary folder that this user can reach and write."""
    with tempfile.TemporaryDirectory(prefix="x5doc", dir="/tmp") as name:
        os.chown(name, uid, uid)
        yield Path(name)


def test_without_the_worker_extra_it_says_how_to_get_it(own_cli: Cli, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    installed = Path(pytest.__file__).parents[1]
    left_out = ("torch", "ray", "functorch", "cmaes", "optuna_dashboard")
    for entry in installed.iterdir():
        if not entry.name.startswith(left_out) and entry.suffix != ".pth":
            (packages / entry.name).symlink_to(entry)
    code = (
        f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(packages)!r}]\nfrom x5tune.cli import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", code, "doctor", "--json"],
        env=own_cli.environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    found = findings(Run(done.returncode, done.stdout, done.stderr))

    for name in ("torch", "ray", "extra worker"):
        assert found[name]["level"] == "problem"
        assert found[name]["action"].startswith("pip install 'x5tune[worker]'")
    assert "cmaes" in found["extra worker"]["found"]
    assert (found["extra dashboard"]["level"], found["extra dashboard"]["action"]) == (
        "ok",
        "For it: pip install 'x5tune[dashboard]'",
    )
    assert found["database"]["level"] == "ok"


def test_what_hangs_crashes_or_fails_costs_no_other_check(own_cli: Cli, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    for name, text in (("torch", "import os; print('x' * 200_000); os.abort()"), ("ray", "import nothing_like_it")):
        (broken / name).mkdir(parents=True)
        (broken / name / "__init__.py").write_text(text)
    os.mkfifo(own_cli.folder / "client.json", 0o600)  # whoever reads it waits for a writer
    found = doctor(own_cli, "--timeout", "15", PYTHONPATH=f"{broken}{os.pathsep}{ROOT}")

    assert (found["torch"]["level"], "SIGABRT" in found["torch"]["found"]) == ("problem", True)
    assert (found["ray"]["level"], "nothing_like_it" in found["ray"]["found"]) == ("problem", True)
    assert (found["client.json"]["level"], found["client.json"]["found"]) == ("problem", "no answer within 15 s")
    assert found["home"]["level"] == found["database"]["level"] == found["port"]["level"] == "ok"


@pytest.mark.skipif(not IS_ROOT or not shutil.which("unshare"), reason="needs root to mount")
def test_small_shared_memory_and_a_full_disk(own_cli: Cli, tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounts = f"mount -t tmpfs -o size=64m none /dev/shm && mount -t tmpfs -o size=1m,mode=0700 none {small} && exec"
    inside = ["unshare", "--mount", "sh", "-c", f'{mounts} "$@"', "sh"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting is refused here")
    done = subprocess.run(
        [*inside, *COMMAND, "doctor", "--json"],
        env=own_cli.environment(X5TUNE_HOME=str(small)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    found = findings(Run(done.returncode, done.stdout, done.stderr))

    assert (found["shared memory"]["level"], "--shm-size" in found["shared memory"]["action"]) == ("warning", True)
    assert (found["disk"]["level"], "X5TUNE_HOME" in found["disk"]["action"]) == ("problem", True)


def test_its_options_have_bounds(lonely_cli: Cli) -> None:
    done = lonely_cli("doctor", "--timeout", "0")
    assert (done.code, "equal to 1" in done.err) == (2, True)
