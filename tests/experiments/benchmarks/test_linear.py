"""The benchmark of linear models: its bars, its findings and its errors, on planted numbers."""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import LinearRegression, LogisticRegression

from phiball.experiments.benchmarks.linear import (
    Growth,
    Model,
    cancer,
    moved_risk,
    problem,
    tables,
    verdicts,
)
from phiball.experiments.benchmarks.linear_evidence import Row, errors, findings, table


def test_bars_are_judged_by_what_was_measured() -> None:
    """Twenty times scikit-learn is the most, twenty times faster than others the least."""
    peers = Model("skwdro LogisticRegression", 210.0, 0.1, 0.1, 0.1, "")
    for ratio, sklearn, others in (
        (10.0, "met", "met"),
        (15.0, "met", "not met"),
        (21.0, "not met", "not met"),
    ):
        timed = [
            Model(name, ratio, 0.1, 0.1, 0.1, "8")
            for name in ("ours, entropic", "ours, KL over the examples")
        ]
        grown = [Growth(10, 1.0, 5.0), Growth(20, 2.0, 6.0)]
        lines = verdicts([*timed, peers], grown)
        assert lines[0].endswith(f": {sklearn}")
        assert lines[1].endswith(f": {sklearn}")
        assert lines[2].endswith(f": {others}")
        assert "dro cannot be imported" in lines[3] or "dro KLDRO" in lines[3]
        assert lines[-1] == "time grows as n^1.00"
        assert [len(page.rows) for page in tables([*timed, peers], grown)] == [3, 2]
    X, y = cancer()
    assert X.shape == (569, 30)
    assert set(y) == {-1.0, 1.0}
    assert problem().ridge == 1 / 569


def test_the_value_of_moved_examples() -> None:
    """Where the loss is linear it is the mean and |theta| times the radius; no move leaves the mean."""
    X, y, theta = np.asarray([[-50.0, 1.0], [-70.0, 2.0]]), np.ones(2), np.asarray([3.0, 4.0])
    margin = X @ theta
    assert abs(moved_risk(theta, 0.0, X, y, 0.5) - (np.mean(-margin) + 2.5)) < 1e-6
    X, y = cancer()
    theta = np.linspace(-0.3, 0.2, 30)
    plain = np.mean(np.logaddexp(0, -y * (X @ theta)))
    assert moved_risk(theta, 0.0, X, y, 0.0) == plain
    # Every example that moves by the radius towards the other class is one of the moves.
    together = np.mean(np.logaddexp(0, 0.5 * np.linalg.norm(theta) - y * (X @ theta)))
    assert together < moved_risk(theta, 0.0, X, y, 0.5) < plain + 0.5 * np.linalg.norm(theta)


def test_findings_say_where_it_does_not_pay() -> None:
    """Against the tuned ridge, split by split, in percentage points with two standard errors."""
    sizes = (0.0, 0.5, 1.0, 1.5)

    def row(model: str, split: int, clean: float, worst: float) -> Row:
        return Row("wine", split, model, "-", sizes, (clean, 0.0, clean + 1, 0.0), (clean, 0.0, worst, 0.0))

    ridge = [row("tuned ridge", 0, 1.0, 20.0), row("tuned ridge", 1, 2.0, 22.0)]
    (good,) = findings([*ridge, row("robust", 0, 1.5, 15.0), row("robust", 1, 2.5, 16.0)])
    assert "wine: robustness pays against the tuned ridge" in good
    assert "size 1, by +5.5 ± 1.0 points; -0.5 ± 0.0 under noise, -0.5 ± 0.0 on clean data" in good
    (bad,) = findings([*ridge, row("robust", 0, 1.5, 25.0), row("robust", 1, 2.5, 27.0)])
    assert "does not pay" in bad
    (unclear,) = findings([*ridge, row("robust", 0, 1.5, 25.0), row("robust", 1, 2.5, 17.0)])
    assert "is undecided" in unclear
    assert table(ridge).rows == [
        ("wine", "tuned ridge", "-", "2", "1", "1.5 ± 1.0", "2.5 ± 1.0", "21.0 ± 2.0")
    ]


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
