"""A training at the size of ImageNet on many GPUs, on paper: bytes, seconds and cost, by formulas."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np

from phiball.backends import use
from phiball.experiments.benchmarks.timing import ratio
from phiball.experiments.framework.tables import ReportTable
from phiball.refimpl import ENTROPIC, RTMLMC, worst_case

NUMBER = 4  # bytes, in single precision


def assumed(default: float, text: str) -> float:
    """Return a field of Assumptions with what it means."""
    value: float = field(default=default, metadata={"text": text})
    return value


@dataclass(frozen=True)
class Assumptions:
    """What is not measured here: the problem, and the machine that we do not have."""

    images: float = assumed(1_281_167, "N, training images")
    coordinates: float = assumed(3 * 224 * 224, "d, numbers of an image")
    parameters: float = assumed(25_557_032, "P, parameters of a ResNet-50")
    flops: float = assumed(4.1e9, "F, operations of one image forward, twice that back")
    activations: float = assumed(1e8, "A, bytes that one image keeps for the way back")
    epochs: float = assumed(90, "passes over the images")
    batch: float = assumed(32, "b, images per GPU and step")
    chunk: float = assumed(128, "c, perturbed points at a time (backward(chunk=...))")
    gpus: float = assumed(64, "G, GPUs")
    rate: float = assumed(5e13, "R, operations per second that a GPU keeps up")
    bandwidth: float = assumed(1.5e12, "W, bytes per second of its memory")
    link: float = assumed(2.5e10, "L, bytes per second between GPUs")
    touched: float = assumed(8, "k, times that a drawn number is written or read (a rough count)")
    price: float = assumed(2.0, "price of a GPU for an hour")


def measured_passes(seconds: float = 0.1) -> float:
    """Return what entropic inner problems cost here, in passes of np.max over as many losses."""
    losses = np.random.default_rng(0).random((64, 4096), dtype=np.float32)
    with use("numba"):
        return ratio(lambda: worst_case(losses, 1.0, ENTROPIC), losses.max, seconds)


def plan(a: Assumptions, passes: float, level: int = 7) -> list[tuple[str, str, float, str]]:
    """Return (quantity, formula, value, unit) of a step and of a run."""
    E = RTMLMC(level).evaluations
    M = a.batch * E
    weights = 4 * NUMBER * a.parameters
    points = a.chunk * NUMBER * a.coordinates
    kept = a.chunk * a.activations
    network = 3 * a.flops * M / a.rate
    drawing = a.touched * M * NUMBER * a.coordinates / a.bandwidth
    solving = passes * M * NUMBER / a.bandwidth
    averaging = 2 * (a.gpus - 1) / a.gpus * NUMBER * a.parameters / a.link
    step = network + drawing + solving + averaging
    steps = a.images / (a.batch * a.gpus)
    hours = step * steps * a.epochs / 3600
    return [
        ("evaluations per image", f"E of RTMLMC({level})", E, ""),
        ("perturbed points of a GPU's step", "M = b E", M, ""),
        ("weights, gradients, Adam", "4 * 4 P", weights / 1e9, "GB"),
        ("points of a chunk", "4 c d", points / 1e9, "GB"),
        ("activations of a chunk", "c A", kept / 1e9, "GB"),
        ("memory of a GPU", "the sum of these", (weights + points + kept) / 1e9, "GB"),
        ("network", "3 F M / R", 1e3 * network, "ms"),
        ("drawing", "k * 4 M d / W", 1e3 * drawing, "ms"),
        ("inner problems", "solve * 4 M / W", 1e3 * solving, "ms"),
        ("averaging of gradients, once", "2 (G - 1)/G * 4 P / L", 1e3 * averaging, "ms"),
        ("a step", "the sum of these", 1e3 * step, "ms"),
        ("share of the network", "", 100 * network / step, "%"),
        ("steps of an epoch", "N / (b G)", steps, ""),
        ("a run", "steps, times epochs", hours, "h"),
        ("its cost", "hours * G * price", hours * a.gpus * a.price, ""),
    ]


def tables(a: Assumptions, passes: float) -> list[ReportTable]:
    """Return what is assumed, what is measured, and the plan that follows."""
    given = [(f.metadata["text"], f"{getattr(a, f.name):g}") for f in fields(a)]
    given.append(("solve, passes over the losses of an inner problem (measured)", f"{passes:.1f}"))
    rows = [(name, formula, f"{value:.4g} {unit}".strip()) for name, formula, value, unit in plan(a, passes)]
    return [
        ReportTable("Assumed and measured", ("what", "value"), given),
        ReportTable("The plan", ("what", "formula", "value"), rows, left=2),
    ]
