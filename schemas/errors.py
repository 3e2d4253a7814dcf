"""Errors of the kernel, as a tree. The first question to an error is whether trying again can help.

ThreadlogError              retriable = False
├── DecodeError             a record that cannot be read: to the dead letters, the partition goes on
│   ├── HeaderError         a CloudEvents attribute is missing or malformed
│   ├── HashMismatchError   the bytes are not those that the producer hashed
│   └── DataError           the data does not fit its type and version
├── LimitError              larger than a named limit allows
└── UnstorableTextError     text that JSON or Postgres cannot carry exactly
"""

from typing import ClassVar


class ThreadlogError(Exception):
    retriable: ClassVar[bool] = False


class DecodeError(ThreadlogError):
    """Raised by the codec; `str()` is the reason that dead letters show."""


class HeaderError(DecodeError):
    pass


class HashMismatchError(DecodeError):
    pass


class DataError(DecodeError):
    pass


class LimitError(ThreadlogError):
    pass


class UnstorableTextError(ThreadlogError):
    pass
