"""How often a bound on epsilon is above the truth, how near it comes, and what verdicts claims of known truth get.

    python benchmarks/audit_dp.py --audits 1000 --canaries 500 --seed 0

Every audit is of simulated releases of a mechanism whose epsilon is known exactly (fedpriv/calibration/privacy_audit.py).
"""

from __future__ import annotations

import argparse
import time
from collections import Counter

from fedpriv.calibration.privacy_audit import (
    ESTIMATES,
    VERDICTS,
    audits,
    gaussian,
    laplace,
    randomised_response,
    verdicts,
)
from fedpriv.calibration.rates import Rate, table

MECHANISMS = (
    gaussian(0.0),
    randomised_response(1.0),
    randomised_response(3.0),
    laplace(1.0),
    gaussian(1.0),
    gaussian(3.0),
)
DELTA, ALPHA = 1e-5, 0.05


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--audits", type=int, default=1000, help="of each mechanism by each estimate")
    parser.add_argument("--canaries", type=int, default=500, help="of each audit")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    began, rows = time.perf_counter(), []
    given = {"canaries": asked.canaries, "number": asked.audits, "seed": asked.seed}
    for mechanism in MECHANISMS:
        for estimate in ESTIMATES:
            if mechanism.gaussian or "Gaussian" not in estimate:
                found = audits(mechanism, estimate, alpha=ALPHA, delta=DELTA, **given)
                rows.append(
                    {
                        "mechanism": mechanism.name,
                        "bound": estimate,
                        "above the truth (%)": found.above,
                        "epsilon": f"{found.truth:.2f}",
                        "median bound": f"{found.median:.2f}",
                    }
                )
    print(table(rows))
    rows = []
    for claimed in (1.0, 4.0, 8.0):
        for less in (1.0, 3.0, 10.0):
            for canaries in (100, 1000):
                found = verdicts(
                    claimed, less, canaries=canaries, number=asked.audits // 2, delta=DELTA, seed=asked.seed
                )
                counts = Counter(found)
                rows.append(
                    {
                        "claimed": f"{claimed:g}",
                        "noise": "as claimed" if less == 1 else f"1/{less:g} of it",
                        "canaries": f"{canaries:,}",
                        **{f"{one} (%)": str(Rate(counts[one], len(found))) for one in VERDICTS},
                    }
                )
    print(table(rows))
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
