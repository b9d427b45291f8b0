"""Tables that are drawn and not judged: as many digits as a picture can show."""

import numpy as np
import pandas as pd


def for_drawing(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with seven digits of every number, in half the bytes.

    >>> for_drawing(pd.DataFrame({"step": [1], "v": [1 / 3]})).dtypes.astype(str).to_dict()
    {'step': 'int64', 'v': 'float32'}
    """
    return table.astype(dict.fromkeys(table.select_dtypes("float64").columns, np.float32))
