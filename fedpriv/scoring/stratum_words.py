"""Shares and strata in words, as every sentence has them."""

from __future__ import annotations

from collections.abc import Sequence

from fedpriv.sources.truth import STRATA


def strata_words(strata: Sequence[str]) -> str:
    """Return the numbers of images behind the targets of some strata; neighbours are told as one.

    >>> strata_words(["1"]), strata_words(["1", "2-3"]), strata_words(["2-3", ">10"])
    ('1 image', '1-3 images', '2-3 images or more than 10 images')
    """
    runs: list[list[str]] = []
    for index, name in enumerate(STRATA):
        if name in strata:
            if runs and STRATA[index - 1] == runs[-1][-1]:
                runs[-1].append(name)
            else:
                runs.append([name])
    return " or ".join(_run(run[0], run[-1]) for run in runs)


def _run(first: str, last: str) -> str:
    least = first.strip(">").partition("-")[0]
    if last == ">10":
        return (
            "any number of images"
            if first == "1"
            else number_words(first)
            if first == last
            else f"{least} images or more"
        )
    most = last.rpartition("-")[2]
    return number_words(first) if first == last else f"{least}-{most} images"


def made_of(strata: Sequence[str]) -> str:
    """Return the numbers of images behind the targets of some strata, to follow a noun."""
    return f"made of {strata_words(strata)}"


def number_words(stratum: str) -> str:
    """Return the number of images behind the targets of one stratum."""
    return (
        "1 image" if stratum == "1" else f"more than {stratum[1:]} images" if stratum[0] == ">" else f"{stratum} images"
    )


def alike_words(stratum: str) -> str:
    """Return the trait that candidates of a stratum share, in words."""
    if stratum in STRATA:
        return "the client's only image of a class" if stratum == "1" else f"classes with {number_words(stratum)}"
    return f"images that are {stratum} of their class"


def percent(share: float | None, digits: int = 0) -> str:
    """Return a share in per cent; a mean or median over values that are not all finite has no number.

    >>> percent(0.056, 1), percent(-1e-9), percent(None)
    ('5.6 %', '0 %', 'not finite')
    """
    return "not finite" if share is None else f"{round(100 * share, digits) + 0.0:.{digits}f} %"
