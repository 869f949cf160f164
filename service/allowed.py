"""What this service may be used for, by its settings: whom it listens to, which folders it runs, how much it takes.

The embedded default listens to this machine only and runs whatever its user's token asks for. One that listens beyond
the machine has to be told so, and runs code of its users' only below the folders that X5TUNE_ROOTS names.

Not protected against: code below those folders does what its user may do on the runner's machine.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import replace
from pathlib import Path

from sqlalchemy.orm import Session

from service.errors import FieldError, OutsideRootsError, SettingError, invalid, too_many
from service.settings import Settings
from service.store import jobs, tokens
from service.submission import Submission

RETRY_S = 60


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(host, None)}
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(address.partition("%")[0]).is_loopback for address in found)


def require_meant(settings: Settings) -> None:
    """Refuse to listen beyond this machine unless that was said to be meant; raises SettingError."""
    if not settings.is_public and not is_loopback(settings.host):
        raise SettingError(
            "X5TUNE_HOST",
            settings.host,
            "others could reach the service there; if that is meant, add --public (X5TUNE_PUBLIC=1), name the folders "
            "that may be run in X5TUNE_ROOTS, and put a TLS proxy in front (docs/security.md)",
        )


def within_roots(settings: Settings, submission: Submission) -> Submission:
    """The submission with its folder settled, links followed; 422 when it is not one that may be run."""
    if submission.folder is None:
        return submission
    if settings.roots is None:
        if is_loopback(settings.host):
            return submission
        message = "cannot be run: this service listens beyond its machine, and X5TUNE_ROOTS names no folders"
        raise invalid([FieldError("workload.folder", submission.folder, message)])
    real = Path(submission.folder).resolve()
    if not any(real.is_relative_to(root) for root in settings.roots):
        message = f"is not below a folder that this service runs; there are: {', '.join(map(str, settings.roots))}"
        raise invalid([FieldError("workload.folder", submission.folder, message)])
    workload = {**submission.resolved["workload"], "folder": str(real)}
    return replace(
        submission,
        resolved={**submission.resolved, "workload": workload},
        snapshot_of=None if submission.snapshot_of is None else real,
    )


def require_still_within(settings: Settings, folder: str) -> None:
    """Raise OutsideRootsError when a folder leads out of the roots by now: links may have changed."""
    real = Path(folder).resolve()
    allowed = (*(settings.roots or ()), settings.snapshots.resolve())
    if settings.roots is not None and not any(real.is_relative_to(root) for root in allowed):
        raise OutsideRootsError(
            f"The folder {folder} leads to {real}, which is not below a folder that this service runs (X5TUNE_ROOTS)."
        )


def require_room(session: Session, settings: Settings, token_id: str) -> None:
    """429 when this token has as many jobs waiting and running as one may have; its submissions take turns."""
    tokens.lock(session, token_id)
    count = jobs.open_of_token(session, token_id)
    if count >= settings.max_open_jobs:
        raise too_many(
            f"{count} jobs of this token are waiting or running, and no more are taken (X5TUNE_MAX_OPEN_JOBS).", RETRY_S
        )
