#!/usr/bin/env python3
"""Writes the settings of another training framework into presets/backends/NAME/fields.yaml.

    scripts/backend-tables.py megatron   CHECKOUT [--output FILE]     Megatron-LM: its argument parser
    scripts/backend-tables.py torchtitan CHECKOUT [--output FILE]     TorchTitan: the classes of its job_config.py
    scripts/backend-tables.py maxtext    CHECKOUT [--output FILE]     MaxText: the classes of its types.py
    scripts/backend-tables.py megatron_bridge CHECKOUT [--output FILE]     Megatron-Bridge: the parameters of its recipes

CHECKOUT is a checkout of the framework at the commit given in presets/backends/pins.yaml. Run it with a
Python that has the packages imported by the framework's settings: PyTorch for the first two, JAX for the
third, and none for the last, whose files are only parsed. The mapping of the fields to Primus is written by hand, in keys.yaml next to the result.
"""

import argparse
import ast
import dataclasses
import enum
import json
import pathlib
import sys
import types
import typing


def scalar(value):
    """A default as inline YAML (JSON is YAML); None if it has no such form."""
    if isinstance(value, enum.Enum):
        value = value.name
    if isinstance(value, tuple):
        value = list(value)
    try:
        return json.dumps(value)
    except TypeError:
        return None


def row(entry):
    return "{" + ", ".join(f"{key}: {value}" for key, value in entry.items()) + "}"


def write(out, title, fields):
    lines = [f"# {title}", "# Written by scripts/backend-tables.py: change nothing by hand.", "", "fields:"]
    lines += [f"  {json.dumps(name) if '.' in name else name}: {row(entry)}" for name, entry in sorted(fields.items())]
    text = "\n".join(lines) + "\n"
    if out:
        pathlib.Path(out).write_text(text)
    else:
        sys.stdout.write(text)


def megatron_fields():
    from megatron.training.arguments import add_megatron_arguments

    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_megatron_arguments(parser)
    fields = {}
    for action in parser._actions:
        if action.dest == "help":
            continue
        entry = fields.setdefault(action.dest, {})
        kind = type(action).__name__
        if kind == "_StoreTrueAction":
            entry["type"], entry["on"] = "bool", action.option_strings[0]
        elif kind == "_StoreFalseAction":
            entry["type"], entry["off"] = "bool", action.option_strings[0]
        elif kind == "BooleanOptionalAction":
            entry["type"], entry["on"], entry["off"] = "bool", *action.option_strings[:2]
        else:
            name = {int: "int", float: "float", bool: "bool"}.get(action.type, "string")
            entry["type"] = name if action.nargs is None else "list"
            entry["flag"] = action.option_strings[0]
            if action.choices and all(not isinstance(c, enum.Enum) for c in action.choices):
                entry["choices"] = json.dumps(list(action.choices))
            elif action.choices:
                entry["choices"] = json.dumps([c.name for c in action.choices])
        default = scalar(action.default)
        if default is not None:
            entry["default"] = default
    return fields


def choices_of(kind):
    """The values that a field's annotation allows: (type name, choices)."""
    options = [kind]
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(kind) if option is not type(None)]
    for option in options:
        if typing.get_origin(option) is typing.Annotated:
            option = typing.get_args(option)[0]
        if typing.get_origin(option) is typing.Literal:
            return "string", [c for c in typing.get_args(option) if c is not None]
        if isinstance(option, type) and issubclass(option, enum.Enum):
            return "string", [c.value for c in option]
    names = {bool: "bool", int: "int", float: "float", str: "string"}
    found = {names.get(option) for option in options}
    if typing.get_origin(options[0]) is list or options[0] is list:
        return "list", None
    if typing.get_origin(options[0]) is dict or options[0] is dict:
        return "map", None
    if found == {"int", "float"}:
        return "float", None
    return (found.pop() if len(found) == 1 and None not in found else "any"), None


