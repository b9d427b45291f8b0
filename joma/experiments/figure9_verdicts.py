"""The verdicts of figure 9: where G is convex, how often a line meets it, and what such a line gives."""

from joma.experiments.experiment import Result
from joma.experiments.figure9_measure import CONVEX, FARTHER, PAIR, Config
from joma.verdicts import Evidence, Outcome, Verdict

AGREEMENT = 1e-8
"""Largest distance of curves and levels from quadrature and root finding; also the field at a critical point."""
AT_MOST = 2
"""Intersections that the paper allows."""


def verdicts(result: Result, config: Config) -> tuple[Verdict, ...]:
    """Judge what Appendix A.3 says of the curve and of the lines."""
    return (_convex(result), _at_most_two(result), _critical(result))


def _convex(result: Result) -> Verdict:
    laws = result.tables["laws"]
    rising, falling = laws[laws["density_rises"]], laws[~laws["density_rises"]]
    check = Evidence(
        name="G and θ₁⁻¹ of every distribution",
        against="quadrature",
        unit="max abs error",
        value=float(laws["gap"].max(skipna=False)),
        threshold=AGREEMENT,
    )
    evidence = Evidence(
        name="largest fall of G' over y > ½, distributions whose density falls away from zero",
        against="enumeration",
        unit="fall of slope",
        value=float(falling["fall_of_slope"].max(skipna=False)),
        threshold=CONVEX,
        control=float(rising["fall_of_slope"].max()) if len(rising) else None,
        control_name=", ".join(rising["title"]),
    )
    if not evidence.holds:
        found = Outcome.REFUTED
    else:
        found = Outcome.CONDITIONAL if evidence.control_holds is False else Outcome.HOLDS
    return Verdict(
        id="fig9-convex",
        title="G is convex for y > ½",
        source="Appendix A.3.1, after Eqn 57, figure 9; Appendix A.4",
        claim="dG/dy = θ₁/p_n > 0, and G is convex for y > ½",
        outcome=found if check.holds else Outcome.INCONCLUSIVE,
        explanation="G' = θ₁/p rises where p falls. The marginal density of a thin ring in the plane rises to its "
        "edge, and G' falls there.",
        correction="G is convex for y > ½ where p falls on s > 0, as for every profile in three or more dimensions",
        evidence=(evidence, check),
        sound=check.holds,
    )


def _at_most_two(result: Result) -> Verdict:
    lines = result.tables["lines"].drop_duplicates(["law", "k"])
    check = Evidence(
        name="lines whose number of intersections differs from the zeros of the raw F − kθ₁",
        against="root finding",
        unit="lines",
        value=float((lines["count"] != lines["count_raw"]).sum()),
        threshold=0.0,
    )
    places = Evidence(
        name="levels at which lines meet G",
        against="root finding",
        unit="max abs error",
        value=float(lines["gap"].max()),
        threshold=AGREEMENT,
    )
    most = lines.groupby("title", sort=False)["count"].max()
    controls = lines[lines["is_control"]]
    evidence = Evidence(
        name="most intersections of a line with G",
        against="enumeration",
        unit="intersections",
        value=float(most.max()),
        threshold=float(AT_MOST),
        control=float(controls["count"].max()),
        control_name="lines outside the slopes that give pairs",
    )
    holding = [count <= AT_MOST for count in most]
    found = Outcome.HOLDS if all(holding) else Outcome.CONDITIONAL if any(holding) else Outcome.REFUTED
    sound = check.holds and places.holds
    return Verdict(
        id="fig9-lines",
        title="A line meets G at most twice",
        source="Appendix A.4",
        claim="there are at most two intersections between G and a straight line through zero",
        outcome=found if sound else Outcome.INCONCLUSIVE,
        explanation="Most intersections found: "
        + ", ".join(f"{count} ({title})" for title, count in most.items())
        + ".",
        correction="at most one more than F/θ₁ has turning points: one for a strictly log-concave density, two for "
        "Student's t, three for two scales and for the ring",
        evidence=(evidence, check, places),
        sound=sound,
    )


def _critical(result: Result) -> Verdict:
    pairs, counts, lines = (result.tables[name] for name in ("pairs", "counts", "lines"))
    check = Evidence(
        name="distributions and distances whose number of critical points differs from the zeros of the raw field",
        against="root finding",
        unit="cases",
        value=float((counts["count"] != counts["count_raw"]).sum()),
        threshold=0.0,
    )
    evidence = Evidence(
        name="raw field at the critical points that the lines give",
        against="quadrature",
        unit="relative to θ₁(s₊)",
        value=float(pairs["field"].max(skipna=False)),
        threshold=AGREEMENT,
        control=float(pairs["field_farther"].min(skipna=False)),
        control_name=f"the same ratio of weights, clusters {FARTHER:g} times as far apart, any hyperplane",
    )
    if not evidence.holds:
        found = Outcome.REFUTED
    else:
        found = Outcome.HOLDS if evidence.control_holds else Outcome.CONDITIONAL
    none = [str(title) for title, rows in lines.groupby("title", sort=False) if rows["count"].max() < PAIR]
    return Verdict(
        id="fig9-critical",
        title="Lines that meet G twice give critical points",
        source="Appendix A.3.1, Eqns 56 to 59",
        claim="if a line meets G at two points and a₋/a₊ = y₁/y₂, there are v and ξ at which both stand still",
        outcome=found if check.holds else Outcome.INCONCLUSIVE,
        explanation=(
            "The field vanishes at the point that a line gives, for clusters as far apart as s₊ − s₋. That distance "
            "belongs to the data, so it forces the ratio of the weights: at another distance the same ratio has no "
            f"critical point. Without any line that meets G twice: {', '.join(none) or 'none'}."
        ),
        correction="the ratio a₋/a₊ is forced by the distance of the clusters: both F/θ₁(s₊) = F/θ₁(s₋) and "
        "s₊ − s₋ = ±D are needed",
        evidence=(evidence, check),
        sound=check.holds,
    )
