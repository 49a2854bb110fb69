"""Summarize per-point results: means, standard errors, comparisons and warnings."""

from __future__ import annotations

import sys
from dataclasses import asdict
from datetime import datetime
from itertools import accumulate
from math import sqrt
from typing import Any

import numpy as np

from phiball.backends.provenance import provenance, versions
from phiball.experiments.robustness.attack_suite import (
    ESTIMATE_FIELDS,
    MAX_FRAGILE,
    AttackSettings,
    MeasureKey,
    Measures,
    ThreatModel,
)
from phiball.experiments.robustness.models import CLASSIFIER, Model
from phiball.refimpl.risk import Estimate

LIBRARIES = {name: name for name in ("phiball", "numpy", "scipy", "torch", "torchattacks", "onnxruntime")} | {
    "scikit-learn": "sklearn"
}
SIGNIFICANT = 2.0  # a difference of more than this many standard errors is significant


def summarize_measures(
    models: list[Model],
    batches: dict[str, list[Measures]],
    threat: ThreatModel,
    settings: AttackSettings,
    y: Any,
    *,
    classes: Any,
    groups: Any,
    features: list[str] | None,
) -> dict[str, Any]:
    """The numbers of a report, as dicts and lists that serialize to JSON.

    - `batches`: the results of each model, batch by batch, in the order of the points.
    - `y`: the labels of all points; class labels are indices into `classes`.
    - `groups`: the group of each point, or None. `features`: the names of the features, or None.
    """
    if groups is not None and len(groups) != len(y):
        raise ValueError(f"data has {len(y)} points and {len(groups)} groups; expected one per point")
    joined = {model.name: _join(batches[model.name]) for model in models}
    labels = y if classes is None else np.asarray(classes)[y]
    partitions = {"class": labels} if models[0].kind == CLASSIFIER else {}
    partitions |= {} if groups is None else {"group": groups}
    return {
        "kind": models[0].kind,
        "points": len(y),
        "norms": list(threat.norms),
        **asdict(threat),
        "settings": asdict(settings),
        "models": {
            model.name: {
                "attacked": _attacked(model),
                **_model_summary(joined[model.name], threat, settings, partitions, labels, features),
            }
            for model in models
        },
        "comparisons": _comparisons(joined, threat, models[0].kind),
        "warnings": [text for model in models for text in _warnings(model, joined[model.name], threat)],
        "date": datetime.now().date().isoformat(),
        "provenance": {
            **provenance(),
            "versions": versions(n for n, m in LIBRARIES.items() if m in sys.modules),
        },
    }


def _attacked(model: Model) -> str:
    """The label of an attacked error that is not from gradients, else ""."""
    notes = [] if model.smoothed is None else ["estimated from sampled votes"]
    return "; ".join(notes + ([] if model.differentiable else ["sampled, optimistic"]))


def _join(batches: list[Measures]) -> Measures:
    """Join the batches of a model: concatenate arrays, add scalars, and renumber the fragile points."""
    joined: Measures = {}
    starts = [0, *accumulate(len(batch[MeasureKey("loss")]) for batch in batches)]
    for key in batches[0]:
        values = [np.asarray(batch[key]) for batch in batches]
        if key.quantity == "fragile_index":
            values = [value + start for value, start in zip(values, starts, strict=False)]
        joined[key] = np.concatenate(values) if values[0].ndim else float(sum(values))
    return joined


