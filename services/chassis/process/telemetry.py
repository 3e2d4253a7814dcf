"""Structured logs: one line per event on stderr, with a constant event name and key-values.

What libraries log through the standard library, from warnings on, is written the same way, as `library_log`. A library
that repeats itself, such as while a broker is away, is heard once in a while, with the number of lines left out.
"""

import logging
import sys
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import orjson
import structlog
from structlog.tracebacks import ExceptionDictTransformer

LIBRARY_LEVEL: Final = logging.WARNING
LIBRARY_REPEAT_SECONDS: Final = 10.0
"""How long the same text of a library is left out. aiokafka says several times a second that a broker is away."""
LIBRARY_TEXTS_MAX: Final = 200
"""Texts that are remembered to leave out their repetitions. The oldest is forgotten first."""
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure_logging(
    log_format: Literal["json", "console"],
    service: str,
    instance: str,
    level: Literal["debug", "info", "warning", "error"] = "info",
) -> None:
    """Set up logging for this process; `__main__` calls it once. Every line contains service and instance."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.reset_defaults()
    structlog.contextvars.bind_contextvars(service=service, instance=instance)
    if log_format == "json":
        structlog.configure(
            processors=[
                *shared,
                # The values of variables are left out: settings contain passwords, and records what people wrote.
                structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
                structlog.processors.JSONRenderer(serializer=_to_json),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
            logger_factory=structlog.BytesLoggerFactory(sys.stderr.buffer),
            cache_logger_on_first_use=True,
        )
    else:
        structlog.configure(
            processors=[*shared, _console()],
            wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
            logger_factory=structlog.PrintLoggerFactory(sys.stderr),
            cache_logger_on_first_use=True,
        )
    logging.basicConfig(handlers=[_ToStructlog()], level=LIBRARY_LEVEL, force=True)


def _console() -> structlog.dev.ConsoleRenderer:
    return structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)


@dataclass(slots=True)
class _Told:
    """When a text was written last, and how often it was left out since."""

    at: float
    left_out: int = 0


class _ToStructlog(logging.Handler):
    """Passes lines of libraries on to structlog."""

    def __init__(self) -> None:
        super().__init__()
        self._told: OrderedDict[tuple[str, str], _Told] = OrderedDict()

    def emit(self, record: logging.LogRecord) -> None:
        left_out = self._left_out(record)
        if left_out is None:
            return
        structlog.get_logger().log(
            record.levelno,
            "library_log",
            library=record.name,
            message=record.getMessage(),
            exc_info=record.exc_info or None,
            **({"left_out": left_out} if left_out else {}),
        )

    def _left_out(self, record: logging.LogRecord) -> int | None:
        """Return how often the text was left out since it was written last; None to leave it out now.

        Lines with an exception are always written. The text is the format string: its values may differ each time.
        """
        if record.exc_info:
            return 0
        said = (record.name, str(record.msg))
        told = self._told.get(said)
        if told is not None and 0 <= record.created - told.at < LIBRARY_REPEAT_SECONDS:
            told.left_out += 1
            return None
        self._told[said] = _Told(record.created)
        self._told.move_to_end(said)
        if len(self._told) > LIBRARY_TEXTS_MAX:
            self._told.popitem(last=False)
        return 0 if told is None else told.left_out


def _to_json(event: object, default: Callable[[object], object]) -> bytes:
    return orjson.dumps(event, default)
