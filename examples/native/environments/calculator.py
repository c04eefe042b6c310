#!/usr/bin/env python3
"""An environment for 'primus train grpo': the tool 'calculate', and a reward for the right answer.

Reads one request per line, and writes one reply per line (docs/formats/environments.md). The last turn of the model
gets the reward 1 if it ends with the record's column "answer", else 0.

    primus train grpo load=MODEL data=prompts.jsonl environment=examples/native/environments/calculator.py \
        tools=examples/native/environments/calculator.json
"""

import json
import re
import sys


def calculate(arguments):
    expression = arguments.get("expression")
    # A text of digits and operators has no names, and the limit of its length bounds the time of powers of numbers.
    if not isinstance(expression, str) or not re.fullmatch(r"[0-9+\-*/(). ]{1,100}", expression) or "**" in expression:
        return "error: the expression must have only numbers, + - * / and parentheses"
    try:
        return str(eval(expression, {"__builtins__": {}}))
    except Exception as error:
        return f"error: {error}"


def results(message):
    """Returns the messages that answer the calls of the tool in the model's last message."""
    for call in message.get("tool_calls", []):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        result = calculate(arguments) if name == "calculate" else f"error: there is no tool {name}"
        yield {"role": "tool", "content": result, "tool_call_id": call["id"], "name": name}
    for call in message.get("invalid_tool_calls", []):
        yield {"role": "tool", "content": f"error: {call['problem']}"}


def reply(request):
    message = request["messages"][-1]
    if not request["last"]:
        messages = list(results(message))
        if messages:
            return {"messages": messages}
    if message["role"] != "assistant":
        return {"done": True, "reward": 0}
    answer = request["record"].get("answer")
    if answer is None:
        return {"done": True, "reward": None, "reason": "the record has no column 'answer'"}
    numbers = re.findall(r"-?\d+(?:\.\d+)?", message["content"])
    return {"done": True, "reward": 1 if numbers and numbers[-1] == str(answer) else 0}


for line in sys.stdin:
    print(json.dumps(reply(json.loads(line))), flush=True)
