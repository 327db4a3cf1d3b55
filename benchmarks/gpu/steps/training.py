"""A profile and five runs of a GPT of 350 million parameters, through the command line."""

import shutil
from pathlib import Path
from statistics import median

from dynapipe_hpc.report.comparison import summarise
from dynapipe_hpc.report.run_folder import RunFolder
from gpu.device import find_device
from gpu.finding import folder, note, rehearses
from gpu.trained import CONFIGS, SMOKE, dynapipe, make_corpus, overrides, trained, usable_bytes

SIZES = (
    "model.n_layers=24",
    "model.hidden_size=1024",
    "model.n_heads=16",
    "model.ffn_size=4096",
    "training.iterations=12",
    'planner.cost.recompute=["none"]',  # a mode takes 18 s per layout to measure
)
MICROBATCH_TOKENS, BUDGET, SLICE = (2048, 1024, 128) if rehearses() else (16384, 8192, 1024)
RULES = {
    "dynamic, padded": '{rule = "dynamic", layouts = ["padded"]}',
    "dynamic": '{rule = "dynamic", layouts = ["padded", "packed"]}',
    "dynamic, slices": f'{{rule = "dynamic", layouts = ["packed"], slices = {SLICE}}}',
    "packed": '{rule = "dense_packing", rows_per_microbatch = 4}',
    "token budget": f'{{rule = "token_budget", tokens_per_microbatch = {BUDGET}}}',
}
TIME_ERROR, PEAK_ERROR, IDLE_MS = 0.12, 0.03, 20


def main() -> None:
    find_device()
    place = folder() / "training"
    shutil.rmtree(place, ignore_errors=True)  # runs there would be resumed
    place.mkdir()
    config, settings = CONFIGS / "gpt.toml", settings_of(place)
    largest = ("--microbatch-tokens", MICROBATCH_TOKENS)
    output = ("-o", place / "gpt.h5")
    dynapipe("profile", config, *output, *largest, *overrides(settings))
    note("profile", "written", "written", True)
    for name, batch in RULES.items():
        path = place / name.replace(", ", "-").replace(" ", "-")
        if trained(config, [*settings, f"planner.batch={batch}"], path, name) is None:
            note(f"{name}: run", "failed", "ends", False)
        else:
            report(name, path)


def settings_of(place: Path) -> list[str]:
    """Settings on top of the configuration; makes the corpus."""
    files = [f'data.dataset="{make_corpus(place)}"', f'planner.cost.path="{place / "gpt.h5"}"']
    if rehearses():
        return [*files, *SMOKE]
    return [*files, *SIZES, f"cluster.device_memory_bytes={usable_bytes()}"]


def report(name: str, path: Path) -> None:
    run = RunFolder.open(path)
    summary = summarise(name, run.records())
    note(f"{name}: real tokens/s", summary.real_tokens_per_s)
    time_error, peak_error = summary.time_error, summary.peak_error
    note(f"{name}: error of time", time_error, f"< {TIME_ERROR}", time_error < TIME_ERROR)
    note(f"{name}: error of peak", peak_error, f"< {PEAK_ERROR}", peak_error < PEAK_ERROR)
    pairs = list(zip(run.records(), run.timelines(), strict=False))
    idle_ms = median(record.measured_ms - line.measured_ms for record, line in pairs[2:])
    note(f"{name}: ms outside of instructions", idle_ms, f"< {IDLE_MS}", idle_ms < IDLE_MS)


if __name__ == "__main__":
    main()
