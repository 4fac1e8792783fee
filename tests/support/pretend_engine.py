# Copyright (c) 2026, gpufleet.dflash contributors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A program that behaves as an engine may: C(python pretend_engine.py PORT LISTENS READY DIES HOW).

Seconds until it listens, until it answers 200 in place of 503 and until it dies (0: never), and how it treats
requests. Its answers have the form of SGLang's. "hung": a child that calls itself a scheduler is stopped by SIGSTOP,
and health answers 503 late; "speed:N": N tokens a second.
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time

PORT = int(sys.argv[1])
LISTENS, READY, DIES = map(float, sys.argv[2:5])
HOW = sys.argv[5]
BEGIN = time.monotonic()


def die() -> None:
    time.sleep(DIES)
    print("ServerArgs(api_key='s3cr3t-V4lue')", file=sys.stderr)
    words = "ImportError: libcublas.so.13: cannot open shared object file: No such file or directory"
    print(words, file=sys.stderr, flush=True)
    os._exit(3)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if HOW == "hangs":
            time.sleep(600)
        if HOW == "hung":
            time.sleep(0.8)
            self.answer(503, b"{}")
            return
        self.answer(200 if time.monotonic() - BEGIN >= READY else 503, b"{}")

    def do_POST(self) -> None:
        if HOW == "dies-generating":
            os._exit(4)
        if HOW == "refuses":
            self.answer(500, b"CUDA error: an illegal memory access was encountered")
            return
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        tokens = request["sampling_params"]["max_new_tokens"]
        if HOW.startswith("speed:"):
            time.sleep(tokens / float(HOW.partition(":")[2]))
        meta: dict[str, float] = {"completion_tokens": tokens}
        if HOW != "plain":
            meta["spec_verify_ct"] = tokens // 4
            meta["spec_accept_length"] = 1.0 if HOW == "rejects" else 4.0
        text = "" if HOW == "silent" else "four"
        self.answer(200, json.dumps({"text": text, "meta_info": meta}).encode())

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


if HOW == "hung":
    scheduler = subprocess.Popen(["sglang::scheduler", "60"], executable="/bin/sleep")
    scheduler.send_signal(signal.SIGSTOP)
if DIES:
    threading.Thread(target=die, daemon=True).start()
time.sleep(LISTENS)
http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
