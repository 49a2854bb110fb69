"""`phiball report`: how robust a model is, as a page."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from phiball.backends.files import read_arrays
from phiball.experiments.cli.errors import fail, usage_errors
from phiball.experiments.cli.options import Address, Engine, Jobs, Seed


def report(
    models: Annotated[
        list[str],
        typer.Argument(
            help="package.module:name of a model, or of a function from arrays to predictions; "
            "package.module:name() calls it to get one; or a .pt2 or .onnx file. Several are compared."
        ),
    ],
    data: Annotated[
        str,
        typer.Option(help="An .npz file with arrays x and y, or package.module:name() that returns them."),
    ],
    norm: Annotated[list[str] | None, typer.Option(help="l1, l2 or linf; may be repeated.")] = None,
    radii: Annotated[str, typer.Option(help="first:last:how many, or numbers with commas.")] = "0:1:5",
    clip: Annotated[str, typer.Option(help="lo,hi if inputs live in a box, for instance 0,1.")] = "",
    scale: Annotated[
        str, typer.Option(help="Sizes of the features, with commas; 0 for what must not move.")
    ] = "",
    seed: Seed = 0,
    jobs: Jobs = 0,
    engine: Engine = "processes",
    address: Address = "",
    out: Annotated[Path, typer.Option(help="The page; .json and .csv are written beside it.")] = Path(
        "report.html"
    ),
) -> None:
    """Measure how errors grow with the size of the perturbation; a killed run resumes."""
    from phiball.backends.parallel import check_cluster, cluster
    from phiball.experiments.robustness import robustness_report

    sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    with usage_errors():
        check_cluster(engine, address)
        if out.suffix != ".html":
            raise ValueError(f"--out is {str(out)!r}; expected a name that ends in .html")
    try:
        with cluster(engine, address):
            found = robustness_report(
                {_name(text): _load(text) for text in models},
                _data(data),
                norms=norm or ("l2", "linf"),
                radii=_radii(radii),
                clip=_numbers("--clip", clip, 2) if clip else None,
                scale=_numbers("--scale", scale) if scale else None,
                seed=seed,
                jobs=jobs or -1,
                cache=out.with_suffix(".parts"),
                progress=True,
            )
    except TypeError as error:  # of a model or data that cannot be used
        fail(str(error))
    written = [found.write(out.with_suffix(ending)) for ending in (".html", ".json", ".csv")]
    print(found)
    for warning in found.summary["warnings"]:
        print(f"warning: {warning}")
    print(f"wrote {', '.join(map(str, written))}")


def _name(text: str) -> str:
    return Path(text).stem if text.endswith((".pt2", ".onnx")) else text.rpartition(":")[2].removesuffix("()")


def _load(text: str) -> Any:
    if text.endswith((".pt2", ".onnx")):
        return text
    module, _, name = text.removesuffix("()").partition(":")
    if not module or not name:
        raise ValueError(f"{text!r} names no model; expected package.module:name, or a .pt2 or .onnx file")
    try:
        found = getattr(import_module(module), name)
    except AttributeError:
        raise ValueError(f"{module} has no {name!r}; expected the name of a model") from None
    return found() if text.endswith("()") else found


def _data(text: str) -> Any:
    if not text.endswith(".npz"):
        return _load(text)
    arrays = read_arrays(Path(text))
    missing = {"x", "y"} - set(arrays)
    if missing:
        raise ValueError(f"{text} has no array {min(missing)!r}; expected x and y")
    return arrays["x"], arrays["y"]


def _radii(text: str) -> Any:
    if ":" not in text:
        return _numbers("--radii", text)
    first, last, count = _numbers("--radii", text.replace(":", ","), 3)
    if count < 2 or count != int(count):
        raise ValueError(f"--radii is {text!r}; expected first:last:how many, with at least 2")
    return tuple(first + (last - first) * k / (count - 1) for k in range(int(count)))


def _numbers(name: str, text: str, count: int | None = None) -> Any:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{name} is {text!r}; expected numbers with commas between them") from None
    if count is not None and len(values) != count:
        raise ValueError(f"{name} is {text!r}; expected {count} numbers")
    return values
