"""Inputs from strangers by the hundred thousand: each is read, or refused in one line; memory and time stay bounded.

    nice -n 19 python benchmarks/faults/readers.py --trials 100000 --seed 0

Valid files of every kind that fedpriv reads are damaged by chance and read again; uploads are handed in with parts that no
upload is made of. Right is a value, or a ``UserError`` of one printable line of less than 2,100 characters. Any other
exception, an input over 20 seconds, and 1 GiB of memory beyond what was there before, fail. ``--keep`` names a folder
for the inputs that do; ``--only`` names readers.
"""

from __future__ import annotations

import argparse
import io
import json
import pickle
import random
import resource
import signal
import struct
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import rich_click as click
import torch
from damaged_bytes import BINARY, TEXT, damaged
from hostile_uploads import hostile
from PIL import Image

from fedpriv.datasets import SourceOptions, load_dataset
from fedpriv.util.errors import LONGEST_LINE, UserError

MOST_SECONDS, MOST_MEMORY = 20, 1 << 30
DOCS = Path(__file__).parents[2] / "docs"


class TooLongError(BaseException):
    """An input took longer than it may; nothing that handles errors handles this."""


@dataclass
class Reader:
    """A reader and what it is given.

    Attributes:
        weight: of its trials among all.
        make: makes an input by chance.
        read: reads it.
    """

    weight: int
    make: Callable[[random.Random], Any]
    read: Callable[[Any], object]
    counts: dict[str, int] = field(default_factory=lambda: {"read": 0, "refused": 0, "failed": 0})
    slowest: float = 0.0
    memory: int = 0


# ---------------------------------------------------------------- what is valid


def images() -> list[bytes]:
    """Return small images of every format, mode and kind of compression."""
    found = []
    for mode in ("RGB", "L", "P", "RGBA", "1", "CMYK", "I;16"):
        for suffix, more in (
            *(("png", {}), ("jpeg", {}), ("gif", {}), ("bmp", {}), ("webp", {}), ("ppm", {}), ("tiff", {})),
            *(
                ("tiff", {"compression": "tiff_lzw"}),
                ("tiff", {"compression": "jpeg"}),
                ("jpeg", {"progressive": True}),
            ),
            *(
                ("gif", {"save_all": True, "append_images": [Image.new("P", (9, 7), 1)] * 2}),
                ("png", {"interlace": True}),
            ),
        ):
            buffer = io.BytesIO()
            try:
                Image.effect_noise((9, 7), 90).convert(mode).save(buffer, suffix, **more)
            except (OSError, ValueError, KeyError):  # a format that has no such mode
                continue
            found.append(buffer.getvalue())
    return found


def stored() -> dict[str, list[bytes]]:
    """Return files of tensors and records as fedpriv writes them."""
    import fedpriv

    with tempfile.TemporaryDirectory() as folder:
        common = {"dataset": "digits", "per_class": 12, "clients": 2, "rounds": 2}
        run = fedpriv.train("fedproto", out=f"{folder}/run", **common)  # type: ignore[arg-type]
        fedpriv.attack(run, target="prototype", attacks=["pixels"], iterations=2, targets=2, out=f"{folder}/found")
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        return {
            suffix: [path.read_bytes() for path in files if path.suffix == suffix and chosen in path.as_posix()]
            for suffix, chosen in ((".json", ""), (".jsonl", ""))
        } | {
            "message": [path.read_bytes() for path in (Path(folder) / "run").rglob("uploads/**/*.safetensors")],
            "reconstruction": [path.read_bytes() for path in Path(folder).rglob("reconstruction.safetensors")],
            "truth": [path.read_bytes() for path in Path(folder).rglob("truth.safetensors")],
        }


def idx(rng: random.Random) -> tuple[bytes, bytes]:
    """Return images and labels in the format of MNIST."""
    pixels = rng.randbytes(20 * 28 * 28)
    return struct.pack(">IIII", 2051, 20, 28, 28) + pixels, struct.pack(">II", 2049, 20) + bytes(
        n % 10 for n in range(20)
    )


# ---------------------------------------------------------------- readers


