"""Files and texts from outside: bounded before they are read, and refused in one line that names the file."""

import os

import pytest
from looped import each

from fedpriv.util import foreign
from fedpriv.util.errors import LONGEST_LINE, UserError, short_line, shown
from fedpriv.util.files import read_json, read_lines

pytestmark = pytest.mark.hostile

READERS = {
    "bytes": lambda path: foreign.read_bytes(path, foreign.SETTINGS),
    "text": lambda path: foreign.read_text(path, foreign.SETTINGS),
    "toml": foreign.toml_file,
    "json": read_json,
    "check": lambda path: foreign.check_file(path, foreign.SETTINGS),
    "tensors": foreign.tensor_file,
}


def refusal(reader, path):
    """The one line in which a file is refused."""
    with pytest.raises(UserError) as caught:
        reader(path)
    told = str(caught.value)
    assert told.isprintable()
    assert len(told) < 600
    return told


@pytest.fixture(params=READERS)
def reader(request):
    return READERS[request.param]


def test_what_is_no_file_is_said(reader, tmp_path):
    (tmp_path / "folder").mkdir()
    assert "folder: is a folder; expected a file of" in refusal(reader, tmp_path / "folder")
    assert "none: no such file" in refusal(reader, tmp_path / "none")
    assert "not readable" in refusal(reader, tmp_path / "a\0b")
    assert "not readable" in refusal(reader, tmp_path / ("x" * 10_000))
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    assert "not readable" in refusal(reader, tmp_path / "circle")


def test_neither_a_pipe_nor_a_device_is_waited_for(reader, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", foreign.Path("/dev/zero"), foreign.Path("/dev/null")):
        assert "is no regular file but a pipe or a device" in refusal(reader, path)


@each("name", sorted(set(READERS) - {"tensors", "json"}))
def test_a_file_beyond_its_limit_is_refused_before_it_is_read(name, tmp_path):
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)  # holds nothing: whoever reads it allocates a terabyte
    assert f"1,099,511,627,776 bytes; settings in TOML may have {1 << 20:,}" in refusal(
        READERS[name], tmp_path / "large"
    )


@each(
    "text",
    [
        "a = " + "[" * 500 + "]" * 500,
        "a = " + "{b=" * 500 + "1" + "}" * 500,
        "[" * 100_000,
        ".".join("a" * 200) + " = 1",
        'a = """' + "[" * 10 + '"""\nb = ' + "[" * 200,
    ],
)
def test_toml_nested_without_end_is_refused(text, tmp_path):
    (tmp_path / "a.toml").write_text(text)
    assert "not readable as TOML" in refusal(foreign.toml_file, tmp_path / "a.toml")


@each(
    "text, complaint",
    [
        ("out = 2026-01-01", "'out': a date or a time; put it in quotes"),
        ("a = [{b = 07:32:00}]", "'b': a date or a time"),
        ("n = 0x" + "f" * 100_000, "'n': a whole number of 400,000 bits; at most 256"),
        ("n = " + "9" * 5000, "not readable as TOML"),
        ('data-dir = "a\\u0000b"', "'data-dir': a NUL character"),
        ("a = 1\na = 2", "not readable as TOML"),
    ],
)
def test_toml_that_no_setting_is_written_as(text, complaint, tmp_path):
    (tmp_path / "a.toml").write_text(text)
    assert complaint in refusal(foreign.toml_file, tmp_path / "a.toml")


@each("text", ["[" * 500 + "]" * 500, '{"a":' * 500 + "1" + "}" * 500, "[" * 1_000_000])
def test_json_nested_without_end_is_refused(text, tmp_path):
    (tmp_path / "a.json").write_text(text)
    assert "more than 32 lists or tables in one another" in refusal(read_json, tmp_path / "a.json")
    (tmp_path / "a.jsonl").write_text("{}\n" + text + "\n")
    assert "a.jsonl:2: not a line of JSON" in refusal(read_lines, tmp_path / "a.jsonl")


@each("content", [b"", b"1234567", b"\xff" * 100, (200).to_bytes(8, "little") + b"{}"])
def test_tensors_whose_header_is_longer_than_the_file(content, tmp_path):
    (tmp_path / "a.safetensors").write_bytes(content)
    assert "a.safetensors: not readable as safetensors (a header of" in refusal(
        foreign.tensor_file, tmp_path / "a.safetensors"
    )


# ---------------------------------------------------------------- echoed values


class Hostile:
    """Fails at everything that an error might ask of it."""

    def __repr__(self):
        raise RuntimeError("no")


def nested(depth):
    found = []
    for _ in range(depth):
        found = [found]
    return found


@each(
    "value",
    ["x" * 10_000, list(range(10_000)), {"k" * 9999: "v" * 9999}, 1 << 99_999, nested(10_000), Hostile(), b"\0" * 9999],
)
def test_a_value_is_echoed_shortened(value):
    assert len(shown(value)) < 1500
    assert shown(value).isprintable()


def test_an_error_is_one_line_whatever_is_echoed_into_it():
    assert str(UserError("a\n\nb\x1b[2J\x07 \ud800")) == "a b\\x1b[2J\\x07 \\ud800"
    told = str(UserError(f"dataset {'x' * 10_000!r}: unknown; known: a, b"))
    assert told.startswith("dataset 'xxx")
    assert told.endswith("...(10,003 characters)...xxxxxxxxxxxxxxxxxxxxxxx': unknown; known: a, b")
    assert len(str(UserError("many words " * 10_000))) < LONGEST_LINE + 100
    assert short_line("/a/path with blanks/of a usual length") == "/a/path with blanks/of a usual length"
