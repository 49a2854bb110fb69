"""Reference laws: norm balls and Gaussians, their moments and their tilts."""
