"""Images from outside: sizes read from the header before a pixel is decoded."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from PIL import Image, UnidentifiedImageError

from fedpriv.util.errors import UserError
from fedpriv.util.foreign import IMAGE, open_file, reason

FORMATS: Final = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
"""Decoders that may run: no file under another name reaches one that starts programs, as that for PostScript does."""
SUFFIXES: Final = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
MOST_PIXELS: Final = 64_000_000
"""Pixels of one image: a photograph of 8000x8000, which takes 0.9 GB while it is read and its colours are converted."""

logging.getLogger("PIL").addHandler(logging.NullHandler())
"""Or Pillow's words about a file that it cannot read would be printed beside the one line that is said here."""


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Image.Image]:
    """Open an image file; whatever goes wrong in the block is said in one line. Of an animation the first picture counts.

    Raises:
        UserError: for a file that is no image, a broken one, one of more than :data:`MOST_PIXELS` by its header, or one
            of more than 8 bits a channel, which Pillow would clip to white without a word.
    """
    with open_file(path, IMAGE) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd metadata, which nothing here depends on
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with Image.open(file, formats=FORMATS) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise _too_many(path, f"{image.width}x{image.height} pixels")
                if image.mode.startswith(("I", "F")):
                    raise UserError(
                        f"{path} has pixels of more than 8 bits (mode {image.mode}): convert it to 8 bits per channel"
                    )
                with _unheard() if image.format == "TIFF" else contextlib.nullcontext():
                    yield image
        except UserError:
            raise
        except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
            raise _too_many(path, "too many pixels") from error
        except UnidentifiedImageError as error:  # which names the open file, not the path
            raise UserError(f"cannot read image {path}: it is none of {', '.join(FORMATS)}") from error
        except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, struct.error, MemoryError, ...
            raise UserError(f"cannot read image {path}: {reason(error)}") from error


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """Send standard error nowhere: the library that decodes TIFF writes its own lines there, beside the one that we say."""
    try:
        kept = os.dup(2)
    except OSError:  # there is none
        yield
        return
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _too_many(path: Path, told: str) -> UserError:
    return UserError(f"cannot read image {path}: {told}; an image may have {MOST_PIXELS:,}, make it smaller")
