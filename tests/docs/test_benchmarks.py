"""The page of speed is what its command makes of the records, and those tell nothing by which a machine is found."""

import importlib.util
import json
from pathlib import Path

import pytest

from fedpriv.experiment.benchmarks import COMPARISONS

DOCS = Path(__file__).parents[2] / "docs"


def maker():
    spec = importlib.util.spec_from_file_location("make_benchmarks", DOCS / "make_benchmarks.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_the_committed_page_is_what_the_command_makes():
    assert (DOCS / "benchmarks.md").read_text(encoding="utf-8") == maker().page(), "python docs/make_benchmarks.py"


def test_records_are_of_comparisons_that_there_are_and_hold_no_path():
    for place in (DOCS / "benchmarks").iterdir():
        record = json.loads(place.read_text())
        told = list(dict.fromkeys(case["comparison"] for case in record["cases"]))
        assert told == [name for name in COMPARISONS.builtins if name in told]
        texts = [text for text in strings(record) if "/" in text and "://" not in text]
        assert [text for text in texts if any(word.startswith("/") for word in text.split())] == []


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from strings(entry)


def test_a_record_of_a_gpu_fills_the_columns_of_the_other(tmp_path, monkeypatch):
    made = maker()
    record = json.loads(made.on_cpu()[0].read_text())
    for case in record["cases"]:
        case["device"] = "cuda"
    (tmp_path / "result").mkdir()
    (tmp_path / "result" / "benchmark.json").write_text(json.dumps(record))
    monkeypatch.setattr(made, "ON_GPU", tmp_path / "gpu.json")
    before = made.page()
    made.take_over(tmp_path / "result")
    assert made.ON_GPU.is_file()
    assert before.count("| – | – | – |") > made.page().count("| – | – | – |")


def test_what_two_commands_measured_on_one_machine_is_one_record():
    made = maker()
    whole = made.load_benchmark(made.on_cpu()[0])
    first = whole.cases[0].comparison
    halves = [
        whole.model_copy(update={"cases": tuple(case for case in whole.cases if (case.comparison == first) is own)})
        for own in (False, True)
    ]
    both = made.together(halves)
    assert [case.case for case in both.cases] == [case.case for case in whole.cases]
    assert len(both.machine.matrix_gflops["cpu"].values) == 2 * len(whole.machine.matrix_gflops["cpu"].values)
    renamed = tuple(case.model_copy(update={"case": "again"}) for case in halves[1].cases)
    again = halves[1].model_copy(update={"cases": renamed})
    later = made.together([whole, again])
    assert {case.case for case in later.cases if case.comparison == first} == {"again"}
    assert [case for case in later.cases if case.comparison != first] == list(halves[0].cases)
    with pytest.raises(SystemExit, match="another machine, scale or images"):
        made.together(
            [halves[0], halves[1].model_copy(update={"scale": "full" if whole.scale == "quick" else "quick"})]
        )


def test_machines_have_a_record_each(tmp_path, monkeypatch):
    made = maker()
    first = made.load_benchmark(made.on_cpu()[0])
    monkeypatch.setattr(made, "RECORDS", tmp_path / "kept")

    def take(processor):
        folder = tmp_path / processor
        folder.mkdir(exist_ok=True)
        record = first.model_copy(update={"machine": first.machine.model_copy(update={"processor": processor})})
        (folder / "benchmark.json").write_text(record.model_dump_json())
        made.take_over(folder)

    for processor in ("slow", "fast", "slow"):
        take(processor)
    assert [made.load_benchmark(place).machine.processor for place in made.on_cpu()] == ["slow", "fast"]
    assert made.page().index("## Measured: slow, ") < made.page().index("## Measured: fast, ")
