"""A small process that stands for an engine or a router: real sockets, real children, behaviour by flags."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--host", required=True)
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--exit-after", type=float)
parser.add_argument("--exit-code", type=int, default=1)
parser.add_argument("--last-words", default="RuntimeError: the stand-in was told to fail")
parser.add_argument("--unhealthy-when", type=Path)
parser.add_argument("--never-healthy", action="store_true")
parser.add_argument("--child", choices=["same-session", "own-session"])
parser.add_argument("--ignore-sigterm", action="store_true")
parser.add_argument("--dump", type=Path)
parser.add_argument("--order", type=Path)
parser.add_argument("--metrics", type=Path)
args, _ = parser.parse_known_args()

print("Loading weights took 0.1 seconds", flush=True)
if args.dump:
    args.dump.write_text(json.dumps({"argv": sys.argv, "env": dict(os.environ), "cwd": os.getcwd()}))
if args.child:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", code], start_new_session=args.child == "own-session")
if args.ignore_sigterm:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if args.exit_after is not None:
    time.sleep(args.exit_after)
    print(args.last_words, flush=True)
    sys.exit(args.exit_code)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        bad = args.never_healthy or (args.unhealthy_when is not None and args.unhealthy_when.exists())
        shown = args.metrics is not None and self.path == "/metrics" and args.metrics.exists()
        body = args.metrics.read_bytes() if shown else b""
        self.send_response(503 if bad else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


server = ThreadingHTTPServer((args.host, args.port), Handler)


def stop(*_: object) -> None:
    if args.order:
        with args.order.open("a") as file:
            file.write(os.environ["KVSERVING_ROLE"] + "\n")
    threading.Thread(target=server.shutdown).start()


if not args.ignore_sigterm:
    signal.signal(signal.SIGTERM, stop)
server.serve_forever()
