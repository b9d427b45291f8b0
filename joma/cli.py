"""The `joma` command: thin, one command for one call."""

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    help="joma shows how a transformer learns.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

BAD_INPUT = 2
"""Exit code when a command cannot do its job with what it was given."""
UNSOUND = 1
"""Exit code when something that should hold does not."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of a table.")]
Out = Annotated[Path | None, typer.Option(help="Folder to write the result into.")]


@app.callback()
def _joma() -> None:
    """Keep `joma verify` a subcommand however many there are."""


@app.command()
def verify(
    ids: Annotated[list[str] | None, typer.Argument(help="Statements to explain, such as thm3; all if none.")] = None,
    as_json: Json = False,
    out: Out = None,
) -> None:
    """Check the paper's numbered statements: printed form beside corrected form, with numbers."""
    from joma import terminal
    from joma.page import verification
    from joma.statements.verification import find, verify

    wanted = find(ids or None)
    with terminal.progress("Checking statements", total=len(wanted), quiet=as_json) as advance:
        verdicts = verify([statement.id for statement in wanted], progress=lambda verdict: advance(verdict.id))
    if as_json:
        terminal.show_json([verdict.as_dict() for verdict in verdicts])
    else:
        terminal.show_verdicts(verdicts, explain=bool(ids))
    if out is not None:
        terminal.say_written(verification.write(verdicts, out), quiet=as_json)
    raise typer.Exit(0 if all(verdict.sound for verdict in verdicts) else UNSOUND)


def main() -> None:
    """Run the command; turn errors that a user can mend into one line on standard error."""
    try:
        app()
    except (ValueError, ArithmeticError, OSError) as error:
        sys.stderr.write(f"joma: {' '.join(str(error).split())}\n")
        sys.exit(BAD_INPUT)
