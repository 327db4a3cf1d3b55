import importlib.util
import json
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from dynapipe_hpc.cli.main import main
from dynapipe_hpc.report.timeline import compare_svg, plan_svg

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
METHOD = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
DEVELOPMENT = {"benchmarks", "dev", "docs", "reference"}
PICTURES = ROOT / "docs" / "pictures"


def test_the_first_command_plans_as_is_printed_below_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (lengths,) = re.findall(r"^\$ echo '(.*)' > lengths.json$", README, re.MULTILINE)
    line = r"^\$ dynapipe-hpc (plan .*)\n(.*), planned in"
    ((command, printed),) = re.findall(line, README, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    Path("configs").symlink_to(ROOT / "configs")
    Path("lengths.json").write_text(lengths, encoding="utf-8")
    assert main(command.split()) == 0
    assert capsys.readouterr().out.partition(", planned in")[0] == printed


def pictures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures", PICTURES / "draw_pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_picture_is_of_the_plan_that_is_made_today() -> None:
    plans = pictures().example()
    committed = (PICTURES / "plan.svg").read_text(encoding="utf-8")
    assert plan_svg(plans) == committed, "run docs/pictures/draw_pictures.py"
    microbatches = plans[0].microbatches
    n_samples = sum(len(m.sample_ids) for m in microbatches)
    caption = f"{n_samples} samples of 10 to 2,048 tokens, in {len(microbatches)} micro-batches"
    assert caption in METHOD


def test_the_comparison_is_of_plans_that_are_made_today() -> None:
    panels = pictures().comparison()
    committed = (PICTURES / "compare.svg").read_text(encoding="utf-8")
    assert compare_svg(panels) == committed, "run docs/pictures/draw_pictures.py"
    packed_ms, ours_ms = (plans[0].prediction.iteration_ms for plans in panels.values())
    assert f"1F1B takes {packed_ms:.0f} ms, dynapipe-hpc {ours_ms:.0f} ms" in README


def test_measured_gains_are_those_of_the_committed_benchmark() -> None:
    path = ROOT / "benchmarks" / "results" / "demo_seeds.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["results"]["2 stages x 2 replicas"]
    measured = {
        "balanced sequence packing": "packed_balanced",
        "a token budget": "token_budget",
        "dense packing": "dense_packing",
        "padding to the longest": "naive_padding",
        "the best of seven baselines": "best rule",
    }
    for label, rule in measured.items():
        (line,) = re.findall(rf"^\| {label}.*$", README, re.MULTILINE)
        digits = 1 if rows[rule]["ratio"] > 2 else 2
        assert f"| {rows[rule]['ratio']:.{digits}f}×" in line


def test_every_extra_is_described() -> None:
    install = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    table = install.split("| extra |")[1].split("\n\n")[0]
    described = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert sorted(described) == sorted(project["optional-dependencies"].keys() - DEVELOPMENT)


def test_links_lead_to_files() -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert [target for target in targets if not (ROOT / target).exists()] == []
