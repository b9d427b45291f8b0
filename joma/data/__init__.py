"""What models are trained on: texts, latent trees, hierarchies, class-conditional tokens, code, arithmetic, JSON."""

from typing import TYPE_CHECKING

from joma.lazy import lazy_exports

if TYPE_CHECKING:
    from joma.data.corpora import find_text
    from joma.data.expressions import ArithmeticTokens, arithmetic, arithmetic_corpus
    from joma.data.frequencies import class_tokens
    from joma.data.hierarchy import Hierarchy
    from joma.data.json_text import json_tokens
    from joma.data.latent_trees import TreeSampler, class_patterns
    from joma.data.shuffling import shuffled
    from joma.data.source_code import SourceTokens, load_source
    from joma.data.text import Corpus, TreeText, Windows, load_text
    from joma.data.tree_texts import tree_corpus, tree_text

__all__ = [
    "ArithmeticTokens",
    "Corpus",
    "Hierarchy",
    "SourceTokens",
    "TreeSampler",
    "TreeText",
    "Windows",
    "arithmetic",
    "arithmetic_corpus",
    "class_patterns",
    "class_tokens",
    "find_text",
    "json_tokens",
    "load_source",
    "load_text",
    "shuffled",
    "tree_corpus",
    "tree_text",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "corpora": ("find_text",),
        "expressions": ("ArithmeticTokens", "arithmetic", "arithmetic_corpus"),
        "frequencies": ("class_tokens",),
        "hierarchy": ("Hierarchy",),
        "json_text": ("json_tokens",),
        "latent_trees": ("TreeSampler", "class_patterns"),
        "shuffling": ("shuffled",),
        "source_code": ("SourceTokens", "load_source"),
        "text": ("Corpus", "TreeText", "Windows", "load_text"),
        "tree_texts": ("tree_corpus", "tree_text"),
    },
)
