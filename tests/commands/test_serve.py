"""`winnow serve`: from its first line to its end, and whatever keeps it from beginning."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import threading
import time
from contextlib import contextmanager
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from support.asked import DOCUMENT, write_asked
from support.launcher import COMMANDS, ended, launcher
from support.serving import beginning
from winnow.cli import main
from winnow.commands import serve as command
from winnow.models import load_model

pytestmark = pytest.mark.usefixtures("one_thread")

QUESTION, ANSWER = DOCUMENT.questions[0].text, DOCUMENT.questions[0].answer
PROGRAM = "from winnow.cli import program; program()"
CHAT, COMPLETION = "/chat/completions", "/completions"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A document in two contexts."""
    folder = tmp_path_factory.mktemp("serve")
    write_asked(folder)
    for name, method in (("report", "adakv"), ("other", "snapkv")):
        out = str(folder / f"{name}.safetensors")
        assert main(["compress", str(folder / "document.txt"), "-o", out, "--method", method]) == 0
    return folder


class Served:
    """A server in a process of its own."""

    def __init__(self, number, folder):
        self.number, self.folder = number, folder
        while not (found := re.search(r"^.*(http://\S+/v1).*\n", self.said("out"), re.MULTILINE)):
            if ended(number):
                pytest.fail(self.said("err"))
            time.sleep(0.01)
        self.heading, self.address = self.said("out")[: found.end()].splitlines(), found[1]

    def said(self, stream):
        path = self.folder / f"{stream}.txt"
        return path.read_text() if path.exists() else ""

    def opened(self, address, body=None, **headers):
        data = None if body is None else json.dumps(body).encode()
        form = {"Content-Type": "application/json", **headers}
        return urlopen(Request(self.address + address, data, form), timeout=60)

    def asked(self, address, body=None, **headers):
        with self.opened(address, body, **headers) as response:
            return json.load(response)

    def ended(self, request):
        """Seconds and standard error, after a request to end."""
        begun = time.monotonic()
        os.kill(self.number, request)
        while not ended(self.number) and time.monotonic() < begun + 60:
            time.sleep(0.01)
        return time.monotonic() - begun, self.said("err")


@contextmanager
def served(tmp_path, *arguments, **more):
    """A server, which is to end with code 0."""
    program = f"import os; os.environ.update({more}); {PROGRAM}"
    processes = launcher(COMMANDS)
    number = processes.start(program, ["serve", "--port", "0", *arguments], tmp_path, whole=True)
    try:
        yield Served(number, tmp_path)
    finally:
        code = processes.wait(kill=not ended(number))
    assert code == 0


needs_signals = pytest.mark.skipif(os.name == "nt", reason="POSIX signals")


@needs_signals
def test_a_server_from_beginning_to_end(tmp_path):
    with served(tmp_path, "--name", "mine", "--method", "full", WINNOW_API_KEY="secret") as server:
        assert server.address.startswith("http://127.0.0.1:")
        assert "full" in server.heading[0]
        assert server.heading[-1].endswith("serves mine. Ctrl-C stops.")
        key = {"Authorization": "Bearer secret"}
        assert [each["id"] for each in server.asked("/models", **key)["data"]] == ["mine"]
        body = server.asked(COMPLETION, {"prompt": "The safe in the old bakery", "max_tokens": 4}, **key)
        assert body["usage"]["completion_tokens"] == 4
        for headers, status in (({}, 401), ({**key, "Host": "evil.example"}, 403)):
            with pytest.raises(HTTPError) as refused:
                server.asked("/models", **headers)
            assert refused.value.code == status
        _, err = server.ended(signal.SIGINT)
        told, stopped = err.splitlines()
        assert re.fullmatch(r"mine: 7 tokens read in .*, 4 said in .* · held: .*, .*% of full", told)
        assert stopped == "Stopped."


