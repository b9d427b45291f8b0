"""`reproduce`: runs experiments one after another, judges them, and keeps everything in one folder.

The folder, for each experiment by its id:

- `reproduction.json`: the summary of all experiments in the folder, in the paper's order:
  `{"preset", "started", "seconds", "experiments": [record, ...]}`, where a record is
  `{"id", "title", "place", "question", "preset", "config", "seeds", "device", "seconds", "status", "reason", "notes",
  "verdicts", "charts", "tables"}`: `status` is `done`, `not run` or `failed`, `reason` says why it is not `done`,
  `notes` are sentences on how the result came about, `verdicts` are `Verdict.as_dict()`, `charts` and `tables` are
  names, empty unless `done`.
- `<id>/result.json`: its record with `facts`, `versions`, `git_commit` and `computed`, the time of the computation.
- `<id>/tables/<name>.parquet` and `.csv`; `<id>/figures/<chart>.png`, `.pdf` and `.svg`.
- `<id>/kept/`: results under the hash of their settings, from which everything above is made again.
- `<id>/work/`: training runs and whatever else an interrupted computation goes on from.

`read` returns the summary, `charts_of` the charts of one experiment as values.
"""
