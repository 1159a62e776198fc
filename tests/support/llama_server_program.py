"""A stand-in for llama-server: says its address, then answers every request with so many words, as a stream."""

from __future__ import annotations

import json
import stat
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Answers(BaseHTTPRequestHandler):
    """Requests, of which each gets what it asks for at once."""

    def do_POST(self) -> None:
        """An answer of `max_tokens` words, then what it cost."""
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/v1/chat/completions", self.path
        words = [{"choices": [{"delta": {"content": "word "}}]}] * asked["max_tokens"]
        read = sum(len(each["content"].split()) for each in asked["messages"])
        costs = {"prompt_tokens": read, "completion_tokens": len(words)}
        self.send_response(200)
        self.end_headers()
        for event in (*words, {"choices": [], "usage": costs}):
            self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")


def main(arguments: list[str]) -> None:
    """Takes llama-server's options, in pairs."""
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert Path(options["--model"]).exists()
    with ThreadingHTTPServer((options["--host"], int(options["--port"])), Answers) as server:
        print(f"listening on http://{options['--host']}:{options['--port']}", flush=True)
        server.serve_forever()


def write_server(path: Path) -> Path:
    """The program, as a file that can be run."""
    here = Path(__file__).resolve()
    same = f"import sys\nsys.path.insert(0, {str(here.parent)!r})\nfrom {here.stem} import main\nmain(sys.argv[1:])\n"
    path.write_text(f"#!{sys.executable}\n{same}", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path
