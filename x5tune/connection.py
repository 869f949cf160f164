"""Which service to talk to: given, from the environment, or left by `x5tune serve` in X5TUNE_HOME.

The reading of X5TUNE_HOME repeats `service.settings` (a test holds the two together), because that module needs a
database library that takes longer to import than a command takes to answer.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from x5tune.errors import ConfigurationError

CLIENT_FILE = "client.json"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Connection:
    """Where a service is, and the token for it (None: there is none to send)."""

    url: str
    token: str | None

    @property
    def is_local(self) -> bool:
        return urlsplit(self.url).hostname in LOOPBACK


def home(environ: Mapping[str, str] | None = None) -> Path:
    """The folder of `x5tune serve` on this machine; it need not exist."""
    env = os.environ if environ is None else environ
    explicit = env.get("X5TUNE_HOME")
    if explicit:
        try:
            path = Path(explicit).expanduser()
        except RuntimeError as error:
            message = f"X5TUNE_HOME={explicit!r}: there is no such home directory; write the path out."
            raise ConfigurationError(message) from error
        return path if path.is_absolute() else Path.cwd() / path
    data = env.get("XDG_DATA_HOME")
    if data and Path(data).is_absolute():
        return Path(data) / "x5tune"
    try:
        return Path.home() / ".local" / "share" / "x5tune"
    except RuntimeError as error:
        message = "There is no home directory; set X5TUNE_HOME, or X5TUNE_URL and X5TUNE_TOKEN."
        raise ConfigurationError(message) from error


def find(url: str | None = None, token: str | None = None, environ: Mapping[str, str] | None = None) -> Connection:
    """The service to talk to. Raises `ConfigurationError`.

    A token that `serve` left is sent to that service only, never to another address.
    """
    env = os.environ if environ is None else environ
    url = url or env.get("X5TUNE_URL") or None
    token = token or env.get("X5TUNE_TOKEN") or None
    if url and token:
        return Connection(checked_url(url), checked_token(token))
    left = _read_client_file(home(env) / CLIENT_FILE)
    if url is None:
        host, port = env.get("X5TUNE_HOST") or "127.0.0.1", env.get("X5TUNE_PORT") or "8000"
        url = left.url if left else f"http://{f'[{host}]' if ':' in host else host}:{port}"
    url = checked_url(url)
    if token is None and left is not None and _address(left.url) == _address(url):
        token = left.token
    return Connection(url, None if token is None else checked_token(token))


def checked_url(url: str) -> str:
    """`url` without a trailing slash, if it is an http address."""
    message = f"{url[:200]!r} is not the address of a service; write it like http://127.0.0.1:8000"
    try:
        parts = urlsplit(url.strip())
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError as error:
        raise ConfigurationError(message) from error
    if not is_valid or parts.query or parts.fragment:
        raise ConfigurationError(message)
    return url.strip().rstrip("/")


def checked_token(token: str) -> str:
    if not token.strip().isascii() or any(character.isspace() for character in token.strip()):
        raise ConfigurationError("The token holds characters that no token has; copy it again.")
    return token.strip()


def _read_client_file(path: Path) -> Connection | None:
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise ConfigurationError(f"Cannot read {path}: {reason}. Set X5TUNE_URL and X5TUNE_TOKEN.") from error
    try:
        content = json.loads(text)
        url, token = content["url"], content.get("token")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _broken(path) from error
    if not isinstance(url, str) or not isinstance(token, str | None):
        raise _broken(path)
    return Connection(checked_url(url), token)


def _broken(path: Path) -> ConfigurationError:
    message = f"{path} is not what `x5tune serve` leaves there. Delete it and start `x5tune serve` again."
    return ConfigurationError(message)


def _address(url: str) -> tuple[str, str, int | None, str]:
    parts = urlsplit(url)
    host = parts.hostname or ""
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, "127.0.0.1" if host in LOOPBACK else host, port, parts.path.rstrip("/")
