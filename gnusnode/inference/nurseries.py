"""Errors out of nurseries as plain errors, so that a caller can catch the class that a docstring promises."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def plain_errors() -> Generator[None]:
    """Raises an error that is alone in its exception group as itself; real groups pass unchanged."""
    try:
        yield
    except BaseExceptionGroup as group:
        error = _alone(group)
        if error is None:
            raise
        raise error from error.__cause__


def _alone(error: BaseException) -> BaseException | None:
    """The only leaf of a tree of groups; None when there are several."""
    while isinstance(error, BaseExceptionGroup):
        members: tuple[BaseException, ...] = error.exceptions  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - the group's parameter is lost by isinstance
        if len(members) != 1:
            return None
        error = members[0]
    return error
