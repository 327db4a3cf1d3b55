"""Inputs as real people have them, through the command line: the right values are known.

Most commands are answered by copies of one process, which has loaded what all of them load.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

CASES = Path(__file__).parents[3] / "shared" / "cases"
USER, ASSISTANT, END = "<|im_start|>user\\n", "<|im_start|>assistant\\n", "<|im_end|>\\n"
HI = f"{USER}hi{END}{ASSISTANT}"
EXPECTED: dict[str, tuple[str, ...]] = {
    "adapter_beside_a_model": (
        "a model and an adapter of peft (adapter_config.json)",
        "an adapter of peft, for the",
    ),
    "adapter_without_base_name": ("PASS",),
    "answers_as_json_text": ("PASS",),
    "arguments_as_json_text": ('[<call>{"name": "f", "arguments": {"x": 1}}</call>',),
    "blank_lines_and_bom": ("1 samples", "True"),
    "character_of_several_tokens": (
        "trained  a trout 🐟\n  read     <|endoftext|>",
        "trained  龘\n  read     <|endoftext|>",
    ),
    "chat_template_kwargs": (f"<|im_start|>system\\n/no_think{END}{HI}[yes{END}]",),
    "columns_system_and_history": (f"<|im_start|>system\\nbe a cat{END}{HI}[yes{END}]{USER}now?",),
    "compressed_text": ("1 samples",),
    "content_null": (f"{HI}[f{END}]<|im_start|>tool\\n1{END}{ASSISTANT}[one{END}]",),
    "content_parts": (f"{HI}[hello{END}]", "is of type 'image'"),
    "empty_slurm_variables": ("PASS",),
    "end_token_between_prompt_and_answer": (
        "'[user] one\\n[assistant] [two\\n][user] three\\n[assistant] [four\\n]'",
    ),
    "file_system_without_locks": ("out37.h5: 4 samples", "out95.h5: 4 samples"),
    "generation_prompt_begins_reasoning": (f"{USER}a{END}{ASSISTANT}[b{END}]", "<think>\\n[r\\n"),
    "git_lfs_pointers": ("git lfs pull",),
    "index_left_behind": ("[0.5527, 0.1557, -0.5136]", "has its weights twice"),
    "lfs_pointer_as_data": (
        "train.parquet:1: the file is only a pointer",
        "train.jsonl:1: the file",
    ),
    "llama3_positions": ('"original_max_tokens":32',),
    "long_chats_lose_the_question": ("lose their first turns",),
    "long_tmpdir": ("4 samples",),
    "mt5": ("shared.weight [0.5527, 0.1557, -0.5136]", "lm_head.weight [1.5527", '"mt5"'),
    "names_of_extra_tokens": ("'<sep>user: a\\n<sep>assistant: [b\\n]'",),
    "names_of_reasoning": (f"{HI}[<think>hm</think>yes{END}]",),
    "parquet_pads_with_null": ('"arguments": {"a": 1}}', '"arguments": {"b": "x"}}'),
    "prefixes_of_names": ("begin with '_orig_mod.'", "begin with 'base_model.model.'"),
    "prompt_and_completion_as_messages": (f"{HI}[yes{END}]",),
    "reference_beside_read_only": ("PASS\n",),
    "resume_advice_on_learning_rate": ("PASS",),
    "resume_same_lengths": ("was written with the hash of the tokens of data.dataset", "PASS"),
    "rotary_buffer_of_the_model": ("embed_tokens.weight [0.5527, 0.1557, -0.5136]",),
    "sharegpt_function_call": ('[<call>{"name": "w", "arguments": {"c": 1}}</call>', "'Human'"),
    "sizes_left_to_the_class": ("k_proj.weight [0.0779, -0.068, 0.3216]",),
    "special_tokens_map": (f"<s>{HI}[yes{END}]",),
    "template_for_tools": ("<|im_start|>tools\\n", f"'{HI}[yes{END}]'"),
    "template_is_json": ("PASS",),
    "text_pairs_sentencepiece": ("PASS",),
    "tied_under_another_name": ("embed_tokens.weight [0.5527", "shared.weight [0.5527"),
    "token_that_ends_a_turn": ('"eos_token_id": [',),
    "tokens_around_text": ("start token: <e>", "'a[b<e>]'"),
    "tokens_of_tokenizer_config": ("23 tokens",),
    "tokens_without_rows_in_the_embedding": ("resize_token_embeddings(99)",),
    "tools_as_json_text": (f'<|im_start|>tools\\n{{"name": "f"}}\\n{END}{HI}[yes{END}]',),
    "turns_not_to_train": (f"{HI}bad{END}{USER}again{END}{ASSISTANT}[good{END}]",),
    "turns_that_change_when_others_follow": (
        f"'{USER}a{END}{ASSISTANT}[<think>\\nr1\\n</think>\\n\\nb{END}]'",
        f"'{USER}a{END}{ASSISTANT}b{END}{USER}c{END}{ASSISTANT}[<think>\\nr2\\n</think>\\n\\nd{END}]'",
    ),
    "type_of_weights_in_config": ("BF16", '"torch_dtype": "bfloat16"'),
}
"""Contents of the outputs of a folder's `run.sh`, by folder."""
NEEDS = {
    "adapter_without_base_name": "peft",
    "compressed_text": "zstandard",
    "parquet_pads_with_null": "pyarrow",
    "reference_beside_read_only": "transformers",
}