@needs_signals
def test_documents_are_asked_by_their_names_and_a_stream_does_not_keep_the_server(folder, tmp_path):
    contexts = [word for name in ("report", "other") for word in ("--context", str(folder / f"{name}.safetensors"))]
    with served(tmp_path, *contexts, "--temperature", "1.5", "--seed", "1") as server:
        assert [line.split(" · ")[0] for line in server.heading[1:-1]] == ["report", "other"]
        assert "adakv @ 128" in server.heading[1]
        for name in ("report", "other"):
            asked = {"model": name, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
            body = server.asked(CHAT, asked)
            assert body["choices"][0]["message"]["content"] == ANSWER
            assert body["usage"]["prompt_tokens_details"]["cached_tokens"] > 150
        endless = {"prompt": DOCUMENT.text, "max_tokens": 1500, "stream": True}
        with server.opened(COMPLETION, endless) as stream:
            for _ in range(6):
                assert stream.readline()
            seconds, err = server.ended(signal.SIGTERM)
        assert err.splitlines()[-1] == "Stopped."
        assert "Traceback" not in err
        assert seconds < 20


@needs_signals
@pytest.mark.parametrize(("starts", "held"), [("8", True), ("0", False)])
def test_a_text_that_prompts_begin_with_is_held(starts, held, tmp_path):
    with served(tmp_path, "--starts", starts, "--method", "full") as server:
        texts = [f"{DOCUMENT.text} {end}" for end in ("The safe", "On Monday", "There was")]
        asked = [{"prompt": text, "max_tokens": 1} for text in texts]
        found = [server.asked(COMPLETION, each)["usage"]["prompt_tokens_details"]["cached_tokens"] for each in asked]
        assert found[:2] == [0, 0]
        assert (found[2] > 150) == held
        _, err = server.ended(signal.SIGINT)
        assert bool(re.search(r"\(\d+ held\) read in", err.splitlines()[2])) == held


def test_a_port_that_is_taken(folder, winnow_run, no_weights):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = winnow_run("serve", "--port", str(port))
    assert (code, out) == (1, "")
    assert re.fullmatch(rf"nothing can listen at 127\.0\.0\.1, port {port}: .*; give another --host or --port\.\n", err)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "x" * 70, "203.0.113.1"])
def test_a_host_that_is_not_here(host, folder, winnow_run, no_weights):
    code, out, err = winnow_run("serve", "--port", "0", "--host", host)
    assert (code, out) == (1, "")
    assert err.startswith(f"nothing can listen at {host}")


CONTEXT = ("--context", "report.safetensors")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--method", "kvzip"), "winnow compress --method kvzip"),
        (("--method", "no-such"), "no-such"),
        (("--method", "full,snapkv"), ""),
        (("--fold", "64", "--method", "full"), "full"),
        ((*CONTEXT, "--dtype", "float32"), "--dtype"),
        ((*CONTEXT, "--weights", "int8"), "--weights"),
        (("--api-key", ""), "--api-key"),
        (("--rows", "0"), "--rows"),
        (("--longest-pause", "-0.1"), "--longest-pause"),
        (("--longest-pause", "inf"), "--longest-pause"),
        (("--longest-pause", "nan"), "--longest-pause"),
        (("--longest-pause", "soon"), "give 0 or more, as in 0.2"),
    ],
)
def test_wrong_usage_is_told_before_the_model_is_loaded(arguments, said, folder, winnow_run, no_weights):
    code, out, err = winnow_run("serve", "--port", "0", *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1, err


@pytest.mark.parametrize(
    ("arguments", "name"),
    [((*CONTEXT, *CONTEXT), "report"), ((*CONTEXT, "--name", "report"), "report")],
)
def test_names_are_given_once(arguments, name, folder, winnow_run):
    code, out, err = winnow_run("serve", "--port", "0", *arguments)
    assert (code, out) == (2, "")
    assert f"two models would have the name {name}" in err


def test_a_file_that_is_no_context(folder, winnow_run, no_weights):
    code, _, err = winnow_run("serve", "--port", "0", "--context", "document.txt")
    assert code == 1
    assert "document.txt" in err


def test_packages_that_are_missing():
    code = """
import sys
from winnow.cli import main
for package in ("starlette", "uvicorn"):
    sys.modules[package] = None
    print(main(["serve"]))
"""
    found = launcher(COMMANDS).python(code)
    assert (found.returncode, found.stdout) == (0, "1\n1\n")
    lines = [f'winnow serve needs {package}: pip install "winnow-kv[serve]"' for package in ("starlette", "uvicorn")]
    assert found.stderr.splitlines() == lines


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("127.0.0.2", True), ("0.0.0.0", False), ("::1", True), ("::", False)]
)
def test_which_addresses_are_this_machine_s_own(host, local):
    try:
        listening = command._listening(host, 0)
    except command.InputError:
        pytest.skip("no such address here")
    with listening:
        assert command._is_local(listening) == local


