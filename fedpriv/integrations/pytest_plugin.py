"""The fixture ``assert_no_leak`` for tests of one's own: a leak fails the test, an inconclusive answer skips it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

_OPTION = "--fedpriv-inconclusive"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that says what an inconclusive answer does."""
    parser.getgroup("fedpriv").addoption(
        _OPTION, choices=("skip", "fail"), default="skip", help="What an inconclusive answer of assert_no_leak does."
    )


@pytest.fixture
def assert_no_leak(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Return a function of what :func:`fedpriv.guard` returned, or of arguments as of :func:`fedpriv.check`."""

    def assert_(results: Any, fail_on: str | Sequence[str] = "leak") -> None:
        import fedpriv  # only tests that ask for it wait for it

        guarded = isinstance(results, fedpriv.GuardResult)
        if guarded and fail_on != "leak":
            raise fedpriv.UserError("fail_on: a guard has judged already; pass it there: fedpriv.guard(..., fail_on=)")
        outcome = results if guarded else fedpriv.check(results, fail_on=fail_on)
        if outcome.status == "leak" or (
            outcome.status == "inconclusive" and request.config.getoption(_OPTION) == "fail"
        ):
            pytest.fail(str(outcome), pytrace=False)
        if outcome.status == "inconclusive":
            pytest.skip(str(outcome))

    return assert_
