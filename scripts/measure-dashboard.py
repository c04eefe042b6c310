#!/usr/bin/env python3
"""Measures 'primus dashboard' with a long run: times of the first answers, first paint, and memory of the server.

usage: measure-dashboard.py [--program build/bin/primus] [--steps 1000000] [--folder FOLDER]
       measure-dashboard.py --dom URL     prints the page at URL when it has curves, a map of ranks and a timeline, for tests

The script writes a run of --steps steps into a temporary folder below --folder (about 0.6 GB for a million steps), starts
the dashboard, and asks for the data of the run as the page does. If chromium or chromium-headless-shell is installed, it
also loads the page of a second, fresh server, and prints the times of the first paint and of the first curve, in seconds
after the begin of the navigation. At last, a step is appended, and the time until the stream of events has it is printed.
Only Python's standard library and Linux are needed.
"""
import argparse
import base64
import http.client
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

SOURCE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def line(step):
    loss = 2 + 8 / (1 + step / 1000)
    return json.dumps({
        "iteration": step, "train_iters": 1000000, "consumed_samples": 512 * step, "global_batch_size": 512,
        "lm_loss": loss, "learning_rate": 3e-4, "loss_scale": 1.0, "grad_norm": 0.5 + (step % 97) / 100, "num_zeros": 0,
        "skipped_iterations": 0, "nan_iterations": 0, "elapsed_time_per_iteration_ms": 812.25 + step % 13,
        "tokens_per_second_per_device": 5043.125 + step % 17, "tflops_per_device": 402.5, "mfu": 0.4125,
        "data_wait_share": 0.0005, "elapsed_time_per_iteration_ms_avg": 812.3, "tokens_per_second_per_device_avg": 5043.1,
        "tflops_per_device_avg": 402.5, "mfu_avg": 0.4125, "data_wait_share_avg": 0.0005, "eta_seconds": 1000000 - step,
        "memory_used_bytes": 68719476736 + step, "memory_total_bytes": 85899345920}, separators=(",", ":")) + "\n"


class Server:
    def __init__(self, program, folder):
        self.process = subprocess.Popen([program, "dashboard", folder, "--port", "0"], stdout=subprocess.PIPE, text=True)
        self.address = self.process.stdout.readline().split()[-1]
        self.port = int(self.address.rstrip("/").rsplit(":", 1)[1])

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", path)
        body = connection.getresponse().read()
        connection.close()
        return body

    def memory(self, key):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            for text in file:
                if text.startswith(key + ":"):
                    return int(text.split()[1]) / 1024
        return 0

    def end(self):
        self.process.terminate()
        self.process.wait()


