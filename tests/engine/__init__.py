"""Tests of the engine; a package, since its file names repeat those of others."""
