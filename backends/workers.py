"""Parallel tasks with joblib: in processes on this machine, or on a running Dask or Ray cluster.

`cluster` selects the workers of `run_tasks`, as `--engine` and `--address` do on the command line.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from multiprocessing import Lock
from typing import Any, TypeVar

from joblib import Parallel, delayed, parallel_config
from joblib.externals.loky.process_executor import TerminatedWorkerError
from joblib.parallel import get_active_backend

from phiball.backends.numba.threads import THREADS_VARIABLE
from phiball.backends.provenance import check_origin, provenance
from phiball.backends.selection import active, backend

T = TypeVar("T")
ENGINES = ("processes", "dask", "ray")
CONNECT_TIMEOUT = 10.0  # seconds to wait for a cluster to answer
WORKER_DIED = (
    "a worker process died, perhaps out of memory; the same command resumes after the finished tasks"
)


def on_cluster() -> bool:
    """Whether `run_tasks` uses a cluster instead of processes on this machine."""
    return not type(get_active_backend()[0]).__module__.startswith("joblib._parallel_backends")


def run_tasks(
    function: Callable[..., T], tasks: Iterable[tuple[Any, ...]], *, n_jobs: int | None, n_threads: int = 1
) -> Generator[tuple[int, T], None, None]:
    """Yield (index, function(*task)) for each task, in the order in which they finish.

    - `function`: importable by name in other processes. Its errors are raised here.
    - `tasks`: an iterable of argument tuples, consumed as workers become free.
    - `n_jobs`: the number of concurrent tasks, with joblib's meaning; None and 1 run in this process.
    - `n_threads`: the number of threads of each process on this machine.

    Closing the generator stops the remaining tasks. Raises ChildProcessError if a worker dies, ValueError if
    the software versions of a cluster worker differ from those here, and OSError if processes cannot share
    memory.
    """
    remote = on_cluster()
    record = provenance() if remote else {"backend": active().name}
    # New processes get environment variables that limit threads; libraries read them on import.
    local: dict[str, Any] = {"backend": "loky", "inner_max_num_threads": n_threads}
    local |= {"initializer": _start_worker, "initargs": (n_threads,)}
    try:
        Lock()
    except OSError as error:
        if not remote and n_jobs not in (None, 1):
            reason = "other processes need shared memory, and /dev/shm is full or read-only; use n_jobs=1"
            raise OSError(f"{reason} ({error.strerror})") from None
        local = {}
    with parallel_config(**({} if remote else local)):
        parallel = Parallel(
            n_jobs=n_jobs,
            batch_size=1,
            pre_dispatch="n_jobs" if n_jobs is None or n_jobs < 1 else n_jobs,
            max_nbytes=None,  # pass arrays by value, not as read-only memory maps
            return_as="generator_unordered",
        )
    outcomes = parallel(
        delayed(_call)(record, remote, function, task, index) for index, task in enumerate(tasks)
    )
    try:
        yield from outcomes
    except TerminatedWorkerError:
        raise ChildProcessError(WORKER_DIED) from None
    except _cluster_errors() as error:
        raise ChildProcessError(f"{WORKER_DIED} ({type(error).__name__})") from error
    finally:
        outcomes.close()


def _start_worker(n_threads: int) -> None:
    """Limit the threads of a new process, and ignore Ctrl-C in it: the parent handles Ctrl-C."""
    os.environ[THREADS_VARIABLE] = str(n_threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _call(
    record: dict[str, Any], remote: bool, function: Callable[..., T], task: tuple[Any, ...], index: int
) -> tuple[int, T]:
    """Run one task in a worker, with the backend of `record`; on a cluster, compare the versions first."""
    with backend(record["backend"]):
        if remote:
            check_origin(record, provenance())
        return index, function(*task)


def _cluster_errors() -> tuple[type[BaseException], ...]:
    """The error types by which loaded cluster libraries report that a worker failed."""
    dask, ray = sys.modules.get("distributed"), sys.modules.get("ray.exceptions")
    found = () if dask is None else (dask.KilledWorker, dask.client.FutureCancelledError)
    return found if ray is None else (*found, ray.RayError)


@contextmanager
def cluster(engine: str = "processes", address: str = "") -> Iterator[None]:
    """Select the workers of `run_tasks` in the block: processes on this machine, or a running cluster.

    - `engine`: "processes", "dask" or "ray".
    - `address`: the cluster's address, such as tcp://HOST:8786 (Dask), or HOST:6379 or auto (Ray).

    >>> with cluster("dask"):
    ...     pass
    Traceback (most recent call last):
    ValueError: address is ''; expected the address of the dask cluster
    """
    check_cluster(engine, address)
    if engine == "processes":
        yield
        return
    library = {"dask": "distributed", "ray": "ray"}[engine]
    try:
        module = import_module(library)
    except ImportError as error:
        install = f"which is not installed: pip install 'phiball[{engine}]'"
        raise ImportError(f"the engine {engine} needs {library}, {install}", name=library) from error
    host, _, port = address.rpartition("://")[2].rpartition(":")
    with ExitStack() as stack:
        try:
            if port.isdigit():  # Ray would retry for ten minutes
                socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT).close()
            backend = {"dask": _dask, "ray": _ray}[engine](module, address, stack)
        except (OSError, ValueError, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
            raise ConnectionError(f"no {engine} cluster answers at {address!r} ({reason})") from None
        with parallel_config(backend=backend, n_jobs=-1):
            yield


def check_cluster(engine: str, address: str) -> None:
    """Raise ValueError unless these arguments of `cluster` are valid."""
    if engine not in ENGINES:
        raise ValueError(f"engine is {engine!r}; expected one of {', '.join(ENGINES)}")
    if engine == "processes" and address:
        raise ValueError(f"address is {address!r}; expected none for processes on this machine")
    if engine != "processes" and not address:
        raise ValueError(f"address is ''; expected the address of the {engine} cluster")


def _dask(dask: Any, address: str, stack: ExitStack) -> Any:
    """The joblib backend of a Dask cluster."""
    base: Any = import_module("joblib._dask").DaskDistributedBackend

    class Backend(base):  # type: ignore[misc]
        def submit(self, func: Any, callback: Any = None) -> Any:
            # joblib's callback is called only on success: if Dask gives up a task, joblib would wait forever.
            future = super().submit(func, callback)
            future.add_done_callback(lambda done: done.exception() and callback(done.exception()))
            return future

    client = dask.Client(address, set_as_default=False, timeout=CONNECT_TIMEOUT)
    return Backend(client=stack.enter_context(client))


def _ray(ray: Any, address: str, stack: ExitStack) -> Any:
    """The joblib backend of a Ray cluster."""
    base: Any = import_module("ray.util.joblib.ray_backend").RayBackend

    class Backend(base):  # type: ignore[misc]
        supports_return_generator = True  # the base class, for multiprocessing pools, sets False

        def configure(self, *args: Any, context: Any = None, **settings: Any) -> int:
            return int(super().configure(*args, **settings))  # drops `context`, because Ray warns about it

    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", THREADS_VARIABLE)
    environment = {"env_vars": dict.fromkeys(names, "1")}
    quiet = {"log_to_driver": False, "logging_level": "error", "configure_logging": False}
    ray.init(address=address, runtime_env=environment, **quiet)
    stack.callback(ray.shutdown)
    return Backend(ray_remote_args={"num_cpus": 1})
