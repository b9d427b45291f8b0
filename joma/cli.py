"""The `joma` command: thin, one command for one call."""

import itertools
import json
import os
import sys
import traceback
import warnings
import webbrowser
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer

import joma
from joma import train_options
from joma.formatting import printable

DEBUG = "JOMA_DEBUG"
"""Variable of the environment that has the traceback of an error printed, and the place of a warning."""

app = typer.Typer(
    cls=train_options.PlainGroup,
    help="joma shows how a transformer learns. To watch a training, call `joma.watch(model)` in Python.\n\n"
    f"An error or a warning is one line; {DEBUG}=1 in the environment shows where it came from.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

BAD_INPUT = 2
"""Exit code when a command cannot do its job with what it was given."""
UNSOUND = 1
"""Exit code when something that should hold does not."""
INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

MOST_VALUES = 1_000_000
"""Most times or components of a simulation; more would fill the memory."""
REPRODUCTION = Path("joma-out")
"""Folder of a reproduction when none is named."""


Preset = StrEnum("Preset", ["quick", "small", "full"])
RecipeName = StrEnum("RecipeName", ["figure6", "figure8", "small", "table1", "trees"])
WorkPlace = StrEnum("WorkPlace", ["local", "ray"])


def _option(words: str, default: str) -> Any:
    """Return an option whose default is given in words: None, which stands for it, says nothing."""
    return typer.Option(help=words, show_default=default)


Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of a table.")]
Out = Annotated[Path | None, _option("Folder to write the result into.", "none, and nothing is written")]
Device = Annotated[str | None, _option("cpu, cuda or cuda:0.", "the GPU if there is one, else cpu")]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Threads of a calculation on a CPU. More than one helps large models on an idle machine, and makes small "
        "ones many times slower on a busy one.",
        show_default="OMP_NUM_THREADS, else 1",
    ),
]


def _demand_writable(out: Path | None) -> None:
    """Refuse a folder that the result could not be written into, before anything is computed."""
    from joma.store.files import demand_writable

    if out is not None:
        demand_writable(out, remedy="Give another --out.")


def _demand_pages() -> None:
    """Refuse to go on without the packages that pages are made with."""
    from joma.errors import import_extra

    for module in ("jinja2", "altair", "vl_convert"):
        import_extra(module, "report")


def _set_threads(threads: int | None) -> None:
    """Limit the threads of torch, which reads these variables when it is imported."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads or os.environ.get("OMP_NUM_THREADS") or 1)


def _say_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"joma {joma.__version__}")
        raise typer.Exit


@app.callback()
def _joma(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """Keep `joma verify` a subcommand however many there are."""


@app.command(cls=train_options.PlainCommand)
def verify(
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            help="Statements to explain. `thm1` means its family, `lemma` all lemmas. All if none is named."
        ),
    ] = None,
    list_statements: Annotated[bool, typer.Option("--list", help="List the statements and check nothing.")] = False,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """Check the paper's numbered statements: the printed form and the corrected form, with numbers."""
    from joma.claims.statements import find

    wanted = find(ids or None)
    _demand_writable(out)
    from joma import terminal

    if list_statements:
        listed = [{"id": each.id, "title": each.title, "source": each.source} for each in wanted]
        terminal.show_json(listed) if as_json else terminal.show_rows("Statements of the paper", listed)
        return
    from joma.checks import verify

    number = itertools.count(1)
    with terminal.progress(quiet=as_json) as show:
        answers = verify(
            [statement.id for statement in wanted],
            progress=lambda answer: show(
                "Checking statements", done=next(number), total=len(wanted), latest=answer.claim
            ),
        )
    if as_json:
        terminal.show_json([json.loads(each.model_dump_json()) | {"sound": each.sound} for each in answers])
    else:
        terminal.show_answers(answers, explain=bool(ids))
    if out is not None:
        from joma.page.paper import write_verification

        terminal.say_written([write_verification(answers, out)], quiet=as_json)
    raise typer.Exit(0 if all(answer.sound for answer in answers) else UNSOUND)


