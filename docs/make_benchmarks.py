"""Write ``docs/benchmarks.md`` from the records in ``docs/benchmarks``: ``python docs/make_benchmarks.py [RESULT...]``.

RESULT is a folder that ``fedpriv benchmark`` made: its record is taken over first, as that of a GPU where it was measured
on one, else as that of its machine. Several are one record; a comparison that two of them hold is the later one's.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedpriv.experiment.benchmarks import COMPARISONS
from fedpriv.pages.benchmark_page import GPU, benchmark_markdown
from fedpriv.scoring.records.benchmark import BenchmarkRecord, Machine, Spread
from fedpriv.scoring.storage import BENCHMARK, load_benchmark

PAGE = Path(__file__).with_name("benchmarks.md")
RECORDS = Path(__file__).with_name("benchmarks")
ON_GPU = RECORDS / "gpu.json"

PEAKS = ("matrix_gflops", "convolution_gflops")

HEAD = """# Speed and memory

What `fedpriv benchmark` measured, beside others and beside what the project asks of itself. Made by `python
docs/make_benchmarks.py` from the records in `docs/benchmarks`, and a test holds that it is up to date. On a machine
of your own:

```console
$ fedpriv benchmark                                  # quick: smaller cases, three turns a side
$ fedpriv benchmark --list
$ git clone https://github.com/TsingZ0/HtFLlib && git clone https://github.com/JonasGeiping/breaching
$ PYTHONPATH=breaching fedpriv benchmark --scale full --htfllib HtFLlib
```

## How it is measured

- Every side of a case works in a process of its own, one thread each. They take turns (a b a b), after one turn each
  that is not measured, and a ratio is of a pair of turns: a load that comes and goes is on both. Told are the least,
  the middle and the largest.
- The clock is that of the process: **CPU seconds**, start-up left out. Whole commands are run as a user runs them,
  with as many processes as they take by themselves, and told in seconds that pass (`main-command`, `suites`): these
  hang on what else the machine does.
- **Both sides are given the same work.** A federated round: one division of the images, the same network, batches and
  steps, each library with the files that it writes and the evaluations of all clients that it makes in a round (HtFLlib
  one, fedpriv another where a broadcast changes something). The attacks: the same weights, gradients and labels, the same
  number of steps, one start a target; no start is drawn anew and none stops early. Nothing in it hangs on what the
  images show, so they are random unless `--images` names real ones. Peers are not changed, and are handed the
  same networks, which are of torch's own layers.
- **Of the peak**: the operations of convolutions and matrix products in a turn, as torch's counter counts them (the
  least of all sides, so that more work for the same result earns nothing), over our seconds, as a share of the better
  of two rates that the machine reaches around the same turns: products of square matrices of 1,024, and convolutions
  of 64 channels. Element-wise work is in the seconds and not in the operations.
- A **goal** is met where every turn meets it, not met where none does. It is about the full scale; wall seconds are
  about two cores.
- Memory: of a process at its peak, torch and images included. Images are 2,000 whatever the number of clients, a
  tenth of which take part in a round.
- A study's fixed cost: CPU seconds of a study of one tiny cell, less those of a cell, by a study of four.

## What stands between here and the goals that are not met

Shares of the time in kernels, by `python benchmarks/where_time_goes.py local` and `... dip` (2-core CPU, one thread):

- **Rounds** (`local`): on the Intel processor 53 % convolutions and 21 % matrix products, which are the library's and
  HtFLlib's as well; 6 % pooling, 5 % steps, 3 % copies. All that is ours to save there is the quarter that is left, and of
  it the goal asks a third.
- **DIP**: networks that share no weights, so that nothing of them can be put together. A network has 575,000 weights
  for 3,072 values of an image, and each step reads or writes every one of them some ten times: more than a core's
  caches hold. Layers and derivatives are torch's, convolutions grouped by rows. Layers whose derivatives were written
  out by hand took 3 to 10 % less of whole searches' CPU time (4 and 12 targets, one thread), and are gone.
- **A study's fixed cost**: torch's own import is two thirds of it. It was above three seconds on the Intel processor, 2.8 to
  3.0 on the one by AMD, and is 2.1 there since what is imported is left out of garbage collection, in an environment that
  holds what `pip install .` installs.

## Since the first of these were measured

The tables of the Intel processor were not measured again after the changes that these commands show, on another 2-core
CPU (AMD EPYC, one thread, ratios in pairs, least, middle and largest, seed 0); what was measured there as a whole is in
tables of its own below.

- `python benchmarks/training_layout.py cnn4:3x32x32 small-cnn:1x28x28 small-cnn-deep:1x28x28 googlenet:3x32x32
  mobilenet-v2:3x32x32`, a local step with the channels of a position side by side: 0.85-0.91-1.00, 0.78-0.81-0.86,
  0.73-0.82-0.98, 0.61-0.64-0.71 and 0.53-0.63-0.69 of the time before.
