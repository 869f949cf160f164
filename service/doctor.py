"""What keeps a service from running jobs here: its settings, home folder, database and port, and the machine itself."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import json
import os
import stat
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote, urlsplit

import sqlalchemy as sa
from alembic.script import ScriptDirectory
from sqlalchemy.exc import SQLAlchemyError

from service import migrate
from service.api_process import listen
from service.database import make_engine, now
from service.errors import PortInUseError, SettingError
from service.setting_values import PREFIX
from service.settings import Settings
from tuner.checkup import Check, Finding, examine, ok, problem, reason, warning
from tuner.machine_checks import look_at_room, machine_checks

ANSWER_S = 5.0
NOWHERE = "/nonexistent"
DRIFT_S = 2.0
OTHERS_ACCESS = stat.S_IRWXG | stat.S_IRWXO
HOME, DATABASE_URL, HOST, PORT, RAY_ADDRESS = (
    PREFIX + name for name in ("HOME", "DATABASE_URL", "HOST", "PORT", "RAY_ADDRESS")
)


def look_around(environ: Mapping[str, str], timeout_s: float) -> list[tuple[str, Finding]]:
    """Everything that can be known without starting anything, each check `timeout_s` at most; changes nothing.

    Where a setting is refused, what depends on it is not looked at; everything else is.
    """
    settings, refused = read_settings(environ)
    database_needs = {DATABASE_URL} if environ.get(DATABASE_URL) else {DATABASE_URL, HOME}
    home = settings.home
    checks = [
        Check("settings", lambda: _settings_finding(settings, refused)),
        *machine_checks(settings.ray_address),
        _unless(refused, {HOME}, "home", lambda: look_at_home(home)),
        _unless(refused, {HOME}, "disk", lambda: look_at_disk(home)),
        _unless(refused, {HOME}, "client.json", lambda: look_at_client_file(settings.client_file)),
        _unless(refused, database_needs, "database", lambda: look_at_database(settings)),
        _unless(refused, database_needs, "clock", lambda: look_at_clock(settings)),
        _unless(refused, {HOST, PORT}, "port", lambda: look_at_port(settings)),
    ]
    return examine(checks, timeout_s)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A setting that cannot be used, and why."""

    variable: str
    message: str
    remedy: str


def read_settings(environ: Mapping[str, str]) -> tuple[Settings, list[Refusal]]:
    """The settings, with stand-ins for those that were refused: one wrong variable must not hide what else is wrong."""
    env, refused = dict(environ), list[Refusal]()
    while True:
        try:
            return Settings.from_environment(env), refused
        except SettingError as error:
            refused.append(Refusal(error.variable, str(error), error.remedy))
            env.pop(error.variable, None)
            env |= {HOME: NOWHERE} if error.variable == HOME else {}


def _unless(refused: list[Refusal], needs: set[str], name: str, look: Callable[[], Finding]) -> Check:
    missing = sorted(needs & {each.variable for each in refused})
    if not missing:
        return Check(name, look)
    return Check(name, lambda: warning("not looked at", f"Correct {' and '.join(missing)} first."))


def _settings_finding(settings: Settings, refused: list[Refusal]) -> Finding:
    if refused:
        return problem("; ".join(each.message for each in refused), f"Correct {refused[0].variable} first.")
    return ok(f"{HOME}={settings.home}, {PORT}={settings.port}")


