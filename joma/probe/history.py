"""What earlier sessions of a run have recorded, for the session that goes on with it or begins it again."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joma.probe.ledger import Ledger
from joma.probe.readings import Row

if TYPE_CHECKING:
    import pandas

_ROW = ["site", "kind", "layer", "head", "metric", "value", "flag"]


@dataclass(frozen=True, eq=False, slots=True)
class History:
    """The tables of a run as a session finds them."""

    values: "pandas.DataFrame"
    events: "pandas.DataFrame"

    @classmethod
    def of(cls, ledger: Ledger) -> "History":
        """Read what there is."""
        return cls(ledger.frame(), ledger.events())

    @property
    def told(self) -> set[str]:
        """Messages of the alarms that rang."""
        return set(self.events.loc[self.events["kind"] == "alarm", "message"])

    def reaches(self, step: int) -> bool:
        """Whether something was recorded at a step or behind it."""
        return any((table["step"] >= step).any() for table in (self.values, self.events))

    def measured(self, *, since: int) -> list[int]:
        """Return the steps with values at a step or behind it, ascending."""
        steps = self.values["step"]
        return sorted(set(steps[steps >= since].tolist()))

    def measurements(self, *, before: int) -> Iterator[tuple[int, list[Row]]]:
        """Yield the steps before one, ascending, with their values."""
        for step, table in self.values[self.values["step"] < before].groupby("step", sort=True):
            yield int(step), [Row(**row) for row in table[_ROW].to_dict("records")]
