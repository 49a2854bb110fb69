"""The description of the paper whose statements this package checks."""

from __future__ import annotations

import json
from importlib.resources import files

from phiball.verification.framework.paper import Item, Paper
from phiball.verification.framework.suite import SECTIONS

_LISTED = json.loads(files("phiball.verification.report").joinpath("paper_items.json").read_text("utf-8"))
SOURCE: str = _LISTED["source"]
"""The SHA-256 of the LaTeX source of arXiv:2408.09672 from which the items are taken."""
# Our captions for items without a title.
_CAPTIONS = {
    "Eq. (infty-WDRO)": "the DRO problem behind adversarial training",
    "Algorithm 1": "projected SGD",
    "Algorithm 2": "bisection search",
    "Assumption 3": "bounded chi-square, Lipschitz inverse distribution function",
    "Table 1": "hyper-parameters for convex losses",
    "Table 2": "hyper-parameters for smooth losses",
    "Proposition 4": "the bound by covering numbers",
    "Proposition 5": "covering numbers of robust losses",
    "Remark 5": "comparison with earlier bounds",
    "Lemma EC.1": "projected SGD, convex losses",
    "Lemma EC.2": "projected SGD, smooth losses",
    "Lemma EC.3": "the inner problem and its dual",
    "Lemma EC.4": "the mass of a random half of the points",
    "Lemma EC.5": "levels of the entropic risk",
    "Proposition EC.2": "linearization of the loss",
}
THIS = Paper(
    "Jie Wang, Rui Gao, Yao Xie: Regularization for Adversarial Robust Learning, arXiv:2408.09672",
    "https://arxiv.org/abs/2408.09672",
    sections=SECTIONS,
    items=tuple(
        Item(name, title or _CAPTIONS.get(name, ""), tuple(labels), section)
        for name, title, labels, section in _LISTED["items"]
    ),
)
"""
>>> THIS.item_of("Proof of Theorem 2").title
'Complexity for Nonsmooth Convex Loss'
>>> THIS.reference("Lemma:phi:div"), THIS.reference("Assumption:chi2")
('EC.3', '(I)')
"""
