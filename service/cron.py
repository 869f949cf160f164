"""When a schedule is due: a cron expression on the clock of a place; pure.

cronsim reads the expression and goes by Debian's rules where clocks change: what falls into the hour that is left out
comes right after it, what falls into the hour that comes twice comes once, and `*` goes by real time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

NICKNAMES = {"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@weekly": "0 0 * * 0", "@monthly": "0 0 1 * *"}
FIELDS = 5


class CronError(ValueError):
    """No cron expression, or no time zone; `field` says which."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


@dataclass(frozen=True, slots=True)
class Cron:
    """A rule. Raises CronError when made of an expression or a zone that there is not, or that is never due."""

    expression: str
    timezone: str

    def __post_init__(self) -> None:
        if self.next(datetime.now(UTC)) is None:
            raise CronError("cron", "is never due: there is no such day.")

    def next(self, after: datetime) -> datetime | None:
        """The first due time after this moment, in UTC; None where there is none."""
        return next(self.after(after), None)

    def after(self, moment: datetime) -> Iterator[datetime]:
        """All due times after this moment, in UTC, the first one first."""
        text = NICKNAMES.get(self.expression.strip(), self.expression)
        if len(text.split()) != FIELDS:
            raise CronError("cron", "needs five fields, such as 0 2 * * * (at two every night), or @daily.")
        try:
            times = CronSim(text, moment.astimezone(_zone(self.timezone)))
        except CronSimError as error:
            example = "such as 0 2 * * * (minute, hour, day, month, weekday)"
            raise CronError("cron", f"is no cron expression: {error}; {example}.") from error
        for time in times:
            yield time.astimezone(UTC)

    def words(self) -> str:
        """The rule as people say it: "At 02:00 every day"."""
        return str(CronSim(NICKNAMES.get(self.expression.strip(), self.expression), datetime.now(UTC)).explain())


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise CronError("timezone", "is no time zone; write one such as Europe/Berlin or UTC.") from error