def look_at_home(home: Path) -> Finding:
    """Whether `serve` and `runner` can keep their files there, and others cannot read them."""
    action = f"Set {HOME} to a folder that you may write."
    if not home.exists():
        parent = next(each for each in home.parents if each.exists())
        if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
            return problem(f"{home} cannot be made in {parent}", action)
        return ok(f"{home} is not there yet", "x5tune serve makes it.")
    if not home.is_dir():
        return problem(f"{home} is not a folder", action)
    try:
        tempfile.TemporaryFile(dir=home).close()  # what may be written is known for certain only afterwards
    except OSError as error:
        return problem(f"{home} cannot be written: {error.strerror}", action)
    details = home.stat()
    if details.st_mode & stat.S_IWOTH and not details.st_mode & stat.S_ISVTX:
        return problem(f"{home} can be written by everyone ({_mode(details)})", f"chmod 700 {home}")
    if details.st_mode & OTHERS_ACCESS:
        return warning(f"{home} can be read by others ({_mode(details)})", f"chmod 700 {home}")
    if details.st_uid != os.getuid():
        return warning(f"{home} belongs to user {details.st_uid}", "Run x5tune as that user, or take another folder.")
    return ok(f"{home} ({_mode(details)})")


def look_at_disk(home: Path) -> Finding:
    folder = next(each for each in (home, *home.parents) if each.exists())
    return look_at_room(folder, f"Set {HOME} to a larger disk, or delete jobs: x5tune delete JOB.")


def look_at_client_file(path: Path) -> Finding:
    """The token in it is an admin's, so nobody else may read it."""
    try:
        details, text = path.stat(), path.read_text()
    except FileNotFoundError:
        return ok(f"{path.name} is not there yet", "x5tune serve leaves it, for the other commands.")
    except (OSError, UnicodeDecodeError) as error:
        return problem(f"{path} cannot be read: {reason(error)}", "Delete it; x5tune serve leaves a new one.")
    if details.st_mode & OTHERS_ACCESS:
        return problem(f"others can read the token in {path} ({_mode(details)})", f"chmod 600 {path}")
    if _client_url(text) is None:
        return problem(f"{path} is not what x5tune serve leaves there", "Delete it; x5tune serve leaves a new one.")
    return ok(f"{path} ({_mode(details)}), for {_client_url(text)}")


def _client_url(text: str) -> str | None:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        content = json.loads(text)
        return str(content["url"]) if content["token"] else None
    return None


def look_at_database(settings: Settings) -> Finding:
    """Whether it answers, can be written, and has the tables of this version."""
    url = sa.make_url(settings.database_url)
    shown = str(url.database) if settings.is_sqlite else url.render_as_string()
    if settings.is_sqlite and not Path(shown).exists():
        return ok(f"{shown} is not there yet", "x5tune serve makes it.")
    engine = _engine(settings)
    try:
        with engine.connect() as connection:
            if settings.is_sqlite:
                connection.exec_driver_sql("BEGIN IMMEDIATE")  # fails where nothing can be written
                connection.rollback()
            elif connection.exec_driver_sql("SHOW transaction_read_only").scalar_one() == "on":
                return problem(f"{shown} is read-only", "Name the primary server, not its standby.")
        found, has_studies = migrate.revision_of(engine), sa.inspect(engine).has_table("version_info")
    except SQLAlchemyError as error:
        return problem(f"{shown}: {_said(error)}", _remedy(settings, _said(error)))
    except ModuleNotFoundError as error:
        return problem(f"{shown} needs {error.name}", "pip install 'x5tune[postgres]'")
    finally:
        engine.dispose()
    return _judge_revision(settings, shown, found if has_studies else None)


def _judge_revision(settings: Settings, shown: str, found: str | None) -> Finding:
    needed = migrate.head()
    if found == needed:
        return ok(f"{shown}, at revision {found}")
    known = {each.revision for each in ScriptDirectory(str(migrate.scripts())).walk_revisions()}
    if found is not None and found not in known:
        return problem(f"{shown} is at revision {found}, made by a newer x5tune", "pip install --upgrade x5tune")
    said = f"{shown} is at revision {found or 'none'}, this version needs {needed}"
    if settings.is_sqlite:
        return warning(said, "x5tune serve brings it up to date; so does x5tune migrate.")
    return problem(said, "x5tune migrate")


def _remedy(settings: Settings, said: str) -> str:
    if not settings.is_sqlite:
        return f"Is the server running and {DATABASE_URL} right, with a user who may connect?"
    if "locked" in said:
        return "Another process keeps it for itself: end that one."
    return f"Put its permissions right, restore it from a copy, or set {DATABASE_URL} to another."


