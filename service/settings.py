"""The one door for configuration: every `X5TUNE_*` variable is read here, once, and passed on as a value."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import URL

from service.errors import SettingError
from service.setting_values import PREFIX, allowed, flag, number, roots, secret

_RAY_ADDRESS = re.compile(r"(ray://)?(\[[^\s\]]+\]|[^\s/:]+):[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class Settings:
    """What a process of the service needs to know; see `from_environment` for the variables.

    `database_url` is a SQLAlchemy URL (passwords included) whose driver is settled. `lease_s` is how long a silent
    runner keeps its job, `ray_start_s` how long Ray may take to be there before the runner gives up.
    `body_limit_bytes` bounds a request body, `snapshot_mib` the copy of a folder. `webhook_secret` signs what is sent
    to webhooks (None: nothing is sent), `webhook_allow` are hosts and networks that may be told although they are
    private. `is_public`: it is meant that others can reach the service. `roots` are the folders below which code may
    be run (None: any, on a loopback address). `max_open_jobs` is for each token. With less than `min_free_mib` on its
    disk a runner takes no job. `keep_days` is how long details of ended jobs are kept.
    """

    home: Path
    database_url: str
    host: str = "127.0.0.1"
    port: int = 8000
    lease_s: float = 30.0
    ray_address: str | None = None
    ray_start_s: float = 120.0
    body_limit_bytes: int = 1024 * 1024
    snapshot_mib: int = 512
    webhook_secret: str | None = None
    webhook_allow: tuple[str, ...] = ()
    is_public: bool = False
    roots: tuple[Path, ...] | None = None
    max_open_jobs: int = 1000
    min_free_mib: int = 512
    keep_days: float = 90.0

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
            port=number(env, "PORT", 8000, int, low=0, high=65535),
            lease_s=number(env, "LEASE_S", 30.0, float, low=1.0, high=86400.0),
            ray_address=_ray_address(env),
            ray_start_s=number(env, "RAY_START_S", 120.0, float, low=1.0, high=86400.0),
            snapshot_mib=number(env, "SNAPSHOT_MIB", 512, int, low=1, high=1024**2),
            is_public=flag(env, "PUBLIC"),
            roots=roots(env),
            max_open_jobs=number(env, "MAX_OPEN_JOBS", 1000, int, low=1, high=10**9),
            min_free_mib=number(env, "MIN_FREE_MIB", 512, int, low=0, high=1024**3),
            keep_days=number(env, "KEEP_DAYS", 90.0, float, low=0.0, high=36500.0),
            webhook_secret=secret(env),
            webhook_allow=allowed(env),
            body_limit_bytes=number(env, "BODY_LIMIT_BYTES", 1024 * 1024, int, low=1024, high=1024**3),
        )

    def environment(self) -> dict[str, str]:
        """The same settings as variables, for a child process."""
        variables = {
            PREFIX + "HOME": str(self.home),
            PREFIX + "DATABASE_URL": self.database_url,
            PREFIX + "HOST": self.host,
            PREFIX + "PORT": str(self.port),
            PREFIX + "LEASE_S": repr(self.lease_s),
            PREFIX + "RAY_START_S": repr(self.ray_start_s),
            PREFIX + "BODY_LIMIT_BYTES": str(self.body_limit_bytes),
            PREFIX + "SNAPSHOT_MIB": str(self.snapshot_mib),
            PREFIX + "PUBLIC": "1" if self.is_public else "0",
            PREFIX + "MAX_OPEN_JOBS": str(self.max_open_jobs),
            PREFIX + "MIN_FREE_MIB": str(self.min_free_mib),
            PREFIX + "KEEP_DAYS": repr(self.keep_days),
        }
        if self.webhook_secret:
            variables[PREFIX + "WEBHOOK_SECRET"] = self.webhook_secret
        if self.roots is not None:
            variables[PREFIX + "ROOTS"] = os.pathsep.join(map(str, self.roots))
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


def _text(url: URL) -> str:
    return url.render_as_string(hide_password=False)
