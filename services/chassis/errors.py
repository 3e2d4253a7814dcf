from schemas.errors import ThreadlogError


class SetupError(ThreadlogError):
    """Something outside of this software prevents a start, and the text tells a person what to do about it.

    A service or command that raises it ends with that one line on stderr, without a traceback.
    """
