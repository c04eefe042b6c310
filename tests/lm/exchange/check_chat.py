#!/usr/bin/env python3
"""Checks that transformers prompts a tuned model as Primus trained it. Run by hand.

    check_chat.py PRIMUS [FORMAT ...]

For each format, and for a chat template of the model's own (auto): trains a small base model, tunes it on 40 chats with the README's command, exports it, and generates answers
greedily with transformers and the saved template. Every answer must equal the trained one, the tokens of apply_chat_template
must equal the trained tokens, and generation must stop at the end token. Needs torch and transformers 5.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

CHATS = 40
# The special tokens of each format, without the tokens that start and end a text.
FORMATS = {
    "alpaca": [], "squad": [], "mistral": [], "zephyr": [], "phi3": ["<|end|>"],
    "chatml": ["<|im_start|>", "<|im_end|>"], "phi4": ["<|im_start|>", "<|im_sep|>", "<|im_end|>"],
    "llama3": ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], "gemma": ["<start_of_turn>", "<end_of_turn>"],
    "auto": ["<|turn|>", "<|done|>"]}
# This template marks the answers with `generation` blocks.
OWN_TEMPLATE = """{{ bos_token + 'Chat.' }}
{% for message in messages %}{{ '<|turn|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}{% generation %}{{ message.content + '<|done|>' }}{% endgeneration %}
{%- else %}{{ message.content + '<|done|>' }}{% endif %}
{% endfor %}
{%- if add_generation_prompt %}{{ '<|turn|>assistant\\n' }}{% endif %}"""


def question(i: int) -> str:
    things = ["a cat", "the sea", "a stone", "snow", "an apple", "the sun", "a drum", "rain"]
    asked = ["colour of", "sound of", "size of", "place of", "name for"]
    return f"What is the {asked[i // 8]} {things[i % 8]}?"


def answer(i: int) -> str:
    first = ["grey", "blue", "loud", "cold", "sweet", "warm", "deep"]
    second = ["mostly", "never", "at night", "in spring", "by hand", "far away"]
    return f"It is {first[i % 7]}, {second[i % 6]}."


def check(primus: str, name: str, folder: pathlib.Path) -> bool:
    def run(*words: object) -> str:
        done = subprocess.run([primus, *map(str, words)], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, words))}\n{done.stderr}")
        return done.stdout

    text = "".join(f"{question(i)}\n{answer(i)}\n" for i in range(CHATS))
    (folder / "text.txt").write_text(text * 3)
    (folder / "chats.jsonl").write_text("".join(json.dumps({"messages": [
        {"role": "user", "content": question(i)}, {"role": "assistant", "content": answer(i)}]}) + "\n" for i in range(CHATS)))
    special = [word for token in ["<s>", *FORMATS[name]] for word in ("--special", token)]
    run("data", "train-tokenizer", "--input", folder / "text.txt", "--vocab-size", 400, *special, "--output", folder / "tok")
    # As with Llama's tokenizer, the token <s> precedes every text.
    tokenizer = json.loads((folder / "tok/tokenizer.json").read_text())
    bos = next(token["id"] for token in tokenizer["added_tokens"] if token["content"] == "<s>")
    tokenizer["post_processor"] = {
        "type": "TemplateProcessing", "pair": [],
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [bos], "tokens": ["<s>"]}}}
    (folder / "tok/tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tok/tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "<|endoftext|>"}))
    if name == "auto":
        (folder / "tok/chat_template.jinja").write_text(OWN_TEMPLATE)
    base = ["num_layers=2", "hidden_size=64", "ffn_hidden_size=128", "num_attention_heads=4", "num_query_groups=4",
            "tokenizer_type=null", "vocab_size=null", "mock_data=false", "split=100,0,0", "eval_iters=0",
            f"tokenizer_model={folder / 'tok'}", f"data_path={folder / 'text.txt'}"]
    place = [f"workspace={folder}", "work_group=w", "user_name=u", "--plain"]
    examples = pathlib.Path(__file__).resolve().parents[3] / "examples/native/configs/CPU/llama_tiny-pretrain.yaml"
    run("train", "pretrain", "--config", examples, *base, *place, "exp_name=base", "train_iters=20", "lr=1e-3", "seq_length=64",
        "bf16=false", "max_position_embeddings=512")
    run("train", "posttrain", f"load={folder / 'w/u/base'}", f"sft_dataset_name={folder / 'chats.jsonl'}",
        f"sft_conversation_format={name}", "exp_name=tuned", *place)
    run("model", "export", folder / "w/u/tuned", folder / "out")
    learned = json.loads(run("data", "conversations", folder / "chats.jsonl", "--tokenizer", folder / "out", "--json",
                             "--show", CHATS))
    model = AutoModelForCausalLM.from_pretrained(folder / "out", dtype=torch.float32).eval()
    tokens = AutoTokenizer.from_pretrained(folder / "out")
    same = right = stopped = 0
    for i in range(CHATS):
        chat = [{"role": "user", "content": question(i)}, {"role": "assistant", "content": answer(i)}]
        whole = tokens.apply_chat_template(chat, return_dict=False)
        ids = learned["shown"][i]["ids"]
        same += whole[:len(ids)] == ids and len(whole) - len(ids) <= 1
        prompt = tokens.apply_chat_template(chat[:1], add_generation_prompt=True, return_tensors="pt", return_dict=True)
        with torch.no_grad():
            out = model.generate(**prompt, max_new_tokens=40, do_sample=False)[0, prompt["input_ids"].shape[1]:]
        right += tokens.decode(out, skip_special_tokens=True).strip() == answer(i)
        stopped += len(out) < 40
    asked = run("generate", folder / "out", "--template", "auto", "-t", 0, "-n", 40, "--prompts", questions(folder))
    ours = sum(json.loads(line)["text"].strip() == answer(i) for i, line in enumerate(asked.splitlines()))
    good = same == right == stopped == ours == CHATS
    print(f"{name:8} transformers {right}/{CHATS}, primus {ours}/{CHATS}, stopped {stopped}, same tokens {same}"
          f"{'' if good else ' FAILED'}", flush=True)
    return good


def questions(folder: pathlib.Path) -> pathlib.Path:
    path = folder / "questions.jsonl"
    path.write_text("".join(json.dumps(question(i)) + "\n" for i in range(CHATS)))
    return path


def main() -> int:
    primus, *names = sys.argv[1:]
    good = True
    for name in names or FORMATS:
        with tempfile.TemporaryDirectory() as temporary:
            good &= check(primus, name, pathlib.Path(temporary))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
