"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

Seed = Annotated[int, typer.Option(min=0, help="The seed of everything that is drawn.")]
Jobs = Annotated[int, typer.Option(min=0, help="The number of processes; 0 is one per core.")]
NJobs = Annotated[int, typer.Option("--n-jobs", help="Number of processes, as in joblib; -1 uses all cores.")]
Engine = Annotated[str, typer.Option(help="Where tasks run: processes of this machine, dask or ray.")]
Address = Annotated[
    str, typer.Option(help="Of the cluster: tcp://HOST:8786 (Dask), HOST:6379 or auto (Ray).")
]
