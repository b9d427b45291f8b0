"""The multi-layer note at the end of the paper's text."""

from joma.statements.note_correlations import CORRELATIONS
from joma.statements.note_gradients import GRADIENTS

EDGE, *TWO_VALUED = GRADIENTS
STATEMENTS = (EDGE, *CORRELATIONS, *TWO_VALUED)
