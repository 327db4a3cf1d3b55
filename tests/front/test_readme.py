"""What the README shows is what the code does."""

import contextlib
import importlib.util
import io
import re
import tomllib
from pathlib import Path

from dynapipe_hpc.report.plan_svg import plan_svg

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DEVELOPMENT = {"benchmarks", "dev", "docs", "reference"}
PICTURES = ROOT / "docs" / "pictures"


def block(language: str) -> str:
    """The first block in a language, without one in plain text."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return next(str(text) for name, text in blocks if name == language)


def test_the_example_prints_what_is_below_it() -> None:
    example = block("python")
    assert len(list(filter(None, example.splitlines()))) <= 10
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, "README.md", "exec"), {})  # noqa: S102 - our own file
    assert printed.getvalue() == block("")


def test_the_picture_is_of_the_plan_that_is_made_today() -> None:
    spec = importlib.util.spec_from_file_location("draw_plan", PICTURES / "draw_plan.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    plans = module.example()
    committed = (PICTURES / "plan.svg").read_text(encoding="utf-8")
    assert plan_svg(plans) == committed, "run docs/pictures/draw_plan.py"
    microbatches = plans[0].microbatches
    n_samples = sum(len(m.sample_ids) for m in microbatches)
    caption = f"{n_samples} samples of 10 to 2,048 tokens, in {len(microbatches)} micro-batches"
    assert caption in README


def test_every_extra_is_described() -> None:
    table = README.split("| extra |")[1].split("\n\n")[0]
    described = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert sorted(described) == sorted(project["optional-dependencies"].keys() - DEVELOPMENT)


def test_links_lead_to_files() -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert [target for target in targets if not (ROOT / target).exists()] == []
