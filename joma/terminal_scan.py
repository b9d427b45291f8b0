"""How `joma scan` says what went wrong: in the words of its command line."""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


@contextmanager
def options_named(names: Iterable[str]) -> Iterator[None]:
    """Have errors name the options of a command where they name the arguments of the function behind it."""
    try:
        yield
    except (ValueError, OSError) as error:
        if len(error.args) == 1 and isinstance(error.args[0], str):  # an error of the system keeps its number
            error.args = (in_options(error.args[0], names),)
        raise


def in_options(message: str, names: Iterable[str]) -> str:
    r"""Write the arguments that a message names in backticks as options.

    >>> in_options(r"Pass `text`. No matrix matches `mlp_pattern=m\.0`. Change `mlp_pattern=`.", ["mlp_pattern"])
    'Pass `text`. No matrix matches `--mlp-pattern=m\\.0`. Change `--mlp-pattern`.'
    """
    argument = re.compile(rf"`({'|'.join(map(re.escape, names))})(?:=(?=`))?(?=[=`])")
    return argument.sub(lambda found: f"`--{found[1].replace('_', '-')}", message)
