"""The page: complete, alone, and safe against what runs are called."""

import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.examples.example_runs import write_run

from dynapipe_hpc.report.comparison import compare
from dynapipe_hpc.report.html import default_page, write_page
from dynapipe_hpc.report.run_folder import RunFolder

EMPTY_ELEMENTS = {"meta", "br", "link", "img", "input"}


class Page(HTMLParser):
    """Elements of a page, which must be closed in order."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.append(tag)
        self.ids += [values["id"] or ""] if "id" in values else []
        self.links += [values["href"] or ""] if tag == "a" else []
        assert "src" not in values
        if tag not in EMPTY_ELEMENTS:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in EMPTY_ELEMENTS:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(*runs: RunFolder) -> Page:
    path = default_page(runs)
    write_page(runs, compare(runs), path)
    return Page(path)


@pytest.mark.parametrize(("n_runs", "n_iterations"), [(1, 1), (3, 2), (8, 400)])
def test_a_page_is_well_formed_for_any_number_of_runs(
    tmp_path: Path, n_runs: int, n_iterations: int
) -> None:
    runs = [write_run(tmp_path / f"r{i}", n_iterations, n_traced=1) for i in range(n_runs)]
    page = page_of(*runs)
    assert len(page.ids) == len(set(page.ids))
    assert page.tags.count("svg") == 8 + n_runs


def test_a_page_loads_nothing_and_every_drawing_says_what_it_shows(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "x", 12, n_traced=2))
    text = (tmp_path / "x" / "report.html").read_text()
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert not any(load in text for load in ("@import", "url(http", "src="))
    for part in text.split("<svg")[1:]:
        drawing = ET.fromstring(f"<svg{part.partition('</svg>')[0]}</svg>")  # noqa: S314 - ours
        assert drawing.get("role") == "img"
        assert len(drawing.get("aria-label", "")) > 20


def test_names_and_configurations_are_text(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, 4, n_traced=1) for name in ("a <i> & $b$", "<script>")]
    page = page_of(*runs)
    assert "a <i> & $b$" in page.text
    assert 'note = "<b>"' in page.text
    assert not {"i", "script"} & set(page.tags)


def test_links_lead_to_the_files_of_the_runs(tmp_path: Path) -> None:
    page = page_of(write_run(tmp_path / "a b", 2, n_traced=1), write_run(tmp_path / "c", 2))
    assert page.links == [
        "https://ui.perfetto.dev",
        *(f"a%20b/{n}" for n in ("config.toml", "machine.json", "iterations.jsonl", "trace.json")),
        "a%20b/plans",
        *(f"c/{n}" for n in ("config.toml", "machine.json", "iterations.jsonl")),
    ]


def test_a_run_that_died_is_shown_as_far_as_it_got(tmp_path: Path) -> None:
    write_run(tmp_path / "x", 6, n_traced=3)
    for name in ("iterations.jsonl", "timelines.jsonl"):
        file = tmp_path / "x" / name
        file.write_text(file.read_text()[:-9])
    page = page_of(RunFolder.open(tmp_path / "x"))
    assert "x, iteration 1" in page.text


def test_the_page_lies_where_the_runs_have_their_common_folder(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, 1) for name in ("a/x", "a/y", "b/z")]
    assert default_page(runs[:1]) == tmp_path / "a" / "x" / "report.html"
    assert default_page(runs[:2]) == tmp_path / "a" / "report.html"
    assert default_page(runs) == tmp_path / "report.html"
