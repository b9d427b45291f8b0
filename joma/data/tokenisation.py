"""The paper's tokenisation: torchtext's 'basic_english' rules.

Text is lower-cased; ' . , ( ) ! ? become tokens of their own; double quotes are dropped; ; : and the HTML line break
become blanks; what is left is split at blanks. On WikiText-2 this gives 2,049,990 training tokens.
"""

RULES = "basic_english 1"
"""Name and version of the rules: cached tokens are found again only under the same one."""
SEPARATE = "'.,()!?"
"""Characters that are tokens of their own."""
_LINE_BREAK = "<br />"
_BLANKS = ";:"


def tokenise(text: str) -> list[str]:
    r"""Split a text into tokens; lines may be given one by one or together.

    >>> tokenise('It\'s "Senjō" (2011): Media.Vision; done!')
    ['it', "'", 's', 'senjō', '(', '2011', ')', 'media', '.', 'vision', 'done', '!']
    """
    text = text.lower().replace('"', "").replace(_LINE_BREAK, " ")
    for character in SEPARATE:
        text = text.replace(character, f" {character} ")
    for character in _BLANKS:
        text = text.replace(character, " ")
    return text.split()