EARLIER = {'"$DP" inspect "$T/out.h5" --config': '"$DP" plan'}
"""Commands of the cases that are gone, and what says the same now."""
NEW_PROCESSES = {"file_system_without_locks", "long_tmpdir"}
"""Kinds about processes as they start; those without `_lib/env.sh` have new ones, too."""
ASKED = """\
#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as peer:
    peer.connect("{address}")
    asked = json.dumps([sys.argv, os.getcwd(), dict(os.environ)])
    socket.send_fds(peer, [asked.encode()], [0, 1, 2])
    sys.exit(int(peer.recv(9)))
"""
ANSWERS = """\
import json, os, runpy, signal, socket, sys, traceback
import h5py, jinja2, safetensors, tokenizers, torch
from transformers import AutoTokenizer
from dynapipe_hpc.cli.main import main

def run(program, *arguments):
    sys.argv = [program, *arguments]
    if program.endswith("dynapipe-hpc"):
        return main(arguments)
    sys.argv = [*arguments]
    if arguments[0] == "-":
        exec(compile(sys.stdin.read(), "-", "exec"), {"__name__": "__main__"})
    else:
        runpy.run_path(arguments[0], run_name="__main__")

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
with socket.socket(socket.AF_UNIX) as listening:
    listening.bind(sys.argv[1])
    listening.listen()
    while True:
        peer, _ = listening.accept()
        if os.fork():
            peer.close()
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        text, files, _, _ = socket.recv_fds(peer, 1 << 20, 3)
        for number, file in enumerate(files):
            os.dup2(file, number)
        sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")
        command, folder, environment = json.loads(text)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        try:
            code = run(*command)
        except SystemExit as ended:
            code = ended.code
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        peer.send(str(int(code or 0)).encode())
        os._exit(0)
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the product and a Python that answer at once."""
    folder = tmp_path_factory.mktemp("bin")
    for name in ("dynapipe-hpc", "python"):
        program = folder / name
        program.write_text(ASKED.format(python=sys.executable, address=folder / "asked"))
        program.chmod(0o700)
    with subprocess.Popen([sys.executable, "-c", ANSWERS, str(folder / "asked")]) as answering:
        while not (folder / "asked").exists():
            assert answering.poll() is None
            time.sleep(0.05)
        yield folder
        answering.kill()


@pytest.mark.slow
@pytest.mark.parametrize("kind", EXPECTED)
def test_inputs_have_their_right_values(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if not CASES.is_dir():
        pytest.skip(f"needs {CASES}, which is no part of the project")
    if kind in NEEDS:
        pytest.importorskip(NEEDS[kind])
    for name in (kind, "_lib", "_common"):  # what is shared cannot be written
        shutil.copytree(CASES / name, tmp_path / name, copy_function=shutil.copyfile)
    script = tmp_path / kind / "run.sh"
    for earlier, now in EARLIER.items():
        script.write_text(script.read_text().replace(earlier, now))
    begins = "_lib/env.sh" not in script.read_text() or kind in NEW_PROCESSES
    found = Path(sys.executable).parent if begins else request.getfixturevalue("programs")
    command = ["bash", str(script)]
    done = subprocess.run(
        command,
        env=os.environ | {"DP": str(found / "dynapipe-hpc"), "PY": sys.executable},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    text = done.stdout + done.stderr
    assert [each for each in EXPECTED[kind] if each not in text] == [], text


def test_every_kind_is_tried() -> None:
    if not CASES.is_dir():
        pytest.skip(f"needs {CASES}, which is no part of the project")
    assert sorted(EXPECTED) == sorted(path.parent.name for path in CASES.glob("*/run.sh"))
