"""Tests of the theory: a package, so that the names of its files may recur elsewhere."""
