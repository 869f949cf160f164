"""The one door for configuration: every `X5TUNE_*` variable is read here, once, and passed on as a value."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import URL

from service.errors import SettingError

PREFIX = "X5TUNE_"
_RAY_ADDRESS = re.compile(r"(ray://)?(\[[^\s\]]+\]|[^\s/:]+):[0-9]{1,5}")
MIN_SECRET_CHARS = 16
N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class Settings:
    """What a process of the service needs to know; see `from_environment` for the variables.

    `database_url` is a SQLAlchemy URL (passwords included) whose driver is settled. `lease_s` is how long a silent
    runner keeps its job. `body_limit_bytes` bounds a request body, `snapshot_mib` the copy of a folder.
    `webhook_secret` signs what is sent to webhooks (None: nothing is sent), `webhook_allow` are hosts and networks that
    may be told although they are private.
    """

    home: Path
    database_url: str
    host: str = "127.0.0.1"
    port: int = 8000
    lease_s: float = 30.0
    ray_address: str | None = None
    body_limit_bytes: int = 1024 * 1024
    snapshot_mib: int = 512
    webhook_secret: str | None = None
    webhook_allow: tuple[str, ...] = ()

    @property
    def snapshots(self) -> Path:
        """Where the copies of users' folders are, each named by its job."""
        return self.home / "snapshots"

    @property
    def checkpoints(self) -> Path:
        """Where paused trials leave their state, in a folder for each job."""
        return self.home / "checkpoints"

    @property
    def is_sqlite(self) -> bool:
        return self.database_url.startswith("sqlite")

    @property
    def client_file(self) -> Path:
        """Where `serve` leaves the URL and a token for the command line on this machine."""
        return self.home / "client.json"

    @staticmethod
    def from_environment(environ: Mapping[str, str] | None = None) -> Settings:
        """Read the variables; raises `SettingError` that names the variable, its value and a remedy."""
        env = os.environ if environ is None else environ
        home = _home(env)
        return Settings(
            home=home,
            database_url=_database_url(env, home),
            host=env.get(PREFIX + "HOST") or "127.0.0.1",
            port=_number(env, "PORT", 8000, int, low=0, high=65535),
            lease_s=_number(env, "LEASE_S", 30.0, float, low=1.0, high=86400.0),
            ray_address=_ray_address(env),
            snapshot_mib=_number(env, "SNAPSHOT_MIB", 512, int, low=1, high=1024**2),
            webhook_secret=_secret(env),
            webhook_allow=_allowed(env),
            body_limit_bytes=_number(env, "BODY_LIMIT_BYTES", 1024 * 1024, int, low=1024, high=1024**3),
        )

    def environment(self) -> dict[str, str]:
        """The same settings as variables, for a child process."""
        variables = {
            PREFIX + "HOME": str(self.home),
            PREFIX + "DATABASE_URL": self.database_url,
            PREFIX + "HOST": self.host,
            PREFIX + "PORT": str(self.port),
            PREFIX + "LEASE_S": repr(self.lease_s),
            PREFIX + "BODY_LIMIT_BYTES": str(self.body_limit_bytes),
            PREFIX + "SNAPSHOT_MIB": str(self.snapshot_mib),
        }
        if self.webhook_secret:
            variables[PREFIX + "WEBHOOK_SECRET"] = self.webhook_secret
        if self.webhook_allow:
            variables[PREFIX + "WEBHOOK_ALLOW"] = ",".join(self.webhook_allow)
        if self.ray_address:
            variables[PREFIX + "RAY_ADDRESS"] = self.ray_address
        return variables

    def prepare_home(self) -> None:
        """Create the home folder, private to this user; raises `SettingError` where it cannot be written."""
        probe = self.home / f".writable-{os.getpid()}"
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            probe.write_text("")
            probe.unlink()
        except OSError as error:
            raise SettingError(
                PREFIX + "HOME",
                str(self.home),
                f"the folder cannot be written ({error.strerror or error}); "
                f"set {PREFIX}HOME to a folder that you may write",
            ) from error


def _home(env: Mapping[str, str]) -> Path:
    explicit = env.get(PREFIX + "HOME")
    if explicit:
        try:
            path = Path(explicit).expanduser()
        except RuntimeError as error:
            raise SettingError(
                PREFIX + "HOME", explicit, "there is no such home directory; write the path out"
            ) from error
        return path if path.is_absolute() else Path.cwd() / path
    data = env.get("XDG_DATA_HOME")
    if data and Path(data).is_absolute():  # the XDG specification: a relative one is to be ignored
        return Path(data) / "x5tune"
    try:
        return Path.home() / ".local" / "share" / "x5tune"
    except RuntimeError as error:
        raise SettingError(
            PREFIX + "HOME", "", f"there is no home directory; set {PREFIX}HOME to a folder that you may write"
        ) from error


def _database_url(env: Mapping[str, str], home: Path) -> str:
    name = PREFIX + "DATABASE_URL"
    given = env.get(name)
    if not given:
        return _text(URL.create("sqlite", database=str(home / "x5tune.db")))
    try:
        url = sa.make_url(given)
    except (sa.exc.ArgumentError, ValueError) as error:
        raise SettingError(
            name, "(not shown)", "not a database URL; write sqlite:////path/file.db or postgresql://user@host/name"
        ) from error
    if url.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        return _text(url.set(drivername="postgresql+psycopg"))
    if url.drivername in ("sqlite", "sqlite+pysqlite"):
        return _sqlite(name, url)
    raise SettingError(name, url.render_as_string(), "only sqlite and postgresql (psycopg 3) are supported")


def _sqlite(name: str, url: URL) -> str:
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        raise SettingError(name, _text(url), "several processes share the database, so it has to be a file")
    return _text(URL.create("sqlite", database=str(Path(url.database).absolute())))


def _ray_address(env: Mapping[str, str]) -> str | None:
    """Checked here: what Ray cannot parse would end every runner as it starts."""
    name = PREFIX + "RAY_ADDRESS"
    given = (env.get(name) or "").strip()
    if given and given not in ("auto", "local") and not _RAY_ADDRESS.fullmatch(given):
        raise SettingError(name, given, "not the address of a Ray cluster; write host:6379, ray://host:10001 or auto")
    return given or None


def _secret(env: Mapping[str, str]) -> str | None:
    name = PREFIX + "WEBHOOK_SECRET"
    given = (env.get(name) or "").strip()
    if given and len(given) < MIN_SECRET_CHARS:
        remedy = f"a secret has at least {MIN_SECRET_CHARS} characters; make one with: openssl rand -hex 32"
        raise SettingError(name, "(not shown)", remedy)
    return given or None


def _allowed(env: Mapping[str, str]) -> tuple[str, ...]:
    name = PREFIX + "WEBHOOK_ALLOW"
    found = tuple(part.strip().lower() for part in (env.get(name) or "").split(",") if part.strip())
    for part in found:
        if "/" in part:
            try:
                ipaddress.ip_network(part)
            except ValueError as error:
                raise SettingError(name, part, "not a network; write 10.0.0.0/8, or a host's name") from error
    return found


def _text(url: URL) -> str:
    return url.render_as_string(hide_password=False)


def _number(env: Mapping[str, str], name: str, default: N, kind: Callable[[str], N], *, low: N, high: N) -> N:
    text = env.get(PREFIX + name)
    if text is None or not text.strip():
        return default
    try:
        number = kind(text)
        is_valid = low <= number <= high
    except ValueError:
        is_valid = False
    if not is_valid:
        raise SettingError(PREFIX + name, text, f"expected a number from {low} to {high}; the default is {default}")
    return number
