"""The HTML page, from records and verdicts."""
