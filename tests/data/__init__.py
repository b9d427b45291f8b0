"""Tests of the data: a package, so that the names of its files may recur elsewhere."""