def readers(here: Path) -> dict[str, Reader]:
    """Return every reader of what comes from outside; ``here`` is a folder of their own."""
    kept = stored()
    flags = [
        (DOCS / "example-train.toml").read_bytes(),
        b'dataset = "digits"\nkeep = [1]\n[option]\nmechanism = "VAP"\n',
    ]
    studies = [path.read_bytes() for path in (DOCS / "study.toml", DOCS / "noise.toml")]
    inline = [
        *(b"mechanism=VAP", b"server.epochs=2", b"a=[1, {b = 2}]", b"noise:scale=0.1/1,kind=laplace"),
        *(b"clip:norm=1+noise:scale=2", b"alpha=0.1,1", b"methods.fedre.mechanism=VAP,VAR", b"x=1e-3"),
        b"fedpriv.methods.fedre:METHOD:mechanism=VAP",
    ]  # fmt: skip
    return {
        "flags in TOML": Reader(12, _of(flags, TEXT), _in(here / "flags.toml", _flags)),
        "studies in TOML": Reader(10, _of(studies, TEXT), _in(here / "study.toml", _study)),
        "settings in one word": Reader(14, _of(inline, TEXT), _word),
        "JSON": Reader(8, _of(kept[".json"], TEXT), _in(here / "a.json", _json)),
        "lines of JSON": Reader(8, _of(kept[".jsonl"], TEXT), _in(here / "a.jsonl", _json_lines)),
        "images": Reader(20, _of(images(), BINARY), _in(here / "folder" / "a" / "1.png", _folder)),
        "lists of TinyImageNet": Reader(5, _tiny(here), lambda given: _tiny_lists(here, given)),
        "packed images of MNIST": Reader(
            3, _of(list(idx(random.Random(0))), BINARY), lambda given: _mnist(here, given)
        ),
        "messages": Reader(5, _of(kept["message"], (*BINARY, *TEXT)), _in(here / "m.safetensors", _message)),
        "reconstructions": Reader(
            3, _of(kept["reconstruction"], (*BINARY, *TEXT)), _in(here / "r.safetensors", _reconstruction)
        ),
        "truths": Reader(3, _of(kept["truth"], (*BINARY, *TEXT)), _in(here / "t.safetensors", _truths)),
        "uploads": Reader(9, hostile, _uploads),
    }


def _of(seeds: Sequence[bytes], pieces: Sequence[bytes]) -> Callable[[random.Random], bytes]:
    assert seeds
    return lambda draw: damaged(draw.choice(seeds), seeds, draw, pieces)


def _in(path: Path, read: Callable[[Path], object]) -> Callable[[bytes], object]:
    path.parent.mkdir(parents=True, exist_ok=True)

    def written(content: bytes) -> object:
        path.write_bytes(content)
        return read(path)

    return written


def _flags(path: Path) -> object:
    from fedpriv.cli.train import train

    return train.make_context("train", ["--config", str(path)])


def _study(path: Path) -> object:
    from fedpriv.experiment.study.definition import read_file
    from fedpriv.experiment.study.grid import parse_study

    return parse_study(read_file(path))


def _word(content: bytes) -> object:
    from fedpriv.experiment.study.definition import parse_axes
    from fedpriv.experiment.study.grammar import parse_chain, split_entries
    from fedpriv.util.pairs import key_values

    text = content.decode("utf-8", "surrogateescape")
    refusals = []
    for read in (lambda: key_values((text,), "--option"), lambda: parse_axes([text]), lambda: parse_chain(text)):
        try:
            read()
        except UserError as error:
            refusals.append(error)
    split_entries(text)
    if len(refusals) == 3:
        raise refusals[0]
    return text


def _json(path: Path) -> object:
    from fedpriv.util.files import read_json

    return read_json(path)


def _json_lines(path: Path) -> object:
    from fedpriv.util.files import read_lines

    return read_lines(path)


def _folder(path: Path) -> object:
    return load_dataset("folder", SourceOptions(path.parents[1]))


def _tiny(here: Path) -> Callable[[random.Random], tuple[str, bytes]]:
    root = here / "tiny"
    for place in (
        *(root / "train" / wnid / "images" / f"{wnid}_0.png" for wnid in ("n01", "n02")),
        root / "val/images/val_0.png",
    ):
        place.parent.mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(place)
    lists = {
        "wnids.txt": b"n02\nn01\n",
        "words.txt": b"n01\tcrane, bird\nn02\tcrane\n",
        "val/val_annotations.txt": b"val_0.png\tn01\t0\t0\t4\t4\n",
    }
    for name, content in lists.items():
        (root / name).write_bytes(content)

    def make(draw: random.Random) -> tuple[str, bytes]:
        name = draw.choice([*lists])
        return name, damaged(lists[name], [*lists.values()], draw, TEXT)

    return make


def _tiny_lists(here: Path, given: tuple[str, bytes]) -> object:
    path = here / "tiny" / given[0]
    before = path.read_bytes()
    try:
        path.write_bytes(given[1])
        return load_dataset("tiny-imagenet", SourceOptions(here / "tiny"))
    finally:
        path.write_bytes(before)


