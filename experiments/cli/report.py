"""`phiball report`: the robustness of models, as a page."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from phiball.backends.files import read_arrays
from phiball.experiments.cli.errors import fail, usage_errors
from phiball.experiments.cli.options import Address, Engine, NJobs, Seed


def report(
    models: Annotated[
        list[str],
        typer.Argument(
            help="A model: package.module:name; package.module:name() to call a function that returns a "
            "model; or a .pt2 or .onnx file. Several models are compared."
        ),
    ],
    data: Annotated[
        str,
        typer.Option(help="An .npz file with arrays x and y, or package.module:name() that returns (x, y)."),
    ],
    norm: Annotated[
        list[str] | None, typer.Option(help="Norm of the perturbation: l1, l2 or linf; can be repeated.")
    ] = None,
    radii: Annotated[
        list[str] | None,
        typer.Option(
            help="Radii, as first:last:count or separated by commas. For one norm: linf=0:0.1:5; can be "
            "repeated. By default, up to 4 % of the range of the features."
        ),
    ] = None,
    clip: Annotated[
        str, typer.Option(help="Range lo,hi of the inputs, for example 0,1; by default unbounded.")
    ] = "",
    feature_scale: Annotated[
        str, typer.Option(help="A scale for each feature, separated by commas; 0 fixes a feature.")
    ] = "",
    seed: Seed = 0,
    n_jobs: NJobs = -1,
    engine: Engine = "processes",
    address: Address = "",
    out: Annotated[
        Path, typer.Option(help="The page to write; a .json and a .csv file are written beside it.")
    ] = Path("report.html"),
) -> None:
    """Measure the errors of models under perturbations; the same command resumes a killed run."""
    from phiball.backends.workers import check_cluster, cluster
    from phiball.experiments.robustness import robustness_report

    sys.path.insert(0, str(Path.cwd()))  # import modules of the current folder, as `python -m` does
    with usage_errors():
        check_cluster(engine, address)
        if out.suffix != ".html":
            raise ValueError(f"--out is {str(out)!r}; expected a file name that ends in .html")
    try:
        with cluster(engine, address):
            found = robustness_report(
                _models(models),
                _data(data),
                norm=norm or None,
                radii=_radii_by_norm(radii or [], norm or []),
                clip=_numbers("--clip", clip, 2) if clip else None,
                feature_scale=_numbers("--feature-scale", feature_scale) if feature_scale else None,
                rng=seed,
                n_jobs=n_jobs,
                cache=out.with_suffix(".parts"),
                progress=True,
            )
    except TypeError as error:  # an unsupported model or data type
        fail(str(error))
    written = [found.save(out.with_suffix(suffix)) for suffix in (".html", ".json", ".csv")]
    print(found)
    print(f"wrote {', '.join(map(str, written))}")


def _models(texts: list[str]) -> dict[str, Any]:
    """The models given on the command line; those with equal names have the names that were given."""
    names = [_name(text) for text in texts]
    unique = [text if names.count(name) > 1 else name for text, name in zip(texts, names, strict=True)]
    if len({*unique}) < len(unique):
        raise ValueError(f"the models are {', '.join(texts)}; expected each of them once")
    return dict(zip(unique, map(_load, texts), strict=True))


def _name(text: str) -> str:
    """The name in the report of a model given on the command line."""
    return Path(text).stem if _is_file(text) else text.rpartition(":")[2].removesuffix("()")


def _is_file(text: str) -> bool:
    from phiball.experiments.robustness.models import MODEL_FILES, TORCH_FILES

    return text.endswith((*MODEL_FILES, *TORCH_FILES))


def _load(text: str) -> Any:
    """The object package.module:name, the result of package.module:name(), or a model's file name."""
    if _is_file(text):
        return text
    module, _, name = text.removesuffix("()").partition(":")
    if not module or not name:
        raise ValueError(f"{text!r} is not a model; expected package.module:name, or a .pt2 or .onnx file")
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


def _radii_by_norm(texts: list[str], norms: list[str]) -> Any:
    """The radii of all norms, or of each norm if the texts start with one, as in linf=0:0.1:5."""
    plain = [text for text in texts if "=" not in text]
    if plain and len(texts) > 1:
        raise ValueError(f"--radii is {' and '.join(texts)}; expected one list, or one per norm: linf=0:1:5")
    if plain or not texts:
        return _radii(plain[0]) if plain else None
    found = {norm: _radii(text) for norm, _, text in (text.partition("=") for text in texts)}
    if norms and set(norms) != set(found):
        raise ValueError(f"--norm names {', '.join(norms)} and --radii {', '.join(found)}; expected the same")
    return found


def _radii(text: str) -> Any:
    """The radii of first:last:count, or of a list separated by commas."""
    if ":" not in text:
        return _numbers("--radii", text)
    values = _numbers("--radii", text.replace(":", ","))
    if len(values) != 3 or values[2] < 2 or values[2] != int(values[2]):
        raise ValueError(f"--radii is {text!r}; expected first:last:count with a count of at least 2")
    first, last, count = values
    return tuple(first + (last - first) * k / (count - 1) for k in range(int(count)))


def _numbers(name: str, text: str, count: int | None = None) -> Any:
    """Convert the text of the option `name` to `count` numbers (any number if None), or raise ValueError."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{name} is {text!r}; expected numbers separated by commas") from None
    if count is not None and len(values) != count:
        raise ValueError(f"{name} is {text!r}; expected {count} numbers")
    return values
