from pathlib import Path

from reference.views import reference
from services.projector.generations.generations import FOLDER, TABLES
from services.projector.projections import artifacts, dead_letters, events, threads, usage
from services.projector.projections.rows import ALL, KEYS

DOCS = Path(__file__).parents[3] / "docs" / "views.md"


def test_the_page_is_current() -> None:
    assert DOCS.read_text() == reference(), "python -m reference.views > docs/views.md"


def test_every_table_and_every_column_that_is_written_is_on_the_page() -> None:
    sections = {part.split("\n")[0]: part for part in reference().split("\n## ")[1:]}
    written = {
        "thread_states": threads.STATE_COLUMNS,
        "threads": threads.COLUMNS,
        "events": events.COLUMNS,
        "usage": usage.COLUMNS,
        "artifacts": artifacts.COLUMNS,
        "dead_letters": dead_letters.COLUMNS,
    } | {table: (*KEYS[table], *ALL[table]) for table in KEYS}
    assert set(TABLES) <= sections.keys()
    for table, columns in written.items():
        for column in columns:
            assert f"| `{column}` |" in sections[table], (table, column)


def test_changes_name_the_columns_of_their_table() -> None:
    for path in sorted((FOLDER / "generations" / "sql").glob("change_*.sql")):
        table = path.stem.removeprefix("change_")
        assert f"update {table} t set" in path.read_text()
