"""The record of a run on disk, and reading it back."""
