"""Programs run by the tests of clusters and of training in several processes."""