def _mnist(here: Path, content: bytes) -> object:
    root = here / "mnist" / "MNIST" / "raw"
    root.mkdir(parents=True, exist_ok=True)
    pictures, labels = idx(random.Random(0))
    for part in ("train", "t10k"):
        (root / f"{part}-images-idx3-ubyte").write_bytes(content if content[:4] == pictures[:4] else pictures)
        (root / f"{part}-labels-idx1-ubyte").write_bytes(labels if content[:4] == pictures[:4] else content)
    return load_dataset("mnist", SourceOptions(here / "mnist"))


def _message(path: Path) -> object:
    from fedpriv.wire.message_files import load_message

    return load_message(path)


def _reconstruction(path: Path) -> object:
    from fedpriv.scoring.tensor_files import load_reconstruction

    return load_reconstruction(path)


def _truths(path: Path) -> object:
    from fedpriv.scoring.tensor_files import load_truths

    return load_truths(path)


def _uploads(given: dict[str, Any]) -> object:
    from fedpriv.experiment.federation_settings import refuse_small
    from fedpriv.sources.door import read_strangers, read_uploads
    from fedpriv.sources.external import derive_card
    from fedpriv.util.pairs import mapping

    named = ("uploads", "target", "images", "labels", "extractor", "settings")
    if not isinstance(given.get("target"), str) or not isinstance(given.get("settings"), dict):
        return None  # of these the verb takes care
    refuse_small(given["settings"], ("n_classes",), 2)
    handed = read_uploads(*(given.get(name) for name in named))  # type: ignore[arg-type]
    read_strangers(given.get("strangers"), None, handed)
    return derive_card(handed, mapping("knowledge", given.get("knowledge", {})))


# ---------------------------------------------------------------- trials


def tried(reader: Reader, given: Any) -> str | None:
    """Read one input; return None where that went as it should, or else the fault."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.monotonic()
    signal.alarm(MOST_SECONDS)
    fault, kind = None, "refused"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader.read(given)
        kind = "read"
    except UserError as error:
        told = str(error)
        if not told.isprintable() or len(told) > LONGEST_LINE + 100:
            fault = f"no line to print: {told[:80]!r}"
    except click.ClickException:
        pass
    except TooLongError:
        fault = f"over {MOST_SECONDS} s"
    except BaseException as error:  # whatever comes is what is looked for
        fault = f"{type(error).__name__}: {str(error)[:80]}"
    finally:
        signal.alarm(0)
    reader.slowest = max(reader.slowest, time.monotonic() - begin)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    reader.memory = max(reader.memory, grown)
    if fault is None and grown > MOST_MEMORY:
        fault = f"{grown >> 20:,} MiB of memory"
    reader.counts["failed" if fault else kind] += 1
    return fault


def _too_long(number: int, frame: FrameType | None) -> None:
    raise TooLongError


def campaign(trials: int, seed: int, only: Sequence[str] = (), keep: Path | None = None) -> int:
    """Try so many inputs, print the table, and return the number of those that failed."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _too_long)
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        chosen = {name: reader for name, reader in readers(Path(folder)).items() if not only or name in only}
        together = sum(reader.weight for reader in chosen.values())
        for name, reader in chosen.items():
            for number in range(-(-trials * reader.weight // together)):
                given = reader.make(random.Random(f"{seed}/{name}/{number}"))
                fault = tried(reader, given)
                if fault is not None:
                    faults += 1
                    print(f"{name} {number}: {fault}", file=sys.stderr, flush=True)
                    if keep is not None:
                        keep.mkdir(parents=True, exist_ok=True)
                        (keep / f"{name} {number}").write_bytes(given if isinstance(given, bytes) else _dumped(given))
    print(
        "| input | trials | read | refused | failed | slowest | memory |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    )
    for name, reader in chosen.items():
        counts = reader.counts
        print(
            f"| {name} | {sum(counts.values()):,} | {counts['read']:,} | {counts['refused']:,} | {counts['failed']} "
            f"| {reader.slowest:.2f} s | {reader.memory >> 20} MiB |"
        )
    return faults


def _dumped(given: Any) -> bytes:
    try:
        return pickle.dumps(given)
    except Exception as error:  # it may hold anything
        return json.dumps(f"{type(given).__name__}: {error}").encode()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    sys.exit(1 if campaign(asked.trials, asked.seed, asked.only, asked.keep) else 0)
