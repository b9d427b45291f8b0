"""What models are trained on: texts, latent trees, hierarchies, class-conditional tokens, code, arithmetic, JSON."""

from typing import TYPE_CHECKING

from joma.lazy import lazy_exports

if TYPE_CHECKING:
    from joma.data.corpora import find_text
    from joma.data.frequencies import class_tokens
    from joma.data.generated import generated_text
    from joma.data.hierarchy import Hierarchy
    from joma.data.latent_trees import TreeSampler, class_patterns
    from joma.data.source_code import SyntaxTree, parse_source, read_trees
    from joma.data.text import Corpus, TreeText, Windows, load_text, shuffled
    from joma.data.tree_texts import tree_corpus, tree_text

__all__ = [
    "Corpus", "Hierarchy", "SyntaxTree", "TreeSampler", "TreeText", "Windows", "class_patterns", "class_tokens",
    "find_text", "generated_text", "load_text", "parse_source", "read_trees", "shuffled", "tree_corpus", "tree_text",
]  # fmt: skip

__getattr__, __dir__ = lazy_exports(__name__)