def look_at_clock(settings: Settings) -> Finding:
    """How far this machine's clock is from the database's, which decides on leases and schedules."""
    if settings.is_sqlite:
        return ok(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC; the database has no other clock")
    try:
        engine = _engine(settings)
        with engine.connect() as connection:
            connection.scalar(sa.select(now()))  # the first answer takes longer: the connection is prepared
            before = datetime.now(UTC)
            theirs = connection.execute(sa.select(now())).scalar_one()
            after = datetime.now(UTC)
        engine.dispose()
    except (SQLAlchemyError, ModuleNotFoundError):
        return warning("not looked at", "Reach the database first.")
    drift_s = (theirs - before - (after - before) / 2).total_seconds()
    if abs(drift_s) > DRIFT_S:
        return warning(f"the database's clock is {drift_s:+.1f} s from this one", "Synchronise both clocks (NTP).")
    return ok(f"{after:%Y-%m-%d %H:%M:%S} UTC, the database's {drift_s:+.2f} s from it")


def look_at_port(settings: Settings) -> Finding:
    """Whether `serve` could listen there, or already does."""
    holder = _holder(settings.home / "serve.lock")
    if holder is not None:
        url = _left_url(settings.client_file)
        status = _status(url) if url else None
        if status == "ready":
            return ok(f"x5tune serve (process {holder}) answers at {url}")
        action = "Wait for it to come up, or stop it: what it said is in its terminal or log."
        return problem(f"x5tune serve (process {holder}) does not answer{f' at {url}' if url else ''}", action)
    address = f"{settings.host}:{settings.port}"
    try:
        listen(settings.host, settings.port).close()
    except PortInUseError as error:
        action = f"Stop what listens there, or set {HOST} and {PORT}."
        if _status(f"http://{_reachable(settings.host)}:{settings.port}") is None:
            return problem(str(error).partition(". ")[0], action)
        return problem(
            f"the x5tune of another home answers at {address}", f"Set {PORT} to another port, or {HOME} to its home."
        )
    return ok(f"{address} is free" if settings.port else "a free one will be taken")


def _holder(lock: Path) -> str | None:
    """The process that serves from this home, None where none does."""
    with contextlib.suppress(OSError), lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read().strip() or "unknown"
    return None


def _left_url(client_file: Path) -> str | None:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return _client_url(client_file.read_text())
    return None


def _status(url: str) -> str | None:
    """What a service of ours at `url` says of itself: `ready` or `unavailable`; None where it is none of ours."""
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError, AttributeError):
        connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=ANSWER_S)
        with contextlib.closing(connection):
            connection.request("GET", "/readyz")
            status = json.loads(connection.getresponse().read(1 << 16)).get("status")
            return status if status in ("ready", "unavailable") else None
    return None


def _reachable(host: str) -> str:
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104


def _engine(settings: Settings) -> sa.Engine:
    """An engine that neither creates nor changes an SQLite file, and does not wait long for anybody."""
    url = sa.make_url(settings.database_url)
    if not settings.is_sqlite:
        patient = url.update_query_dict({"connect_timeout": str(int(ANSWER_S)), **url.query})
        return make_engine(patient.render_as_string(hide_password=False))
    path = quote(str(url.database))
    return sa.create_engine("sqlite://", creator=lambda: _open_existing(path))


def _open_existing(path: str) -> object:
    import sqlite3

    return sqlite3.connect(f"file:{path}?mode=rw", uri=True, timeout=ANSWER_S, isolation_level=None)


def _said(error: SQLAlchemyError) -> str:
    return " ".join(str(getattr(error, "orig", None) or error).strip().splitlines()[0].split())[:300]


def _mode(details: os.stat_result) -> str:
    return f"mode {stat.S_IMODE(details.st_mode):03o}"
