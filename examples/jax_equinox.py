"""Train an Equinox module with optax and the robust loss.

python examples/jax_equinox.py
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from sklearn.datasets import load_digits

from phiball import Ball, RobustLoss, pgm, pointwise_loss

digits = load_digits()
x, y = jnp.asarray(digits.data / 16, jnp.float32), jnp.asarray(digits.target)
robust = RobustLoss(0.5, clip=(0, 1))
optimizer = optax.adam(3e-3)
model = eqx.nn.MLP(64, 10, width_size=128, depth=1, key=jax.random.key(0))
state = optimizer.init(eqx.filter(model, eqx.is_array))


@eqx.filter_jit
def step(model, state, x, y, key):
    """Return the model and the optimizer's state after one step."""
    gradient = eqx.filter_grad(lambda model: robust(jax.vmap(model), x, y, rng=key))(model)
    updates, state = optimizer.update(gradient, state)
    return eqx.apply_updates(model, updates), state


key = jax.random.key(1)
for _ in range(20):
    key, order, *draws = jax.random.split(key, 20)
    for batch, draw in zip(jax.random.permutation(order, 1152).reshape(18, 64), draws, strict=True):
        model, state = step(model, state, x[batch], y[batch], draw)

attacked = pgm(pointwise_loss(jax.vmap(model), y[1197:]), x[1197:], Ball(2, 0.5, clip=(0, 1)), rng=0)
wrong = [jax.vmap(model)(points).argmax(-1) != y[1197:] for points in (x[1197:], attacked)]
print(f"robust error {100 * wrong[0].mean():2.0f} %, under attack {100 * wrong[1].mean():2.0f} %")
