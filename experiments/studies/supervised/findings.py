"""What the study of supervised learning says of the paper's statements: computed, in words."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from statistics import fmean

from phiball.experiments.framework.tasks import Table
from phiball.experiments.studies.supervised.attacks import ATTACKS, NORMS
from phiball.experiments.studies.supervised.methods import (
    CHOSEN,
    FAMILIES,
    FEWER_SEEDS,
    PAPER,
    Reading,
    readings,
)
from phiball.experiments.studies.supervised.verdicts import (
    GUESSING,
    WORDS,
    ColumnSelector,
    Difference,
    Verdict,
    asked_for,
    comparisons,
    data_of,
    difference,
    evaluations,
    every,
    family_of,
    guessing,
    join_names,
    largest,
    methods_of,
    panels,
    pluralize,
    rows_of,
    values,
)


def findings(table: Table) -> list[str]:
    """What the tables say of the paper's statements, and beyond them."""
    paragraphs = [
        _short(table),
        _scope(table),
        *(_outperforms(table, norm) for norm in table.config.norms),
        _large(table),
        _worse(table),
        _guessing(table),
        _beyond(table),
        _noise(table),
        _lowest(table),
        _tilted(table),
    ]
    return [paragraph for paragraph in paragraphs if paragraph]


def _short(table: Table) -> str:
    judged = {r: list(panels(table, r, every).values()) for r in readings(table.config)}
    judged = {reading: verdicts for reading, verdicts in judged.items() if verdicts}
    if not judged:
        return f"In short: RT-MLMC is not judged. {_no_reading(table)}{_evidence(table)}"
    sums = []
    for reading, verdicts in judged.items():
        words = [v.word for v in verdicts]
        counts = " / ".join(str(words.count(word)) for word in WORDS)
        note = " (with baselines near guessing)" if _guessers(table, reading) else ""
        lowest = sum(v.lowest for v in verdicts)
        sums.append(f"{reading.name} {counts} of {len(words)}, lowest mean in {lowest}{note}")
    whole = [reading.name for reading, verdicts in judged.items() if {v.word for v in verdicts} == {"best"}]
    return (
        'In short: "the regularised method consistently outperforms all baselines", best in every panel, '
        f"holds in {len(whole)} of {pluralize(len(judged), 'reading')} of the paper{': ' if whole else ''}"
        f"{'; '.join(whole)}. Panels in which RT-MLMC is {' / '.join(WORDS)}: {'; '.join(sums)}. "
        f"{_against_noise(table)}{_evidence(table)}"
    )


def _against_noise(table: Table) -> str:
    ends = [f"{norm} {table.config.rho:g}" for norm in table.config.norms]
    differences = [
        d for end in ends for d in _differences(table, f"RT-MLMC {end}", f"noise x4 {end}").values()
    ]
    if not differences:
        return "Noise of equal cost is not here to compare with (--methods)."
    return f"Noise of equal cost and radius: RT-MLMC is {_signs(differences)}."


def _evidence(table: Table) -> str:
    """A caveat if the run is too small to be evidence."""
    rows = [row for row in table.rows if row["stage"] == "report"]
    images = min(row[name] for row in rows for name in ("trained on", "tested on"))
    full = [m for m in methods_of(table) if family_of(m) not in FEWER_SEEDS] or methods_of(table)
    trials = min(n for data in data_of(table) for m in full if (n := len(rows_of(table, data, m))))
    few = [pluralize(trials, "trial")] if trials < 3 else []
    few += [pluralize(images, "image")] if images < 1000 else []
    so = f"With as few as {' and '.join(few)} this is a test of the machinery and no evidence."
    return f" {so}" if few else ""


def _no_reading(table: Table) -> str:
    absent = [name for name in ("ERM", *PAPER) if name not in table.config.methods]
    add = f" Add {', '.join(absent)} (--methods)." if absent else " The results of some are not there yet."
    return f"No reading of the paper has all of its methods here.{add}"


def _scope(table: Table) -> str:
    parts = []
    for data in data_of(table):
        row = next(row for row in table.rows if (row["stage"], row["data"]) == ("report", data))
        parts.append(f"{data} {row['trained on']:,} and {row['tested on']:,}")
    config = table.config
    fewer = [name for name in FEWER_SEEDS if name in config.methods]
    less = f" ({', '.join(fewer)}: {config.others})" if fewer and config.others < config.seeds else ""
    return (
        f"Networks were trained for {pluralize(config.epochs, 'epoch')} with {config.seeds} seeds{less}. "
        f"Images to train on and to attack: {', '.join(parts)}. {_missing(table)}"
    )


