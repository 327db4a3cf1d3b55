"""The page of text about a GPU check: by step, what was found beside what was expected."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpu.run_step import Outcome

VERDICTS = {True: "as expected", False: "NOT AS EXPECTED", None: ""}


def page(facts: Mapping[str, Any], outcomes: Sequence[Outcome]) -> str:
    """The page.

    Args:
        facts: Facts about the check as a whole, by name.
        outcomes: The steps, in order.
    """
    heading = ", ".join(f"{name} {value}" for name, value in facts.items())
    lines = [f"GPU check: {heading}"]
    for number, outcome in enumerate(outcomes):
        took = f"{outcome.seconds:.0f} of {outcome.limit_s:.0f} s"
        lines += ["", f"{number:2} {outcome.name:14} {outcome.status:16} {took}"]
        lines += [_line(finding) for finding in outcome.findings]
        lines += [f"     | {line}" for line in outcome.log]
    lines += ["", *_summary(outcomes)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _line(finding: Mapping[str, Any]) -> str:
    expected = f"expected {finding['expected']}" if finding["expected"] else ""
    verdict = VERDICTS[finding["holds"]]
    return f"     {finding['name']:44} {finding['found']!s:24} {expected:44} {verdict}"


def _summary(outcomes: Sequence[Outcome]) -> Iterator[str]:
    findings = [finding for outcome in outcomes for finding in outcome.findings]
    wrong = [finding["name"] for finding in findings if finding["holds"] is False]
    n_done = sum(outcome.status == "done" for outcome in outcomes)
    yield f"{n_done} of {len(outcomes)} steps done, {len(findings)} findings"
    yield f"not as expected: {'; '.join(wrong) or 'none'}"
    not_done = [outcome for outcome in outcomes if outcome.status != "done"]
    lacking = [f"{o.name} {o.status}" for o in not_done if o.status.startswith("lacks")]
    broken = [f"{o.name} {o.status}" for o in not_done if not o.status.startswith("lacks")]
    yield f"did not end: {'; '.join(broken) or 'none'}"
    yield f"could not run: {'; '.join(lacking) or 'none'}"
