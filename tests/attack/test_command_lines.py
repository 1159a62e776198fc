"""Command lines: wrong values, names, files and streams, by hand and at random.

Each ends with a documented exit code and at most a few lines, never with a traceback or an unexpected error; nothing is
written outside the folder for results, and no file that was there changes.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.attack import seeds
from support.processes import environment
from support.ready import random_scores
from winnow.cli import main
from winnow.errors import ModelError

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(os.name == "nt", reason="POSIX files and signals"),
]

STDIN = b"Why?\n\xff\n"
DOCUMENT = "The lemon is yellow. The relic of the garden is a heron."
ENDS = (0, 1, 2, 130)
DIGITS = "9" * 400
HUGE = "9" * 5000
BYTES = os.fsdecode(b"wh\xff\xfe")
LONG = "n" * 300
MARKUP = "[/red] [bold]:smile: \x1b[2J"

NUMBERS = ("0", "-1", "1", "3", "1.5", "nan", "inf", "1e400", "", " ", "x", "0x10", "1_0", "٣", str(2**31), str(2**63),
           "1" + "0" * 30, DIGITS, HUGE, "-" + DIGITS)  # fmt: skip
TEXTS = ("Why?", "", " ", "\n", BYTES, "half\ud800", "nul\0byte", MARKUP, "x" * 20_000, "何?", "--", "-")
FILES = ("document.txt", "empty.txt", "latin.txt", "none.txt", ".", "", " ", LONG, "d/" * 3000, "document.txt/x",
         "nul\0byte", BYTES, "half\ud800", "loop", "deep.jsonl", "questions.jsonl", "scores.safetensors", "context",
         "t_retrieval_heads.json", "deep_retrieval_heads.json", "duo.tsv", "-", MARKUP, "/dev/null",
         "~nobody/x")  # fmt: skip
RESULTS = ("out/new", "precious", "link", "pipe", "folder", "full", "loop", "precious/x", LONG, "nul\0byte",
           "half\ud800", "", " ", "-", "out/", "out/.", "/proc/none/x", f"out/{BYTES}", "out/deep/er/x",
           f"out/{MARKUP}", "/")  # fmt: skip
METHODS = ("adakv", "snapkv", "full", "snapkv(", "snapkv)", "snapkv(window=nan)", f"snapkv(window={HUGE})",
           "ada(1e400)", "snapkv(window=-1)", "snapkv()+", "+", "@", "snapkv@", f"snapkv@{DIGITS}", "snapkv @ 8 @ 9",
           "snapkv" * 3000, "snapkv+" * 3000 + "ada", "snapkv(" + "window=1," * 3000 + ")",
           "headkv-r2(scores=t_retrieval_heads.json)", "headkv-r2(scores=deep_retrieval_heads.json)",
           f"headkv-r2(scores={LONG * 20})", "headkv-r2(scores=scores.safetensors)", "headkv-r2(scores=nul\0byte)",
           "cokv(scores=.)", "snapkv(kernel=1e9)", "h2o(normalize=2)", "keydiff+spark(0.5)+bits(2)",
           "keydiff+spark(nan)", "keydiff+think(2)", "keydiff+bits(0)", "keydiff+bits(1e30)", "keydiff+kivi(group=0)",
           "keydiff+think(1e-9)", "keydiff+bits(2, 1e9)", "keydiff+mixedbits(nan)", "keydiff+raba(1e308)",
           "keydiff+ada(nan)", "[/x]", ":smile:", "naïve", BYTES, "", " ", "keydiff(" + "9" * 400 + ")",
           "expectedattention(epsilon=inf)", "pyramidkv(beta=1e300)", "random(seed=1e300)", f"random(seed={DIGITS})",
           "full@everything", "streamingllm(sinks=" + DIGITS + ")")  # fmt: skip
BUDGETS = ("8", "64", "2%", "1KiB", "0", "-5", "1e5", "nan", "101%", "0.0%", DIGITS, HUGE, DIGITS + "GB", DIGITS + "%",
           "1" * 300, "5" + "0" * 30, "9" * 200 + "MiB", "8x", "", " ", "8 " * 2000, "1" + " " * 20_000 + "!", "٣",
           BYTES, "1B", "1__0")  # fmt: skip
SETTINGS = ("window=4", "window", "=", "window=", "window=nan", f"window={HUGE}", f"window={DIGITS}", "window=1e30",
            "name=x", "budget=8", "window=[1]", "scores=none", "window=true", "x" * 9000 + "=1", "kernel=0",
            "kernel=-3", BYTES)  # fmt: skip
MODELS = (None, None, ".", "none/none/none", "/none", "~nobody/model", LONG * 20, "nul\0byte", "document.txt", "", " ",
          BYTES, "damaged")  # fmt: skip


# --- command lines, drawn ---------------------------------------------------------------------------------------------


def some(rng, options, least=0):
    """Options drawn with values; options: name -> values to draw from, None for switches."""
    names = rng.sample(sorted(options), rng.randint(least, min(2, len(options))))
    found = []
    for name in names:
        values = options[name]
        found.append(name)
        if values is not None:
            value = rng.choice(values)
            found = found[:-1] if value is None else [*found, value]
    return found


DEVICE = {
    "--device": ("auto", "cpu", "cuda", "cuda:99", "cuda:" + DIGITS, "mps", "tpu", ""),
    "--device-map": ("auto", "all", ""),
    "--dtype": ("auto", "float32", "float64"),
    "--model": MODELS,
}
PROMPTS = {
    "--system": TEXTS,
    "--prompt-template": FILES,
    "--no-chat-template": None,
    "--truncate": ("middle", "end", ""),
}
CHOSEN = {"--method": METHODS, "--budget": BUDGETS, "--set": SETTINGS, "--plugin": FILES}
SAID = {**PROMPTS, "--temperature": NUMBERS, "--top-p": NUMBERS, "--seed": NUMBERS}
SCORES = {"--license": TEXTS, "--notes": TEXTS, "--seed": NUMBERS}


def result(rng, suffix=""):
    """An output that is refused, or goes to `out`; `--force` never stands beside a regular file that is there."""
    name = rng.choice(RESULTS)
    name = name + suffix if name.strip("- /.") and rng.random() < 0.8 else name
    force = ["--force"] if rng.random() < 0.5 and not name.startswith(("precious", "link")) else []
    return name, force


def run_line(rng):
    given = {
        "--document": FILES,
        "--question": TEXTS,
        "--batch": FILES,
        "--compare": (*METHODS, "full,adakv@10%", "snapkv,,", "full," * 3000),
        "--budgets": (*BUDGETS, "8,2%", "8,,", ",", "8," * 3000),
        "--fold": NUMBERS,
        "--max-new-tokens": NUMBERS,
        "--chunk": NUMBERS,
        "--json": None,
        "--question-agnostic": None,
    }
    name, force = result(rng, rng.choice((".csv", ".png")))
    files = [] if rng.random() < 0.5 else [rng.choice(("--csv", "--picture")), name, *force]
    line = ["run", *some(rng, given, 1), *some(rng, CHOSEN), *some(rng, DEVICE), *some(rng, SAID), *files]
    return line if rng.random() < 0.5 else [*line, "--document", "document.txt", "--question", "Why?"]


def compress_line(rng):
    name, force = result(rng)
    return [
        "compress",
        rng.choice(FILES),
        "-o",
        name,
        *force,
        *some(rng, {"--chunk": NUMBERS, **PROMPTS, **CHOSEN, **DEVICE}),
    ]


def ask_line(rng):
    questions = [rng.choice(TEXTS) for _ in range(rng.randint(0, 3))]
    given = {"--max-new-tokens": NUMBERS, "--json": None, **DEVICE}
    return ["ask", rng.choice((*FILES, "context", "context")), *questions, *some(rng, given), *some(rng, SAID)]


def chat_line(rng):
    given = {"--document": FILES, "--context": (*FILES, "context"), "--fold": NUMBERS, "--max-new-tokens": NUMBERS}
    return ["chat", *some(rng, given), *some(rng, CHOSEN), *some(rng, DEVICE), *some(rng, SAID)]


def inspect_line(rng):
    name, force = result(rng)
    given = {
        "--document": FILES,
        "--question": TEXTS,
        "--compare": METHODS,
        "--window": NUMBERS,
        "--queries": NUMBERS,
        "--json": None,
    }
    return ["inspect", "--out", name, *force, *some(rng, given), *some(rng, CHOSEN), *some(rng, DEVICE)]


def methods_line(rng):
    return ["methods", *rng.sample((*METHODS, *TEXTS, "--json"), rng.randint(0, 2))]


def show_line(rng):
    name, force = result(rng, ".png")
    picture = [] if rng.random() < 0.5 else ["--picture", name, *force]
    given = {"--kv-heads": NUMBERS, "--kind": ("r", "er", "r2", "x"), "--halves": ("both", "first", ""), "--json": None}
    return ["heads", "show", *rng.choices(FILES, k=rng.randint(1, 2)), *picture, *some(rng, given)]


def convert_line(rng):
    name, force = result(rng, ".safetensors")
    given = {"--kv-heads": NUMBERS, "--kind": ("r", "r2", "x"), "--mean": None, "--model": TEXTS, "--license": TEXTS}
    return ["heads", "convert", *rng.choices(FILES, k=rng.randint(1, 2)), "-o", name, *force, *some(rng, given)]


def needle_line(rng):
    name, force = result(rng, ".safetensors")
    given = {
        "--kind": ("r", "er", "r2", "x"),
        "--examples": FILES,
        "--haystack": FILES,
        "--lengths": (*NUMBERS, "1,2,x", ",,"),
        "--depths": NUMBERS[:4],
        "--context": NUMBERS,
        "--max-new-tokens": NUMBERS,
        "--repeat": None,
        **SCORES,
    }
    return ["heads", "needle", "--kind", "r", "--out", name, *force, *some(rng, given, 1), *some(rng, DEVICE)]


def cokv_line(rng):
    name, force = result(rng, ".safetensors")
    given = {
        "--examples": FILES,
        "--questions": NUMBERS[:4],
        "--sizes": (*NUMBERS, "n/0", "n/2,3n", "eighths"),
        "--samples": NUMBERS,
        "--overlap": NUMBERS,
        "--window": NUMBERS,
        "--shard": ("1/2", "0/0", "x", f"1/{HUGE}"),
        "--batch": NUMBERS,
        **SCORES,
    }
    return ["heads", "cokv", "--out", name, *force, *some(rng, given, 1), *some(rng, DEVICE)]


def merge_line(rng):
    name, force = result(rng, ".safetensors")
    return ["heads", "merge", *rng.choices(FILES, k=rng.randint(0, 3)), "--out", name, *force, *some(rng, SCORES)]


def tune_line(rng):
    name, force = result(rng, ".json")
    given = {
        "--scores": FILES,
        "--budgets": (*BUDGETS, "8,16"),
        "--values": (*NUMBERS, "1,nan"),
        "--examples": FILES,
        "--documents": NUMBERS[:3],
        "--split": NUMBERS,
        "--seed": NUMBERS,
    }
    return ["heads", "tune", "--method", "headkv-r2", "--out", name, *force, *some(rng, given, 1), *some(rng, DEVICE)]


def verify_line(rng):
    given = {
        "--share": NUMBERS,
        "--seed": NUMBERS,
        "--examples": FILES,
        "--haystack": FILES,
        "--max-new-tokens": NUMBERS,
    }
    return ["heads", "verify", rng.choice(FILES), *some(rng, given), *some(rng, DEVICE)]


def nonsense_line(rng):
    words = (
        "run",
        "heads",
        "show",
        "--help",
        "--version",
        "--json",
        "-o",
        "--",
        "-",
        "--traceback",
        *TEXTS,
        *NUMBERS,
        *FILES,
    )
    line = rng.choices(words, k=rng.randint(0, 6))
    return [word for word in line if word != "demo"]


LINES = (run_line, compress_line, ask_line, chat_line, inspect_line, methods_line, show_line, convert_line, needle_line,
         cokv_line, merge_line, tune_line, verify_line, nonsense_line)  # fmt: skip


# --- their surroundings -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files to be read, some of them damaged; files that nobody may change; names that are no files."""
    folder = tmp_path_factory.mktemp("lines")
    texts = {
        "document.txt": DOCUMENT,
        "empty.txt": " \n",
        "deep.jsonl": "[" * 50_000,
        "questions.jsonl": json.dumps({"question": "Why?", "context": DOCUMENT, "answer": "heron"}),
        "t_retrieval_heads.json": json.dumps(
            {f"{layer}-{head}": [0.5, head] for layer in range(4) for head in range(4)}
        ),
        "deep_retrieval_heads.json": '{"a":' * 50_000,
        "duo.tsv": "1\t0\n0\t1\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "latin.txt").write_bytes("gar\xe7on".encode("latin-1"))
    (folder / "out").mkdir()
    random_scores((4, 4), "headkv-r2").save(folder / "scores.safetensors")
    for suffix in ("", ".png", ".safetensors", ".json"):
        (folder / f"precious{suffix}").write_text("precious")
        (folder / f"folder{suffix}").mkdir()
        os.mkfifo(folder / f"pipe{suffix}")
        os.symlink("precious", folder / f"link{suffix}")
        os.symlink("/dev/full", folder / f"full{suffix}")
        os.symlink(f"loop{suffix}", folder / f"loop{suffix}")
    (folder / "damaged").mkdir()
    (folder / "damaged" / "config.json").write_text("{" * 5000)
    before = os.getcwd()
    os.chdir(folder)
    assert main(["compress", "document.txt", "-o", "context", "--method", "full"]) == 0
    os.chdir(before)
    return folder


def contents(folder: Path) -> dict[str, str]:
    """Everything but the results: names, kinds and contents."""
    found = {}
    for path in folder.rglob("*"):
        if "out" in path.relative_to(folder).parts[:1]:
            continue
        status = path.lstat()
        content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() and not path.is_symlink() else ""
        found[str(path)] = f"{status.st_mode:o} {status.st_ino if not path.is_dir() else ''} {content}"
    return found


def no_weights(*_):
    """In the place of what loads a model: everything before that is attacked, the work itself is not."""
    raise ModelError("no weights here")


@pytest.fixture
def light(monkeypatch):
    monkeypatch.setattr("winnow.commands.loading.load_model", no_weights)


@pytest.fixture
def run(folder, capsys, monkeypatch):
    """Runs a command line in process, and judges how it ends and what it leaves."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def judged(line):
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(STDIN), isatty=lambda: False))
        before = contents(folder)
        code = main(line)
        out, err = capsys.readouterr()
        judge(code, out, err, line)
        assert contents(folder) == before, line
        return code

    return judged


def judge(code, out, err, line):
    assert code in ENDS, (line, err)
    assert "Traceback" not in out + err, line
    assert err.count("\n") <= 6, (line, err)
    assert len(err) < 6000, line
    assert (code == 0) or err.strip(), line


# --- attacks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(80, 1500))
def test_random_lines_before_any_work(run, light, seed):
    rng = random.Random(f"line-{seed}")
    run(LINES[seed % len(LINES)](rng))


WORK = ("run", "compress", "ask", "inspect", "chat")


def working_line(rng, number):
    """A line that does its work, but for one odd value."""
    command = WORK[number % len(WORK)]
    odd = {
        "run": {
            "--fold": NUMBERS,
            "--max-new-tokens": ("1", "2"),
            "--chunk": NUMBERS,
            "--question": TEXTS,
            "--compare": METHODS,
            "--csv": (f"out/{number}.csv", "precious", "out/x"),
            **CHOSEN,
            **SAID,
        },
        "compress": {"--chunk": NUMBERS, **CHOSEN},
        "ask": {"--max-new-tokens": ("1", "2"), "--device": ("cpu",), **SAID},
        "chat": {"--fold": NUMBERS, "--document": ("document.txt", "latin.txt"), **CHOSEN, **SAID},
        "inspect": {"--window": NUMBERS, "--queries": NUMBERS, "--question": TEXTS, **CHOSEN},
    }[command]
    start = {
        "run": ["--document", "document.txt", "--question", "Why?", "--max-new-tokens", "2"],
        "compress": ["document.txt", "-o", f"out/{number}"],
        "ask": ["context", rng.choice(TEXTS), "--max-new-tokens", "2"],
        "inspect": ["--document", "document.txt", "--out", "out/pictures", "--force"],
        "chat": ["--max-new-tokens", "2"],
    }[command]
    budget = ["--budget", "8"] if command != "ask" else []
    return [command, *start, *budget, *some(rng, odd, 1)]


@pytest.mark.parametrize("seed", seeds(24, 240))
def test_random_lines_that_work(run, monkeypatch, seed):
    monkeypatch.setattr("winnow.commands.inspect.draw_pictures", lambda *_: [])
    run(working_line(random.Random(f"work-{seed}"), seed))


# --- in processes of their own: arguments as bytes, streams, interrupts -----------------------------------------------

PROGRAM = (sys.executable, "-c", "from winnow.cli import program; program()")


def process(folder, arguments, **more):
    return subprocess.run(
        [*PROGRAM, *arguments], cwd=folder, env=environment(HF_HUB_OFFLINE="1"), timeout=120, check=False, **more
    )


BYTE_LINES = [
    [b"methods", b"\xff\xfe"],
    [b"run", b"--document", b"document.txt", b"--question", b"wh\xff"],
    [b"run", b"--document", b"\xff.txt", b"--question", b"why"],
    [b"ask", b"context", b"\xc3("],
    [b"heads", b"convert", b"t_retrieval_heads.json", b"-o", b"out/\xff.safetensors", b"--force"],
    [b"heads", b"convert", b"t_retrieval_heads.json", b"-o", b"out/a.safetensors", b"--license", b"\xff"],
]


@pytest.mark.parametrize("case", seeds(2, len(BYTE_LINES)))
def test_arguments_that_are_no_text(folder, case):
    found = process(folder, BYTE_LINES[case], capture_output=True)
    judge(found.returncode, found.stdout.decode(), found.stderr.decode(), BYTE_LINES[case])


STREAMS = [
    ("methods", "> /dev/full", 1, "Cannot write to standard output: No space left on device.\n"),
    ("methods --json", ">&-", 1, "Cannot write to standard output: Bad file descriptor.\n"),
    ("methods", "| true", 0, ""),
    ("sing", "2>&-", 2, ""),
    ("sing", "2>/dev/full", 2, ""),
    ("run --document - --question Why", "<&-", 1, "Cannot read standard input: Bad file descriptor.\n"),
    (
        "run --document document.txt --question fruit",
        "> /dev/full",
        1,
        "Cannot write to standard output: No space left on device.\n",
    ),
    (
        "ask context -",
        "< latin.txt",
        1,
        "Standard input, line 1, is not UTF-8 text (byte 3); convert it to UTF-8, for example with iconv.\n",
    ),
    ("--help", "> /dev/full", 1, "Cannot write to standard output: No space left on device.\n"),
    ("--version", "<&- >&- 2>&-", 1, ""),
]


@pytest.mark.parametrize("case", seeds(3, len(STREAMS)))
def test_streams(folder, case):
    line, redirected, code, said = STREAMS[case]
    command = f'"$@" {line} {redirected}'
    found = subprocess.run(
        ["sh", "-c", command, "sh", *PROGRAM],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stderr) == (code, said)


@pytest.mark.parametrize("seed", seeds(1, 12))
def test_interrupts_at_any_time(folder, seed):
    """From the first line of the program on; before it, the interpreter itself answers."""
    line = ("run", "--document", "document.txt", "--question", "Why?", "--max-new-tokens", "300")
    started = subprocess.Popen(
        [sys.executable, "-c", f"import winnow.cli, sys; {UP}; winnow.cli.program()", *line],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert started.stderr.readline() == "up\n"
    time.sleep(random.Random(f"interrupt-{seed}").uniform(0, 4))
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=120)
    assert started.returncode in (0, 130), err
    assert err == ("Interrupted.\n" if started.returncode else "")


UP = "print('up', file=sys.stderr, flush=True)"
