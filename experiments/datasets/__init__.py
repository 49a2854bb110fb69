"""Image data sets, from files or public sources."""
