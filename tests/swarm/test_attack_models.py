"""Model files made to hurt, brought in by the front door and by the back door of a real node."""

from __future__ import annotations

import hashlib
import http.client
import json
from pathlib import Path

import pytest

from tests.fakes.ggufs import STRING, GgufMaker, value
from tests.hostile.test_gguf_hostile import CASES
from tests.swarm.attacks import GENERATOR_ONLY, PATIENCE, Stream, chat, eventually, is_envelope, metric, post, readiness
from tests.swarm.harness import NodeProcess, gnusnode, running

KINDS = sorted(CASES)


def malformed(kind: str) -> bytes:
    maker = GgufMaker()
    CASES[kind][0](maker)
    return maker.build()


def plant(models: Path, data: bytes, name: str) -> None:
    """Puts a file and a manifest that vouches for it where the node keeps its own."""
    models.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(data).hexdigest()
    file = models / f"{digest}.gguf"
    file.write_bytes(data)
    stat = file.stat()
    manifest = {
        "name": name,
        "sha256": f"sha256:{digest}",
        "size": len(data),
        "source": "file:/forged",
        "added": 1,
        "verified_at": 2,
        "stamp": [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns],
        "architecture": "llama",
        "license": "",
        "parameters": 1,
        "context_train": 64,
        "generates": True,
        "embeds": False,
        "traits": {},
    }
    (models / f"{name}.json").write_text(json.dumps(manifest))


