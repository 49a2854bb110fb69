"""From the results of points to the numbers of a report: means, intervals, comparisons, warnings."""

from __future__ import annotations

from dataclasses import asdict
from itertools import accumulate
from math import sqrt
from typing import Any

import numpy as np

from phiball.backends.provenance import provenance
from phiball.experiments.robustness.attacks import MOST_FRAGILE, OF_POINTS, Settings
from phiball.experiments.robustness.models import CLASSIFIER, Model
from phiball.refimpl import Estimate

SURE = 2.0  # standard errors by which one error must exceed another to be called larger


def summarise(
    models: list[Model],
    parts: dict[str, list[dict[str, Any]]],
    settings: Settings,
    y: Any,
    *,
    classes: Any,
    groups: Any,
    features: list[str] | None,
) -> dict[str, Any]:
    """The report as plain numbers, words and lists."""
    if groups is not None and len(groups) != len(y):
        raise ValueError(f"groups has {len(groups)} labels; expected one per point, {len(y)}")
    joined = {model.name: _join(parts[model.name]) for model in models}
    labels = y if classes is None else np.asarray(classes)[y]
    kinds = {"class": labels} if models[0].kind == CLASSIFIER else {}
    kinds |= {} if groups is None else {"group": groups}
    out: dict[str, Any] = {
        "kind": models[0].kind,
        "points": len(y),
        "norms": list(settings.norms),
        "radii": list(settings.radii),
        "settings": asdict(settings),
        "models": {
            model.name: _of_model(joined[model.name], settings, kinds, labels, features) for model in models
        },
        "comparisons": _comparisons(joined, settings, models[0].kind),
        "provenance": provenance(),
    }
    out["warnings"] = [
        warning for model in models for warning in _warnings(model, joined[model.name], settings)
    ]
    return out


def _join(batches: list[dict[str, Any]]) -> dict[str, Any]:
    """The batches of a model as one: arrays are put together, counts added."""
    joined: dict[str, Any] = {}
    sizes = [len(batch["clean/loss"]) for batch in batches]
    first = [0, *accumulate(sizes)]
    for name in batches[0]:
        values = [np.asarray(batch[name]) for batch in batches]
        if name.endswith("/index"):
            values = [value + before for value, before in zip(values, first, strict=False)]
        if values[0].ndim:
            joined[name] = np.concatenate(values)
        else:
            joined[name] = float(sum(values))
    return joined


def _of_model(
    found: dict[str, Any],
    settings: Settings,
    kinds: dict[str, Any],
    labels: Any,
    features: list[str] | None,
) -> dict[str, Any]:
    names = ("noise", "sampling", *settings.attacks, "worst")
    norms: dict[str, list[dict[str, Any]]] = {}
    for norm in settings.norms:
        norms[norm] = []
        for radius in settings.radii:
            key = f"{norm}/{radius:g}"
            present = [name for name in names if f"{key}/{name}/loss" in found]
            measures = {name: _mean(found, f"{key}/{name}") for name in present}
            worst = found[f"{key}/worst/wrong"]
            norms[norm].append(
                {
                    "radius": radius,
                    "measures": measures,
                    "risks": [_risk(found, key, eta) for eta in settings.etas] if radius > 0 else [],
                    "first_order": _number(found.get(f"{key}/linear"), found["clean/loss"]),
                    "by": {kind: _by(worst, values) for kind, values in kinds.items()},
                }
            )
    return {
        "clean": _mean(found, "clean"),
        "norms": norms,
        "fragile": {norm: _fragile(found, norm, labels, features) for norm in settings.norms},
    }


def _mean(found: dict[str, Any], key: str) -> dict[str, float]:
    """Mean loss and error with their standard errors over the points."""
    loss, wrong = found[f"{key}/loss"], found[f"{key}/wrong"]
    n = len(loss)
    return {
        "loss": float(loss.mean()),
        "loss_stderr": float(loss.std(ddof=1) / sqrt(n)) if n > 1 else float("nan"),
        "error": float(wrong.mean()),
        "error_stderr": float(wrong.std(ddof=1) / sqrt(n)) if n > 1 else float("nan"),
    }


def _risk(found: dict[str, Any], key: str, eta: float) -> dict[str, Any]:
    name = f"{key}/risk {eta:g}"
    values, *columns = (found[f"{name}/{of}"] for of in OF_POINTS)
    none, normalised = np.zeros(()), bool(found[f"{name}/normalised"])
    risk = Estimate.merge([Estimate(none, values, none, none, none, False, (*columns, normalised))])
    return {
        "eta": eta,
        "value": float(risk.value),
        "stderr": float(risk.stderr),
        "lower_bound": risk.lower_bound,
        "first_order": _number(found.get(f"{name}/surrogate"), found["clean/loss"]),
    }


