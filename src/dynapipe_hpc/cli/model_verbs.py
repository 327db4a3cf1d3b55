"""Verbs about models: finetune, import, export, generate."""

import argparse

from dynapipe_hpc.cli.verb import SET, number, option, output, say, switch, verb


@verb(
    "tune a model on chats or other text, in one command",
    "Makes a dataset of CHATS with the tokenizer and template of MODEL, a configuration for the "
    "ranks, on GPUs measured costs, trains, evaluates on samples that are held out, and exports "
    "the tuned model. All of it is in FOLDER: data.h5, config.toml, run, model, report.html. What "
    "is there already is used, so the same command goes on where it was interrupted. Preference "
    "pairs train by DPO.",
    option("model MODEL", "Hugging Face model"),
    option("sources CHATS", "files of text, as for preprocess; or one dataset", nargs="+"),
    output("FOLDER", "folder of all that is made", required=True),
    option(
        "--lora RANK",
        "train adapters of this rank (default 16) in place of all weights",
        int,
        nargs="?",
        const=16,
        accepts=lambda rank: rank >= 1,
        rule="must be at least 1",
    ),
    option("--epochs N", "how often every sample is trained on (default 3)", str),
    option(
        "--learning-rate RATE",
        "highest learning rate (default 2e-5, of adapters 2e-4; of preference pairs 1e-6 and 5e-6)",
        str,
    ),
    option("--memory SIZE", "memory of one rank, such as 76GB (default: what its device has)", str),
    SET,
    switch("--no-profile", "do not measure costs on GPUs"),
    examples=[
        "mpiexec -n 4 dynapipe-hpc finetune models/qwen3-0.6b chats.jsonl -o runs/chats",
        "mpiexec -n 4 dynapipe-hpc finetune models/llama pairs.jsonl -o runs/dpo --lora",
    ],
)
def finetune(arguments: argparse.Namespace) -> int:
    from dynapipe_hpc.cli.progress import share_progress
    from dynapipe_hpc.experiment.finetune import Finetune, finetune
    from dynapipe_hpc.job.job import open_job

    named = {"epochs": arguments.epochs, "learning_rate": arguments.learning_rate}
    sets = [f"training.{key}={value}" for key, value in named.items() if value is not None]
    wish = Finetune(
        arguments.model,
        arguments.sources,
        arguments.output,
        memory=arguments.memory,
        lora=arguments.lora,
        sets=[*sets, *arguments.overrides],
        measures=not arguments.no_profile,
    )
    with open_job() as job:
        return finetune(job, wish, lambda title: share_progress(title, shown=job.is_first))


@verb(
    "turn a Hugging Face model into a checkpoint",
    "Writes the weights of FOLDER (config.json and safetensors) as a checkpoint with which runs "
    "can begin (model.init_from). Its tokenizer files are copied along.",
    option("folder FOLDER", "Hugging Face model"),
    output("CHECKPOINT", "checkpoint to write", required=True),
    examples=["dynapipe-hpc import models/gpt2 -o imports/gpt2"],
)
def import_(arguments: argparse.Namespace) -> int:
    from dynapipe_hpc.training.huggingface.import_model import import_model

    origin = import_model(arguments.folder, arguments.output)
    say(f"{arguments.output}: {origin}, family {origin.shape.family}")
    return 0


@verb(
    "turn a run or a checkpoint into a Hugging Face model",
    "Writes the weights of a checkpoint as FOLDER, which transformers loads: safetensors, "
    "config.json, and the tokenizer files of the model with which the run began. Of a model with "
    "adapters (LoRA), writes the adapters as peft does, or, with --base, the model on which they "
    "were trained with the adapters merged into it.",
    option("source RUN", "run (its newest checkpoint) or checkpoint"),
    output("FOLDER", "folder to write", required=True),
    option(
        "--dtype",
        "type of the weights (default: that in the model's config.json, or float32)",
        str,
        choices=("float32", "bfloat16", "float16", "float64"),
    ),
    option(
        "--base MODEL",
        "model (Hugging Face folder, run or checkpoint) to add the adapters of RUN to",
    ),
    examples=[
        "dynapipe-hpc export runs/tuned -o models/tuned",
        "dynapipe-hpc export runs/tuned/checkpoints/000400 -o models/400 --dtype bfloat16",
        "dynapipe-hpc export runs/lora -o models/merged --base models/llama",
    ],
)
def export(arguments: argparse.Namespace) -> int:
    from dynapipe_hpc.training.huggingface.export_model import export_model

    base = arguments.base
    exported = export_model(arguments.source, arguments.output, arguments.dtype, base)
    origin = exported.origin
    is_alone = origin.shape.lora is not None and base is None
    kind = "adapters for peft" if is_alone else f"as {origin.page.architecture}"
    say(f"{arguments.output}: {origin}, {kind}, in {exported.dtype}")
    if exported.remark:
        say(f"{arguments.output}: {exported.remark}")
    return 0


@verb(
    "show what a model writes after a prompt",
    "Lets one process write text with the whole model of a checkpoint, to see that training "
    "worked.",
    option("model MODEL", "run, checkpoint or Hugging Face model"),
    option("--prompt TEXT", "text to continue", str, required=True),
    switch("--chat", "answer the prompt as a chat message, with the model's chat template"),
    number("--tokens N", "most tokens to write (default 64)", 1, default=64),
    number(
        "--temperature T",
        "divisor of logits; 0, the default, takes the likeliest token",
        0.0,
        default=0.0,
    ),
    option(
        "--top-p P",
        "choose among the likeliest tokens whose probabilities add up to P (default 1)",
        float,
        default=1.0,
        accepts=lambda p: 0 < p <= 1,
        rule="must be above 0 and at most 1",
    ),
    number("--seed S", "random seed of sampling (default 0)", 0, 2**63 - 1, default=0),
    option(
        "--tokenizer FILE",
        "tokenizer, as for preprocess (default: that which belongs to the model)",
        action="append",
        default=[],
    ),
    examples=[
        "dynapipe-hpc generate runs/tuned --chat --prompt 'Name three rivers.'",
        "dynapipe-hpc generate runs/tuned --prompt Once --temperature 0.8 --top-p 0.9 --seed 3",
    ],
)
def generate(arguments: argparse.Namespace) -> int:
    from dynapipe_hpc.training.generate import Sampling, generate

    text = generate(
        arguments.model,
        arguments.prompt,
        arguments.tokens,
        Sampling(arguments.temperature, arguments.top_p, arguments.seed),
        tokenizer_files=arguments.tokenizer,
        chat=arguments.chat,
    )
    say(text)
    return 0
