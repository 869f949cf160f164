"""How commands fail: one sentence on standard error, a way out, and an exit code that scripts can rely on."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.support import Cli, Run
from tests.service.support import Service
from x5tune import connection
from x5tune.cli import app, main
from x5tune.errors import ConfigurationError


class _Stranger(http.server.BaseHTTPRequestHandler):
    """Something else that listens on the port."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<html>nothing here</html>")

    def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - the base class's name


@pytest.fixture
def stranger() -> Iterator[str]:
    server = http.server.HTTPServer(("127.0.0.1", 0), _Stranger)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_unreachable_service_names_the_address_and_the_way_out(lonely_cli: Cli) -> None:
    for arguments, address in (((), "http://127.0.0.1:9"), (("--url", "http://localhost:9/"), "http://localhost:9")):
        done = lonely_cli("jobs", *arguments, X5TUNE_PORT="9")
        assert (done.code, done.out) == (3, "")
        assert done.err.startswith(f"Error: Cannot reach the x5tune service at {address}: nothing listens there.")
        assert "x5tune serve" in done.err


def test_something_else_on_the_port_counts_as_unreachable(lonely_cli: Cli, stranger: str) -> None:
    done = lonely_cli("jobs", "--url", stranger)
    assert (done.code, "is not x5tune" in done.err) == (3, True)


def test_without_a_good_token_it_is_unauthorised(cli: Cli, lonely_cli: Cli, service: Service) -> None:
    assert cli("jobs", "--token", "x5t_wrong").code == 4
    done = lonely_cli("jobs", "--url", service.url)
    assert (done.code, "needs a token" in done.err) == (4, True)


def test_the_token_that_serve_left_goes_to_no_other_address(lonely_cli: Cli, service: Service) -> None:
    left = {"url": "http://127.0.0.1:9", "token": service.secrets["admin"]}
    (lonely_cli.folder / "client.json").write_text(json.dumps(left))
    assert lonely_cli("jobs", "--url", service.url).code == 4
    (lonely_cli.folder / "client.json").write_text(json.dumps({**left, "url": service.url}))
    assert lonely_cli("jobs", "--url", service.url.replace("127.0.0.1", "localhost")).code == 0
    assert lonely_cli("jobs").code == 0


@pytest.mark.parametrize("content", ["", "junk", "[]", '{"token": "x"}', '{"url": 5}', '{"url": "ftp://x"}'])
def test_a_broken_client_file_is_bad_usage(tmp_path: Path, content: str) -> None:
    (tmp_path / "client.json").write_text(content)
    with pytest.raises(ConfigurationError):
        connection.find(environ={"X5TUNE_HOME": str(tmp_path)})


def test_a_broken_client_file_is_named(lonely_cli: Cli) -> None:
    (lonely_cli.folder / "client.json").write_text("junk")
    done = lonely_cli("jobs")
    assert (done.code, str(lonely_cli.folder / "client.json") in done.err) == (2, True)


@pytest.mark.parametrize(
    "arguments",
    [("wat",), ("jobs", "--limit", "x"), ("jobs", "--state", "wat"), ("show",), ("show", "a", "b"), ("jobs", "--wat")],
)
def test_bad_usage_is_2(
    service: Service, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("X5TUNE_URL", service.url)
    monkeypatch.setenv("X5TUNE_TOKEN", service.secrets["admin"])
    assert main(list(arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Error: ")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("jobs", "--limit", "x"), "'--limit' / '-l': must be a whole number"),
        (("suggest", "--parameters", "x", "--tokens", "1"), "'--parameters': must be a number"),
        (("jobs", "--limit", "0"), "must be greater than or equal to 1"),
    ],
)
def test_a_value_that_an_option_does_not_take_is_told_in_plain_words(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(list(arguments)) == 2
    assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("url", ["nonsense", "ftp://x", "http://", "http://x:99999", "http://[::1", "http://x/?a"])
def test_an_address_that_is_none_is_bad_usage(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "--url", url]) == 2
    assert "is not the address of a service" in capsys.readouterr().err


def test_a_traceback_is_there_for_those_who_ask(lonely_cli: Cli) -> None:
    assert "Traceback" in lonely_cli("jobs", X5TUNE_PORT="9", X5TUNE_DEBUG="1").err


def test_text_that_the_terminal_cannot_show_is_escaped(cli: Cli) -> None:
    done = cli("submit", "-w", "quadratic", "-n", "größer ✓", PYTHONIOENCODING="ascii")
    assert done.code == 0
    assert "gr\\xf6\\xdfer \\u2713" in done.out
    assert json.loads(cli("show", "last", "--json", PYTHONIOENCODING="ascii").out)["name"] == "größer ✓"


def test_help_has_an_example_for_every_command(lonely_cli: Cli) -> None:
    groups = [group.typer_instance for group in app.registered_groups]
    commands = [info.callback for each in (app, *groups) if each is not None for info in each.registered_commands]
    assert len(commands) >= 17
    for command in commands:
        assert command is not None
        assert "Example: " in (command.__doc__ or ""), command.__name__
    done = lonely_cli("serve", "--help", COLUMNS="100")
    for variable in ("X5TUNE_HOST", "X5TUNE_PORT", "X5TUNE_HOME", "X5TUNE_DATABASE_URL", "X5TUNE_LEASE_S"):
        assert f"[env var: {variable}]" in done.out
    assert "[env var: X5TUNE_TOKEN]" in lonely_cli("jobs", "--help", COLUMNS="100").out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("more", ["", "--json"])
def test_output_that_does_not_fit_is_an_error_and_no_bug(cli: Cli, more: str) -> None:
    cli("submit", "-w", "quadratic")
    done = shell(cli, f"jobs {more} > /dev/full")
    assert done.code == 1
    assert done.err == "Error: Cannot write the output: No space left on device.\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_a_closed_stream_is_no_error(cli: Cli, closed: str) -> None:
    cli("submit", "-w", "quadratic", "-n", "the only one")
    done = shell(cli, f"jobs {closed}")
    assert (done.code, done.err) == (0, "")
    assert ("the only one" in done.out) == (">&-" not in closed.replace("2>&-", ""))


def shell(cli: Cli, line: str) -> Run:
    """A command of ours in a shell, for what the shell does to its streams."""
    done = subprocess.run(
        ["/bin/sh", "-c", f'"{sys.executable}" -W error -m x5tune.cli {line}'],
        capture_output=True,
        cwd=cli.folder,
        env=cli.environment(),
        timeout=60,
        check=False,
    )
    return Run(done.returncode, done.stdout.decode(), done.stderr.decode())
