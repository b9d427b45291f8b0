"""The verdicts of figure 9: where G is convex, how often a line meets it, and what such a line gives."""

from dataclasses import replace

from joma.experiments.experiment import Result
from joma.experiments.figure9_measure import CONVEX, FARTHER, PAIR, Config
from joma.verdicts import Evidence, Verdict, finding, ruling

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
        decides=False,
    )
    evidence = [
        Evidence(
            name=f"largest fall of G' over y > ½, {of}: {', '.join(own['title'])}",
            against="enumeration",
            unit="fall of slope",
            value=float(own["fall_of_slope"].max(skipna=False)),
            threshold=CONVEX,
        )
        for of, own in (
            ("density that falls away from zero", falling),
            ("density that rises away from zero", rising),
        )
        if len(own)
    ]
    told = "; ".join(f"{own.title} {own.fall_of_slope:.2g}" for own in laws.itertuples())
    return ruling(finding(row) for row in evidence).verdict(
        id="fig9-convex",
        title="G is convex for y > ½",
        source="Appendix A.3.1, after Eqn 57, figure 9; Appendix A.4",
        claim="dG/dy = θ₁/p_n > 0, and G is convex for y > ½",
        explanation="G' = θ₁/p rises where p falls. The marginal density of a thin ring in the plane rises to its "
        "edge, and G' falls there.",
        correction=(
            "G is convex for y > ½ where p falls on s > 0, as for every profile in three or more dimensions"
            if evidence[0].holds
            else f"G is convex for y > ½ where G' does not fall; its largest falls there: {told}"
        ),
        evidence=(*evidence, check),
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
        decides=False,
    )
    places = Evidence(
        name="levels at which lines meet G",
        against="root finding",
        unit="max abs error",
        value=float(lines["gap"].max()),
        threshold=AGREEMENT,
        decides=False,
    )
    most = lines.groupby("title", sort=False)["count"].max()
    evidence = [
        Evidence(
            name=f"most intersections of a line with G, {title}",
            against="enumeration",
            unit="intersections",
            value=float(count),
            threshold=float(AT_MOST),
        )
        for title, count in most.items()
    ]
    without_pairs = Evidence(
        name="most intersections of a line with G, lines outside the slopes that give pairs",
        against="enumeration",
        unit="intersections",
        value=float(lines.loc[lines["is_control"], "count"].max()),
        threshold=float(AT_MOST),
        decides=False,
    )
    sound = check.holds and places.holds
    found = ruling([finding(row) for row in evidence], everywhere=True)
    return found.verdict(
        id="fig9-lines",
        title="A line meets G at most twice",
        source="Appendix A.4",
        claim="there are at most two intersections between G and a straight line through zero",
        explanation="Most intersections found: "
        + ", ".join(f"{count} ({title})" for title, count in most.items())
        + ".",
        correction="at most one more than F/θ₁ has turning points: one for a strictly log-concave density, two for "
        "Student's t, three for two scales and for the ring",
        evidence=(*evidence, without_pairs, check, places),
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
        decides=False,
    )
    own_distance = Evidence(
        name="raw field at the critical points that the lines give",
        against="quadrature",
        unit="relative to θ₁(s₊)",
        value=float(pairs["field"].max(skipna=False)),
        threshold=AGREEMENT,
    )
    farther = replace(
        own_distance,
        name=f"raw field, the same ratio of weights, clusters {FARTHER:g} times as far apart, any hyperplane",
        value=float(pairs["field_farther"].min(skipna=False)),
    )
    found = ruling([finding(own_distance)], besides=[finding(farther)])
    none = [str(title) for title, rows in lines.groupby("title", sort=False) if rows["count"].max() < PAIR]
    return found.verdict(
        id="fig9-critical",
        title="Lines that meet G twice give critical points",
        source="Appendix A.3.1, Eqns 56 to 59",
        claim="if a line meets G at two points and a₋/a₊ = y₁/y₂, there are v and ξ at which both stand still",
        explanation=(
            "The field vanishes at the point that a line gives, for clusters as far apart as s₊ − s₋. That distance "
            "belongs to the data, so it forces the ratio of the weights: at another distance the same ratio has no "
            f"critical point. Without any line that meets G twice: {', '.join(none) or 'none'}."
        ),
        correction="the ratio a₋/a₊ is forced by the distance of the clusters: both F/θ₁(s₊) = F/θ₁(s₋) and "
        "s₊ − s₋ = ±D are needed",
        evidence=(own_distance, farther, check),
        sound=check.holds,
    )
