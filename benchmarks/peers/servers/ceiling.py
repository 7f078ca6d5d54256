"""What the device gives without a server: the program called in a loop, from numpy to numpy.

CEILING.py PROGRAM_DIR; then one line "MOST_ROWS SECONDS" on standard input for each measurement, answered by one line of
JSON: rows_per_s, bucket (the best one up to MOST_ROWS), cpu_us_per_row.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from program import Program

TRIAL_SECONDS, TRIAL_RUNS = 0.3, 3


def fastest(program: Program, bucket: int) -> float:
    """rows/s of the fastest of some runs: what disturbs a run only makes it slower."""
    rows = np.zeros((bucket, *program.row), program.dtype)
    runs: list[float] = []
    while sum(runs) < TRIAL_SECONDS or len(runs) < TRIAL_RUNS:
        start = time.perf_counter()
        program.run(rows)
        runs.append(time.perf_counter() - start)
    return bucket / min(runs)


def measure(program: Program, bucket: int, seconds: float) -> tuple[float, float]:
    """(rows/s, CPU microseconds per row)."""
    rows = np.zeros((bucket, *program.row), program.dtype)
    runs, cpu, start = 0, time.process_time(), time.perf_counter()
    while (took := time.perf_counter() - start) < seconds:
        program.run(rows)
        runs += 1
    return runs * bucket / took, (time.process_time() - cpu) / (runs * bucket) * 1e6


def main() -> None:
    program = Program(Path(sys.argv[1]))
    best: dict[int, int] = {}
    print("READY", flush=True)
    for line in sys.stdin:
        most, seconds = int(line.split()[0]), float(line.split()[1])
        if most not in best:
            fitting = [bucket for bucket in program.buckets if bucket <= most]
            best[most] = max(fitting, key=lambda bucket: fastest(program, bucket))
        rate, cpu = measure(program, best[most], seconds)
        print(json.dumps({"rows_per_s": rate, "bucket": best[most], "cpu_us_per_row": cpu}), flush=True)


if __name__ == "__main__":
    main()
