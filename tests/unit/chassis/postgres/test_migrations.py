from pathlib import Path

import pytest

from services.chassis.postgres.migrations import MigrationError, missing_migrations, read_migrations


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "0001_first.sql").write_text("select 1")
    (tmp_path / "0002_second.sql").write_text("select 2")
    return tmp_path


def test_what_is_missing_comes_in_order(folder: Path) -> None:
    migrations = read_migrations(folder)
    applied = [(each.name, each.sha256) for each in migrations]
    for count in range(3):
        missing = missing_migrations("owner", migrations, applied[:count])
        assert [each.name for each in missing] == ["0001_first", "0002_second"][count:]


def test_a_changed_file_is_refused(folder: Path) -> None:
    applied = [(each.name, each.sha256) for each in read_migrations(folder)]
    (folder / "0001_first.sql").write_text("select 3")
    with pytest.raises(MigrationError, match="0001_first of owner was applied with other content"):
        missing_migrations("owner", read_migrations(folder), applied)


def test_a_database_of_a_newer_version_is_refused(folder: Path) -> None:
    applied = [(each.name, each.sha256) for each in read_migrations(folder)]
    (folder / "0002_second.sql").unlink()
    with pytest.raises(MigrationError, match="run the newer version"):
        missing_migrations("owner", read_migrations(folder), applied)


@pytest.mark.parametrize("name", ["0004_gap.sql", "0003-hyphen.sql", "third.sql", "0002_twice.sql"])
def test_names_have_numbers_without_gaps(folder: Path, name: str) -> None:
    (folder / name).write_text("select 1")
    with pytest.raises(MigrationError, match="must be named"):
        read_migrations(folder)


def test_the_services_own_migrations_are_well_named() -> None:
    services = Path(__file__).parents[4] / "services"
    folders = sorted(services.glob("*/migrations"))
    assert folders
    for folder in folders:
        assert read_migrations(folder)
