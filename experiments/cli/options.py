"""Options shared by several commands."""

from __future__ import annotations

from typing import Annotated

import typer

Seed = Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")]
NJobs = Annotated[int, typer.Option("--n-jobs", help="Number of processes, as in joblib; -1 uses all cores.")]
Engine = Annotated[str, typer.Option(help="Where tasks run: processes (on this machine), dask or ray.")]
Address = Annotated[
    str, typer.Option(help="Address of the cluster: tcp://HOST:8786 (Dask), HOST:6379 or auto (Ray).")
]
