"""Map errors of the group's client to definite and indefinite errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from shaketable.harness.contracts.errors import DefiniteError, IndefiniteError
from shaketable.system.client import DamagedResponseError, OutcomeUnknownError, RefusedError


class DamagedReadError(IndefiniteError):
    """A response that was received damaged."""


@asynccontextmanager
async def definite_or_not() -> AsyncIterator[None]:
    """Raise the client's errors as what they mean for a history.

    Raises:
        DefiniteError: the operation was refused.
        IndefiniteError: its outcome is unknown.
    """
    try:
        yield
    except RefusedError as error:
        raise DefiniteError(str(error)) from error
    except DamagedResponseError as error:
        raise DamagedReadError(str(error)) from error
    except OutcomeUnknownError as error:
        raise IndefiniteError(str(error)) from error
