"""The command: batches and single calls at random, until there are enough, or for some hours."""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any

from tests.support.fuzz.judge import PRECISE
from tests.support.fuzz.tasks import Found, task


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="stop after so many (a million)")
    parser.add_argument("--hours", type=float, help="or after so many hours, however many inputs")
    parser.add_argument("--seed", type=int, help="of a run, which prints it (random)")
    parser.add_argument(
        "--start", type=int, default=0, metavar="TASK", help="go on with this task of the seed"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes")
    return parser.parse_args()


def run(seed: int, start: int, workers: int) -> Iterator[tuple[int, Any]]:
    """(task, what it found or why it died), side by side, without end."""
    # A worker ends with this process, even if that is killed.
    pool = ProcessPoolExecutor(workers, get_context("spawn"))
    pending: dict[Future[Found], int] = {}
    number = start
    try:
        while True:
            while len(pending) < workers:
                pending[pool.submit(task, seed, number)] = number
                number += 1
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                yield pending.pop(future), future.result()
    except BrokenProcessPool:
        yield min(pending.values(), default=number), None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def main() -> int:
    """Run; 1 if something was found."""
    arguments = options()
    if not PRECISE:
        print("NumPy has no extended precision on this machine, which the judge needs")
        return 2
    seed = secrets.randbelow(10**6) if arguments.seed is None else arguments.seed
    print(f"--seed {seed} --start {arguments.start}", flush=True)
    began, inputs, single, found = time.monotonic(), 0, 0, 0
    for number, result in run(seed, arguments.start, arguments.workers):
        if result is None:
            print(f"a process died, at --seed {seed} --start {number}", flush=True)
            return 1
        inputs, single = inputs + result[0], single + result[1]
        for text in result[2]:
            found += 1
            print(f"\nFAULT {found}, at --seed {seed} --start {number}\n{text}\n", flush=True)
        elapsed = time.monotonic() - began
        enough = elapsed >= 3600 * arguments.hours if arguments.hours else inputs >= arguments.inputs
        if number % 20 == 0 or enough:
            print(
                f"task {number}: {inputs:,} inputs, {single:,} single calls, {found} faults, {elapsed:.0f} s",
                flush=True,
            )
        if enough or found >= 20:
            break
    print(f"{inputs:,} inputs, {single:,} of them single calls: {found} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