def _missing(table: Table) -> str:
    config = table.config
    names = [name for name in FAMILIES if name not in config.methods]
    names += [f"chosen {name}" for name in CHOSEN if name not in config.chosen]
    names += [f"{name} balls" for name in NORMS if name not in config.norms]
    absent = []
    for data in data_of(table):
        for method in asked_for(config):
            count = len(rows_of(table, data, method))
            full = min(config.seeds, config.others) if family_of(method) in FEWER_SEEDS else config.seeds
            if count < full:
                absent.append(f"{join_names([method])} on {data} ({count} of {full} trials)")
    parts = [f"Not asked for: {', '.join(names)}."] if names else []
    parts += [f"Not all results are there: {', '.join(absent)}."] if absent else []
    return " ".join(parts) or "No method is missing."


def _counted(verdicts: Iterable[Verdict]) -> str:
    verdicts = list(verdicts)
    words = [verdict.word for verdict in verdicts]
    counts = ", ".join(f"{word} in {words.count(word)}" for word in WORDS)
    return f"{counts} of {len(verdicts)} panels, with the lowest mean in {sum(v.lowest for v in verdicts)}"


def _named(verdicts: dict[tuple[str, str], Verdict], word: str) -> str:
    """The panels with this verdict, by attack."""
    parts = []
    for attack in ATTACKS:
        those = [f"{d} {v.decisive}" for (d, a), v in verdicts.items() if a == attack and v.word == word]
        if those:
            parts.append(f"{attack} ({', '.join(those)})")
    return "; ".join(parts)


def _outperforms(table: Table, norm: str) -> str:
    sentences = []
    for reading in readings(table.config):
        verdicts = panels(table, reading, every) if reading.name.startswith(f"{norm}, ") else {}
        if verdicts:
            failed = _named(verdicts, "not")
            by = f" It is above a baseline in {failed}." if failed else ""
            sentences.append(
                f"Reading {reading.name}, against {', '.join(reading.baselines)}: RT-MLMC is "
                f"{_counted(verdicts.values())}.{by}{_alive(table, reading, every)}"
            )
    opening = f'"Consistently outperforms all baselines", {norm} ball, mean over ratios.'
    return f"{opening} {' '.join(sentences) or _no_reading(table)}"


def _guessers(table: Table, reading: Reading) -> list[str]:
    return [b for b in reading.baselines if any(guessing(table, data, b) for data in data_of(table))]


def _alive(table: Table, reading: Reading, select: ColumnSelector) -> str:
    """The same without classifiers near guessing, which say little, whether they are better or worse."""
    names = _guessers(table, reading)
    if not names:
        return ""
    verdicts = panels(table, reading, select, alive=True).values()
    return f" Those near guessing ({', '.join(names)}) left out where they are: {_counted(verdicts)}."


def _large(table: Table) -> str:
    sentences = []
    for reading in readings(table.config):
        verdicts = panels(table, reading, largest)
        if verdicts:
            failed = [
                attack
                for attack in ATTACKS
                for at, v in verdicts.items()
                if (at[1], v.word) == (attack, "not")
            ]
            by = ", ".join(f"{attack} ({failed.count(attack)})" for attack in dict.fromkeys(failed))
            sentences.append(
                f"{reading.name}: {_counted(verdicts.values())}{'; above a baseline in ' if by else ''}{by}."
                f"{_alive(table, reading, largest)}"
            )
    if not sentences:
        return ""
    ends = []
    for attack in ATTACKS:
        column = largest(table.config, attack)
        by_data = [_means(table, data, column) for data in data_of(table)]
        least = [min(means.values()) for means in by_data if means]
        ends += [f"{column[0]}: {_range(least)} %"] if least else []
    lowest = (
        f" The lowest errors of methods with all trials and never near guessing are {', '.join(ends)}."
        if ends
        else ""
    )
    return (
        '"Performs well when the perturbation levels are large": RT-MLMC at the largest ratios.'
        f"{lowest}{_only_guessing(table)} {' '.join(sentences)}"
    )


def _range(numbers: list[float], sign: str = "") -> str:
    ends = dict.fromkeys(f"{end:{sign}.1f}" for end in (min(numbers), max(numbers)))
    return " to ".join(ends)


def _means(table: Table, data: str, columns: list[str]) -> dict[str, float]:
    """The mean errors of methods with all trials, as some trials are easier, and never near guessing."""
    errors = {method: values(table, data, method, columns) for method in methods_of(table)}
    most = max(map(len, errors.values()))
    return {
        method: fmean(numbers)
        for method, numbers in errors.items()
        if len(numbers) == most and not guessing(table, data, method)
    }


def _only_guessing(table: Table) -> str:
    names = [data for data in data_of(table) if not _means(table, data, ["clean"])]
    return f" On {', '.join(names)} every method with all trials is near guessing." if names else ""


