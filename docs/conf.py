"""The site: `make docs` builds it offline from these documents, the statements, the metrics and the docstrings."""

import ast
import importlib
import inspect
import logging
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

os.environ.setdefault("OMP_NUM_THREADS", "1")  # notebooks: more threads are many times slower on a busy machine
# Notebooks run without the user's own settings, and do not warn that they talk over loopback.
PROFILE = Path(__file__).parents[1] / "build" / "ipython" / "profile_default"
PROFILE.mkdir(parents=True, exist_ok=True)
(PROFILE / "ipython_kernel_config.py").write_text("c.IPKernelApp.log_level = 'CRITICAL'\n", encoding="utf8")
os.environ["IPYTHONDIR"] = str(PROFILE.parent)
logging.getLogger("traitlets").setLevel(logging.WARNING)
sys.path.insert(0, str(Path(__file__).parents[1]))

import joma
from joma.claims import statements
from joma.claims.table import markdown
from joma.metrics import METRICS

project, author, version = "joma", "the joma developers", joma.__version__
extensions = [
    "myst_nb",
    "sphinx_design",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",
]
html_theme, html_title, html_static_path = "furo", "joma", ["_static"]
html_css_files = ["site.css"]
html_copy_source = html_show_sourcelink = html_show_copyright = False
exclude_patterns = ["_build", "package.md", "**.ipynb_checkpoints"]
myst_enable_extensions = ["dollarmath", "colon_fence", "amsmath", "attrs_block"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_output_stderr = "remove"  # warnings of other packages, with paths of this machine
suppress_warnings = ["config.cache", "mystnb.unknown_mime_type"]  # notebooks choose among the forms of a chart


def generated(text: Callable[[list[str]], str]) -> type[SphinxDirective]:
    """Return a directive whose content is Markdown that comes from the package."""

    class Generated(SphinxDirective):
        optional_arguments = 40

        def run(self) -> list[nodes.Node]:
            return self.parse_text_to_nodes(text(self.arguments))

    return Generated


def statement_table(ids: list[str]) -> str:
    """`{statements} thm1-linear thm1-exp`: what is printed, what is right, and the outcome."""
    return markdown(
        [
            {
                "statement": f"[{each.id}](project:/theorems.md#{each.id})",
                "printed": f"`{each.says}`",
                "right": f"`{each.corrected}`" if each.corrected else "",
                "outcome": each.outcome.value,
            }
            for each in (statements()[name] for name in ids)
        ]
    )


def metric_table(_: list[str]) -> str:
    """`{metrics}`: every quantity that joma records."""
    return markdown(
        [
            {
                "name": f"`{each.name}`",
                "symbol": each.symbol,
                "unit": each.unit,
                "what it is": each.description,
                "over rows and heads": each.reduction.value,
            }
            for each in METRICS.values()
        ]
    )


def api(modules: list[str]) -> str:
    """`{api} joma.theory`: every exported name with its signature and its docstring, which is Markdown."""
    module = importlib.import_module(modules[0])
    return "\n\n".join(part for name in sorted(module.__all__) for part in entry(name, getattr(module, name)))


def entry(name: str, value: Any) -> Iterator[str]:
    """Yield heading, signature, docstring, fields and methods of an exported name."""
    yield f"### {name}"
    if not callable(value):
        yield f"```python\n{name} = {value!r}\n```"
        return
    yield f"```python\n{signature(name, value)}\n```"
    yield docstring(value)
    if inspect.isclass(value):
        yield "\n".join(f"- `{field}`: {' '.join(words.split())}" for field, words in fields(value))
        methods = [(each, found) for each, found in vars(value).items() if not each.startswith("_") and found.__doc__]
        methods = [(each, found) for each, found in methods if callable(found) or isinstance(found, property)]
        yield "\n".join(f"- `.{each}`: {docstring(found).splitlines()[0]}" for each, found in methods)


def signature(name: str, value: Any) -> str:
    """Return the call, an argument a line where it is long, without the shapes that Python cannot print well."""
    try:
        arguments = [str(each.replace(annotation=inspect.Parameter.empty)) for each in parameters(value)]
    except ValueError:
        return name
    line = f"{name}({', '.join(arguments)})"
    return line if len(line) < 88 else f"{name}(\n    " + ",\n    ".join(arguments) + ",\n)"


def parameters(value: Any) -> list[inspect.Parameter]:
    """Return the parameters of a call without `self`."""
    return [each for each in inspect.signature(value).parameters.values() if each.name != "self"]


def docstring(value: Any) -> str:
    """Return a docstring with its arguments as a list and its doctests as code."""
    text = inspect.getdoc(value) or ""
    if found := re.search(r"^Args:\n((?: +.*\n?|\n)+)", text, re.MULTILINE):
        rows = re.sub(r"^(\w+): ", r"- `\1`: ", textwrap.dedent(found[1]), flags=re.MULTILINE)
        text = text.replace(found[0], f"\n{rows}\n")
    return re.sub(r"((?:^>>> .*\n?)(?:^.+\n?)*)", r"```pycon\n\1\n```", text, flags=re.MULTILINE)


def fields(value: type) -> Iterator[tuple[str, str]]:
    """Yield the fields of a class that have a docstring, or a comment on their line."""
    try:
        source = textwrap.dedent(inspect.getsource(value))
    except (OSError, TypeError):
        return
    body = ast.parse(source).body[0].body  # type: ignore[attr-defined]
    for field, after in pairwise([*body, ast.Pass()]):
        if isinstance(field, ast.AnnAssign):
            words = source.splitlines()[(field.end_lineno or 0) - 1].partition("  # ")[2]
            if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                words = str(after.value.value)
            if words:
                yield ast.unparse(field.target), words


def recipe_table(_: list[str]) -> str:
    """`{recipes}`: what `joma train` can start from, and the values that vary."""
    from joma.engine import RECIPES

    return markdown(
        [
            {
                "recipe": f"`{name}`",
                "what it is": each.about,
                "grid": "; ".join(f"`{axis}` {shown(values)}" for axis, values in each.axes.items()),
            }
            for name, each in RECIPES.items()
        ]
    )


def setting_table(_: list[str]) -> str:
    """`{settings}`: the settings in which recipes differ, a column each."""
    from joma.engine import RECIPES

    flat = {name: {**each.base.flat(), **each.axes} for name, each in RECIPES.items()}
    names = [name for name in next(iter(flat.values())) if len({shown(values[name]) for values in flat.values()}) > 1]
    return markdown(
        [{"setting": f"`{name}`", **{each: shown(values[name]) for each, values in flat.items()}} for name in names]
    )


def shown(value: Any) -> str:
    """Return one or several values of a setting."""
    if isinstance(value, tuple):
        return ", ".join("×".join(map(str, each)) if isinstance(each, tuple) else shown(each) for each in value)
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    return f"{value:g}".replace("inf", "none") if isinstance(value, float) else str(value)


class CommandHelp(SphinxDirective):
    """`{command} train`: what `joma train --help` prints."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the help as it is printed on a terminal of 96 columns."""
        from typer.testing import CliRunner

        from joma.cli import app

        shown = CliRunner(env={"COLUMNS": "96", "NO_COLOR": "1"}).invoke(
            app, [self.arguments[0], "--help"], prog_name="joma"
        )
        return [nodes.literal_block(shown.stdout, shown.stdout, language="text")]


CLAIM = re.compile(r'<a id="([\w-]+)"></a>')
CLAIMS = {name for path in Path(__file__).parent.glob("found/*.md") for name in CLAIM.findall(path.read_text("utf8"))}


def with_targets(app: Sphinx, name: str, source: list[str]) -> None:
    """Turn anchors of claims, which a repository's viewer understands, into targets that Sphinx checks."""

    def link(found: re.Match[str]) -> str:
        return f"](#claim-{found[1]})" if found[1] in CLAIMS else found[0]

    source[0] = re.sub(r"\]\([\w./-]+(?<!numbers)\.md#([\w-]+)\)", link, CLAIM.sub(r"(claim-\1)=", source[0]))


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directives."""
    app.connect("source-read", with_targets)
    app.add_directive("statements", generated(statement_table))
    app.add_directive("metrics", generated(metric_table))
    app.add_directive("api", generated(api))
    app.add_directive("recipes", generated(recipe_table))
    app.add_directive("settings", generated(setting_table))
    app.add_directive("command", CommandHelp)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
