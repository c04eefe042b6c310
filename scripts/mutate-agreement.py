#!/usr/bin/env python3
"""Shows that the simulations of the supervisors' agreement find errors in it.

Makes one error after the other in agreement.cpp or succession.cpp, builds the simulations of
tests/safe/supervise with it, and runs them until one fails. Exits with 1 if an error survives.

  scripts/mutate-agreement.py [--only NAME,...] [--worlds N] [--jobs N]
"""
import argparse
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src/safe/supervise/agreement"
TESTS = ROOT / "tests/safe/supervise"
COMPILE = ["c++", "-std=c++20", "-O1", "-w", f"-I{ROOT}/src", f"-I{ROOT}/tests"]
A, S = "agreement.cpp", "succession.cpp"

# Name: (file, text that occurs once, replacement).
MUTANTS = {
    "promise a lower view": (A, "if (view < promised_) return Answer::kRefused;", ""),
    "accept without a promise": (A, "if (state.view < promised_) return Answer::kRefused;", ""),
    "accept an older state": (A, "if (newer) take(state);", "take(state);"),
    "acknowledge without keeping the state": (A, "if (newer) take(state);", "if (newer && !state_.exists()) take(state);"),
    "count the own vote twice": (A, "votes += votes_here ? 1 : 0;", "votes += votes_here ? (is_self(one) ? 2 : 1) : 0;"),
    "half of the members suffices": (A, "(2 * votes == all && chair)", "2 * votes == all"),
    "forget the members before": (A, "(state.before.members.empty() || is_quorum(state.before, has))", "true"),
    "a new process has the old vote": (A, "peer->second.who.life == one.life && ", ""),
    "a leader takes no state of others": (A, "const AgreedState& found = newest(true);", "const AgreedState& found = state_;"),
    "promise without the state": (S, "if (kind == MessageKind::kHello || kind == MessageKind::kPromise) message.state", "if (kind == MessageKind::kHello) message.state"),
    "learn from a minority": (A, "!copied || !is_quorum(state_, has) || ", "!copied || "),
    "agreed by the chair alone": (A, "!copied || !is_quorum(state_, has) || ", "!is_quorum(state_, has) || "),
    "take acknowledgements of any view": (A, "view != view_ || !leads_) return;", "!leads_) return;"),
    "take promises of any view": (A, "if (view == view_) peer.promised_here = view;", "peer.promised_here = view_;"),
    "lead in spite of a higher promise": (A, "if (promised_ != view_) return;", ""),
    "lead on after a promise to another": (A, "if (view != view_) leads_ = false;", ""),
    "views of two nodes are equal": (A, " * nodes + static_cast<std::uint64_t>(self_.node);\n  promised_", " * nodes;\n  promised_"),
    "a proposal is agreed at once": (A, "return proposals_;\n}\n\nvoid Agreement::renew", "return agreed_ = proposals_;\n}\n\nvoid Agreement::renew"),
    "keep a stale wish": (A, "  wanted_.reset();\n  lost_", "  lost_"),
    "a lost proposal is not noticed": (A, "lost_ = lost_ || proposals_ > agreed_;", ""),
    "promise without keeping it": (A, "if (!keep(view, state_)) return Answer::kNotKept;", ""),
    "take a state without keeping it": (A, "if (!keep(state.view, newer ? state : state_)) return Answer::kNotKept;", ""),
    "decide without keeping the own vote": (A, " || !keep(promised_, state_)) return;", ") return;"),
    "lead without keeping the own promise": (A, "  if (!keep(promised_, state_)) return;\n  leads_", "  leads_"),
    "remember no promise": (A, "  promised_ = std::max(promised_, votes.promised);\n", ""),
    "remember no state": (A, "  kept_.reset();\n  recall(votes.state);", "  kept_.reset();"),
    "join another job": (S, "if (other_job && role_ != Role::kFollowing) {", "if (false) {"),
    "lead for ever without a quorum": (S, "if (slow || (no_quorum_ && now - *no_quorum_ > limits_.leader_silence)) lose();", "static_cast<void>(slow);"),
    "follow a silent leader": (S, "now - out_.heard > limits_.follower_silence", "now - out_.heard > 1000 * limits_.follower_silence"),
    "do not promise later": (S, "  promise_waiting(now);\n  if (role_", "  if (role_"),
    "do not keep a state later": (S, "if (role_ == Role::kFollowing) return take_waiting();", "if (role_ == Role::kFollowing) return;"),
    "do not call again": (S, "now >= found->second.until);\n    if (due)", "false);\n    if (due)"),
}

# Errors that no simulation finds, and why each of them is harmless if it is the only one.
KNOWN = {
    "agreed by the chair alone": "a decision is also in the job's file before the leader acts",
    "take acknowledgements of any view": "stand() forgets them, and versions grow with each view",
    "views of two nodes are equal": "a part of a view is random",
    "join another job": "a state of another job is not accepted either",
}


def build(command):
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode != 0:
        sys.exit(f"error: {' '.join(command)}:\n{made.stderr}")


def judge(name, folder, objects, worlds):
    """Returns the name of the test that fails with the error; empty: none does."""
    file, before, after = MUTANTS[name]
    place = folder / str(list(MUTANTS).index(name))
    place.mkdir()
    for source in (A, S):
        text = (SOURCES / source).read_text()
        if source == file:
            if text.count(before) != 1:
                sys.exit(f"error: '{name}': the text is in {file} {text.count(before)} times, not once")
            text = text.replace(before, after)
        (place / source).write_text(text)
    program = place / "simulation"
    build(COMPILE + [str(place / A), str(place / S), *objects, "-o", str(program), "-lgmock", "-lgtest", "-lgtest_main", "-lpthread"])
    environment = dict(os.environ, **({"PRIMUS_WORLDS": str(worlds)} if worlds else {}))
    try:
        run = subprocess.run([program, "--gtest_fail_fast", "--gtest_brief=1"], capture_output=True, text=True, env=environment, timeout=300)
    except subprocess.TimeoutExpired:
        return "(it does not end)"
    failed = [line for line in run.stdout.splitlines() if "FAILED" in line]
    return failed[0] if failed else "(it crashed)" if run.returncode != 0 else ""


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--only", default="", help="names of errors, separated by commas")
    options.add_argument("--worlds", type=int, default=0, help="simulated jobs of a test (default: as in the test)")
    options.add_argument("--jobs", type=int, default=1)
    options = options.parse_args()
    names = [name for name in options.only.split(",") if name] or list(MUTANTS)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        objects = []
        for test in ("agreement_test", "agreement_oracle", "succession_test", "succession_world"):
            objects.append(str(folder / f"{test}.o"))
            build(COMPILE + ["-c", str(TESTS / f"{test}.cpp"), "-o", objects[-1]])
        survived, found = [], 0
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            results = pool.map(lambda name: judge(name, folder, objects, options.worlds), names)
            for name, result in zip(names, results):
                known = f"not found: {KNOWN[name]}" if name in KNOWN else "SURVIVED"
                print(f"{name:45} {result or known}", flush=True)
                survived += [] if result or name in KNOWN else [name]
                found += 1 if result else 0
    print(f"{found} of {len(names)} errors were found")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
