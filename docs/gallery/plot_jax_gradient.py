"""
Gradient of a worst case in JAX
===============================

The value of ``worst_case`` is differentiable with torch and JAX. Here JAX differentiates the worst-case
squared error of a linear model, over the weights of the examples, in the parameter theta. The black lines
are tangents with the slopes that JAX computes.
"""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import phiball

x = jnp.asarray(np.random.default_rng(0).normal(size=50))
y = jnp.where(x > 1, 3.0 * x, x)


def risk(theta, eta):
    """The worst-case squared error of the prediction theta x, over the weights of the examples."""
    return phiball.worst_case((theta * x - y) ** 2, eta, "entropic").value


thetas = np.linspace(0.0, 4.0, 81)
figure, axis = plt.subplots(figsize=(6, 4), layout="constrained")
for eta in (10.0, 3.0, 1.0):
    values = [float(risk(theta, eta)) for theta in thetas]
    (line,) = axis.plot(thetas, values, label=f"eta = {eta}")
    for theta in (0.5, 1.5, 2.5, 3.5):
        value, slope = jax.value_and_grad(risk)(theta, eta)
        step = np.array([-0.3, 0.3])
        axis.plot(theta + step, value + slope * step, color="black", linewidth=1)
axis.set(xlabel="theta", ylabel="worst-case squared error", ylim=(0, 15))
axis.legend()
