"""How often a page is wrong: nulls and leaks through the scoring and wording code, and the coverage of intervals.

    python benchmarks/calibration.py --pages 1000 --attacked 40 --repetitions 10000 --seed 0 > docs/calibration.md

Pages and repetitions depend on the seed and their number alone, so several processes change nothing.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from string import Template

import torch

from fedpriv.attacks.inference.membership import MembershipInference
from fedpriv.attacks.invert.inversion import PixelInversion
from fedpriv.calibration.coverage import CLIENTS, Covered, coverage, coverage_table
from fedpriv.calibration.own import Calibration, rates_table
from fedpriv.calibration.pages import Outcome, by_measure, false_claims, page_of, power, verdicts
from fedpriv.experiment.verbs.calibrating import calibrate

ATTACKS = (
    (PixelInversion(iterations=1000), "representation"),
    (MembershipInference(), "representation"),
    (MembershipInference(), "prototype"),
)
"""Attacks that are run in full, with few steps: what is calibrated is what is said of them."""


TEXT = """# Calibration

How often what a page says is wrong, measured: attacks that know nothing, and leaks of known size, go through the scoring and
wording code that every page goes through. Made by

```
$COMMAND
```

on a 2-core CPU; every draw follows from the seed. Rates are in per cent, with 95 % intervals (Clopper and Pearson).

What guesses made without any upload reach by each measure, and the trained decoder on strangers: [guesses.md](guesses.md).

## Nothing leaks

A page holds two of the inversions and all inferences, on two targets of each of ten simulated clients. Inversions return
what a perfect attack would make of an upload that carries nothing of its client: a draw of the class's mean and covariance,
another client's image, another data set's, or the class's image in general. Scores of membership and of a property are
noise, or tell the class alone. Each has its control on permuted uploads. A verdict other than `none` and `untested` is
false. $PAGES pages; no attack runs. On half of the pages every client's images have a look of their own, so that guesses are
measured; on the others, "drawn alike", chance alone decides which images a client holds, as where a data set is divided,
and identification is compared with the rate that follows from it.

$FALSE
The rate of every verdict on these pages (`untested` where their ten clients cannot exclude an effect that counts):

$VERDICTS
Comparisons one by one, before Holm's rule adjusts them for the number of those that can reject at all:

$MEASURES
## Something leaks

One page in five is judged again with all of these beside its nulls: the true image with noise of standard deviation 0.01
(what a raw representation gives away), 0.05 and 0.15, vectors with an error of 2, 10 and 30 %; the first of these for every
third target alone, as of an attack that succeeds now and then; scores of members one, two
or three standard deviations above others', and a property of twenty clients that is told with certainty. Prototypes are
means over images: they are found by their vectors, not by PSNR. Much noise, and members by one or two standard deviations,
are there to show where power ends. "By design": identification compared with the rate at which chance finds an image.
A leak that is not found must not be called no better than a guess either (`none`): of means that is said where an interval
excludes an effect that counts, which is wrong of such an effect once in forty times. Until scoring 4 it was said wherever
nothing stood, which is of every leak here that was not found. Rates have wider intervals than the five points that count,
so `none` can still be said of a leak that so few of the attacked targets show.

$POWER
## Attacks that run

The same with attacks in full, few steps, on uploads that carry nothing and on the uploads themselves; $ATTACKED federations
for each line, one attack a page. `fedpriv.calibrate(attack)` does this for an attack of your own and returns these rates.
All attacks, on all kinds of upload, in federations that are trained: [calibration-of-attacks.md](calibration-of-attacks.md).

$OWN
## Coverage

How often 95 % intervals hold the truth, in per cent: $REPETITIONS repetitions for five and more clients of equal size, and
a tenth of that for fewer clients, from whom nothing is claimed, and for skewed sizes, which fall as one over the rank. Five
targets a client on average (areas: twenty members and as many others), a correlation of 0.5 within clients.

Coverage is held at 94 % or more for five to twenty clients of equal size, but for a mean of which a tenth of the values lies
far off, four standard deviations here. Where so few images come back, they may be missing from those attacked: the interval
of the mean gain is too low at its upper end, and its lower end, by which a leak is claimed, holds more often than it says.

$COVERAGE