def _number(increase: Any, clean: Any) -> float | None:
    return None if increase is None else float((clean + increase).mean())


def _by(wrong: Any, labels: Any) -> dict[str, float]:
    return {str(label): float(wrong[labels == label].mean()) for label in np.unique(labels)}


def _fragile(
    found: dict[str, Any], norm: str, labels: Any, features: list[str] | None
) -> list[dict[str, Any]]:
    """The points that break at the smallest radius, without those that are wrong as they are.

    Points of a table come with the four columns that change most.
    """
    if f"{norm}/smallest" not in found:  # a regressor
        return []
    index = found[f"{norm}/fragile/index"]
    radii = found[f"{norm}/smallest"][index]
    out = []
    for place in np.argsort(radii, kind="stable")[:MOST_FRAGILE]:
        k, change = index[place], found[f"{norm}/fragile/change"][place]
        entry: dict[str, Any] = {"index": int(k), "label": str(labels[k]), "radius": float(radii[place])}
        if change.ndim == 1:
            names = features or [f"x{j}" for j in range(len(change))]
            if len(names) != len(change):
                raise ValueError(f"features has {len(names)} names; expected one per column, {len(change)}")
            top = np.argsort(-np.abs(change))[:4]
            entry["changes"] = [{"feature": names[j], "change": float(change[j])} for j in top]
        out.append(entry)
    return out


def _comparisons(joined: dict[str, dict[str, Any]], settings: Settings, kind: str) -> list[dict[str, Any]]:
    """Each model against the first, point by point: the difference of the worst error, and its interval."""
    first, *others = joined
    what = "wrong" if kind == CLASSIFIER else "loss"
    out = []
    for other in others:
        for norm in settings.norms:
            for radius in settings.radii:
                key = f"{norm}/{radius:g}/worst/{what}"
                gap = joined[other][key] - joined[first][key]
                half = 1.96 * float(gap.std(ddof=1)) / sqrt(len(gap)) if len(gap) > 1 else float("nan")
                mean = float(gap.mean())
                row = {"model": other, "than": first, "norm": norm, "radius": radius}
                out.append({**row, "difference": mean, "low": mean - half, "high": mean + half})
    return out


def _warnings(model: Model, found: dict[str, Any], settings: Settings) -> list[str]:
    out = []
    if model.was_training:
        out.append(f"{model.name} was in training mode; it was measured in evaluation mode, and put back")
    if "labels alone" in found:
        out.append(
            f"{model.name} gives labels and no scores: no attack can tell which way they change, and errors "
            "under attack are likely far below those that exist"
        )
    for norm in settings.norms:
        out += _masked(model.name, found, norm, settings)
        limit = found.get(f"{norm}/limit")
        if limit is not None and limit.mean() < 0.95:
            out.append(
                f"{model.name}, {norm}: a ball of radius {10 * max(settings.radii):g} leaves the error at "
                f"{100 * limit.mean():.0f} %, where it should near 100 %: gradients are of little use, "
                "or the radii are too small for this data"
            )
    low, high = float(np.min(found["x/low"])), float(np.max(found["x/high"]))
    if settings.clip is not None and not settings.clip[0] <= low <= high <= settings.clip[1]:
        out.append(f"the data reach from {low:g} to {high:g}, outside clip = {settings.clip}")
    return out


def _masked(name: str, found: dict[str, Any], norm: str, settings: Settings) -> list[str]:
    """Where an attack that uses gradients finds less than one that does not: gradients mislead."""
    weaker = {"sampling": "random points", "search": "the search without gradients"}
    for radius in settings.radii:
        for weak, words in weaker.items():
            strong, other = (found.get(f"{norm}/{radius:g}/{attack}/wrong") for attack in ("pgm", weak))
            if strong is None or other is None or len(other) < 2:
                continue
            gap = other - strong
            if gap.mean() > max(SURE * gap.std(ddof=1) / sqrt(len(gap)), 0):
                return [
                    f"{name}, {norm} {radius:g}: {words} find {100 * other.mean():.1f} % errors, PGM "
                    f"{100 * strong.mean():.1f} %: the gradients are masked, and PGM is no "
                    "measure of robustness"
                ]
    return []
