"""The ramp loss of Section 5, a function of a classifier's margin with values in [0, 1]."""

from __future__ import annotations

from math import inf

from phiball.backends import Array, array_namespace, device, is_array_api_obj
from phiball.refimpl.validation import check_array, check_same_array_type, valid_number


def ramp_loss(logits: Array, labels: Array, *, varrho: float) -> Array:
    r"""The ramp loss: $1 - M/\varrho$ clipped to [0, 1], with the margin $M = t_y - \max_{y' \ne y} t_{y'}$.

    Arguments:
    - `logits` (..., K): t, for K >= 2 classes.
    - `labels` (...): y, whole numbers from 0 to K - 1 (the paper counts from 1).
    - `varrho`: the margin from which the loss is 0, a positive number.

    Returns losses (...) in [0, 1]. They are Lipschitz in the logits, in the maximum norm, with constant
    2/varrho. torch can differentiate them almost everywhere; the gradient is 0 for M < 0 and M > varrho.

    Reference: Eq. (rmap) of Section 5.

    >>> import numpy as np
    >>> from phiball.theory import ramp_loss
    >>> print(ramp_loss(np.array([[2.0, 0.0], [0.5, 0.25], [0.0, 1.0]]), np.array([0, 0, 0]), varrho=1.0))
    [0.   0.75 1.  ]
    """
    check_array("logits", logits)
    xp = array_namespace(logits)
    if logits.ndim == 0 or logits.shape[-1] < 2:
        raise ValueError(f"logits has shape {tuple(logits.shape)}; expected (..., K) with K of at least 2")
    K = logits.shape[-1]
    if not is_array_api_obj(labels):
        raise TypeError(f"labels is of type {type(labels).__name__}; expected an array of whole numbers")
    check_same_array_type("labels", labels, logits, other="logits")
    if not xp.isdtype(labels.dtype, "integral"):
        raise TypeError(f"labels has dtype {labels.dtype}; expected whole numbers")
    if tuple(labels.shape) != tuple(logits.shape[:-1]):
        raise ValueError(f"labels has shape {tuple(labels.shape)}; expected {tuple(logits.shape[:-1])}")
    if not xp.all((labels >= 0) & (labels < K)):
        raise ValueError(f"labels has entries outside 0, ..., {K - 1}; expected the index of a logit")
    varrho = valid_number("varrho", varrho, above=0.0)
    mine = xp.astype(labels, xp.int64)[..., None] == xp.arange(K, dtype=xp.int64, device=device(logits))
    # Masks instead of indexing: the Array API standard has no gather that is differentiable in all libraries.
    own = xp.sum(xp.where(mine, logits, xp.zeros_like(logits)), axis=-1)
    best_other = xp.max(xp.where(mine, xp.full_like(logits, -inf), logits), axis=-1)
    return xp.clip(1 - (own - best_other) / varrho, 0.0, 1.0)
