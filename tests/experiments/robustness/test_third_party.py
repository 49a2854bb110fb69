"""The attacks of torchattacks inside a report: where they are run, and that they agree with AutoAttack."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest
import torch

from phiball.experiments.datasets.images import load
from phiball.experiments.robustness import robustness_report, third_party
from phiball.experiments.robustness.models import as_model
from phiball.experiments.training.pretrained import fit

BOX = (0.0, 1.0)


def layers(nn: Any, width: int) -> list[Any]:
    return [nn.Conv2d(1, width, 3, stride=2), nn.ELU(), nn.Flatten(), nn.Linear(width * 9, 10)]


def test_attacks_run_only_on_models_and_data_they_take(monkeypatch: pytest.MonkeyPatch) -> None:
    images, table = torch.zeros(2, 1, 4, 4), torch.zeros(2, 4)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))
    model = as_model("network", network, "classifier")
    function = as_model("function", lambda x: x, "classifier")
    monkeypatch.setattr(third_party, "installed", lambda: True)
    for expected, (name, of, x, norm, clip) in (
        (True, ("fab", model, images, inf, BOX)),
        (False, ("apgd-dlr", model, images, 2.0, BOX)),  # two classes
        (False, ("fab", model, images, inf, None)),
        (False, ("fab", model, images, inf, (-1.0, 1.0))),
        (False, ("square", model, table, inf, BOX)),
        (False, ("fab", model, images, 1.0, BOX)),
        (False, ("fab", function, images, inf, BOX)),
    ):
        assert third_party.applies(name, of, x, norm, clip) is expected
    monkeypatch.setattr(third_party, "installed", lambda: False)
    assert not third_party.applies("fab", model, images, inf, BOX)


@pytest.mark.slow
def test_worst_error_agrees_with_autoattack() -> None:
    """The report tries what AutoAttack does and more: it finds its errors, up to one or two images."""
    torchattacks = pytest.importorskip("torchattacks")
    digits = load("digits")
    x, y = digits.tensors("train")
    tested, labels = (part[:60] for part in digits.tensors("test"))
    for seed, width in enumerate((4, 8, 16)):
        model = fit(lambda nn, width=width: layers(nn, width), x, y, epochs=4, seed=seed).eval()
        for norm, radius, name in (("l2", 0.5, "L2"), ("linf", 0.06, "Linf")):
            state = torch.random.get_rng_state()
            report = robustness_report(
                model, (tested, labels), norms=[norm], radii=[radius], clip=BOX, etas=[], queries=200
            )
            assert torch.equal(torch.random.get_rng_state(), state)
            measures = report.summary["models"]["model"]["norms"][norm][-1]["measures"]
            assert set(third_party.THIRD_PARTY) < set(measures)
            assert all(measures[attack]["evaluations"] > 0 for attack in third_party.THIRD_PARTY)
            with torch.random.fork_rng(devices=[]):
                attack = torchattacks.AutoAttack(model, norm=name, eps=radius, n_classes=10, seed=0)
                broken = attack(tested, labels)
            theirs = np.mean((model(broken).argmax(-1) != labels).numpy())
            assert abs(measures["worst"]["error"] - theirs) <= 2 / 60
