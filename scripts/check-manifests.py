#!/usr/bin/env python3
"""Validates the manifests of `primus k8s` against the published schemas of JobSet and PyTorchJob.

    scripts/check-manifests.py CRD.yaml... [--primus build/bin/primus]

CRD.yaml: CustomResourceDefinitions as their projects publish them, for example
  config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml   of kubernetes-sigs/jobset
  manifests/base/crds/kubeflow.org_pytorchjobs.yaml          of kubeflow/trainer, branch release-1.9

Renders both kinds with few and with all options, and JobSets with placing and gates. Checks every field like a
cluster with strict validation: unknown fields, types, required fields, patterns, enumerations and limits. CEL
rules are not evaluated. Needs PyYAML. Exit code: 0 if all manifests are valid, 1 if a manifest is invalid, 2 for bad arguments.
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMMAND = ["--", "direct", "--numa", "--", "train", "pretrain", "--config", "/data/exp.yaml"]
FEW = ["--image", "a/b:1"]
MANY = [*FEW, "--name", "llama-8b", "--namespace", "team", "-N", "4", "--gpus-per-node", "8", "--gpu-resource", "amd",
        "--cpus", "96", "--memory", "1Ti", "--shm-size", "64Gi", "--env", "NCCL_DEBUG=INFO", "--secret",
        "HF_TOKEN=hugging-face/token", "--secret", "wandb", "--volume", "/scratch:/scratch:ro", "--volume",
        "pvc/data:/data", "--queue", "gpus", "--service-account", "trainer", "--priority-class", "high",
        "--topology-key", "topology.kubernetes.io/zone", "--max-restarts", "0"]
PLACED = [*FEW, "-N", "8", "--queue", "gpus", "--required-topology", "cloud.provider.com/topology-block",
          "--slice-topology", "cloud.provider.com/topology-rack", "--slice-size", "4", "--gate", "job"]
EXCLUSIVE = [*FEW, "-N", "8", "--exclusive-topology", "cloud.provider.com/topology-block", "--gate", "pods"]
VARIANTS = {"jobset": {"few options": FEW, "all options": MANY, "Kueue and a gate job": PLACED,
                       "exclusive and a gate in the pods": EXCLUSIVE},
            "pytorchjob": {"few options": FEW, "all options": MANY}}
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}


def check(value, schema, path, problems):
    """Adds the errors of the value to the problems."""
    if schema.get("x-kubernetes-int-or-string"):
        if not isinstance(value, (int, str)) or isinstance(value, bool):
            problems.append(f"{path}: {value!r} is neither a number nor a text")
    elif "type" in schema:
        wanted = TYPES[schema["type"]]
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            problems.append(f"{path}: {value!r} is no {schema['type']}")
            return
    if "enum" in schema and value not in schema["enum"]:
        problems.append(f"{path}: {value!r} is none of {schema['enum']}")
    if isinstance(value, str):
        if "pattern" in schema and not re.search(schema["pattern"], value):
            problems.append(f"{path}: {value!r} does not match {schema['pattern']}")
        if len(value) > schema.get("maxLength", len(value)) or len(value) < schema.get("minLength", 0):
            problems.append(f"{path}: {value!r} is too long or too short")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if value < schema.get("minimum", value) or value > schema.get("maximum", value):
            problems.append(f"{path}: {value} is out of range")
    if isinstance(value, list):
        if len(value) > schema.get("maxItems", len(value)) or len(value) < schema.get("minItems", 0):
            problems.append(f"{path}: {len(value)} elements are too many or too few")
        keys = schema.get("x-kubernetes-list-map-keys")
        if keys:
            names = [tuple(element.get(key) for key in keys) for element in value]
            problems += [f"{path}: {name} occurs twice" for name in sorted(set(names)) if names.count(name) > 1]
        for i, element in enumerate(value):
            check(element, schema.get("items", {}), f"{path}[{i}]", problems)
    if isinstance(value, dict):
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        for key in schema.get("required", []):
            if key not in value:
                problems.append(f"{path}.{key} is missing")
        for key, inner in value.items():
            if key in known:
                check(inner, known[key], f"{path}.{key}", problems)
            elif isinstance(others, dict):
                check(inner, others, f"{path}.{key}", problems)
            elif not schema.get("x-kubernetes-preserve-unknown-fields") and others is not True and path:
                problems.append(f"{path}.{key} is unknown")


def load_schemas(paths):
    """(apiVersion, kind) -> schema."""
    schemas = {}
    for path in paths:
        definition = yaml.safe_load(pathlib.Path(path).read_text())
        if not isinstance(definition, dict) or definition.get("kind") != "CustomResourceDefinition":
            sys.exit(f"{path} is no CustomResourceDefinition")
        spec = definition["spec"]
        for version in spec["versions"]:
            schema = dict(version["schema"]["openAPIV3Schema"])
            schema["properties"] = dict(schema["properties"], metadata={"type": "object",
                                                                       "x-kubernetes-preserve-unknown-fields": True})
            schemas[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return schemas


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("crd", nargs="+", help="files of CustomResourceDefinitions")
    parser.add_argument("--primus", default=ROOT / "build/bin/primus")
    options = parser.parse_args()
    schemas = load_schemas(options.crd)
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for kind, variants in VARIANTS.items():
            for name, words in variants.items():
                command = [options.primus, "k8s", "--kind", kind, *words, *COMMAND]
                text = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
                for document in yaml.safe_load_all(text):
                    key = document.get("apiVersion"), document.get("kind")
                    problems = []
                    if key not in schemas:
                        problems.append(f"no schema of {key} was given")
                    else:
                        check(document, schemas[key], "$", problems)
                    print(f"{kind}, {name}: " + ("holds" if not problems else "\n  ".join(["", *problems])))
                    good = good and not problems
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
