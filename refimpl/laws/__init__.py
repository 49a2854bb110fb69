"""Reference laws: balls of a norm and Gaussians, with their moments and their tilts."""
