"""Names of a package that are imported when they are first asked for, so that importing the package stays light."""

import ast
import importlib
import sys
from collections.abc import Callable
from typing import Any


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package, for the names that it imports under `if TYPE_CHECKING`.

    Type checkers and editors read that block too: so the home of each name is written down once.
    """
    module: Any = sys.modules[package]
    source = ast.parse(module.__spec__.loader.get_source(package))
    [block] = (each for each in source.body if isinstance(each, ast.If))
    imports = (each for each in block.body if isinstance(each, ast.ImportFrom))
    home_of = {each.name: str(home.module) for home in imports for each in home.names}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(home_of[name]), name)

    return get, lambda: sorted({*vars(module), *home_of})
