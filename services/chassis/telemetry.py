"""Structured logs: one line per event on stderr, with a constant event name and key-values.

What libraries log through the standard library, from warnings on, comes out the same way as `library_log`.
"""

import logging
import sys
from collections.abc import Callable
from typing import Literal

import orjson
import structlog
from structlog.tracebacks import ExceptionDictTransformer

LIBRARY_LEVEL = logging.WARNING
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure_logging(
    log_format: Literal["json", "console"],
    service: str,
    instance: str,
    level: Literal["debug", "info", "warning", "error"] = "info",
) -> None:
    """Once per process, from `__main__`. Every line carries service and instance."""
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
                # Without the values of variables: settings hold passwords, records what people wrote.
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


class _ToStructlog(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        structlog.get_logger().log(
            record.levelno,
            "library_log",
            library=record.name,
            message=record.getMessage(),
            exc_info=record.exc_info or None,
        )


def _to_json(event: object, default: Callable[[object], object]) -> bytes:
    return orjson.dumps(event, default)
