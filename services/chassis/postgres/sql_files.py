"""SQL beside its owner: folders of `.sql` files with one statement each, read once and found by name.

Statements in files can be prepared by a test, run by hand in psql, and read without Python around them.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path


class SqlFiles(Mapping[str, str]):
    """Maps names to statements: `SqlFiles(Path(__file__).with_name("sql"))["thread_row"]` is in
    `sql/thread_row.sql`.
    """

    def __init__(self, *folders: Path) -> None:
        self._folders = folders
        self._statements = {path.stem: path.read_text() for folder in folders for path in sorted(folder.glob("*.sql"))}

    def __getitem__(self, name: str) -> str:
        try:
            return self._statements[name]
        except KeyError:
            raise KeyError(f"there is no {name}.sql in {', '.join(map(str, self._folders))}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._statements)

    def __len__(self) -> int:
        return len(self._statements)
