"""Asks a model with transformers: what it exports must be what others load.

python configs/demo_finetune/ask_transformers.py FOLDER QUESTION
"""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer


def main(folder: str, question: str) -> None:
    """Prints the answer that the model finds most likely."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        return_dict=True,
        return_tensors="pt",
    )
    answer = model.generate(**asked, max_new_tokens=40, do_sample=False)
    text = tokenizer.decode(answer[0, asked["input_ids"].shape[1] :], skip_special_tokens=True)
    print(f"transformers: {question} {text}")


if __name__ == "__main__":
    main(*sys.argv[1:])
