"""Claims on several processes: each result as it comes; a process that dies is an error of its claim."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import current_thread, main_thread

from phiball.backends import active, use
from phiball.verification.framework.claim import Claim, Result

# One thread a process, unless the user says otherwise: the processes already take all cores.
ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "PHIBALL_THREADS",
)
_PATIENCE = 5.0  # seconds that a process may take to end


def cores() -> int:
    """The cores given to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(eq=False)
class _Worker:
    process: BaseProcess
    pipe: Connection
    index: int  # of the claim that it is at


def _work(pipe: Connection, backend: str) -> None:
    from phiball.verification.framework.runner import all_claims  # which imports this module

    use(backend)
    known = {one.id: one for one in all_claims()}
    try:
        while True:
            name, effort, seed = pipe.recv()
            pipe.send(known[name].run(effort=effort, seed=seed))
    except (EOFError, BrokenPipeError):
        return  # nobody is there any more


@contextmanager
def _starting() -> Iterator[None]:
    """The environment of new processes: one thread each, and deaf to Ctrl-C, which their parent answers."""
    before = {name: os.environ.get(name) for name in ONE_THREAD}
    hears = current_thread() is main_thread()
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if hears else None
    try:
        os.environ.update({name: value or "1" for name, value in before.items()})
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
        if hears:
            signal.signal(signal.SIGINT, handler)


def _start(index: int) -> _Worker:
    # A fresh interpreter: torch and others do not survive a fork of a process that has used them.
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, active().name), daemon=True)
    with _starting():
        process.start()
    theirs.close()  # so that the end of the process is the end of the pipe
    return _Worker(process, ours, index)


def _death(worker: _Worker) -> str:
    worker.process.join(_PATIENCE)
    code = worker.process.exitcode
    how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with status {code}"
    return f"the process {how}"


def run_side_by_side(
    claims: Sequence[Claim], *, jobs: int, effort: float, seed: int
) -> Generator[tuple[list[str], int, Result | None], None, None]:
    """Run claims of `all_claims` on `jobs` processes.

    Yields (ids that are running, index of the claim that is done, its result), and (ids, 0, None) once
    at the start. What is left when the iterator is closed is ended.
    """
    left = iter(range(len(claims)))
    team: list[_Worker] = []

    def employ(index: int) -> None:
        worker = _start(index)
        team.append(worker)
        ask(worker, index)

    def ask(worker: _Worker, index: int) -> None:
        worker.index = index
        with suppress(BrokenPipeError):  # it has died; that is seen when its answer is awaited
            worker.pipe.send((claims[index].id, effort, seed))

    def running() -> list[str]:
        return [claims[worker.index].id for worker in team]

    try:
        for _, index in zip(range(jobs), left, strict=False):
            employ(index)
        yield running(), 0, None
        while team:
            pipes = {worker.pipe: worker for worker in team}
            for ready in wait(list(pipes)):
                worker = pipes[ready]  # type: ignore[index]
                done, following = worker.index, next(left, None)
                try:
                    result: Result = worker.pipe.recv()
                except (EOFError, ConnectionResetError):
                    team.remove(worker)
                    result = claims[done].failed(_death(worker))
                    if following is not None:
                        employ(following)
                else:
                    if following is not None:
                        ask(worker, following)
                    else:
                        team.remove(worker)
                        worker.pipe.close()  # which it takes as the end of its work
                        worker.process.join(_PATIENCE)
                yield running(), done, result
    finally:
        for worker in team:
            worker.process.terminate()
        for worker in team:
            worker.process.join(_PATIENCE)
            if worker.process.is_alive():
                worker.process.kill()
            worker.pipe.close()
