#!/usr/bin/env python3
"""Encodes conversations by transformers with models' own chat templates, and marks the tokens of answers.

    write_template_tokens.py FILE

Writes FILE, a JSON object with tokenizers, templates and conversations. Templates with generation blocks have the
masks of transformers (return_assistant_tokens_mask). In their conversations, no token spans the beginning of an answer:
transformers marks such a token, and Primus does not. The masks of other templates follow from renderings of the
conversation's beginnings: an answer is the text that the rendering with the answer adds to the rendering with
add_generation_prompt, up to the special token that ends it. tests/lm/data/model_template_test.cpp compares this with
the tokens of training. Needs transformers.
"""

import json
import pathlib
import sys
import tempfile

from transformers import PreTrainedTokenizerFast

SPECIAL = ["<|endoftext|>", "<s>", "<|im_start|>", "<|im_end|>", "<turn>", "</turn>"]

GENERATION = """{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}{% generation %}{{ message.content + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

# Drops the reasoning of all answers before the last question, and writes tools and tool calls.
REASONING = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}{% for tool in tools %}{{ tool | tojson }}{{ '\\n' }}{% endfor %}{{ '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if message.reasoning_content and loop.index0 > ns.last %}
            {{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '<tool_call>' + call.function.name + ' ' + (call.function.arguments | tojson) + '</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}{% if enable_thinking is defined and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif %}"""

# Begins with the BOS token, trims texts, and ends an answer by the EOS token behind a space.
TRIMMED = """{{ bos_token }}{% for message in messages %}
{%- if message.role == 'user' %}{{ '<turn> ' + message.content | trim + ' </turn>' }}
{%- else %}{{ ' ' + message.content | trim + ' ' + eos_token }}{% endif %}
{%- endfor %}"""

CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": [2, 3]}}}
TOOL = {"type": "function", "function": {"name": "add", "description": "Adds é.", "parameters": {"type": "object"}}}
USER, ANSWER = {"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Me <s>."}
TURNS = [{"role": "system", "content": " Be kind.\n"}, USER, ANSWER, {"role": "user", "content": "Why?\n\n"},
         {"role": "assistant", "content": "\n\nBecause ü, 日本 \U0001f600\n"}]
LONGER = {"role": "assistant", "content": "Because ü, 日本 \U0001f600\n"}
THOUGHTS = [USER, {"role": "assistant", "reasoning_content": "Hm.", "content": "I."}, USER,
            {"role": "assistant", "reasoning_content": "Hm, hm.", "content": "You."}]
CALLS = [{"role": "user", "content": "1 + 2?"}, {"role": "assistant", "content": "", "tool_calls": [CALL]},
         {"role": "tool", "name": "add", "content": "3"}, {"role": "assistant", "content": "3", "note": None}]
PLAIN = [USER, ANSWER, {"role": "user", "content": " And now?  "}, {"role": "assistant", "content": " Still me. "}]
RECORDS = {
    "generation": [{"messages": [USER, ANSWER]}, {"messages": [*TURNS[:4], LONGER]}, {"messages": TURNS[:4]}],
    "reasoning": [{"messages": [USER, ANSWER]}, {"messages": TURNS}, {"messages": THOUGHTS},
                  {"messages": THOUGHTS[2:]}, {"messages": CALLS, "tools": [TOOL]}],
    "trimmed": [{"messages": [USER, ANSWER]}, {"messages": PLAIN}],
}
TEMPLATES = {"generation": GENERATION, "reasoning": REASONING, "trimmed": TRIMMED}


