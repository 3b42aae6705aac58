"""Many cases in one test: all are tried, and the failure names those that failed."""

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import pytest


def each(names: str, cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator by which a test of one case becomes one test of all of them.

    Args:
        names: Parameters of the test that a case gives, with commas between; all others are fixtures.
        cases: A tuple of values for each case, or the value itself where there is one name.
    """
    keys = [name.strip() for name in names.split(",")]
    every = [(case,) if len(keys) == 1 else tuple(case) for case in cases]
    assert every

    def decorated(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)

        @wraps(test)
        def tried(**fixtures: Any) -> None:
            failed: list[tuple[tuple[Any, ...], BaseException]] = []
            for case in every:
                try:
                    test(**fixtures, **dict(zip(keys, case, strict=True)))
                except (Exception, pytest.fail.Exception) as error:
                    failed.append((case, error))
            if failed:
                lines = [f"{case!r}: {type(error).__name__}: {error}" for case, error in failed]
                told = f"{len(failed)} of {len(every)} cases failed:\n" + "\n".join(lines)
                raise AssertionError(told) from failed[0][1]

        rest = [own for name, own in signature.parameters.items() if name not in keys]
        tried.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        return tried

    return decorated