def _worse(table: Table) -> str:
    sentences = []
    for kind in ("noise", "PGM"):
        falls: dict[str, float] = {}
        count = 0
        for data in data_of(table):
            for method in methods_of(table):
                if not rows_of(table, data, method) or guessing(table, data, method):
                    continue
                for attack in (name for name in ATTACKS if name.startswith(kind)):
                    columns = ["clean", *every(table.config, attack)]
                    curve = [fmean(values(table, data, method, [name])) for name in columns]
                    count += 1
                    fall = max(a - b for a, b in pairwise(curve))
                    if fall > 1e-9:  # more than rounding
                        falls[f"{method} on {data}, {attack}"] = fall
        if not count:
            return ""
        most = max(falls, key=lambda name: falls[name], default="")
        worst = f"; the largest fall is {falls[most]:.1f} points ({most})" if most else ""
        sentences.append(
            f"{kind}: the mean error never falls in {count - len(falls)} of {count} curves{worst}"
        )
    return (
        '"All methods tend to have worse performance as the perturbation level increases". '
        f"{'. '.join(sentences)}. For PGM this is so by construction, as an image once fooled is counted at "
        "all larger ratios. Classifiers near guessing in some trial are left out."
    )


def _guessing(table: Table) -> str:
    methods = []
    for method in methods_of(table):
        counts = {data: guessing(table, data, method) for data in data_of(table)}
        where = [f"{data} {n} of {len(rows_of(table, data, method))}" for data, n in counts.items() if n]
        if where:
            methods.append(f"{method} ({', '.join(where)})")
    return (
        f"Near guessing (constant, or barely trained), which is a clean error above {GUESSING:g} %, "
        f"by trials: {', '.join(methods) or 'none'}."
    )


def _beyond(table: Table) -> str:
    sentences = []
    for reading in comparisons(table):
        verdicts = panels(table, reading, every)
        if verdicts and reading not in readings(table.config):
            against = f"{join_names([reading.ours])} against {join_names(reading.baselines)}"
            sentences.append(f"{against}: {_counted(verdicts.values())}")
    return f"RT-MLMC and what costs no more. {'. '.join(sentences)}." if sentences else ""


def _differences(table: Table, ours: str, other: str) -> dict[tuple[str, str], Difference]:
    """Those of the panels (data set, attack) that have both methods."""
    differences = {}
    for data in data_of(table):
        for attack in ATTACKS:
            result = difference(table, data, every(table.config, attack), ours, other)
            if result is not None:
                differences[data, attack] = result
    return differences


def _signs(differences: Iterable[Difference]) -> str:
    words = [d.word for d in differences]
    counts = ", ".join(f"{word} in {words.count(word)}" for word in ("lower", "higher", "undecided"))
    return f"{counts} of {len(words)} panels"


def _compared(table: Table, ours: str, other: str) -> str:
    """In how many panels one method is clearly lower or higher than another, and by how much."""
    differences = _differences(table, ours, other)
    if not differences:
        return ""
    parts = [
        f"{attack} {_range([d.mean for (_, a), d in differences.items() if a == attack], '+')}"
        for attack in ATTACKS
    ]
    return (
        f"{join_names([ours])} against {join_names([other])}: {_signs(differences.values())}; differences in "
        f"points are {', '.join(parts)}."
    )


def _noise(table: Table) -> str:
    ends = [f" {norm} {table.config.rho:g}" for norm in table.config.norms] + [", chosen"]
    sentences = [_compared(table, f"RT-MLMC{end}", f"noise x4{end}") for end in ends]
    sentences = [sentence for sentence in sentences if sentence]
    if not sentences:
        return "RT-MLMC cannot be compared with noise of equal cost: one of them is missing."
    return (
        "What the regularisation does beyond noise of equal cost and radius (chosen: each of its own). "
        f"{' '.join(sentences)}"
    )


def _lowest(table: Table) -> str:
    sentences = []
    for attack in ATTACKS:
        columns, parts = every(table.config, attack), []
        for data in data_of(table):
            means = _means(table, data, columns)
            if not means:
                continue
            best = min(means, key=lambda method: means[method])
            rest = [difference(table, data, columns, other, best) for other in means if other != best]
            near = sum(d is not None and d.sign <= 0 for d in rest)
            cost = pluralize(evaluations(table, best), "evaluation")
            parts.append(
                f"{join_names([best])} on {data} ({means[best]:.1f} %, {cost}, {near} not told apart from it)"
            )
        sentences += [f" {attack}: {', '.join(parts)}."] if parts else []
    rule = "The lowest mean errors over ratios, of methods with all trials and never near guessing."
    return f"{rule}{''.join(sentences)}{_only_guessing(table)}"


def _tilted(table: Table) -> str:
    sentence = _compared(table, "tilted, chosen", "random-start FGM, chosen")
    if not sentence:
        return "Tilted points cannot be compared with random-start FGM: one of them is missing."
    return f"Two ways to go along the gradient for two evaluations, as chosen. {sentence}"
