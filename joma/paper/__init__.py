"""The paper's figures and tables, and the questions it leaves open: one file each."""