def _model_summary(
    found: Measures,
    threat: ThreatModel,
    settings: AttackSettings,
    partitions: dict[str, Any],
    labels: Any,
    features: list[str] | None,
) -> dict[str, Any]:
    """The numbers of one model, from its results on all points.

    `partitions` maps "class" and "group" to the class or group of each point. `labels` are the labels of the
    points, as the page shows them.
    """
    names = ("noise", "sampling", *(settings.attacks or ()), "worst")
    norms: dict[str, list[dict[str, Any]]] = {norm: [] for norm in threat.norms}
    for norm in threat.norms:
        for radius in threat.radii[norm]:
            keys = {name: MeasureKey("loss", norm, radius, name) for name in names}
            wrong = found[keys["worst"]._replace(quantity="wrong")]
            linear = found.get(MeasureKey("first_order", norm, radius))
            norms[norm].append(
                {
                    "radius": radius,
                    "measures": {name: _mean(found, key) for name, key in keys.items() if key in found},
                    **_certified(found.get(MeasureKey("uncertified", norm, radius)), wrong),
                    "risks": [_risk(found, norm, radius, eta) for eta in _etas(found, norm, radius)],
                    "first_order": _mean_increased(found, linear),
                    "by": {name: _by_group(wrong, values) for name, values in partitions.items()},
                }
            )
    attacks = dict.fromkeys(
        key.attack for key in found if key.attack not in (None, "noise", "sampling", "worst")
    )
    return {
        "clean": _mean(found, MeasureKey("loss")),
        "attacks": list(attacks),
        "certificates": {norm: str(found[MeasureKey("certificate", norm)][0]) for norm in threat.norms},
        "norms": norms,
        "fragile": {norm: _fragile(found, norm, labels, features) for norm in threat.norms},
    }


def _certified(uncertified: Any, wrong: Any) -> dict[str, float | None]:
    """The shares of points that are not certified, and that are neither certified nor broken."""
    if uncertified is None:
        return {"certified": None, "undecided": None}
    return {
        "certified": float(uncertified.mean()),
        "undecided": float(((uncertified > 0) & (wrong == 0)).mean()),
    }


def _mean(found: Measures, key: MeasureKey) -> dict[str, float]:
    """Mean loss and error with their standard errors over the points."""
    loss, wrong = found[key], found[key._replace(quantity="wrong")]
    n = len(loss)
    return {
        "loss": float(loss.mean()),
        "loss_stderr": float(loss.std(ddof=1) / sqrt(n)) if n > 1 else float("nan"),
        "error": float(wrong.mean()),
        "error_stderr": float(wrong.std(ddof=1) / sqrt(n)) if n > 1 else float("nan"),
    }


def _risk(found: Measures, norm: str, radius: float, eta: float) -> dict[str, Any]:
    """The robust risk over all points, its standard error, and its first-order approximation."""
    key = MeasureKey("first_order", norm, radius, eta=eta)
    values, *columns = (found[key._replace(quantity=field)] for field in ESTIMATE_FIELDS)
    none, normalised = np.zeros(()), bool(found[key._replace(quantity="normalised")])
    risk = Estimate.merge([Estimate(none, values, none, none, none, False, (*columns, normalised))])
    return {
        "eta": eta,
        "value": float(risk.value),
        "stderr": float(risk.stderr),
        "lower_bound": risk.lower_bound,
        "first_order": _mean_increased(found, found.get(key)),
    }


def _etas(found: Measures, norm: str, radius: float) -> list[float]:
    """The prices whose risks were estimated."""
    keys = (key for key in found if key.quantity == "value" and (key.norm, key.radius) == (norm, radius))
    return [key.eta for key in keys if key.eta is not None]


def _mean_increased(found: Measures, increase: Any) -> float | None:
    """The mean over the points of the clean loss plus `increase`; None if `increase` is None."""
    return None if increase is None else float((found[MeasureKey("loss")] + increase).mean())


def _by_group(wrong: Any, labels: Any) -> dict[str, float]:
    """The error of each class or group."""
    return {str(label): float(wrong[labels == label].mean()) for label in np.unique(labels)}


def _fragile(found: Measures, norm: str, labels: Any, features: list[str] | None) -> list[dict[str, Any]]:
    """The correctly classified points that break at the smallest radii.

    For tabular data, each point comes with the four features that change most.
    """
    if MeasureKey("breaking_radius", norm) not in found:  # a regressor
        return []
    index = found[MeasureKey("fragile_index", norm)]
    changes = found[MeasureKey("fragile_change", norm)]
    radii = found[MeasureKey("breaking_radius", norm)][index]
    out = []
    for place in np.argsort(radii, kind="stable")[:MAX_FRAGILE]:
        k, change = index[place], changes[place]
        entry: dict[str, Any] = {"index": int(k), "label": str(labels[k]), "radius": float(radii[place])}
        if change.ndim == 1:
            names = features or [f"x{j}" for j in range(len(change))]
            top = np.argsort(-np.abs(change))[:4]
            entry["changes"] = [{"feature": names[j], "change": float(change[j])} for j in top]
        out.append(entry)
    return out


