"""The figures and the table of the paper, rebuilt: one file each, with its settings, controls and verdicts.

`experiment` says what an experiment is, `registry` lists them, `reproduction` runs them and keeps what they find.
"""
