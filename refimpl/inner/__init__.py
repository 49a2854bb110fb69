"""The inner problem: the worst distribution on given losses, and the divergences that price it."""
