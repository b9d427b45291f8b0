"""Tests of the experiments; a package, because its file names repeat those of other folders."""
