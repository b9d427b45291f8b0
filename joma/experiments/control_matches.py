"""Claims that pass, and whose control passes as well, so that no condition is known under which their cause shows."""

from collections import defaultdict

from joma.verdicts import Verdict


def shows_beyond_controls(verdict: Verdict) -> bool:
    """Whether some number that decides passes while none of its controls does: there the claim's cause shows.

    A number that is held against several controls has a row for each of them, all of one name.
    """
    rows = defaultdict(list)
    for row in verdict.evidence:
        if row.decides:
            rows[row.name].append(row.holds and row.control_holds is False)
    return any(all(own) for own in rows.values())