class Browser:
    """A browser without a window, controlled by its debugging protocol."""

    def __init__(self, program, folder):
        self.process = subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0",
             f"--user-data-dir={folder}", "about:blank"], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
            start_new_session=True)
        for text in self.process.stderr:
            if "DevTools listening on" in text:
                port = int(text.split("127.0.0.1:")[1].split("/")[0])
                break
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/json")
        page = next(each for each in json.load(connection.getresponse()) if each["type"] == "page")
        path = page["webSocketDebuggerUrl"].split(f":{port}", 1)[1]
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall((f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                             f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n").encode())
        self.input = self.socket.makefile("rb")
        while self.input.readline() not in (b"\r\n", b""):
            pass
        self.count = 0

    def call(self, method, **parameters):
        self.count += 1
        data = json.dumps({"id": self.count, "method": method, "params": parameters}).encode()
        mask = os.urandom(4)
        size = bytes([0x80 | len(data)]) if len(data) < 126 else bytes([0x80 | 126]) + struct.pack(">H", len(data))
        self.socket.sendall(b"\x81" + size + mask + bytes(byte ^ mask[i % 4] for i, byte in enumerate(data)))
        while True:
            size = self.input.read(2)[1] & 127
            if size > 125:
                size = int.from_bytes(self.input.read(2 if size == 126 else 8), "big")
            answer = json.loads(self.input.read(size))
            if answer.get("id") == self.count:
                return answer.get("result", {})

    def value(self, expression):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def end(self):
        os.killpg(self.process.pid, signal.SIGKILL)  # the browser's program is a script that starts others
        self.process.wait()


def find_browser():
    return shutil.which("chromium") or shutil.which("chromium-headless-shell")


def print_dom(address):
    """Prints the HTML of the drawn page, and lines with the errors of its script and of its security policy."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(find_browser(), folder)
        try:
            browser.call("Page.enable")
            browser.call("Page.addScriptToEvaluateOnNewDocument", source=(
                "window.problems = [];"
                "addEventListener('error', (event) => problems.push(event.message));"
                "addEventListener('unhandledrejection', (event) => problems.push(String(event.reason)));"
                "addEventListener('securitypolicyviolation', (event) => problems.push(event.violatedDirective));"))
            browser.call("Emulation.setDeviceMetricsOverride", width=400, height=900, deviceScaleFactor=1, mobile=False)
            browser.call("Page.navigate", url=address)
            end = time.time() + 60
            parts = " && ".join(f"document.querySelector('{part}')" for part in (".curve", "canvas", "#timeline td"))
            while time.time() < end and not browser.value(parts + " && 1"):
                time.sleep(0.05)
            print(browser.value("document.documentElement.outerHTML"))
            print("width of the page:", browser.value("document.documentElement.scrollWidth"))
            print("problems:", browser.value("problems"))
        finally:
            browser.end()


def measure_browser(program, address, folder):
    browser = Browser(program, folder)
    try:
        browser.call("Page.enable")
        browser.call("Page.addScriptToEvaluateOnNewDocument", source=(
            "new MutationObserver(() => { if (!window.firstCurve && document.querySelector('.curve'))"
            " window.firstCurve = performance.now(); }).observe(document, {childList: true, subtree: true});"))
        browser.call("Page.navigate", url=address)
        end = time.time() + 60
        while time.time() < end and not browser.value("window.firstCurve"):
            time.sleep(0.05)
        time.sleep(0.5)
        paint = browser.value("performance.getEntriesByName('first-contentful-paint').map((each) => each.startTime)[0]")
        curve = browser.value("window.firstCurve")
        return (paint or float("nan")) / 1000, (curve or float("nan")) / 1000
    finally:
        browser.end()


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--program", default=os.path.join(SOURCE, "build", "bin", "primus"))
    arguments.add_argument("--steps", type=int, default=1000000)
    arguments.add_argument("--folder", default=None)
    arguments.add_argument("--dom", metavar="URL", default=None)
    options = arguments.parse_args()
    if options.dom:
        print_dom(options.dom)
        return
    with tempfile.TemporaryDirectory(dir=options.folder, ignore_cleanup_errors=True) as folder:
        run = os.path.join(folder, "run")
        os.mkdir(run)
        metrics = os.path.join(run, "metrics.jsonl")
        with open(metrics, "w", encoding="ascii") as file:
            for step in range(1, options.steps + 1):
                file.write(line(step))
        print(f"{options.steps} steps, {os.path.getsize(metrics) / 1e6:.0f} MB")
        server = Server(options.program, folder)
        try:
            begin = time.time()
            size = len(server.get("/")) + len(server.get("/dashboard.css")) + len(server.get("/dashboard.js"))
            listed = json.loads(server.get("/api/runs"))["runs"][0]
            report = server.get("/api/report?runs=" + listed["id"])
            first = json.loads(report)["runs"][0]
            print(f"page ({size / 1000:.0f} kB), list and first curves ({len(report) / 1000:.0f} kB, "
                  f"{len(first['positions']['last'])} points): {time.time() - begin:.3f} s")
            slowest = 0
            while True:
                asked = time.time()
                progress = json.loads(server.get("/api/report?runs=" + listed["id"]))["runs"][0]["progress"]
                slowest = max(slowest, time.time() - asked)
                if progress == 1:
                    break
                time.sleep(0.2)
            print(f"all records read after {time.time() - begin:.1f} s; slowest answer meanwhile {slowest:.3f} s")
            asked = time.time()
            report = server.get("/api/report?runs=" + listed["id"])
            print(f"all curves ({len(report) / 1000:.0f} kB): {time.time() - asked:.3f} s")
            asked = time.time()
            server.get(f"/api/range?runs={listed['id']}&from={options.steps // 2}&to={options.steps // 2 + 10000}")
            print(f"10000 steps in detail: {time.time() - asked:.3f} s")
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
            connection.request("GET", "/api/stream")
            stream = connection.getresponse()
            time.sleep(1)
            with open(metrics, "a", encoding="ascii") as file:
                file.write(line(options.steps + 1))
            asked = time.time()
            while f'"step":{options.steps + 1},'.encode() not in stream.readline():
                pass
            print(f"a new step reaches a viewer after {time.time() - asked:.2f} s")
            print(f"memory of the server: {server.memory('VmRSS'):.0f} MiB, at most {server.memory('VmHWM'):.0f} MiB")
        finally:
            server.end()
        browser = find_browser()
        if not browser:
            print("first paint: not measured (neither chromium nor chromium-headless-shell is installed)")
            return
        server = Server(options.program, folder)
        try:
            paint, curve = measure_browser(browser, server.address, os.path.join(folder, "browser"))
            print(f"first paint {paint:.2f} s, first curve {curve:.2f} s (a fresh server, Chromium without a window)")
        finally:
            server.end()


if __name__ == "__main__":
    sys.exit(main())
