"""The registry of the paper's statements and the checks behind each verdict."""
