"""The errors of the kernel form a tree. The first question to an error is whether trying again can help.

ThreadlogError              retriable = False
├── DecodeError             a record that cannot be read: to the dead letters, the partition goes on
│   ├── HeaderError         a CloudEvents attribute is missing or malformed
│   ├── HashMismatchError   the bytes are not those that the producer hashed
│   └── DataError           the data does not fit its type and version
├── LimitError              larger than a named limit allows
└── UnstorableTextError     text that JSON or Postgres cannot carry exactly
"""

from typing import ClassVar, Literal, get_args

Fault = Literal[
    "no_key",
    "bad_key",
    "missing_header",
    "duplicate_header",
    "bad_header",
    "no_value",
    "hash_mismatch",
    "not_json",
    "wrong_shape",
    "unstorable_text",
    "wrong_partition",
    "fold_failed",
    "rows_failed",
    "row_refused",
    "row_too_large",
]
"""What is wrong with a record, as a class: dead letters are counted and listed by it."""
FAULTS: tuple[Fault, ...] = get_args(Fault)


class ThreadlogError(Exception):
    retriable: ClassVar[bool] = False


class DecodeError(ThreadlogError):
    """Raised by the codec; `str()` is the reason that dead letters show."""

    def __init__(self, reason: str, fault: Fault) -> None:
        super().__init__(reason)
        self.fault: Fault = fault


class HeaderError(DecodeError):
    def __init__(self, reason: str, fault: Fault = "bad_header") -> None:
        super().__init__(reason, fault)


class HashMismatchError(DecodeError):
    def __init__(self, reason: str) -> None:
        super().__init__(reason, "hash_mismatch")


class DataError(DecodeError):
    def __init__(self, reason: str, fault: Fault = "wrong_shape") -> None:
        super().__init__(reason, fault)


class LimitError(ThreadlogError):
    pass


class UnstorableTextError(ThreadlogError):
    pass
