from pathlib import Path

from reference.views import reference
from services.projector.columns import MERGED, THREAD_STATES, THREADS
from services.projector.generations.generations import TABLES
from services.projector.projections import artifacts, dead_letters, events, usage

DOCS = Path(__file__).parents[3] / "docs" / "views.md"


def test_the_page_is_current() -> None:
    assert DOCS.read_text() == reference(), "python -m reference.views > docs/views.md"


def test_every_table_and_every_column_that_is_written_is_on_the_page() -> None:
    sections = {part.split("\n")[0]: part for part in reference().split("\n## ")[1:]}
    written = {
        "thread_states": THREAD_STATES.columns,
        "threads": THREADS.columns,
        "events": events.COLUMNS,
        "usage": usage.COLUMNS,
        "artifacts": artifacts.COLUMNS,
        "dead_letters": dead_letters.COLUMNS,
    } | {name: table.columns for name, table in MERGED.items()}
    assert set(TABLES) <= sections.keys()
    for table, columns in written.items():
        for column in columns:
            assert f"| `{column}` |" in sections[table], (table, column)
