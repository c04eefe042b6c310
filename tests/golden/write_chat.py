#!/usr/bin/env python3
"""Renders conversations by transformers with the chat templates that Primus writes.

    write_chat.py PRIMUS FOLDER

Writes FOLDER/FORMAT.json: the template of each format (by `primus data conversations --json`), and the output
of transformers 5.24 for it, with and without a generation prompt. tests/lm/data/chat_template_test.cpp
compares this with the text that is trained. Needs transformers.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

from transformers import PreTrainedTokenizerFast

SPECIAL = ["<|endoftext|>", "<s>", "<|im_start|>", "<|im_end|>", "<|im_sep|>", "<|start_header_id|>", "<|end_header_id|>",
           "<|eot_id|>", "<start_of_turn>", "<end_of_turn>", "<|end|>"]
ONE = [{"role": "user", "content": " Who's there? "}, {"role": "assistant", "content": "It's \\me\n"}]
TURNS = ONE + [{"role": "user", "content": "And now?"}, {"role": "assistant", "content": "Still me."}]
SYSTEM = [{"role": "system", "content": "Be brief."}]
BLANK = [{"role": "system", "content": ""}]
CASES = {"squad": [ONE]}
FORMATS = ["alpaca", "squad", "chatml", "llama3", "mistral", "gemma", "phi3", "phi4", "zephyr"]


def tokenizer_files(folder: pathlib.Path) -> None:
    """Returns a tokenizer of ASCII bytes and the special tokens, as tiny_tokenizer in tests/lm/data."""
    def symbol(c: int) -> str:
        return chr(c) if 32 < c < 127 else chr(256 + c)

    vocab = {symbol(c): c for c in range(127)}
    added = [{"id": 127 + i, "content": token, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False} for i, token in enumerate(SPECIAL)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": added, "model": {"type": "BPE", "vocab": vocab, "merges": []},
        "pre_tokenizer": level, "decoder": level}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": SPECIAL[0], "bos_token": SPECIAL[1],
                                                              "tokenizer_class": "PreTrainedTokenizerFast"}))


def main() -> int:
    primus, out = sys.argv[1], pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        tokenizer_files(folder)
        data = folder / "c.jsonl"
        data.write_text(json.dumps({"messages": ONE}))
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        for name in FORMATS:
            shown = subprocess.run([primus, "data", "conversations", data, "--tokenizer", folder, "--format", name, "--json"],
                                   check=True, capture_output=True, text=True)
            template = json.loads(shown.stdout)["chat_template"]
            tokenizer.chat_template = template
            cases = []
            for messages in CASES.get(name, [ONE, TURNS, SYSTEM + TURNS, BLANK + ONE]):
                cases.append({
                    "messages": messages,
                    "text": tokenizer.apply_chat_template(messages, tokenize=False),
                    "prompt": tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)})
            (out / f"{name}.json").write_text(json.dumps({"template": template, "cases": cases}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
