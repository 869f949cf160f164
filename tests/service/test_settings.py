"""Settings: one door, and errors that name the variable, the value and the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.errors import SettingError
from service.settings import Settings


def read(tmp_path: Path, **variables: str) -> Settings:
    return Settings.from_environment({"X5TUNE_HOME": str(tmp_path), **variables})


def test_the_default_database_is_sqlite_in_the_home(tmp_path: Path) -> None:
    assert read(tmp_path).database_url == f"sqlite:///{tmp_path}/x5tune.db"


def test_home_defaults_to_the_xdg_data_folder() -> None:
    assert Settings.from_environment({"XDG_DATA_HOME": "/data"}).home == Path("/data/x5tune")


def test_a_relative_xdg_data_folder_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert Settings.from_environment({"XDG_DATA_HOME": "data"}).home == Path("/home/somebody/.local/share/x5tune")


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+psycopg"])
def test_postgresql_urls_are_served_by_psycopg_3(tmp_path: Path, scheme: str) -> None:
    url = read(tmp_path, X5TUNE_DATABASE_URL=f"{scheme}://me:p%40ss@db/x?sslmode=require").database_url
    assert url == "postgresql+psycopg://me:p%40ss@db/x?sslmode=require"


def test_a_home_with_odd_characters_makes_a_url_that_opens_the_same_file(tmp_path: Path) -> None:
    import sqlalchemy as sa

    home = tmp_path / "ü ?#% x"
    assert sa.make_url(read(home).database_url).database == str(home / "x5tune.db")


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://db/x", "nonsense"])
def test_a_database_that_cannot_be_shared_or_spoken_to_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(SettingError, match="X5TUNE_DATABASE_URL"):
        read(tmp_path, X5TUNE_DATABASE_URL=url)


@pytest.mark.parametrize(
    ("name", "value"), [("PORT", "http"), ("PORT", "70000"), ("LEASE_S", "nan"), ("LEASE_S", "0"), ("PORT", "1.5")]
)
def test_a_bad_number_names_its_variable_and_value(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(SettingError, match=f"X5TUNE_{name}='{value}'.*default"):
        read(tmp_path, **{f"X5TUNE_{name}": value})


def test_a_password_is_not_shown_in_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as caught:
        read(tmp_path, X5TUNE_DATABASE_URL="mysql://me:secret@db/x")
    assert "secret" not in str(caught.value)


def test_an_unwritable_home_is_a_named_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingError, match=r"X5TUNE_HOME.*cannot be written"):
        read(tmp_path / "file" / "home").prepare_home()


def test_settings_survive_the_way_through_a_childs_environment(tmp_path: Path) -> None:
    settings = read(tmp_path, X5TUNE_PORT="9", X5TUNE_LEASE_S="7.5", X5TUNE_RAY_ADDRESS="ray://x:1")
    assert Settings.from_environment(settings.environment()) == settings


@pytest.mark.parametrize("address", ["nonsense", "http://x:1", "x:port", "ray://x", "a b:1"])
def test_an_address_that_ray_cannot_parse_is_refused_before_any_runner_starts(tmp_path: Path, address: str) -> None:
    with pytest.raises(SettingError, match=r"X5TUNE_RAY_ADDRESS.*host:6379"):
        read(tmp_path, X5TUNE_RAY_ADDRESS=address)


@pytest.mark.parametrize("address", ["auto", "10.0.0.1:6379", "head.cluster:6379", "ray://head:10001", "[::1]:6379"])
def test_addresses_that_ray_can_parse_are_kept(tmp_path: Path, address: str) -> None:
    assert read(tmp_path, X5TUNE_RAY_ADDRESS=address).ray_address == address
