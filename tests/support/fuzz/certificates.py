"""What is wrong with results other than those of worst_case: the rows that have each kind of fault."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tests.support.fuzz.judge import LONG, Problem, no_law, primal_at, spent, value

STEP = LONG(1e-5)


def _charge(problem: Problem) -> Any:
    """What eta charges for the rounding of weights, to first order where phi is kinked."""
    kinked = problem.family in ("absolute", "hinge")
    return problem.eta * (4 * problem.eps * kinked + 8 * problem.eps**2 * (1 + abs(problem.k)))


def certified(problem: Problem, out: dict[str, Any]) -> dict[str, Any]:
    """Bounds, values without a gap, weights alone, and what bisection returns."""
    got = {field: np.asarray(x).astype(LONG) for field, x in out.items()}
    slack = problem.rounding
    with np.errstate(all="ignore"):
        exact, charge = value(problem), _charge(problem)
        known = np.isfinite(exact)
        found: dict[str, Any] = {}
        if "dual_value" in got:
            bound = got["dual_value"]
            return {"nan": np.isnan(bound), "below": known & (bound < exact - 2 * slack - problem.eps)}
        if "primal_value" in got:
            bound = got["primal_value"]
            return {"nan": np.isnan(bound), "above": known & (bound > exact + 2 * slack + charge)}
        if "value" in got:
            certain = np.abs(got.get("gap", 7 * slack)) + slack
            found["not finite"] = ~np.isfinite(got["value"])
            found["value"] = known & ~(np.abs(got["value"] - exact) <= certain)
        if "weights" in got:
            weights = got["weights"]
            found["weights"] = no_law(problem, weights)
            if "gap" not in got:
                steep = problem.family == "cressie_read" and problem.k <= 0
                primal = primal_at(problem, weights)
                found["primal"] = known & ~(primal >= exact - 8 * slack - charge) & (not steep)
        if "gap" in got:
            found["gap"] = ~(got["gap"] <= LONG(1e-2) + slack)  # the tol of the calls
    return found


def tangent_faults(problem: Problem, out: dict[str, Any]) -> dict[str, Any]:
    """Of the derivative along the losses themselves: between differences of a convex function."""
    got = np.asarray(out["value"]).astype(LONG)
    with np.errstate(all="ignore"):
        here = value(problem)
        ahead = value(replace(problem, f=problem.f * (1 + STEP))) - here
        behind = here - value(replace(problem, f=problem.f * (1 - STEP)))
        slack = 8 * problem.rounding + LONG(1e-18) * problem.scale / STEP
        known = np.isfinite(ahead) & np.isfinite(behind)
        low, high = behind / STEP - slack, ahead / STEP + slack
        return {"not finite": ~np.isfinite(got), "tangent": known & ~((got >= low) & (got <= high))}


def budget_faults(problem: Problem, radius: Any, out: dict[str, Any]) -> dict[str, Any]:
    """Of a worst case within a radius; `problem` has the price that was returned, 1 where that is 0."""
    got = {field: np.asarray(x).astype(LONG) for field, x in out.items()}
    said, price, weights, r = got["value"], got["eta"], got["weights"], np.asarray(radius).astype(LONG)
    with np.errstate(all="ignore"):
        slack = problem.rounding
        slack = np.where(np.isfinite(slack), slack, 8 * problem.eps * 64 * problem.scale)
        top = np.max(np.where(problem.p > 0, problem.f, -np.inf), axis=-1)
        mean = np.sum(problem.p * problem.f, axis=-1)
        charged = np.where(np.isfinite(price), price * r, 0) * (problem.family != "indicator")
        at_price = value(problem) + charged
        free = value(problem) if problem.family == "indicator" else top
        bound = np.where(price > 0, np.where(np.isinf(price), mean, at_price), free)
        gain = np.sum(np.where(weights > 0, weights * problem.f, 0), axis=-1)
        cost = np.sum(spent(problem, weights), axis=-1)
        info = np.finfo(np.float32 if problem.eps > 1e-10 else np.float64)
        certain = np.abs(got["gap"]) + slack + LONG(info.smallest_subnormal)
        over = 64 * (1 + r) * (1 + abs(problem.k)) * problem.eps
        steep = problem.family == "cressie_read" and problem.k <= 0  # a weight may underflow
        if steep:  # a price that would need weights below the range of the dtype bounds nothing
            bound = np.minimum(bound, top)
        least = LONG(info.smallest_normal) * 10**28  # below, prices are rounded up
        known = np.isfinite(bound) & (problem.scale > least)
        return {
            "not finite": ~(np.isfinite(said) & np.isfinite(got["gap"])) | np.isnan(price) | (price < 0),
            "weights": no_law(problem, weights),
            "gain": ~(gain >= said - certain),
            "radius": ~(cost <= r + over) & (not steep),
            "bound": known & ~(np.abs(said - bound) <= slack + 8 * problem.eps * charged),
            "gap": known & ~(np.abs(got["gap"]) <= 64 * slack),
        }
