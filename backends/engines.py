"""Where tasks run: processes on this machine, or the workers of a Dask or Ray cluster that exists.

Processes are joblib's. Its backend for Dask does not do: it leaves the tasks of a stopped run to run to their
end, and a run in which a task kills its worker does not end. Here a task is stopped with its run, one whose
worker dies is repeated, and one that kills its workers is named. The client for Ray, of a few lines, does the
same.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from queue import Empty, SimpleQueue
from typing import Any, TypeVar
from uuid import uuid4

from phiball.backends.child import call_in_child, in_worker
from phiball.backends.processes import THREAD_VARIABLES, Lost, ignore_interrupts, run_in_processes
from phiball.backends.provenance import provenance

T = TypeVar("T")
_log = logging.getLogger("phiball")
ENGINES = ("processes", "dask", "ray")
RETRIES = 3  # of a task whose worker died, before it is Lost
CONNECT = 10.0  # seconds in which a cluster must answer
PAUSE = 1.0  # seconds after which a cluster is asked anew how many workers it has


@dataclass(frozen=True)
class Engine:
    """Where tasks run, and how many at a time.

    - `name`: "processes", new ones on this machine; or "dask" or "ray", a cluster that runs already.
    - `address`: of the cluster, such as tcp://host:8786 (Dask), or host:6379 or auto (Ray).
    - `jobs`: tasks at a time; 0 is one per worker of the cluster, or one here.

    >>> Engine("dask")
    Traceback (most recent call last):
    ValueError: address is ''; expected that of the cluster, for the engine dask
    """

    name: str = "processes"
    address: str = ""
    jobs: int = 0

    def __post_init__(self) -> None:
        if self.name not in ENGINES:
            raise ValueError(f"engine is {self.name!r}; expected one of {', '.join(ENGINES)}")
        if self.jobs < 0:
            raise ValueError(f"jobs is {self.jobs}; expected a whole number that is not negative")
        if self.shares_files and self.address:
            raise ValueError(f"address is {self.address!r}; expected none for processes on this machine")
        if not self.shares_files and not self.address:
            raise ValueError(f"address is ''; expected that of the cluster, for the engine {self.name}")
        if not self.shares_files and self._place() is None and self.address != "auto":
            example = "tcp://HOST:8786" if self.name == "dask" else "HOST:6379, or auto"
            raise ValueError(f"address is {self.address!r}; expected one such as {example}")

    def _place(self) -> tuple[str, int] | None:
        """The host and the port of the cluster, or None if the address has none."""
        protocol, _, place = self.address.rpartition("://")
        host, _, port = place.rpartition(":")
        known = ("", "tcp", "tls", "ws", "wss", "ucx") if self.name == "dask" else ("", "ray")
        return (host.strip("[]"), int(port)) if protocol in known and host and port.isdigit() else None

    def check(self) -> None:
        """Raise ConnectionError if nothing answers at the address: Ray would try for ten minutes."""
        if self.shares_files:
            return
        _require({"dask": "distributed", "ray": "ray"}[self.name], self.name)
        place = self._place()
        if place is None:
            return
        try:
            socket.create_connection(place, timeout=CONNECT).close()
        except OSError as error:
            kind = "Dask scheduler" if self.name == "dask" else "Ray cluster"
            raise ConnectionError(f"address is {self.address!r}, where no {kind} answers ({error})") from None

    @property
    def shares_files(self) -> bool:
        """Whether tasks see the files of this process. On a cluster they need not."""
        return self.name == "processes"

    def run(
        self,
        function: Callable[..., T],
        tasks: Iterable[tuple[Any, ...]],
        *,
        threads: int = 1,
        places: Sequence[Any] = (),
    ) -> Generator[tuple[list[int], dict[int, T | Lost]], None, None]:
        """Call `function(*task)` for every task, each in a process that does nothing else and has `threads`.

        The function must be importable by name. An error that it raises is raised here. Tasks are taken from
        their iterator when there is room for them. A task whose worker dies is repeated; one that kills its
        process is `Lost`. A worker of a cluster that has other versions is refused. With `places`, such as
        devices, a task gets one of them as its last argument: that which the fewest running tasks have.

        Yields (indices of the tasks that are running, outcomes by index of those that have just ended): once
        at the start, and whenever a task ends. Closing the generator stops all of them.
        """
        if self.name == "processes":
            return run_in_processes(function, tasks, jobs=self.jobs or 1, threads=threads, places=places)
        if places:
            raise ValueError(
                f"devices are {places}; expected one for a cluster, whose workers have their own"
            )
        self.check()
        cluster = {"dask": _Dask, "ray": _Ray}[self.name](self.address, threads)
        return _on_cluster(cluster, function, tasks, self.jobs)


def _on_cluster(
    cluster: Any, function: Callable[..., T], tasks: Iterable[tuple[Any, ...]], jobs: int
) -> Generator[tuple[list[int], dict[int, T | Lost]], None, None]:
    """Hand tasks to a cluster, no more at a time than it has workers, so that those that run are known."""
    coming, running, record = enumerate(tasks), dict[Any, int](), provenance()
    ended: dict[int, T | Lost] = {}
    idle = False
    try:
        while True:
            size = cluster.size()
            if size == 0 and not idle:
                _log.warning("the cluster has no workers; tasks wait until it has")
            idle = size == 0
            limit = jobs or max(1, size)
            while len(running) < limit and (fresh := next(coming, None)) is not None:
                running[cluster.submit((record, function, fresh[1]))] = fresh[0]
            yield list(running.values()), ended
            if not running:
                return
            done = cluster.wait(list(running))
            ended = {running.pop(handle): cluster.outcome(handle) for handle in done}
    finally:
        with ignore_interrupts():
            cluster.close(list(running))


def _require(module: str, engine: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        message = (
            f"the engine {engine} needs {module}, which is not installed: pip install 'phiball[{engine}]'"
        )
        raise ImportError(message, name=module) from error


class _Dask:
    """A Dask cluster. Each task has a process of its own under the worker, so that it can be stopped."""

    def __init__(self, address: str, threads: int) -> None:
        self._dask = _require("distributed", "dask")
        self._address, self._threads = address, threads
        self._done = SimpleQueue[Any]()
        # That a scheduler goes away is told in one line, below.
        for name in ("client", "core", "comm.tcp"):
            logging.getLogger(f"distributed.{name}").setLevel(logging.CRITICAL)
        try:
            self._client = self._dask.Client(address, set_as_default=False, timeout=CONNECT)
        except (OSError, ValueError) as error:
            raise ConnectionError(
                f"address is {address!r}, where no Dask scheduler answers ({error})"
            ) from None

    def size(self) -> int:
        return len(self._client.nthreads())

    def submit(self, call: tuple[Any, ...]) -> Any:
        key = f"phiball-{uuid4()}"
        handle = self._client.submit(_on_dask_worker, call, self._threads, key=key, pure=False)
        handle.add_done_callback(self._done.put)
        return handle

    def wait(self, handles: list[Any]) -> list[Any]:
        try:
            return [self._done.get(timeout=PAUSE)]
        except Empty:
            return []

    def outcome(self, handle: Any) -> Any:
        if handle.status == "cancelled":
            raise ConnectionError(
                f"the Dask scheduler at {self._address} went away; the same command goes on"
            )
        try:
            return handle.result()
        except self._dask.KilledWorker as error:
            return Lost(f"the workers died that had it ({str(error).splitlines()[0]})")

    def close(self, handles: list[Any]) -> None:
        self._client.cancel(handles, force=True)
        self._client.close()


def _on_dask_worker(call: tuple[Any, ...], threads: int) -> Any:
    """Run `in_worker(*call)` in a child of a Dask worker, which is killed when nobody wants its result."""
    worker = import_module("distributed").get_worker()
    key = worker.get_current_task()

    def wanted() -> bool:
        # A thread cannot be stopped: when the client cancels or leaves, its task is only marked.
        state = worker.state.tasks.get(key)
        return state is not None and state.state != "cancelled"

    return call_in_child(in_worker, call, threads, wanted)


class _Ray:
    """A Ray cluster, whose worker processes have one task each."""

    def __init__(self, address: str, threads: int) -> None:
        self._ray = _require("ray", "ray")
        limits = dict.fromkeys(THREAD_VARIABLES, str(threads))
        try:
            self._ray.init(
                address=address,
                runtime_env={"env_vars": limits},
                log_to_driver=False,
                logging_level="error",
                configure_logging=False,
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise ConnectionError(
                f"address is {address!r}, where no Ray cluster answers ({reason})"
            ) from None
        self._call = self._ray.remote(max_retries=RETRIES, num_cpus=1)(in_worker)

    def size(self) -> int:
        return int(self._ray.cluster_resources().get("CPU", 1))

    def submit(self, call: tuple[Any, ...]) -> Any:
        return self._call.remote(*call)

    def wait(self, handles: list[Any]) -> list[Any]:
        done, _ = self._ray.wait(handles, num_returns=1, timeout=PAUSE)
        return list(done)

    def outcome(self, handle: Any) -> Any:
        try:
            return self._ray.get(handle)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except self._ray.exceptions.RayError as error:
            return Lost(f"the workers died that had it ({type(error).__name__})")

    def close(self, handles: list[Any]) -> None:
        for handle in handles:
            self._ray.cancel(handle, force=True)
        self._ray.shutdown()
