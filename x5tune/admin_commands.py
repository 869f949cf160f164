"""The built-in workloads, and tokens."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from x5tune import completing, screen, wording
from x5tune.errors import NotFound, UsageError, X5tuneError
from x5tune.naming import find_named
from x5tune.options import Json, Url
from x5tune.options import Token as TokenOption
from x5tune.shapes import Page, Scope, Token, Workload

if TYPE_CHECKING:
    from x5tune.client import Client

UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SPAN = re.compile(r"([0-9]{1,6})([mhdw])")

token_app = typer.Typer(no_args_is_help=True, rich_markup_mode="rich")


class UnknownWorkload(X5tuneError):  # noqa: N818 - said of what was named
    """No built-in has this name."""


class UnknownToken(X5tuneError):  # noqa: N818 - said of what was named
    """No token, or more than one, goes by this name."""


def workloads(
    *,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Show this one in full.", autocompletion=completing.workloads, show_default=False
        ),
    ] = None,
    as_json: Json = False,
    url: Url = None,
    token: TokenOption = None,
) -> None:
    """List the built-in workloads, or show one with its parameters.

    Example: x5tune workloads digits-cnn
    """
    with screen.talk(url, token, as_json=as_json) as client:
        if name is None:
            page = client.workloads_page()
        else:
            found = _workload(client, name)
    from x5tune import tables

    if as_json:
        screen.write_json(page if name is None else found)
    elif name is None:
        screen.show(tables.workloads_table(page["items"]), "", "See one in full with: x5tune workloads NAME")
    else:
        screen.show(tables.workload_details(found))


def fit(
    *,
    workload: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD",
            help="A built-in, or your own as it is listed: train.py:Net.",
            autocompletion=completing.workloads,
        ),
    ],
    as_json: Json = False,
    url: Url = None,
    token: TokenOption = None,
) -> None:
    """Show the largest micro-batches of a workload that are proven to fit, by device and memory limit.

    Example: x5tune fit byte-lm
    """
    with screen.talk(url, token, as_json=as_json) as client:
        page = client.frontiers_page(workload=workload)
    from x5tune import tables

    if as_json:
        screen.write_json(page)
    elif page["items"]:
        screen.show(tables.frontiers_table(page["items"]))
    else:
        screen.show(f"Nothing is known of {wording.one_line(workload)} yet: submit a job with limits.host_memory_mib.")


@token_app.command("create")
def create_token(
    *,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="What the token is for.", show_default=False)
    ] = None,
    scope: Annotated[str, typer.Option(metavar="read|submit|admin", help="What it may do.")] = "submit",
    expires: Annotated[
        str | None,
        typer.Option(metavar="30d", help="When it ends: 12h, 30d, 8w, or a date and time.", show_default=False),
    ] = None,
    given_name: Annotated[str | None, typer.Option("--name", help="The same as NAME.", show_default=False)] = None,
    as_json: Json = False,
    url: Url = None,
    token: TokenOption = None,
) -> None:
    """Make a token and print it. It is shown this once only.

    Example: x5tune token create ci --scope read --expires 30d
    """
    label = name or given_name
    if not label or (name and given_name and name != given_name):
        raise UsageError("Say once what the token is for: x5tune token create NAME")
    if scope not in get_args(Scope):
        raise UsageError(f"--scope takes read, submit or admin, not {scope!r}.")
    until = None if expires is None else _moment(expires)
    with screen.talk(url, token, as_json=as_json) as client:
        made = client.create_token(label, cast(Scope, scope), until)
        address = client.url
    if as_json:
        screen.write_json(made)
        return
    screen.note(f"Token {wording.one_line(made['name'])} ({made['scope']}), shown this once only. To use it:")
    screen.note(f"  export X5TUNE_URL={address} X5TUNE_TOKEN=...")
    typer.echo(made["token"])


@token_app.command("list")
def list_tokens(as_json: Json = False, url: Url = None, token: TokenOption = None) -> None:
    """List the tokens that work; never their secrets.

    Example: x5tune token list
    """
    with screen.talk(url, token, as_json=as_json) as client:
        page = client.tokens_page()
        while page["next"]:
            more = client.tokens_page(cursor=page["next"])
            page = Page[Token](items=page["items"] + more["items"], next=more["next"])
    if as_json:
        screen.write_json(page)
        return
    from x5tune import tables

    screen.show(tables.tokens_table(page["items"], screen.console()))


@token_app.command("revoke")
def revoke_token(
    name: Annotated[str, typer.Argument(metavar="TOKEN", help="A token's id, the beginning of one, or its name.")],
    as_json: Json = False,
    url: Url = None,
    token: TokenOption = None,
) -> None:
    """Revoke a token: it stops working at once. Prints nothing with --json: the API says nothing either.

    Example: x5tune token revoke ci
    """
    with screen.talk(url, token, as_json=as_json) as client:
        found = _token(client, name)
        client.revoke_token(found["id"])
    if not as_json:
        screen.show(f"Token {wording.one_line(found['name'])} ({found['id']}) is revoked.")


def _workload(client: Client, name: str) -> Workload:
    try:
        return client.workload(name)
    except NotFound as error:
        there = ", ".join(each["name"] for each in client.workloads())
        raise UnknownWorkload(f"There is no built-in workload {name!r}; there are {there}.") from error


def _token(client: Client, name: str) -> Token:
    return find_named(list(client.tokens()), name, "token", UnknownToken)


def _moment(text: str) -> str:
    """A span from now, or a date and time (this machine's where no zone is given), as RFC 3339."""
    span = _SPAN.fullmatch(text.strip().lower())
    try:
        if span:
            return (datetime.now(UTC) + timedelta(**{UNITS[span[2]]: int(span[1])})).isoformat()
        return datetime.fromisoformat(text.strip()).astimezone(UTC).isoformat()
    except (ValueError, OverflowError) as error:
        raise UsageError(f"--expires takes 12h, 30d, 8w or a date such as 2027-01-31, not {text!r}.") from error