def dataclass_fields(kind, prefix, fields):
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        name = prefix + field.name
        annotation = hints[field.name]
        if dataclasses.is_dataclass(annotation):
            dataclass_fields(annotation, name + ".", fields)
            continue
        type_name, choices = choices_of(annotation)
        entry = {"type": type_name}
        if choices:
            entry["choices"] = json.dumps(choices)
        value = field.default
        if field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        default = None if value is dataclasses.MISSING else scalar(value)
        if default is not None:
            entry["default"] = default
        fields[name] = entry


def torchtitan_fields(checkout):
    # Skip the package's __init__, which imports all models.
    package = types.ModuleType("torchtitan")
    package.__path__ = [str(checkout / "torchtitan")]
    sys.modules["torchtitan"] = package
    config = types.ModuleType("torchtitan.config")
    config.__path__ = [str(checkout / "torchtitan/config")]
    sys.modules["torchtitan.config"] = config
    from torchtitan.config.job_config import JobConfig

    fields = {}
    dataclass_fields(JobConfig, "", fields)
    return fields


def maxtext_fields(checkout):
    import yaml
    from maxtext.configs.types import MaxTextConfig

    # Defaults come from base.yml. Settings that are not in this file have the default of the class.
    base = yaml.safe_load((checkout / "src/maxtext/configs/base.yml").read_text())
    fields = {}
    for name, field in MaxTextConfig.model_fields.items():
        type_name, choices = choices_of(field.annotation)
        entry = {"type": type_name}
        if choices:
            entry["choices"] = json.dumps(choices)
        value = base.get(name, None if field.is_required() else field.get_default(call_default_factory=True))
        default = scalar(value)
        if default is not None and not isinstance(value, (list, dict)):
            entry["default"] = default
        fields[name] = entry
    return fields


# The recipes of Megatron-Bridge that keys.yaml has a table for, and those that it refuses by name.
RECIPES = ["llama/llama2.py", "llama/llama3.py", "qwen/qwen2.py", "qwen/qwen3.py", "qwen/qwen3_moe.py", "mamba/mamba2.py"]


def megatron_bridge_fields(checkout):
    """The parameters of the functions that build a recipe's settings. Their defaults depend on the recipe, and
    are in keys.yaml."""
    names = {"bool": "bool", "int": "int", "float": "float", "str": "string", "list[str]": "list", "List[str]": "list"}
    fields = {}
    for file in RECIPES:
        tree = ast.parse((checkout / "src/megatron/bridge/recipes" / file).read_text())
        for function in tree.body:
            if not isinstance(function, ast.FunctionDef) or not function.name.endswith("_common"):
                continue
            for parameter in function.args.args:
                kind = ast.unparse(parameter.annotation).removeprefix("Optional[").removesuffix(" | None")
                if kind not in names:
                    kind = kind.removesuffix("]")
                entry = {"type": names.get(kind, "any")}
                if fields.setdefault(parameter.arg, entry) != entry:
                    fields[parameter.arg] = {"type": "any"}
    # Every function that is published as a flavor passes these on, or uses them itself.
    for name in ("recipe", "flavor", "hf_path"):
        fields[name] = {"type": "string"}
    fields.setdefault("peft", {"type": "any"})
    return fields


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=["megatron", "torchtitan", "maxtext", "megatron_bridge"])
    parser.add_argument("checkout", type=pathlib.Path)
    parser.add_argument("--output")
    args = parser.parse_args()
    sys.path.insert(0, str(args.checkout / "src" if args.framework == "maxtext" else args.checkout))
    if args.framework == "megatron":
        write(args.output, "The arguments of Megatron-LM", megatron_fields())
    elif args.framework == "torchtitan":
        write(args.output, "The settings of TorchTitan", torchtitan_fields(args.checkout))
    elif args.framework == "maxtext":
        write(args.output, "The settings of MaxText", maxtext_fields(args.checkout))
    else:
        write(args.output, "The parameters of Megatron-Bridge's recipes", megatron_bridge_fields(args.checkout))


if __name__ == "__main__":
    main()
