"""Image data sets, from local files or downloaded."""