@app.command(cls=train_options.PlainCommand)
def simulate(
    preset: Annotated[
        str | None, _option("A setting of the paper to start from: figure4, with its own flow, targets and v0.", "none")
    ] = None,
    flow: Annotated[
        str | None,
        _option(
            "saliency (Theorem 2), printed (Eqn 6), normalised (Eqn 6 with softmax), model (the flow that exp "
            "attention really has), common (the same for queries that share a vector) or clusters (Theorem 3).",
            "saliency",
        ),
    ] = None,
    targets: Annotated[
        str | None,
        _option("Saliencies or targets: values 1,0.5,2 or a seeded law uniform:1:4, normal:0:1.", "uniform:1:4"),
    ] = None,
    num_components: Annotated[int | None, _option("How many to draw from a law.", "10")] = None,
    seed: Annotated[int | None, _option("Seed of every law.", "0")] = None,
    attention: Annotated[str | None, _option("linear, exp or softmax.", "softmax for normalised, else exp")] = None,
    activation: Annotated[str | None, _option("linear, relu, tanh, sigmoid, silu or gelu.", "linear")] = None,
    temperature: Annotated[float | None, _option("Temperature of the attention.", "3 for normalised, else 1")] = None,
    normalisation: Annotated[float | None, _option("The constant A of linear and exp attention.", "1")] = None,
    rate_ratio: Annotated[float | None, _option("Learning rate of logits over that of weights.", "1")] = None,
    v0: Annotated[
        str | None,
        _option("Start of the weights, one value or one each.", "0, or towards the target where 0 is stationary"),
    ] = None,
    z0: Annotated[
        str | None, _option("Start of the logits, one value or one each.", "such that Theorem 1's constant is 0")
    ] = None,
    bias: Annotated[float | None, _option("Frozen bias of `clusters`.", "-1")] = None,
    negative_weight: Annotated[float | None, _option("Weight of the negative cluster of `clusters`.", "4")] = None,
    common: Annotated[float | None, _option("Squared norm of the vector that queries of `common` share.", "1")] = None,
    num_queries: Annotated[int | None, _option("Number of queries of `common`.", "100")] = None,
    t1: Annotated[float | None, _option("End time.", "past the blow-up, or when all have settled")] = None,
    num_points: Annotated[int | None, _option("Number of reported times.", "400")] = None,
    spacing: Annotated[
        str | None, _option("Reported times: linear or log.", "log if the flow settles, else linear")
    ] = None,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """Solve a flow of the paper, in closed form or as an ODE, and give a table, a CSV file, a picture and a page."""
    given = {name: value for name, value in locals().items() if value is not None}
    for name in ("preset", "as_json", "out"):
        given.pop(name, None)
    for name in ("num_points", "num_components"):
        if given.get(name, 0) > MOST_VALUES:
            raise ValueError(f"`--{name.replace('_', '-')}` must be at most {MOST_VALUES:,}, got {given[name]:,}.")
    from joma import terminal
    from joma.theory.simulation import SimulationConfig, preset_config, simulate

    config = SimulationConfig() if preset is None else preset_config(preset, given.pop("flow", None))
    _demand_writable(out)
    with terminal.busy("Solving the flow", quiet=as_json):
        run = simulate(config, **given)
    terminal.show_json(run.as_dict()) if as_json else terminal.show_simulation(run)
    if out is not None:
        from joma.page.simulation import write_simulation

        with terminal.busy("Drawing", quiet=as_json):
            written = write_simulation(run, out)
        terminal.say_written(written, quiet=as_json)


@app.command(cls=train_options.PlainCommand)
def scan(
    sources: Annotated[
        list[str],
        typer.Argument(help="Folders or files of checkpoints, or a hub repository such as EleutherAI/pythia-70m."),
    ],
    out: Annotated[
        Path | None,
        _option("Folder of the record; a second call measures only what is missing.", "NAME-scan, NAME of the source"),
    ] = None,
    revisions: Annotated[
        str | None, _option("Branches and tags of a hub repository, such as 'step*'.", "none, and no hub")
    ] = None,
    steps: Annotated[
        str | None,
        _option("Steps in the order of the names, such as 0,1000, or a pattern with the step as group.", "the names'"),
    ] = None,
    text: Annotated[Path | None, _option("Text on which attention is measured.", "none, and ranks alone")] = None,
    tokenizer: Annotated[Path | None, _option("Folder of the tokenizer.", "the checkpoint's own")] = None,
    window: Annotated[int | None, _option("Tokens in a window of the text.", "512, or what the model takes")] = None,
    num_windows: Annotated[int, typer.Option(help="Windows of the text to measure.")] = 8,
    per_head: Annotated[bool, typer.Option(help="Record every head, not only their mean.")] = False,
    mlp_pattern: Annotated[str | None, _option("Pattern of the tensors to rank.", "found by their names")] = None,
    keep: Annotated[bool, typer.Option(help="Keep what was downloaded.")] = False,
    on: Annotated[str, typer.Option(help="Where to work: local or ray.")] = "local",
    as_json: Json = False,
) -> None:
    """Measure a series of checkpoints and audit it: ranks from weights alone, entropy with a text.

    Exit code 0: every checkpoint was reached, and there are values to show.
    Exit code 1: some checkpoints were not reached, or none has a value.
    Exit code 2: the command cannot do its job with what it was given.
    Problems that the audit finds do not change the exit code. A script reads `sound` of --json.
    """
    options = {name: value for name, value in locals().items() if name not in ("sources", "as_json")}
    for source in sources:  # before torch is imported
        if revisions is None and not Path(source).exists():
            hint = "For a repository of the hub pass `--revisions` too, such as 'step*'."
            raise FileNotFoundError(f"There is no file or folder {source}. {hint}")
    _demand_writable(out)
    from joma import terminal
    from joma.probe.scanning import scan

    with terminal.options_named(options), terminal.progress(quiet=as_json) as show:

        def report(name: str, done: int, total: int) -> None:
            show("Scanning checkpoints", done=done, total=total, latest=name)

        done = scan(sources, **options, progress=report)
    terminal.show_json(done.as_dict()) if as_json else terminal.show_scan(done)
    raise typer.Exit(UNSOUND if done.failures or done.is_empty else 0)


@app.command(cls=train_options.PlainCommand)
def compare(
    folders: Annotated[list[Path], typer.Argument(help="Folders of two runs or more, of watch, train or scan.")],
    as_json: Json = False,
) -> None:
    """Compare runs: first, lowest and last value of entropy, rank, largest logit and loss."""
    from joma import terminal
    from joma.probe.summary import compare, side_by_side

    found = compare(folders)
    rows = found.to_dict("records") if as_json else side_by_side(found)
    terminal.show_json(rows) if as_json else terminal.show_rows("first → lowest → last", rows)


@app.command(cls=train_options.LoneSwitches)
@train_options.with_settings
def train(
    recipe: Annotated[RecipeName, typer.Option(help="Where to start from.")] = RecipeName.small,
    out: Annotated[
        Path | None,
        _option("Folder of the runs; the same command goes on where it stopped.", "none: training needs one"),
    ] = None,
    on: Annotated[WorkPlace, typer.Option(help="Where to work.")] = WorkPlace.local,
    device: Device = None,
    threads: Threads = None,
    memory: Annotated[float | None, _option("GiB to plan with.", "what is free")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print packs, memory and time left alone.")] = False,
    list_settings: Annotated[bool, typer.Option("--settings", help="List all settings of the recipe.")] = False,
    as_json: Json = False,
    **settings: list[str] | None,
) -> None:
    """Train a grid of small transformers, many runs at once: --depth 1,2,5 --lr 1e-4,1e-3 --seed 1,2,3.

    Every setting below takes one or several values, and every combination is a run. Defaults are those of the recipe
    small; `--recipe table1 --settings` lists those of another one.
    """
    from joma.engine.config import check_device
    from joma.engine.grid import axes_of, check_data, runs_of
    from joma.engine.grid import recipe as recipe_named

    grid = axes_of({name: ",".join(values) for name, values in settings.items() if values})
    if list_settings:
        from joma import terminal

        listed = train_options.listing(recipe_named(recipe), grid)
        terminal.show_json(listed) if as_json else terminal.show_rows(f"Settings of {recipe.value}", listed)
        return
    if out is None and not dry_run:
        raise ValueError("`--out` must name a folder for the runs, got none. Add it, or --dry-run to see the plan.")
    _demand_writable(None if dry_run else out)
    check_device(device)
    check_data(runs_of(grid, recipe))
    from joma import terminal
    from joma.engine.training import plan_training, saved_steps, train

    options: dict[str, Any] = {
        "recipe": recipe.value,
        "on": on.value,
        "device": device,
        "memory": None if memory is None else int(memory * 2**30),
        "threads": threads,
    }
    if dry_run:
        with terminal.progress(quiet=as_json) as show:
            plan = plan_training(grid, out=out, progress=lambda doing: show(f"Planning: {doing}"), **options)
        terminal.show_json(plan.as_dict()) if as_json else terminal.show_plan(plan)
        return
    assert out is not None
    before = saved_steps(out)
    try:
        with terminal.progress(quiet=as_json) as show:
            done = train(grid, out=out, progress=lambda at: terminal.show_progress(show, at), **options)
    except KeyboardInterrupt:
        sys.stderr.write(f"joma: {terminal.stopped(before, saved_steps(out))}\n")
        raise typer.Exit(INTERRUPTED) from None
    terminal.show_json(done.as_dict()) if as_json else terminal.show_training(done)
    raise typer.Exit(UNSOUND if done.num_failed == len(done.runs) else 0)


@app.command(cls=train_options.PlainCommand)
def reproduce(
    ids: Annotated[
        list[str] | None,
        typer.Argument(help="Experiments to run and explain, such as figure4 table1. All if none is named."),
    ] = None,
    preset: Annotated[
        Preset,
        typer.Option(
            help="quick: minutes on two CPU cores. small: an hour on one core, where there is such a form. "
            "full: the paper's settings on one GPU."
        ),
    ] = Preset.quick,
    out: Annotated[
        Path, typer.Option(help="Folder for everything. The same command continues where it stopped.")
    ] = REPRODUCTION,
    device: Device = None,
    minutes: Annotated[float | None, _option("Start only what fits this time.", "no limit")] = None,
    threads: Threads = None,
    list_experiments: Annotated[
        bool, typer.Option("--list", help="List the experiments and what each of them needs here.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Rebuild the paper's figures and tables, with controls, and judge every claim."""
    from joma.paper.experiment import find

    wanted = find(ids or None)
    _demand_writable(out)
    _set_threads(threads)
    from joma import terminal
    from joma.paper.reproduce import available, reproduce

    if list_experiments:
        rows = available(wanted, device=device)
        terminal.show_json(rows) if as_json else terminal.show_rows("Experiments", rows)
        return
    try:
        with terminal.progress(quiet=as_json) as show:
            report = partial(terminal.show_work, show)
            done = reproduce(wanted, preset=preset.value, out=out, device=device, minutes=minutes, progress=report)
    except KeyboardInterrupt:
        sys.stderr.write("joma: stopped. Finished work is kept; the same command continues from here.\n")
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        terminal.show_json(json.loads(done.model_dump_json()))
    else:
        terminal.show_reproduction(done, explain=bool(ids))
    raise typer.Exit(0 if done.sound else UNSOUND)


@app.command(cls=train_options.PlainCommand)
def report(
    folders: Annotated[list[Path], typer.Argument(help="Folders that --out of other commands wrote into.")],
    out: Annotated[Path | None, _option("Folder for the pages.", "the first folder itself")] = None,
    single: Annotated[bool, typer.Option("--single", help="Write one self-contained file.")] = False,
    live: Annotated[
        bool, typer.Option("--live", help="Serve a page that follows a training while it runs, for this machine alone.")
    ] = False,
    until_eof: Annotated[bool, typer.Option("--until-eof", hidden=True)] = False,
    as_json: Json = False,
) -> None:
    """Write pages with charts of everything recorded under a folder, or follow a training while it runs."""
    _demand_pages()
    if live:
        if out is not None or single:
            raise ValueError(
                "`--live` serves a page and writes none, got `--out` or `--single` too. Choose one of them."
            )
        if len(folders) > 1:
            raise ValueError(f"`--live` needs one folder, got {len(folders)}. Pass one that holds them all.")
        folder = folders[0]
        if folder.exists() and not folder.is_dir():
            raise ValueError(
                f"{folder} is a file, and a run is a folder. Pass the folder of a run, also before it exists."
            )
        from joma.page.live import serve

        _serve("Live view", lambda ready: serve(folder, ready, until_eof=until_eof), as_json=as_json)
        return
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"There is no folder {folder}. Pass one that a command with --out wrote into.")
    _demand_writable(out or folders[0])
    from joma import terminal
    from joma.page.report import report

    with terminal.busy("Writing the pages", quiet=as_json):
        page = report(*folders, out=out, single=single)
    terminal.show_json({"page": str(page)}) if as_json else terminal.say_written([page])


@app.command(cls=train_options.PlainCommand)
def explore(
    folder: Annotated[
        Path | None,
        typer.Argument(help="A run, or a folder of runs, to play back.", show_default="none, and no playback"),
    ] = None,
    static: Annotated[
        Path | None, _option("File to write: the same page without a server, with fewer positions.", "none: serve it")
    ] = None,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    as_json: Json = False,
) -> None:
    """Open a page with sliders that move the paper's flows, its statements one by one, and a training played back."""
    _demand_pages()
    if folder is not None and not folder.is_dir():
        raise ValueError(f"There is no folder {folder}. Pass one that watch, train or scan wrote, or none.")
    if static is not None and static.is_dir():
        raise ValueError(f"{static} is a folder. Pass the file to write, such as {static / 'explore.html'}.")
    from joma import terminal
    from joma.explore import explore, write_static
    from joma.store.files import demand_writable

    if static is None:
        _serve("Explorer", lambda ready: explore(folder, ready), as_json=as_json, browser=browser)
        return
    demand_writable(static.parent, remedy="Give another --static.")
    with terminal.busy("Computing the grid", quiet=as_json):
        page = write_static(static, folder)
    terminal.show_json({"page": str(page)}) if as_json else terminal.say_written([page])


def _serve(
    what: str, serve: Callable[[Callable[[str], object]], None], *, as_json: bool, browser: bool = False
) -> None:
    """Serve a page for this machine until Ctrl-C."""

    def say(address: str) -> None:
        line = json.dumps({"address": address}) if as_json else f"{what}: {address}  (Ctrl-C ends it)"
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        if browser and sys.stdout.isatty():
            webbrowser.open(address)

    try:
        serve(say)
    except KeyboardInterrupt:
        sys.stderr.write(f"joma: the {what[0].lower()}{what[1:]} has ended.\n")


def main() -> None:
    """Run the command; turn warnings, and errors that a user can mend, into one line each on standard error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # code pages of Windows have no arrows and Greek letters
    try:
        with warnings.catch_warnings():
            if not _is_debugging():
                warnings.showwarning = _show_warning
            app()
    except (ValueError, ArithmeticError, OSError, ImportError) as error:
        if _is_debugging():
            traceback.print_exc()
        sys.stderr.write(f"joma: {printable(_in_one_line(error))}\n")
        sys.exit(BAD_INPUT)


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    kind = "warning" if category is RuntimeWarning else category.__name__  # ours are of that kind
    sys.stderr.write(f"joma: {kind}: {' '.join(str(message).split())}\n")


def _is_debugging() -> bool:
    return os.environ.get(DEBUG, "").lower() not in ("", "0", "false")


def _in_one_line(error: Exception) -> str:
    """Return an error as it is worded; of one that joma did not word, and may be our own fault, its kind as well."""
    if isinstance(error, OSError):
        from joma.store.files import explained

        return " ".join(explained(error).split())
    words, frames = " ".join(str(error).split()), list(traceback.walk_tb(error.__traceback__))
    if frames and frames[-1][0].f_globals.get("__name__", "").partition(".")[0] == joma.__name__:
        return words
    hint = "" if _is_debugging() else f" This was not foreseen: {DEBUG}=1 joma ... shows where it came from."
    return f"{type(error).__name__}: {words.rstrip('.')}.{hint}"
