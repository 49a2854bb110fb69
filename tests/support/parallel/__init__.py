"""What the tests of clusters and of training on several processes run."""
