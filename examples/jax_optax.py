"""Train a network in plain JAX with optax: one jitted step, with and without the robust loss.

python examples/jax_optax.py
"""

import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

from phiball import Ball, RobustLoss, pgm, pointwise_loss

digits = load_digits()
x, y = jnp.asarray(digits.data / 16, jnp.float32), jnp.asarray(digits.target)
robust = RobustLoss(0.5, clip=(0, 1))
optimizer = optax.adam(3e-3)


def network(params, x):
    """Return the logits of points x (n, 64)."""
    return jax.nn.relu(x @ params["hidden"] + params["bias"]) @ params["out"]


def plain_loss(params, x, y, key):
    """Return the mean cross-entropy of a batch."""
    return optax.softmax_cross_entropy_with_integer_labels(network(params, x), y).mean()


def robust_loss(params, x, y, key):
    """Return the robust loss of a batch; a jitted step draws its random numbers from a key."""
    return robust(lambda points: network(params, points), x, y, rng=key)


def train(loss):
    """Return the parameters after 20 epochs."""

    @jax.jit
    def step(params, state, x, y, key):
        updates, state = optimizer.update(jax.grad(loss)(params, x, y, key), state)
        return optax.apply_updates(params, updates), state

    key, first, last = jax.random.split(jax.random.key(0), 3)
    params = {
        "hidden": jax.random.normal(first, (64, 128)) / 8,
        "bias": jnp.zeros(128),
        "out": jax.random.normal(last, (128, 10)) / 11,
    }
    state = optimizer.init(params)
    for _ in range(20):
        key, order, *draws = jax.random.split(key, 20)
        for batch, draw in zip(jax.random.permutation(order, 1152).reshape(18, 64), draws, strict=True):
            params, state = step(params, state, x[batch], y[batch], draw)
    return params


def errors(params):
    """Return the errors on 600 held-out digits, clean and under attacks of l2 radius 0.5, in %."""
    loss = pointwise_loss(lambda points: network(params, points), y[1197:])
    attacked = pgm(loss, x[1197:], Ball(2, 0.5, clip=(0, 1)), rng=0)
    return [100 * float((network(params, z).argmax(-1) != y[1197:]).mean()) for z in (x[1197:], attacked)]


for name, loss in ("plain", plain_loss), ("robust", robust_loss):
    clean, attacked = errors(train(loss))
    print(f"{name:6} error {clean:2.0f} %, under attack {attacked:2.0f} %")
