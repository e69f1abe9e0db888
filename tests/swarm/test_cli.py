"""Every command as a user runs it: exit codes, what is said on which stream, what is made and what is not."""

from __future__ import annotations

import hashlib
import http.client
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from gnusnode import errors
from gnusnode.cli.app import app
from tests.fakes.ggufs import packaged_model, tiny_gguf
from tests.swarm.harness import NodeProcess, environment, running

ROOT = Path(__file__).parents[2]
MANUALS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
EXPERT = """
expert_id = "poet"
version = "1.0"
description = "Writes verses."
role = "primary_draft"
domains = ["writing"]

[defaults]
temperature = 0.7
"""


def gnusnode(
    *arguments: str, env: dict[str, str] | None = None, stdin: str | bytes = "", stdout: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end; its output goes to the file ``stdout``, else into the result."""
    with (stdout or Path("/dev/null")).open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-m", "gnusnode", *arguments],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            stdout=file if stdout else subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=60,
            env=environment(**(env or {})),
            check=False,
        )
    said, noted = (done.stdout or b"").decode(), done.stderr.decode()
    return subprocess.CompletedProcess(done.args, done.returncode, said, noted)


def cli(home: Path, *arguments: str, code: int = 0, stdin: str = "") -> str:
    """A command in a process of its own, as a user runs it; expects its exit code and gives its stdout."""
    done = gnusnode(*arguments, env={"GNUSNODE_HOME": str(home)}, stdin=stdin)
    return checked(arguments, code, done.returncode, done.stdout, done.stderr)


def call(home: Path, *arguments: str, code: int = 0) -> str:
    """The same within this process, which saves its start: for commands that need no running node."""
    env = {name: None for name in os.environ if name.startswith("GNUSNODE_")} | {"GNUSNODE_HOME": str(home)}
    done = CliRunner().invoke(app, arguments, env=env)
    assert done.exception is None or isinstance(done.exception, SystemExit), (arguments, done.exception)
    return checked(arguments, code, done.exit_code, done.stdout, done.stderr)


def checked(arguments: tuple[str, ...], wanted: int, code: int, said: str, noted: str) -> str:
    """A failure says nothing on stdout, what went wrong on stderr, and shows no trace."""
    assert code == wanted, (arguments, code, said, noted)
    assert "Traceback" not in noted, noted
    if wanted:
        assert said == ""
        assert noted.strip()
    return said


def read(home: Path, *arguments: str) -> Any:
    """The JSON document that a command prints."""
    return json.loads(cli(home, *arguments, "--json"))


def look(home: Path, *arguments: str) -> Any:
    """The same within this process."""
    return json.loads(call(home, *arguments, "--json"))


def pack_and_install(home: Path, folder: Path) -> None:
    folder.mkdir()
    (folder / "elm.toml").write_text(EXPERT)
    call(home, "elm", "pack", str(folder), "--model", "mine", "--out", str(folder))
    call(home, "elm", "install", str(folder / "poet-1.0.elm"))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node that serves a model which the user added, and an expert which the user packed."""
    place = tmp_path_factory.mktemp("cli")
    home = place / "home"
    call(home, "models", "add", str(packaged_model()), "--name", "mine", "--link")
    call(home, "config", "set", "models.default", "mine")
    call(home, "config", "set", "models.embedding", "none")
    pack_and_install(home, place / "poet")
    with running(home) as process:
        yield process


@contextmanager
def web_server(folder: Path) -> Iterator[str]:
    """A plain web server of ``folder``; gives its address."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
            """Nobody reads it."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


# --- what the manuals say ---------------------------------------------------------------------------------------------


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command that does something; groups that only hold others are none."""
    children = getattr(command, "commands", {})
    if not children or getattr(command, "invoke_without_command", False):
        yield path
    for name, child in children.items():
        yield from leaves(child, (*path, name))


COMMANDS = [path for path in leaves(typer.main.get_command(app)) if path]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_stands_in_the_manual_of_the_command_line(command: tuple[str, ...]) -> None:
    text = (ROOT / "docs" / "cli.md").read_text("utf-8")
    assert re.search(rf"\| `gnusnode {' '.join(command)}[ `]", text)


def test_every_command_that_a_manual_names_exists() -> None:
    groups = {path[0] for path in COMMANDS if len(path) > 1}
    known = {" ".join(path) for path in COMMANDS} | groups
    for manual in MANUALS:
        for line in re.findall(r"gnusnode ((?:[a-z]+)(?: [a-z|]+)?)", manual.read_text("utf-8")):
            first, _, rest = line.partition(" ")
            names = [f"{first} {name}" for name in rest.split("|")] if rest and first in groups else [first]
            if first in {path[0] for path in COMMANDS}:
                assert [name for name in names if name not in known] == [], (manual.name, line)
            else:
                assert not re.search(rf"`gnusnode {line}", manual.read_text("utf-8")), (manual.name, line)


def test_every_exit_code_is_explained_and_no_other() -> None:
    def codes(error: type[errors.GnusError]) -> set[int]:
        return {error.exit_code}.union(*(codes(child) for child in error.__subclasses__()))

    used = codes(errors.GnusError) | {0, 2, 130}
    manual = {int(code) for code in re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "cli.md").read_text("utf-8"), re.M)}
    readme = (ROOT / "README.md").read_text("utf-8").partition("Exit codes:")[2].partition("\n\n")[0]
    assert manual == used
    assert {int(code) for code in re.findall(r"\b\d+\b", readme)} == used


def test_every_option_has_a_help_text() -> None:
    def walk(command: Any, path: str) -> Iterator[str]:
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.help:
                yield f"{path} {parameter.name}"
        for name, child in getattr(command, "commands", {}).items():
            yield from walk(child, f"{path} {name}")

    assert list(walk(typer.main.get_command(app), "gnusnode")) == []


# --- talking ----------------------------------------------------------------------------------------------------------


@pytest.mark.model
def test_run_answers_by_default_by_model_and_by_expert(node: NodeProcess) -> None:
    assert cli(node.home, "run", "Say", "hello.", "--max-tokens", "4").strip()
    assert cli(node.home, "run", "-", "--max-tokens", "4", stdin="Say hello.").strip()
    assert read(node.home, "run", "Hi.", "--model", "mine", "--max-tokens", "4")["model"] == "mine"
    assert "poet" in read(node.home, "run", "Hi.", "--model", "poet", "--max-tokens", "4")["model"]


@pytest.mark.model
def test_the_same_seed_gives_the_same_answer(node: NodeProcess) -> None:
    first, second = (cli(node.home, "run", "A word?", "--max-tokens", "8", "--seed", "7") for _ in range(2))
    assert first == second


@pytest.mark.model
def test_a_chat_takes_a_message_a_line_and_forgets_at_new(node: NodeProcess) -> None:
    said = cli(node.home, "chat", "--max-tokens", "4", "--temperature", "0", stdin="Hello.\n\nHello.\n/new\nHello.\n")
    lines = said.splitlines()
    assert len(lines) >= 3
    assert lines[0] == lines[-1]  # after /new the conversation is as at its beginning


@pytest.mark.model
def test_a_model_that_is_not_there_is_an_error_that_names_those_that_are(node: NodeProcess) -> None:
    done = gnusnode("run", "hi", "--model", "nope", env={"GNUSNODE_HOME": str(node.home)})
    assert (done.returncode, done.stdout) == (1, "")
    assert "mine" in done.stderr
    wire = gnusnode("run", "hi", "--model", "nope", "--json", env={"GNUSNODE_HOME": str(node.home)})
    assert json.loads(wire.stderr)["error"]["code"] == "model_not_found"


@pytest.mark.model
def test_bytes_that_are_no_text_are_asked_as_replacement_characters(node: NodeProcess) -> None:
    env = {"GNUSNODE_HOME": str(node.home)}
    assert gnusnode("run", "-", "--max-tokens", "2", env=env, stdin=b"caf\xe9").returncode == 0


@pytest.mark.model
def test_bench_measures_the_running_node(node: NodeProcess) -> None:
    result = read(node.home, "bench", "--rounds", "1", "--tokens", "8", "--streams", "2")
    assert result["first_token_ms"] > 0
    assert result["tokens_per_second"] > 0


# --- the running node -------------------------------------------------------------------------------------------------


@pytest.mark.model
def test_status_and_wait_and_doctor_agree_that_all_is_well(node: NodeProcess) -> None:
    assert read(node.home, "wait") == {"ready": True, "reasons": {}}
    status = read(node.home, "status")
    assert (status["ready"], status["peer_id"]) == (True, read(node.home, "id")["peer_id"])
    shown = cli(node.home, "status")
    assert status["peer_id"] in shown
    assert "mine" in shown
    assert {found["level"] for found in read(node.home, "doctor").values()} == {"ok"}


def test_status_says_why_a_node_is_not_ready(tmp_path: Path) -> None:
    with running(tmp_path / "home", "--model", "nope", ready=False) as node:
        node.run_info()
        cli(node.home, "wait", "--timeout", "0", code=7)
        shown = cli(node.home, "status")
        assert "not ready:" in shown
        assert "nope" in shown


@pytest.mark.model
def test_a_key_opens_what_its_scopes_name_until_it_is_revoked(node: NodeProcess) -> None:
    key = cli(node.home, "keys", "create", "alice", "--scopes", "chat", "--days", "1", "--in-flight", "2").strip()
    cli(node.home, "keys", "create", "carol")  # without any key this machine would need none
    listed = read(node.home, "keys", "list")
    listed.sort(key=lambda entry: entry["name"])
    assert [entry["name"] for entry in listed] == ["alice", "carol"]
    assert key not in cli(node.home, "keys", "list")

    def ask(path: str) -> int:
        connection = http.client.HTTPConnection(*node.address, timeout=30)
        connection.request("GET", path, headers={"Authorization": f"Bearer {key}"})
        try:
            return connection.getresponse().status
        finally:
            connection.close()

    assert (ask("/v1/models"), ask("/gnus/v1/status")) == (200, 403)
    cli(node.home, "keys", "revoke", listed[0]["id"])
    assert ask("/v1/models") == 401
    for wrong in (listed[0]["id"], "../status"):
        cli(node.home, "keys", "revoke", wrong, code=1)
    cli(node.home, "keys", "create", "bob", "--scopes", "read,everything", code=2)
    cli(node.home, "keys", "revoke", listed[1]["id"])


@pytest.mark.model
def test_a_bug_report_holds_no_word_of_a_conversation(node: NodeProcess, tmp_path: Path) -> None:
    cli(node.home, "run", "The passphrase is xylophone.", "--max-tokens", "2")
    report = json.loads(cli(node.home, "bugreport"))
    assert "xylophone" not in json.dumps(report)
    assert report["node"]["status"]["ready"]
    cli(node.home, "bugreport", "--out", str(tmp_path / "report.json"))
    assert json.loads((tmp_path / "report.json").read_text("utf-8")).keys() == report.keys()
    cli(node.home, "bugreport", "--out", str(tmp_path / "no" / "folder"), code=1)


@pytest.mark.model
def test_the_chain_of_a_running_node_verifies_and_is_exported_whole(node: NodeProcess, tmp_path: Path) -> None:
    cli(node.home, "run", "hi", "--max-tokens", "2")
    report = read(node.home, "audit", "verify")
    assert report["broken"] is None
    assert read(node.home, "audit", "tail", "-n", "1")[0]["event"] == "request.ended"
    cli(node.home, "audit", "export", str(tmp_path / "chain"))
    lines = [json.loads(line) for line in (tmp_path / "chain").read_text("utf-8").splitlines()]
    assert [line["seq"] for line in lines[:-1]] == list(range(lines[-1]["length"]))
    cli(node.home, "audit", "export", str(tmp_path / "chain"), code=1)
    cli(node.home, "audit", "export", str(tmp_path / "salvaged"), "--salvage", code=5)
    assert not (tmp_path / "salvaged").exists()


# --- the stopped node -------------------------------------------------------------------------------------------------


def test_a_stopped_node_still_gives_its_chain_and_its_new_key_goes_on_with_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with running(home, "--no-model"):
        call(home, "id", "rotate", code=5)
    old = look(home, "id")["peer_id"]
    assert look(home, "id", "rotate")["old_peer_id"] == old
    assert look(home, "id")["peer_id"] != old
    report = look(home, "audit", "verify")
    assert report["broken"] is None
    call(home, "audit", "export", str(tmp_path / "chain"))
    assert len((tmp_path / "chain").read_text("utf-8").splitlines()) == report["length"] + 1
    assert look(home, "audit", "export", str(tmp_path / "all"), "--salvage")["entries"]["audit"] == report["length"]
    call(home, "audit", "export", str(tmp_path / "all"), code=1)


@pytest.mark.parametrize(
    "arguments",
    [["status"], ["stop"], ["run", "hi"], ["chat"], ["bench"], ["keys", "list"], ["wait", "--timeout", "0"]],
    ids=" ".join,
)
def test_what_needs_a_node_says_so_and_makes_nothing(tmp_path: Path, arguments: list[str]) -> None:
    call(tmp_path / "home", *arguments, code=7)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["id"], 1),
        (["audit", "verify"], 1),
        (["models", "list"], 0),
        (["models", "rm", "nope"], 1),
        (["elm", "list"], 0),
        (["config", "show"], 0),
        (["doctor"], 0),
        (["bugreport"], 0),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_looking_at_a_home_that_is_not_there_makes_nothing(tmp_path: Path, arguments: list[str], code: int) -> None:
    call(tmp_path / "home", *arguments, code=code)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["nope"],
        ["status", "--nope"],
        ["status", "more"],
        ["run"],
        ["run", " "],
        ["run", "hi", "--temperature", "9"],
        ["wait", "--timeout", "soon"],
        ["models", "add", "file", "--sha256", "abc"],
        ["audit", "tail", "-n", "0"],
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2_and_says_what_is_right(tmp_path: Path, arguments: list[str]) -> None:
    call(tmp_path / "home", *arguments, code=2)


# --- models, experts, settings ----------------------------------------------------------------------------------------


def test_a_model_is_added_listed_verified_found_damaged_and_forgotten(tmp_path: Path) -> None:
    home, file = tmp_path / "home", tmp_path / "tiny.gguf"
    file.write_bytes(tiny_gguf())
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    call(home, "models", "add", str(file), "--name", "tiny", "--sha256", "0" * 64, code=6)
    assert look(home, "models", "add", str(file), "--name", "tiny", "--sha256", digest)["sha256"] == f"sha256:{digest}"
    assert [model["name"] for model in look(home, "models", "list")] == ["tiny"]
    assert digest in call(home, "models", "verify")
    stored = home / "models" / f"{digest}.gguf"
    stored.chmod(0o600)
    stored.write_bytes(tiny_gguf(b"\x01"))
    call(home, "models", "verify", "tiny", code=6)
    (tmp_path / "good.gguf").write_bytes(tiny_gguf(b"\x02"))
    call(home, "models", "add", str(tmp_path / "good.gguf"))
    every = CliRunner().invoke(app, ["models", "verify", "--home", str(home)])
    assert (every.exit_code, "ok  good" in every.stdout, digest in every.stderr) == (6, True, True)
    call(home, "models", "rm", "good")
    call(home, "models", "rm", digest[:8])
    assert look(home, "models", "list") == []
    assert not stored.exists()
    call(home, "models", "add", str(tmp_path / "nope.gguf"), code=1)
    call(home, "models", "add", str(ROOT / "README.md"), code=6)


def test_a_model_is_pulled_by_plain_http_only_with_its_hash(tmp_path: Path) -> None:
    home, served = tmp_path / "home", tmp_path / "served"
    served.mkdir()
    (served / "tiny.gguf").write_bytes(tiny_gguf())
    digest = hashlib.sha256(tiny_gguf()).hexdigest()
    call(home, "config", "set", "models.reserve_bytes", "0")
    with web_server(served) as address:
        call(home, "models", "pull", f"{address}/tiny.gguf", code=2)
        call(home, "models", "pull", f"{address}/tiny.gguf", "--sha256", "0" * 64, code=6)
        assert look(home, "models", "pull", f"{address}/tiny.gguf#sha256={digest}")["name"] == "tiny"
    assert f"{digest}.gguf" in {path.name for path in (home / "models").iterdir()}
    assert call(home, "models", "pull", "no-such-model", code=2) == ""


def test_an_expert_of_another_node_is_taken_only_from_a_trusted_packer(tmp_path: Path) -> None:
    packer, other, folder = tmp_path / "packer", tmp_path / "other", tmp_path / "poet"
    file = tmp_path / "tiny.gguf"
    file.write_bytes(tiny_gguf())
    call(packer, "models", "add", str(file), "--name", "mine")
    pack_and_install(packer, folder)
    who = look(packer, "id")["peer_id"]
    assert look(packer, "elm", "verify", str(folder / "poet-1.0.elm"))["trusted"]
    assert look(packer, "elm", "list")[0]["trusted"]
    call(packer, "elm", "pack", str(folder), "--model", "mine", "--out", str(folder), code=1)
    call(packer, "elm", "pack", str(folder), "--model", "mine", "--out", str(tmp_path / "nowhere"), code=1)
    (folder / "poet-1.0.elm").unlink()
    call(packer, "elm", "pack", str(folder), "--model", "mine", "--out", str(folder), "--embed")

    call(other, "elm", "verify", str(folder / "poet-1.0.elm"), code=1)
    assert not (other / "key").exists()
    call(other, "elm", "install", str(folder / "poet-1.0.elm"), code=1)
    call(other, "config", "set", "models.trusted_packers", who)
    call(other, "elm", "install", str(folder / "poet-1.0.elm"))
    assert [(one["expert_id"], one["trusted"]) for one in look(other, "elm", "list")] == [("poet", True)]
    call(other, "elm", "rm", "poet", "1.0")
    assert (look(other, "elm", "list"), look(other, "models", "list")) == ([], [])
    call(other, "elm", "rm", "poet", "1.0", code=1)
    call(other, "elm", "verify", str(file), code=6)


def test_settings_are_set_shown_with_their_origin_and_checked(tmp_path: Path) -> None:
    home = tmp_path / "home"
    call(home, "init", "--profile", "lan")
    call(home, "config", "set", "inference.slots", "3")
    text = (home / "gnusnode.toml").read_text("utf-8")
    assert text.count("#") > 50  # the comments of the example are still there
    shown = look(home, "config", "show")
    assert shown["inference.slots"]["value"] == 3
    assert "gnusnode.toml" in shown["inference.slots"]["origin"]
    assert "lan" in shown["api.require_key"]["origin"]
    assert "inference.slots = 3" in call(home, "config", "show", "--origin")
    assert look(home, "config", "validate")["valid"]
    for key, value in (("inference.slots", "many"), ("inference.slotz", "3"), ("api.listen", "nowhere")):
        call(home, "config", "set", key, value, code=4)
    assert (home / "gnusnode.toml").read_text("utf-8") == text
    assert json.loads(call(home, "config", "schema"))["properties"]
    assert look(home, "config", "path")["key"] == str(home / "key")
    assert look(home, "init", "--profile", "solo")["profile"] == "lan"  # a file is never overwritten


def test_start_takes_its_settings_from_the_file_that_it_is_given(tmp_path: Path) -> None:
    file = tmp_path / "elsewhere.toml"
    file.write_text('[node]\nname = "by-file"\n')
    with running(tmp_path / "home", "--no-model", "--config", str(file)) as node:
        assert read(node.home, "status")["name"] == "by-file"
        assert json.loads(cli(node.home, "stop", "--json")) == {"stopped": True}


def test_help_and_refusals_hold_on_a_narrow_terminal_without_unicode(tmp_path: Path) -> None:
    env = {"LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "COLUMNS": "30"}
    assert gnusnode("keys", "create", "--help", env=env).stdout.isascii()
    refused = gnusnode("status", "--nope", env=env)
    assert refused.returncode == 2
    assert "--nope" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_full_disk_under_the_output_is_an_error_and_a_closed_output_is_none(tmp_path: Path) -> None:
    full = gnusnode("version", stdout=Path("/dev/full"))
    assert full.returncode == 6
    assert "Traceback" not in full.stderr
    assert gnusnode("version").stdout == gnusnode("--version").stdout