def byte_symbol(byte: int) -> str:
    """Returns the character of a byte in byte-level vocabularies (GPT-2's table)."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return chr(byte) if byte in kept else chr(256 + [b for b in range(256) if b not in kept].index(byte))


def added(first: int, stripped: bool) -> list:
    return [{"id": first + i, "content": token, "special": True, "single_word": False, "lstrip": False,
             "rstrip": stripped and token.endswith("turn>"), "normalized": False} for i, token in enumerate(SPECIAL)]


def bytes_tokenizer() -> dict:
    """Returns a tokenizer of all bytes, with merges across words and lines."""
    vocab = {byte_symbol(b): b for b in range(256)}
    merges = []
    for left, right in [("\n", "\n"), ("M", "e"), (" ", "M"), (" M", "e"), ("Å", "x")]:
        pair = ["".join(byte_symbol(b) for b in part.encode("latin-1")) for part in (left, right)]
        merges.append(pair)
        vocab["".join(pair)] = len(vocab)
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {"version": "1.0", "added_tokens": added(len(vocab), False),
            "model": {"type": "BPE", "vocab": vocab, "merges": merges}, "pre_tokenizer": level, "decoder": level}


def spaces_tokenizer() -> dict:
    """Returns a tokenizer of ASCII with a space before each text. Turn marks remove white space behind them."""
    space = "\u2581"
    symbols = [space if c == " " else c for c in map(chr, range(1, 127))]
    vocab = {symbol: i for i, symbol in enumerate(symbols)}
    merges = [[space, "M"], [space + "M", "e"]]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    return {"version": "1.0", "added_tokens": added(len(vocab), True),
            "model": {"type": "BPE", "vocab": vocab, "merges": merges},
            "normalizer": {"type": "Sequence", "normalizers": [
                {"type": "Prepend", "prepend": space}, {"type": "Replace", "pattern": {"String": " "}, "content": space}]},
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": space}, "content": " "}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}}


TOKENIZERS = {"bytes": bytes_tokenizer(), "spaces": spaces_tokenizer()}


def masked(tokenizer, text: str, spans: list) -> dict:
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    mask = [0] * len(encoded["input_ids"])
    for begin, end in spans:
        while text[begin:end].rstrip() != text[begin:end]:
            stripped = begin + len(text[begin:end].rstrip())
            if not any(text[begin:stripped].endswith(token) for token in SPECIAL):
                break
            end = stripped
        for i, (start, _) in enumerate(encoded["offset_mapping"]):
            mask[i] |= int(begin <= start < end)
    return {"ids": encoded["input_ids"], "learned": mask}


def texts_of(tokenizer, record: dict) -> list:
    def render(count: int, asks: bool) -> str:
        return tokenizer.apply_chat_template(record["messages"][:count], tools=record.get("tools"), tokenize=False,
                                             add_generation_prompt=asks)

    messages = record["messages"]
    whole = render(len(messages), False)
    separate, spans, is_one = [], [], True
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        asking, answered = render(i, True), render(i + 1, False)
        assert answered.startswith(asking)
        spans.append((len(asking), len(answered)))
        is_one = is_one and whole.startswith(answered)
        separate.append(masked(tokenizer, answered, [spans[-1]]))
    return [masked(tokenizer, whole, spans)] if is_one else separate


def main() -> int:
    cases = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for name, settings in TOKENIZERS.items():
            (folder / "tokenizer.json").write_text(json.dumps(settings))
            (folder / "tokenizer_config.json").write_text(json.dumps({
                "eos_token": SPECIAL[0], "bos_token": SPECIAL[1], "tokenizer_class": "PreTrainedTokenizerFast"}))
            tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
            for template, records in RECORDS.items():
                tokenizer.chat_template = TEMPLATES[template]
                for record in records:
                    if name == "spaces" and not json.dumps(record, ensure_ascii=False).isascii():
                        continue
                    if template == "generation":
                        encoded = tokenizer.apply_chat_template(record["messages"], return_dict=True,
                                                                return_assistant_tokens_mask=True)
                        texts = [{"ids": encoded["input_ids"], "learned": encoded["assistant_masks"]}]
                    else:
                        texts = texts_of(tokenizer, record)
                    asked = tokenizer.apply_chat_template(record["messages"][:-1], tools=record.get("tools"),
                                                          return_dict=True, add_generation_prompt=True)["input_ids"]
                    cases.append({"tokenizer": name, "template": template, "record": record, "texts": texts,
                                  "prompt": asked})
    pathlib.Path(sys.argv[1]).write_text(json.dumps(
        {"tokenizers": TOKENIZERS, "templates": TEMPLATES, "cases": cases}, ensure_ascii=False,
        separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
