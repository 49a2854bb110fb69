"""The claims about the inner problem, applied to a user's solver."""
