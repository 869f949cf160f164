"""Logging in, the list of jobs, and a finished study in the Optuna dashboard, as a person meets them."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.service.test_end_to_end import SPEC, client, submit, until
from tests.service.test_supervisor import serving

pytestmark = [pytest.mark.browser, pytest.mark.ray, pytest.mark.timeout(240)]

NAME = "first <b>look</b> größer 数字"


def log_in(page: Page, url: str, token: str) -> None:
    page.goto(url)
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(f"{url}/")


def test_a_finished_study_is_listed_and_opens_in_the_dashboard(home: Path, browser: Browser) -> None:
    with serving(home, runner=True) as service, client(service) as api:
        job = until(api, submit(api, {**SPEC, "name": NAME}), state="succeeded")
        with browser.new_context(viewport={"width": 1300, "height": 900}) as context:
            page = context.new_page()
            failures: list[str] = []
            page.on("response", lambda r: failures.append(f"{r.status} {r.url}") if r.status >= 500 else None)

            log_in(page, service.url, service.client_file["token"])
            expect(page.get_by_text(NAME)).to_be_visible()
            expect(page.get_by_text("succeeded").first).to_be_visible()

            page.goto(f"{service.url}{job['study']['url']}/trials")
            expect(page.get_by_text("6 Trials")).to_be_visible(timeout=30_000)
            expect(page.get_by_text("Complete").first).to_be_visible()
            expect(page.get_by_text("Running")).to_have_count(0)
            expect(page.get_by_text("Intermediate Values").first).to_be_visible()
    assert not failures


def test_a_wrong_token_is_told_and_lets_nobody_in(home: Path, browser: Browser) -> None:
    with serving(home, runner=False) as service, browser.new_context() as context:
        page = context.new_page()
        page.goto(f"{service.url}/dashboard")
        page.get_by_label("Token").fill("x5t_wrong")
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_text("token").first).to_be_visible()
        page.goto(f"{service.url}/dashboard")
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