def test_no_malformed_file_is_registered(tmp_path: Path) -> None:
    home = tmp_path / "home"
    gnusnode("init", "--home", str(home))
    for number, kind in enumerate(KINDS[:: max(1, len(KINDS) // 4)]):
        file = tmp_path / f"{number}.gguf"
        file.write_bytes(malformed(kind))
        refused = gnusnode("models", "add", str(file), "--home", str(home))
        assert refused.returncode == 6, (kind, refused.stderr)
        assert "next:" in refused.stderr or "gguf" in refused.stderr
    assert json.loads(gnusnode("models", "list", "--home", str(home), "--json").stdout) == []


def test_planted_files_are_never_loaded_and_the_node_says_why(tmp_path: Path) -> None:
    home = tmp_path / "home"
    for number, kind in enumerate(KINDS):
        plant(home / "models", malformed(kind), f"bad-{number}")
    names = ",".join(f"bad-{number}" for number in range(1, len(KINDS)))
    env = GENERATOR_ONLY | {"GNUSNODE_MODELS__DEFAULT": "bad-0", "GNUSNODE_MODELS__LOAD": names}
    with running(home, env=env, ready=False) as node:
        status, reasons = eventually(
            lambda: len((found := readiness(node))[1]) == len(KINDS) and "being verified" not in str(found) and found,
            "all were looked at",
        )
        assert status == 503
        told = [reason for part, reason in reasons.items() if part.startswith("model")]
        assert len(told) == len(KINDS), reasons
        assert all(".gguf" in reason for reason in told), reasons
        assert node.children() == []
        answered, answer = post(node, chat())
        assert answered in (404, 503)
        assert is_envelope(answer)
        assert node.get("/healthz")[0] == 200


def is_told_to_come_again(node: NodeProcess) -> bool:
    """Asks; whether the answer was a refusal, which must be 503 with a reason and a time. False: it was answered."""
    connection = http.client.HTTPConnection(*node.address, timeout=PATIENCE)
    connection.request("POST", "/v1/chat/completions", json.dumps(chat()), {"Content-Type": "application/json"})
    response = connection.getresponse()
    body = json.loads(response.read())
    connection.close()
    if response.status == 200:
        return False
    assert (response.status, body["error"]["code"]) == (503, "no_peers_available"), body
    assert int(response.getheader("retry-after") or 0) > 0
    assert "no model that answers is ready" in body["error"]["message"]
    return True


@pytest.mark.model
def test_a_model_is_listed_once_it_takes_requests_and_until_then_they_are_told_when_to_come_again(
    tmp_path: Path,
) -> None:
    with running(tmp_path / "home", env=GENERATOR_ONLY, ready=False) as node:
        while not json.loads(node.get("/v1/models")[1])["data"]:
            is_told_to_come_again(node)
        # It may still be loading: a request waits for it.
        assert not is_told_to_come_again(node)


def test_a_node_whose_model_cannot_be_had_lists_none_and_tells_when_to_come_again(tmp_path: Path) -> None:
    env = GENERATOR_ONLY | {"GNUSNODE_MODELS__DEFAULT": "no-such-model"}
    with running(tmp_path / "home", env=env, ready=False) as node:
        eventually(lambda: "no-such-model" in str(readiness(node)), "the model was looked for")
        assert json.loads(node.get("/v1/models")[1])["data"] == []
        assert is_told_to_come_again(node)


PROMPT_SECONDS = 10.0
"""A hostile template is given up after a second of CPU; the rest is for a busy machine."""

TEMPLATES = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "memory": "{{ 'a' * 2000000000 }}",
    "doubling": "{% set n = namespace(x='ab') %}{% for i in range(70) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "attributes": "{{ cycler.__init__.__globals__.os.system('id') }}",
}


def with_template(template: str) -> bytes:
    return GgufMaker(pairs=GgufMaker().pairs | {"tokenizer.chat_template": value(STRING, template)}).build()


@pytest.mark.model
def test_hostile_templates_fail_their_own_requests_while_other_streams_go_on(tmp_path: Path) -> None:
    home = tmp_path / "home"
    gnusnode("init", "--home", str(home))
    for name, template in TEMPLATES.items():
        file = tmp_path / f"{name}.gguf"
        file.write_bytes(with_template(template))
        added = gnusnode("models", "add", str(file), "--home", str(home))
        assert added.returncode == 0, added.stderr
    env = GENERATOR_ONLY | {"GNUSNODE_MODELS__LOAD": ",".join(TEMPLATES)}
    with running(home, env=env) as node:
        children = node.children()
        stream = Stream(node, model="smollm2-135m").begin()
        for name in TEMPLATES:
            status, answer = post(node, chat(model=name), timeout=PROMPT_SECONDS)
            assert (status, answer["error"]["code"]) == (502, "model_invalid"), answer
            assert is_envelope(answer), answer
            assert "template" in answer["error"]["message"], answer
        assert b"[DONE]" in stream.rest()
        assert node.ask(model="gnus")["model"] == "smollm2-135m"
        assert node.children() == children
        assert readiness(node)[0] == 200


@pytest.mark.model
def test_a_model_that_aborts_on_every_request_is_poisonous_then_quarantined_and_others_go_on(tmp_path: Path) -> None:
    """Sound to every check of the header, but llama.cpp aborts when it tokenises with this vocabulary."""
    home = tmp_path / "home"
    file = tmp_path / "bomb.gguf"
    file.write_bytes(with_template("{% for message in messages %}{{ message.content }}{% endfor %}"))
    assert gnusnode("models", "add", str(file), "--home", str(home)).returncode == 0
    env = GENERATOR_ONLY | {"GNUSNODE_MODELS__LOAD": "bomb", "GNUSNODE_INFERENCE__QUARANTINE_CRASHES": "4"}
    with running(home, env=env) as node:
        stream = Stream(node, model="smollm2-135m", max_tokens=300).begin()
        for _ in range(2):
            status, answer = post(node, chat(model="bomb"))
            assert status == 502, answer
            assert answer["error"]["code"] == "request_poisoned"
        assert b"[DONE]" in stream.rest()
        reasons = eventually(lambda: "4 times" in str(found := readiness(node)) and found[1], "quarantine is told")
        assert "SIGABRT" in str(reasons)
        status, answer = post(node, chat(model="bomb"))
        assert status in (502, 503), answer
        assert node.ask(model="smollm2-135m")["choices"]
        assert metric(node, "gnusnode_engine_restarts_total", model="bomb", cause="crash") >= 3
