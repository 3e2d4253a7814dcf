from pathlib import Path

import pytest

from services.chassis.postgres.sql_files import SqlFiles


def test_statements_are_found_by_name(tmp_path: Path) -> None:
    (tmp_path / "thread_row.sql").write_text("select 1\n")
    (tmp_path / "notes.txt").write_text("no statement")
    sql = SqlFiles(tmp_path)
    assert dict(sql) == {"thread_row": "select 1\n"}
    assert len(sql) == 1
    with pytest.raises(KeyError, match=r"there is no other\.sql in"):
        sql["other"]
