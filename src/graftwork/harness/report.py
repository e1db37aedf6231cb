"""The rows of a harness run as a table for people, as data, and as JUnit XML for a CI system."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from graftwork.harness.prove import Row
from graftwork.ui import Screen

# What XML 1.0 cannot hold, not even escaped.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def show(rows: Iterable[Row], screen: Screen) -> list[Row]:
    """One table for each patch of each target, as rows come: the variant, whether it is as it must be, what noticed it.

    Returns the rows.
    """
    seen: list[Row] = []
    for (target, patch), group in groupby(rows, key=lambda row: (row.target, row.patch)):
        screen.step(target, patch)
        lines, styles = [], []
        for row in group:
            seen.append(row)
            fault = row.verdict.fault
            noticed = ", ".join(row.verdict.noticed) or ("inert" if row.variant.inert else "-")
            lines.append(
                [
                    _named(row),
                    "FAILED" if fault else "ok",
                    noticed,
                    _short(fault or row.verdict.by or row.variant.inert),
                ]
            )
            styles.append("bad" if fault else "good")
        screen.table(["variant", "", "noticed by", ""], lines, styles)
    return seen


def as_dict(rows: Sequence[Row]) -> dict[str, Any]:
    """The JSON document: every variant, with what it is and what noticed it; seconds are those of its tests."""
    return {
        "variants": [
            {
                "target": row.target,
                "patch": row.patch,
                "sort": row.variant.sort,
                "name": row.variant.name,
                "why": row.variant.why,
                "inert": row.variant.inert,
                "noticed": list(row.verdict.noticed),
                "by": row.verdict.by,
                "fault": row.verdict.fault,
                "seconds": row.seconds,
            }
            for row in rows
        ],
    }


def junit(rows: Sequence[Row]) -> bytes:
    """JUnit XML: a suite for each patch of each target, a case for each variant."""
    root = ET.Element("testsuites", name="graftwork prove")
    for (target, patch), group in groupby(rows, key=lambda row: (row.target, row.patch)):
        cases = list(group)
        failures = sum(bool(row.verdict.fault) for row in cases)
        seconds = f"{sum(row.seconds for row in cases):.3f}"
        name = f"{target}: {patch}"
        suite = ET.SubElement(root, "testsuite", name=name, tests=str(len(cases)), failures=str(failures), time=seconds)
        for row in cases:
            case = ET.SubElement(suite, "testcase", classname=name, name=_xml(_named(row)), time=f"{row.seconds:.3f}")
            if row.verdict.fault:
                ET.SubElement(case, "failure", message=_xml(row.verdict.fault)).text = _xml(row.variant.why)
            elif row.verdict.noticed:
                by = f"noticed by {', '.join(row.verdict.noticed)}: {row.verdict.by}"
                ET.SubElement(case, "system-out").text = _xml(by)
    ET.indent(root)
    data: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return data + b"\n"


def _named(row: Row) -> str:
    return (
        f"{row.variant.sort} {row.variant.name}"
        if row.variant.sort in ("hunk", "earlier", "mutant")
        else row.variant.name
    )


def _short(text: str) -> str:
    """One line that fits beside the other columns; the whole text is in the other two forms."""
    line = " ".join(text.split())
    return line if len(line) <= 100 else line[:97] + "..."


def _xml(text: str) -> str:
    return _NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)