def test_a_model_that_does_not_come_back_does_not_keep_the_process(folder, winnow_run, monkeypatch):
    """Python would crash if it went away around a thread that is within a layer."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    codes, close = [], command.Engine.close
    monkeypatch.setattr(command.uvicorn.Server, "run", interrupted)
    monkeypatch.setattr(command.Engine, "close", lambda engine: close(engine) and False)
    monkeypatch.setattr(command.os, "_exit", codes.append)
    code, out, err = winnow_run("serve", "--port", "0", "--host", "0.0.0.0")
    assert (code, codes) == (0, [0])
    assert "http://0.0.0.0:" in out
    assert err.splitlines() == ["Anybody who reaches this address can ask; --api-key demands a secret.", "Stopped."]


@pytest.fixture
def endless(source, monkeypatch):
    """A server in a thread, which gives answers under way little time; and its address."""
    model = load_model(source, "cpu", "float32")
    model.register_forward_pre_hook(lambda *_: time.sleep(0.02))
    monkeypatch.setattr(command, "GRACE", 0.3)
    engine = command.Engine(source, model, command.Limits(rows=1))
    site = command.application(engine, source.tokenizer, [beginning(model)], command.Settings())
    config = command.uvicorn.Config(site, log_level="critical", lifespan="off", timeout_graceful_shutdown=5)
    server = command._Server(config, engine)
    with command._listening("127.0.0.1", 0) as listening:
        running = threading.Thread(target=server.run, args=([listening],))
        running.start()
        yield server, f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        running.join(20)
    assert engine.close()


def test_whoever_is_not_answered_is_told_that_the_server_stops(endless):
    """In words, as a whole answer, a stream and one that has not begun."""
    server, address = endless
    text = {"prompt": DOCUMENT.text, "max_tokens": 1500, "temperature": 1.5, "seed": 1}
    asked = []

    def post(**more):
        data = json.dumps({**text, **more}).encode()
        try:
            with urlopen(Request(address + COMPLETION, data, {"Content-Type": "application/json"}), timeout=30) as said:
                asked.append((said.status, said.read().decode()))
        except HTTPError as refused:
            asked.append((refused.code, refused.read().decode()))

    clients = [threading.Thread(target=post, kwargs=more) for more in ({"stream": True}, {}, {})]
    for client in clients:
        client.start()
        time.sleep(0.2)
    server.should_exit = True
    for client in clients:
        client.join(30)
    (streamed,) = (said for status, said in asked if status == 200)
    assert '"error": {"message": "the server stops."' in streamed
    assert streamed.endswith("data: [DONE]\n\n")
    whole = [(status, json.loads(said)["error"]["message"]) for status, said in asked if status != 200]
    assert whole == [(503, "the server stops.")] * 2


def test_errors_of_the_server_are_a_line_each(capsys):
    log = logging.getLogger("winnow.serve.engine")
    handler = command._Errors(logging.ERROR)
    log.addHandler(handler)
    try:
        try:
            raise KeyError("so\nit goes\x1b[2J")
        except KeyError as problem:
            log.error("a request failed", exc_info=problem)
        log.warning("not told")
    finally:
        log.removeHandler(handler)
    assert capsys.readouterr().err == "a request failed: KeyError: 'so\\nit goes\\x1b[2J'\n"
