"""The benchmark of linear models: its bars, its findings and its errors, on planted numbers."""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import LinearRegression, LogisticRegression

from phiball.experiments.benchmarks.linear import Growth, Model, cancer, problem, tables, verdicts
from phiball.experiments.benchmarks.linear_evidence import Row, errors, findings, table


def test_bars_are_judged_by_what_was_measured() -> None:
    """Twenty times scikit-learn is the most, twenty times faster than others the least."""
    peers = Model("skwdro LogisticRegression", 210.0, 0.1, 0.1, "")
    for ratio, sklearn, others in (
        (10.0, "met", "met"),
        (15.0, "met", "not met"),
        (21.0, "not met", "not met"),
    ):
        timed = [
            Model(name, ratio, 0.1, 0.1, "8") for name in ("ours, entropic", "ours, KL over the examples")
        ]
        grown = [Growth(10, 1.0, 5.0), Growth(20, 2.0, 6.0)]
        lines = verdicts([*timed, peers], grown)
        assert lines[0].endswith(f": {sklearn}")
        assert lines[1].endswith(f": {others}")
        assert "dro cannot be imported" in lines[2] or "dro KLDRO" in lines[2]
        assert lines[-1] == "time grows as n^1.00"
        assert [len(page.rows) for page in tables([*timed, peers], grown)] == [3, 2]
    X, y = cancer()
    assert X.shape == (569, 30)
    assert set(y) == {-1.0, 1.0}
    assert problem().ridge == 1 / 569


def test_findings_say_where_it_does_not_pay() -> None:
    """Against the best of the other models, in percentage points."""
    sizes = (0.0, 0.5, 1.0, 1.5)

    def row(model: str, clean: float, worst: float) -> Row:
        return Row("wine", model, "-", sizes, (clean, 0.0, clean + 1, 0.0), (clean, 0.0, worst, 0.0))

    others = [row("plain", 2.0, 30.0), row("ridge", 1.0, 20.0)]
    (good,) = findings([*others, row("robust", 1.5, 15.0)])
    assert good.startswith("wine: pays in the worst case of size 1, by +5.0 points")
    assert good.endswith("-0.5 under noise of that size; costs +0.5 on clean data")
    (bad,) = findings([*others, row("robust", 1.5, 25.0)])
    assert "does not pay" in bad
    assert table(others).rows[0] == ("wine", "plain", "-", "2.0", "1", "3.0", "30.0")


def test_errors_of_models_that_are_known() -> None:
    """A sign in one dimension errs where the perturbation reaches the threshold; a line by its slope."""
    X = np.asarray([[-2.0], [-0.3], [0.3], [2.0]])
    model = LogisticRegression().fit(X, [0, 0, 1, 1])
    noise, worst = errors(model, X, np.asarray([0, 0, 1, 1]), (0.0, 1.0))
    assert (noise[0], worst) == (0.0, (0.0, 50.0))
    assert 10 < noise[1] < 40  # half of the draws go the right way
    line = LinearRegression().fit(X, 2 * X[:, 0])
    noise, worst = errors(line, X, 2 * X[:, 0], (0.0, 1.0))
    np.testing.assert_allclose([noise[1], worst[1]], [200.0, 200.0])