def _comparisons(joined: dict[str, Measures], threat: ThreatModel, kind: str) -> list[dict[str, Any]]:
    """The worst error (or loss) of each model minus the first model's, with paired 95 % intervals."""
    first, *others = joined
    quantity = "wrong" if kind == CLASSIFIER else "loss"
    out = []
    for other in others:
        for norm in threat.norms:
            for radius in threat.radii[norm]:
                key = MeasureKey(quantity, norm, radius, "worst")
                gap = joined[other][key] - joined[first][key]
                half = 1.96 * float(gap.std(ddof=1)) / sqrt(len(gap)) if len(gap) > 1 else float("nan")
                mean = float(gap.mean())
                row = {"model": other, "than": first, "norm": norm, "radius": radius}
                out.append({**row, "difference": mean, "low": mean - half, "high": mean + half})
    return out


def _warnings(model: Model, found: Measures, threat: ThreatModel) -> list[str]:
    """Reasons to distrust the numbers of a model."""
    out = []
    if model.was_training:
        out.append(f"{model.name} was in training mode; it was measured in evaluation mode, then restored")
    if MeasureKey("labels_only") in found:
        out.append(
            f"{model.name} returns labels instead of scores, so attacks have nothing to increase: its "
            "errors under attack are probably much too low"
        )
    if not model.differentiable:
        out.append(
            f"{model.name} has no gradients, so only random points and attacks without gradients were tried "
            "(sampled, optimistic): its errors under attack may be much too low"
        )
    for norm in threat.norms:
        out += _contradictions(model, found, norm, threat)
        out += _masked_gradients(model.name, found, norm, threat)
        huge = found.get(MeasureKey("wrong_in_huge_ball", norm))
        if huge is not None and huge.mean() < 0.95:
            out.append(
                f"{model.name}, {norm}: at radius {10 * threat.radii[norm][-1]:g} the error is only "
                f"{100 * huge.mean():.0f} %, and should be near 100 %: gradients are uninformative, or the "
                "radii are too small for this data"
            )
    return out


def _contradictions(model: Model, found: Measures, norm: str, threat: ThreatModel) -> list[str]:
    """A warning if attacks break certified points of a model that is not smoothed."""
    for radius in threat.radii[norm]:
        uncertified = found.get(MeasureKey("uncertified", norm, radius))
        if uncertified is not None and model.smoothed is None:
            broken = int(np.sum(found[MeasureKey("wrong", norm, radius, "worst")] > uncertified))
            if broken:
                return [
                    f"{model.name}, {norm} {radius:g}: attacks break {broken} certified points, so that the "
                    "certificate is wrong: the model may not be deterministic"
                ]
    return []


def _masked_gradients(name: str, found: Measures, norm: str, threat: ThreatModel) -> list[str]:
    """A warning if an attack without gradients finds significantly more errors than PGM."""
    for radius in threat.radii[norm]:
        for attack, text in {"sampling": "random points", "search": "random search"}.items():
            pgm, other = (found.get(MeasureKey("wrong", norm, radius, a)) for a in ("pgm", attack))
            if pgm is None or other is None or len(other) < 2:
                continue
            gap = other - pgm
            if gap.mean() > max(SIGNIFICANT * gap.std(ddof=1) / sqrt(len(gap)), 0):
                return [
                    f"{name}, {norm} {radius:g}: the error is {100 * other.mean():.1f} % under {text}, but "
                    f"{100 * pgm.mean():.1f} % under PGM: the gradients are masked, so do not trust PGM"
                ]
    return []
