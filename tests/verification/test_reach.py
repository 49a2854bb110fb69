"""Every public function of refimpl is run by a claim."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from inspect import isclass, isfunction, unwrap
from types import CodeType, FrameType
from typing import Any

import pytest

from phiball import refimpl
from phiball.backends import use
from phiball.verification import Claim, all_claims

SLOW = ("A1-conic", "F4-run", "G6-run", "U1")


def codes(value: Any) -> set[CodeType]:
    """The code of a function, or of the methods of a class."""
    members = vars(value).values() if isclass(value) else [value]
    return {unwrap(member).__code__ for member in members if isfunction(member)}


@pytest.mark.slow
def test_every_public_function_is_run_by_a_claim() -> None:
    public = {name: codes(getattr(refimpl, name)) for name in refimpl.__all__}
    left = {name: own for name, own in public.items() if own}
    assert len(left) > 60
    seen: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        seen.add(frame.f_code)

    def uses(claim: Claim, names: Iterable[str]) -> bool:
        module = vars(sys.modules[claim.statement.__module__])
        return any(module.get(name) is getattr(refimpl, name) for name in names)

    # A claim is run only if its module names a function that no claim before it has run.
    with use("numpy"):
        for claim in sorted(all_claims(), key=lambda claim: claim.id in SLOW):
            if not uses(claim, left):
                continue
            sys.setprofile(note)
            try:
                claim.run(effort=0.02, shrink=False)
            finally:
                sys.setprofile(None)
            left = {name: own for name, own in left.items() if not own & seen}
    assert not left, f"no claim runs {sorted(left)}"
