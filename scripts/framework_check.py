"""Shared by check-torchtitan-run.py and check-maxtext-run.py: the command line and the output folder."""

import argparse
import pathlib
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main(description, framework, tolerance, compare, devices={"cpu": 1e-5}):
    """Runs compare(arguments, folder), which returns whether the curves agree. Returns the exit code.

    `framework` is the name of the option for its checkout, and `tolerance` the help text of --tolerance.
    `devices` are the devices that can be tested, with their default tolerances."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--" + framework, type=pathlib.Path, required=True)
    parser.add_argument("--python", type=pathlib.Path, required=True)
    parser.add_argument("--primus", type=pathlib.Path, default=ROOT / "build/bin/primus")
    parser.add_argument("--tolerance", type=float, help=tolerance)
    if len(devices) > 1:
        parser.add_argument("--device", choices=list(devices), default="cpu")
    parser.add_argument("--folder", type=pathlib.Path, help="an empty folder in which all files are kept")
    parser.add_argument("--quiet", action="store_true", help="print one line")
    args = parser.parse_args()
    args.primus = args.primus.absolute()
    args.tolerance = args.tolerance or devices[getattr(args, "device", "cpu")]
    with tempfile.TemporaryDirectory() as temporary:
        folder = (args.folder or pathlib.Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        same = compare(args, folder)
        if not same:
            print("FAILED: the curves differ")
        return 0 if same else 1
