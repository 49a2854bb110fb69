"""The claims about the inner problem, applied to any solver."""