- `python benchmarks/matching_convolutions.py cnn4:3x32x32 lenet-sigmoid:3x32x32`, an evaluation of gradient matching for
  ten targets with convolutions computed directly: cnn4 1.09-1.14-1.16 times as fast for one image a target,
  1.16-1.40-1.49 for four, 1.81-1.88-2.08 for sixteen; LeNet 0.88-0.98-1.04, 1.28-1.31-1.36 and 1.41-1.50-1.62.
- `fedpriv attack --target low-rank-model` there, in the same hours: 210 s before and 165 s since wanted gradients are taken
  by their factors, inputs of a layer are asked for within the passes of the gradients, and batches are taken apart once,
  by inverse iteration (on another day the first took 308 s). By the lines that it prints, a search or its control took
  before and since: `inverting-gradients` of one image 29 and 17 s, of four 18 and 10-11, of sixteen 22-24 and 17-19; `dlg`
  of one image 10-12 and 5-6 s, of four 19-23 and 13-15.
"""

GPU_COMMAND = """## On a GPU

The columns of a GPU are filled where the same command runs on a machine with one; times are then seconds that pass
until the card has done its work. Until somebody does they are empty:

```console
$ PYTHONPATH=breaching fedpriv benchmark --scale full --device cuda --htfllib HtFLlib --out results/benchmark-gpu
$ python docs/make_benchmarks.py results/benchmark-gpu
```
"""


QUICK = "At the quick scale cases are smaller, so most goals cannot be told from it."


def main(results: Sequence[str]) -> None:
    """Take records over and write the page."""
    if results:
        take_over(*map(Path, results))
    PAGE.write_text(page(), encoding="utf-8")


def take_over(*results: Path) -> None:
    """Keep the records of results, which are of one machine, as one."""
    record = together([load_benchmark(result / BENCHMARK) for result in results])
    RECORDS.mkdir(exist_ok=True)
    place = ON_GPU if {case.device for case in record.cases} == {GPU} else _place_of(record.machine)
    place.write_text(record.model_dump_json(indent=1) + "\n", encoding="utf-8")


def on_cpu() -> list[Path]:
    """Return the records of machines without a GPU, one a machine."""
    return sorted(RECORDS.glob("cpu*.json"), key=lambda place: (len(place.stem), place.stem))


def _place_of(machine: Machine) -> Path:
    """Return where the record of a machine is kept, or is to be."""
    known = on_cpu()
    own = (place for place in known if _kind(load_benchmark(place).machine) == _kind(machine))
    return next(own, RECORDS / (f"cpu-{len(known) + 1}.json" if known else "cpu.json"))


def together(records: Sequence[BenchmarkRecord]) -> BenchmarkRecord:
    """Return one record of several commands' comparisons, in the order of the registry.

    A comparison that two of them hold is the later one's. Ends the program in a line where they are not of one machine, one
    scale and one kind of images.
    """
    first = records[0]
    if len(records) == 1:
        return first
    for other in records[1:]:
        if (other.scale, other.images) != (first.scale, first.images) or _kind(other.machine) != _kind(first.machine):
            sys.exit(f"{other.command}: of another machine, scale or images than {first.command}")
    last = {case.comparison: record for record in records for case in record.cases}
    order = [name for name in COMPARISONS.builtins if name in last]
    cases = [case for name in order for case in last[name].cases if case.comparison == name]
    peaks = {name: _joined([getattr(one.machine, name) for one in records]) for name in PEAKS}
    command = "`, `".join(record.command for record in records)
    machine = first.machine.model_copy(update=peaks)
    return first.model_copy(update={"command": command, "machine": machine, "cases": tuple(cases)})


def _joined(peaks: Sequence[Mapping[str, Spread]]) -> dict[str, Spread]:
    """Return the rates by device of records, some of which had no need to measure them."""
    devices = dict.fromkeys(device for one in peaks for device in one)
    return {
        device: Spread.of([value for one in peaks if device in one for value in one[device].values])
        for device in devices
    }


def _kind(machine: Machine) -> dict[str, object]:
    return machine.model_dump(exclude=set(PEAKS))


def page() -> str:
    """Return the page as Markdown."""
    gpu = load_benchmark(ON_GPU) if ON_GPU.is_file() else None
    made = "".join(_measured(load_benchmark(place), gpu) for place in on_cpu())
    return f"{HEAD}\n{made}{GPU_COMMAND}"


def _measured(record: BenchmarkRecord, gpu: BenchmarkRecord | None) -> str:
    """Return the section of one machine, beside the figures of a GPU where there are any."""
    images = "random images" if record.images == "random" else "real images"
    told = dict.fromkeys(case.comparison for case in record.cases)
    left = [name for name in COMPARISONS.builtins if name not in told]
    name = f"{record.machine.processor}, {record.machine.cores} cores"
    made = f"## Measured: {name}\n\n`{record.command}`, {images}" + (
        f"; not measured: {', '.join(left)}" if left else ""
    )
    made += ". " + ("" if record.scale == "full" else QUICK) + "\n\n"
    return f"{made}{benchmark_markdown(record, gpu, level=3)}\n"


if __name__ == "__main__":
    main(sys.argv[1:])