Scoring 3 changed these intervals. Until scoring 2 a difference of shares had Student's t with a bound where few values
deviate. Over 675 settings (5 to 20 clients of equal size, 1 to 20 targets each, correlations of 0 to 0.8, 15 pairs of
shares; 3,000 repetitions each) its coverage was 88.0 to 100 %, below 94 % in one setting of eight, and its lower end lay
above the truth in up to 10.2 % of cases, where 2.5 % is meant. Limits made of both shares cover 94.1 to 100 % there,
their lower end is above the truth in 2.4 % at most, and they are 1.1 times as wide on average. P-values come from the
same limits, so that power changed with them: true images were told from decoys on 54 pages in a hundred and are on 96,
lay 3 dB beyond the best guess on 94 and do on 100, and under much noise were found on 61 and are on 90.

They cost power where the attack is right for some targets only and the guess for hardly any: a share of 0.5 against 0.05,
ten clients of five targets, correlation 0.2, is told to exceed five points at 2.5 % in 73 % of cases where Student's t did
in 92 %; 0.3 in 12 % (45 %); 0.7 in 98 % (100 %); 0.9 against 0.1 in 100 % (96 %).

The page's family of tests changed too. A comparison of so few targets or clients that it could never be claimed takes no
part of the five per cent. On pages of prototypes, where each number of images has comparisons of its own, 100 comparisons
share it as 63 would, and leaks that are half found are found on 5 to 10 pages more in a hundred (60 pages of either
upload). Hommel's rule found 4 more in a hundred among representations and fewer among prototypes; it needs tests that
depend on each other in one direction only, and was not taken. Where an attack has several seeds, what is said over seeds
has four of the five per cent, and what is said of single seeds one; before, three seeds shared the five per cent among
four times as many comparisons.
"""


def one_page(seed: int, number: int) -> list[Outcome]:
    """One simulated page, on one thread."""
    torch.set_num_threads(1)
    return page_of(seed, number)


def covered(repetitions: int, seed: int, clients: int) -> list[Covered]:
    """Coverage for one number of clients."""
    return coverage(repetitions, seed, (clients,))


def attacked(pages: int, seed: int, which: int) -> Calibration:
    """One attack in full, on one thread."""
    torch.set_num_threads(1)
    attack, kind = ATTACKS[which]
    return calibrate(attack, kind=kind, pages=pages, seed=seed)


def main() -> None:
    """Run everything and print a page of Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pages", type=int, default=1000, help="simulated pages where only scoring runs")
    parser.add_argument("--attacked", type=int, default=40, help="simulated pages for each null where attacks run")
    parser.add_argument("--repetitions", type=int, default=10000, help="of each interval")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    chosen = parser.parse_args()
    began = time.perf_counter()
    with ProcessPoolExecutor(chosen.workers) as pool:
        by_clients = list(pool.map(partial(covered, chosen.repetitions, chosen.seed), CLIENTS))
        together = [
            Covered(rows[0].what, rows[0].skewed, {k: v for row in rows for k, v in row.rates.items()})
            for rows in zip(*by_clients, strict=True)
        ]
        print(f"coverage: {time.perf_counter() - began:.0f} s", file=sys.stderr)
        outcomes = [
            one for page in pool.map(partial(one_page, chosen.seed), range(chosen.pages), chunksize=10) for one in page
        ]
        print(f"pages: {time.perf_counter() - began:.0f} s", file=sys.stderr)
        own = list(pool.map(partial(attacked, chosen.attacked, chosen.seed), range(len(ATTACKS))))
    print(f"all: {time.perf_counter() - began:.0f} s", file=sys.stderr)
    parts = {
        "COMMAND": shlex.join(["python", "benchmarks/calibration.py", *sys.argv[1:]]),
        "PAGES": f"{chosen.pages:,}",
        "ATTACKED": f"{chosen.attacked:,}",
        "REPETITIONS": f"{chosen.repetitions:,}",
        "FALSE": false_claims(outcomes),
        "VERDICTS": verdicts(outcomes),
        "MEASURES": by_measure(outcomes),
        "POWER": power(outcomes),
        "OWN": rates_table(own),
        "COVERAGE": coverage_table(together),
    }
    print(Template(TEXT).substitute(parts), end="")


if __name__ == "__main__":
    main()
