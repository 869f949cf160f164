"""Small server-rendered pages. Text is escaped here, in one place; a page is built from (tag, content) pairs."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #888; --accent: #2563eb; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 0 auto; padding: 1.5rem; }
header { display: flex; gap: 1.5rem; align-items: baseline; border-bottom: 1px solid var(--line); }
header b { font-size: 1.2rem; } header a { color: inherit; }
a { color: var(--accent); }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .4rem .8rem .4rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 500; }
code { overflow-wrap: anywhere; } h2 { margin-top: 2rem; font-size: 1.1rem; }
svg { color: var(--accent); display: block; }
td.number { font-variant-numeric: tabular-nums; white-space: nowrap; }
pre { background: #8881; padding: .8rem; overflow-x: auto; border-radius: .3rem; }
.succeeded { color: #15803d; } .failed { color: #dc2626; } .running { color: var(--accent); } .cancelled, .queued
{ color: var(--soft); }
input[type=password] { width: 30rem; max-width: 100%; font: inherit; padding: .4rem; }
button { font: inherit; padding: .4rem 1rem; }
.error { color: #dc2626; }
"""


class Markup(str):
    """HTML that is safe as it is: made by the functions of this module."""


def text(value: object) -> Markup:
    return value if isinstance(value, Markup) else Markup(escape(str(value)))


def tag(element: str, /, *content: object, **attributes: object) -> Markup:
    """An element; `class_` is `class`, other underscores are dashes, True is a bare attribute, None is none."""
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escape(str(value), quote=True)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    return Markup(f"<{element}{written}>{''.join(text(each) for each in content)}</{element}>")


def void(element: str, /, **attributes: object) -> Markup:
    """An element that has no end tag."""
    return Markup(tag(element, **attributes).removesuffix(f"</{element}>"))


def table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> Markup:
    """Cells are text, markup, or a whole `td`."""
    cells = [
        tag("tr", *(cell if isinstance(cell, Markup) and cell.startswith("<td") else tag("td", cell) for cell in row))
        for row in rows
    ]
    return tag("table", tag("thead", tag("tr", *(tag("th", cell) for cell in head))), tag("tbody", *cells))


def style_hash() -> str:
    """What allows the pages' style, and no other, in a Content-Security-Policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()


def page(
    title: str,
    content: Sequence[tuple[str, object] | Markup],
    *,
    is_public: bool = False,
    reload_s: int | None = None,
) -> str:
    """A whole page, loaded again after `reload_s`. Its style is inline and allowed by hash; there are no scripts."""
    parts = [part if isinstance(part, Markup) else tag(part[0], part[1]) for part in content]
    links = [] if is_public else [tag("a", "Jobs", href="/"), tag("a", "Optuna dashboard", href="/dashboard")]
    links += [] if is_public else [tag("a", "API", href="/docs")]
    head = tag(
        "head",
        void("meta", charset="utf-8"),
        void("meta", name="viewport", content="width=device-width, initial-scale=1"),
        *([void("meta", http_equiv="refresh", content=reload_s)] if reload_s else []),
        tag("title", f"{title} · x5tune"),
        tag("style", Markup(STYLE)),
    )
    body = tag("body", tag("header", tag("b", "x5tune"), *links), tag("main", tag("h1", title), *parts))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"
