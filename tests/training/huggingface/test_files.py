"""Small files of a model, which go with its weights."""

from pathlib import Path

from dynapipe_hpc.training.small_files import copy_small_files


def test_templates_that_have_names_go_with_the_others(tmp_path: Path) -> None:
    names = ("chat_template.jinja", "additional_chat_templates/tool_use.jinja")
    for name in (*names, "additional_chat_templates/notes.txt", "model.safetensors"):
        (tmp_path / "a" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "a" / name).write_text(name)
    for target in ("b", "b", "c"):
        copy_small_files(tmp_path / "a", tmp_path / target)
    for target in ("b", "c"):
        files = [path for path in (tmp_path / target).rglob("*") if path.is_file()]
        assert {str(path.relative_to(tmp_path / target)) for path in files} == set(names)
