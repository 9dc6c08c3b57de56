"""What the paper says of its experiments, sentence by sentence, and whether runs bear it out."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from adfs.data.files import write_text
from adfs.errors import InputError
from adfs.experiments.results import Results
from adfs.experiments.tables import number

__all__ = ["CLAIMS", "Claim", "Finding", "find", "load_findings", "no_slower", "save_findings"]

HOLDS, FAILS, OPEN = "holds", "does not hold", "undecided"

#: Labels of the curves that the claims speak of.
ADFS, TUNED, BLOCK = "ADFS", "ADFS (tuned)", "block ADFS"
MSDA, SAGA, ESDACD, DSBA, AGD = "MSDA", "Point-SAGA", "ESDACD", "DSBA", "distributed AGD"


@dataclass(frozen=True)
class Finding:
    """A claim, the verdict of some runs on it, and the numbers behind."""

    setting: str
    text: str
    verdict: str
    detail: str


@dataclass(frozen=True)
class Claim:
    """A claim: one method takes at most ``ratio`` times as long as each of some others.

    Attributes
    ----------
    setting : str
        ``"small"``, ``"large"`` or ``"many-samples"``.
    text : str
    pairs : tuple
        (label, labels of the others) each.
    ratio : float
    beyond : bool
        Whether it goes beyond the paper.
    """

    setting: str
    text: str
    pairs: tuple[tuple[str, tuple[str, ...]], ...]
    ratio: float = 1.0
    beyond: bool = False


#: The claims of the paper's section on experiments, and what was added to it later.
CLAIMS = (
    Claim(
        "small",
        "On a small network Point-SAGA beats the distributed methods MSDA, ESDACD and DSBA",
        ((SAGA, (MSDA, ESDACD, DSBA)),),
    ),
    Claim(
        "small",
        "ADFS has a low overhead and matches Point-SAGA (at most 1.15 times its time)",
        ((ADFS, (SAGA,)),),
        1.15,
    ),
    Claim("large", "On a large network MSDA and ADFS beat Point-SAGA", ((MSDA, (SAGA,)), (ADFS, (SAGA,)))),
    Claim(
        "large",
        "With few samples a node MSDA is faster than ADFS with the paper's constants",
        ((MSDA, (ADFS,)),),
    ),
    Claim("many-samples", "With many samples a node MSDA still improves over Point-SAGA", ((MSDA, (SAGA,)),)),
    Claim(
        "many-samples",
        "ADFS outperforms all other methods of the paper, by a factor of 2 or more",
        ((ADFS, (MSDA, SAGA, ESDACD, DSBA)),),
        0.5,
    ),
    *(
        Claim(
            setting,
            f"DSBA and ESDACD do not perform so well ({setting}): ADFS is ahead of both",
            ((ADFS, (ESDACD, DSBA)),),
        )
        for setting in ("small", "large", "many-samples")
    ),
    Claim(
        "large",
        "Beyond the paper: block-synchronous ADFS with the best split r (at most 1/2) is at or below MSDA",
        ((BLOCK, (MSDA,)),),
        beyond=True,
    ),
    *(
        Claim(
            setting,
            f"Beyond the paper: block-synchronous ADFS is at or below ADFS of the paper ({setting})",
            ((BLOCK, (ADFS,)),),
            beyond=True,
        )
        for setting in ("small", "large", "many-samples")
    ),
)


def no_slower(results: Results, first: str, second: str, level: float, ratio: float = 1.0) -> str:
    """Say whether a method takes at most ``ratio`` times as long to an error as another.

    Times are means over seeds. A run that was given up bounds its method's time from below, which may or may
    not be enough to decide.

    Returns
    -------
    str
        ``"holds"``, ``"does not hold"`` or ``"undecided"``.
    """
    (mine, whole), (other, whole_other) = _mean(results, first, level), _mean(results, second, level)
    if whole and mine <= ratio * other:
        return HOLDS
    if whole_other and mine > ratio * other:
        return FAILS
    return OPEN


def _mean(results: Results, label: str, level: float) -> tuple[float, bool]:
    """Return the mean time or a lower bound of it, and which it is."""
    bounds, times = results.bounds(label, level), results.times(label, level)
    if bounds.size == 0:
        raise InputError(f"a claim speaks of {label!r}, and there is no run of it")
    return float(bounds.mean()), bool(np.isfinite(times).all())


def _told(results: Results, labels: Sequence[str], level: float) -> str:
    """Return the times that a verdict rests on."""
    parts = []
    for label in dict.fromkeys(labels):
        value, whole = _mean(results, label, level)
        parts.append(f"{label} {'' if whole else '> '}{number(value)}")
    return f"to {level:.0e}: " + ", ".join(parts)


def find(
    results: Mapping[str, Results], levels: Mapping[str, float], claims: Sequence[Claim] = CLAIMS
) -> list[Finding]:
    """Judge the claims by the runs of the settings that are there.

    Parameters
    ----------
    results : mapping
        Setting -> its results.
    levels : mapping
        Setting -> the error at which its times are compared.
    claims : sequence of Claim
    """
    findings = []
    for claim in claims:
        if claim.setting not in results:
            continue
        found = results[claim.setting]
        level = levels[claim.setting]
        pairs = [(first, second) for first, others in claim.pairs for second in others]
        verdicts = {no_slower(found, *pair, level, claim.ratio) for pair in pairs}
        verdict = FAILS if FAILS in verdicts else OPEN if OPEN in verdicts else HOLDS
        detail = _told(found, [label for pair in pairs for label in pair], level)
        findings.append(Finding(claim.setting, claim.text, verdict, detail))
    return findings


def save_findings(findings: Sequence[Finding], folder: Path) -> None:
    """Keep findings beside the runs they are about, for machines and for people."""
    plain = [dataclasses.asdict(one) for one in findings]
    write_text(folder / "claims.json", json.dumps(plain, indent=1, ensure_ascii=False) + "\n")
    lines = [f"- **{one.verdict}** ({one.setting}): {one.text}.\n  {one.detail}." for one in findings]
    write_text(folder / "claims.md", "\n".join(lines) + "\n")


def load_findings(folder: Path) -> list[Finding]:
    """Return the findings kept in a folder, none if there are none."""
    path = folder / "claims.json"
    if not path.is_file():
        return []
    try:
        return [Finding(**one) for one in json.loads(path.read_text(encoding="utf-8"))]
    except (ValueError, TypeError):
        raise InputError(f"{path} is damaged; remove it, or run the command that made it again") from None
