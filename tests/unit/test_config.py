"""Settings: who wins, what is refused and how it is said, what the manual promises."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pydantic import ValidationError

from gnusnode.config import reference, resources
from gnusnode.config.edit import set_value, unset
from gnusnode.config.load import NOT_SETTINGS, Loaded, load, profiles
from gnusnode.config.options import options
from gnusnode.config.paths import Home
from gnusnode.config.schema import schema
from gnusnode.config.settings import Settings
from gnusnode.errors import ConfigError, DataError

REPOSITORY = Path(__file__).parents[2]
CONFIGS = REPOSITORY / "configs"
MANUAL = (REPOSITORY / "docs" / "configuration.md").read_text(encoding="utf-8")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def loaded(home: Home, text: str | None = None, env: dict[str, str] | None = None, **flags: Any) -> Loaded:
    """Settings from the text of the file, variables and flags (``__`` for the dot)."""
    if text is not None:
        home.config.write_text(text, encoding="utf-8")
    return load(home, flags={key.replace("__", "."): value for key, value in flags.items()}, env=env or {})


class TestPrecedence:
    def test_each_layer_wins_over_the_one_below_and_says_where_a_value_comes_from(self, home: Home) -> None:
        text = 'profile = "high-trust"\n\n[api]\nmax_in_flight = 3\nmax_connections = 4\n\n[node]\nname = "file"\n'
        env = {"GNUSNODE_API__MAX_CONNECTIONS": "5", "GNUSNODE_NODE__NAME": "env"}
        found = loaded(home, text, env, node__name="flag")
        assert found.settings.node.name == "flag"
        assert found.origin("node.name") == "command line"
        assert found.settings.api.max_connections == 5
        assert found.origin("api.max_connections") == "env GNUSNODE_API__MAX_CONNECTIONS"
        assert found.settings.api.max_in_flight == 3
        assert found.origin("api.max_in_flight") == f"{home.config}:4"
        assert found.settings.api.require_key is True
        assert re.fullmatch(r"profile .*high-trust\.toml:\d+", found.origin("api.require_key"))
        assert found.settings.api.header_seconds == 5.0
        assert found.origin("api.header_seconds") == "default"
        assert found.file == home.config

    def test_without_anything_the_solo_profile_answers(self, home: Home) -> None:
        found = loaded(home)
        assert found.settings.profile == "solo"
        assert found.settings.node.roles == ("ingress", "router", "core", "elm")
        assert found.settings.models.default == "auto"
        assert found.file is None

    def test_the_strongest_layer_chooses_the_profile(self, home: Home) -> None:
        text, env = 'profile = "lan"', {"GNUSNODE_PROFILE": "high-trust"}
        assert loaded(home, text).settings.profile == "lan"
        assert loaded(home, text, env).settings.profile == "high-trust"
        assert loaded(home, text, env, profile="gpu-contributor").settings.inference.slots == 16
        assert loaded(home, text, env, profile=None).settings.profile == "high-trust"

    def test_a_flag_that_was_not_given_changes_nothing(self, home: Home) -> None:
        assert loaded(home, "[net]\nmdns = true", net__mdns=None).settings.net.mdns is True
        assert loaded(home, "[net]\nmdns = true", net__mdns=False).settings.net.mdns is False

    def test_another_file_can_be_named_and_must_exist(self, home: Home, tmp_path: Path) -> None:
        other = tmp_path / "other.toml"
        other.write_text('[node]\nname = "other"')
        assert load(home, config=other, env={}).settings.node.name == "other"
        assert load(home, env={"GNUSNODE_CONFIG": str(other)}).settings.node.name == "other"
        with pytest.raises(ConfigError, match="no such file"):
            load(home, env={"GNUSNODE_CONFIG": str(tmp_path / "missing.toml")})

    def test_variables_that_choose_files_are_no_settings(self, home: Home) -> None:
        loaded(home, env={"GNUSNODE_HOME": "/x", "GNUSNODE_VENV": "y", "HOME": "/z", "GNUSNODE": "not ours"})


class TestValues:
    @pytest.mark.parametrize("text", ["core,elm", " core , elm,", '["core", "elm"]'])
    def test_a_list_is_given_by_commas_or_as_json(self, home: Home, text: str) -> None:
        assert loaded(home, env={"GNUSNODE_NODE__ROLES": text}).settings.node.roles == ("core", "elm")
        assert loaded(home, node__roles=text).settings.node.roles == ("core", "elm")

    def test_all_stands_for_every_role_and_order_does_not_matter(self, home: Home) -> None:
        assert loaded(home, node__roles="all").settings.node.roles == ("ingress", "router", "core", "elm")
        assert loaded(home, node__roles="elm,router,elm").settings.node.roles == ("router", "elm")

    def test_variables_take_numbers_switches_and_tables(self, home: Home) -> None:
        env = {
            "GNUSNODE_INFERENCE__GPU": "12",
            "GNUSNODE_NET__DHT": "false",
            "GNUSNODE_LIMITS__REQUEST_SECONDS": "1.5",
            "GNUSNODE_INFERENCE__REMOTE": '[{"name": "big", "url": "http://x/v1/", "model": "m"}]',
        }
        settings = loaded(home, env=env).settings
        assert settings.inference.gpu == 12
        assert settings.net.dht is False
        assert settings.limits.request_seconds == 1.5
        assert settings.inference.remote[0].url == "http://x/v1"

    def test_a_home_directory_in_a_path_is_filled_in(self, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", "/home/somebody")
        found = loaded(home, '[models]\npath = "~/models"')
        assert found.settings.models.path == Path("/home/somebody/models")

    @pytest.mark.parametrize("address", ["127.0.0.1:0", "localhost:80", "[::1]:8477", "127.9.9.9:1"])
    def test_loopback_addresses_need_no_tls(self, home: Home, address: str) -> None:
        assert loaded(home, api__listen=address).settings.api.listen == address

    @pytest.mark.parametrize("address", ["0.0.0.0:80", "[::]:80", "192.0.2.1:80", "node.example:80"])
    def test_an_address_that_others_reach_asks_for_tls(self, home: Home, address: str) -> None:
        with pytest.raises(ConfigError, match="give tls_cert, or listen on 127"):
            loaded(home, api__listen=address)
        loaded(home, api__listen=address, api__tls_cert="/c.pem", api__tls_key="/k.pem")

    def test_settings_cannot_be_changed_afterwards(self, home: Home) -> None:
        with pytest.raises(ValidationError):
            loaded(home).settings.api.listen = "127.0.0.1:1"  # type: ignore[misc]  # that is the point


TWO_SERVERS = "[[inference.remote]]\nname='a'\nurl='http://x'\nmodel='m'\n" * 2
REFUSED = [
    ("unknown key with a near one", "\n[api]\nlistn = 'x'", 3, 'unknown key api.listn (did you mean "listen"?)'),
    ("unknown section", "[ap]\nlisten = 'x'", 1, 'unknown key ap (did you mean "api"?)'),
    ("option without its section", "n_ctx = 4", 1, 'unknown key n_ctx (did you mean "inference.n_ctx"?)'),
    ("nothing near", "[api]\nzzz = 1", 2, "unknown key api.zzz"),
    ("section that is a value", "\napi = 4", 2, "api is a section (write [api])"),
    ("not a table but many", "[[api]]\nlisten = 'x'", 1, "api is a section"),
    ("wrong type", "[api]\n\n\nmax_connections = 'many'", 4, "api.max_connections = 'many'"),
    ("out of range", "[api]\nmax_connections = 0", 2, "should be greater than or equal to 1"),
    ("infinite time", "[api]\nheader_seconds = inf", 2, "api.header_seconds = inf"),
    ("not a choice", "[router]\nclassify = 'no'", 2, "should be 'auto', 'always' or 'never'"),
    ("neither of two", "[inference]\ngpu = 'x'", 2, "should be 'auto' or should be a valid integer"),
    ("unknown role", "[node]\nroles = [\n 'core',\n 'tool',\n]", 2, "node.roles.1 = 'tool'"),
    ("no role at all", "[node]\nroles = []", 2, "node.roles"),
    ("address", "[api]\nlisten = 'localhost'", 2, "is not HOST:PORT with a port from 0 to 65535"),
    ("port", "[api]\nlisten = '127.0.0.1:65536'", 2, "is not HOST:PORT"),
    ("bare IPv6", "[api]\nlisten = '::1:80'", 2, "in brackets"),
    ("relative path", "[models]\npath = 'here'", 2, "'here' is relative"),
    ("nobody's home", "[models]\npath = '~no-such-user-here/x'", 2, "there is no such user"),
    ("null in a path", '[models]\npath = "/a\\u0000b"', 2, "null character"),
    ("URL with a wrong port", "[models]\nhub = 'http://h:99999'", 2, "ort"),
    ("URL of another kind", "[models]\nhub = 'file:///etc'", 2, "is not an http or https URL"),
    ("multiaddr", "[net]\npeers = ['10.0.0.1:4001']", 2, "is not a multiaddr"),
    ("half of TLS", "[api]\ntls_key = '/k.pem'", 2, "give tls_cert too"),
    ("URL with a secret", "[models]\nhub = 'https://me:pass@hub'", 2, "must not carry a user, a password"),
    ("syntax", "[api]\nlisten = ", 2, "not valid TOML"),
    ("open string", '[api]\nlisten = "x', 2, "not valid TOML"),
    ("key given twice", "[api]\nlisten = 'a'\nlisten = 'b'", 3, "not valid TOML"),
    ("second of two tables", f"{TWO_SERVERS}urll = 1", 9, 'inference.remote.1.urll (did you mean "url"?)'),
    ("inline table", "[inference]\nremote = [{name='a', url='http://x', model='m', k='k'}]", 2, "inference.remote.0.k"),
    ("dotted key", "api.max_body_bytes = 1", 1, "api.max_body_bytes = 1"),
    ("after a text over lines", '[node]\nname = """\nmax = 3\n"""\nnam = 1', 5, "unknown key node.nam"),
    ("profile", "\nprofile = 'lam'", 2, "there is no profile 'lam' (did you mean \"lan\"?)"),
    ("profile of a wrong type", "profile = 3", 1, "there is no profile 3"),
]  # fmt: skip


class TestRefusal:
    @pytest.mark.parametrize(("text", "line", "said"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
    def test_a_fault_in_the_file_is_said_with_line_and_reason(
        self, home: Home, text: str, line: int, said: str
    ) -> None:
        with pytest.raises(ConfigError) as caught:
            loaded(home, text)
        assert str(caught.value).startswith(f"{home.config}:{line}: ")
        assert said in str(caught.value)
        assert caught.value.exit_code == 4

    def test_further_faults_are_counted(self, home: Home) -> None:
        with pytest.raises(ConfigError, match=r"api\..*; 2 more keys at fault"):
            loaded(home, "[api]\na = 1\nb = 2\nmax_connections = 0")

    @pytest.mark.parametrize(
        ("variable", "near"),
        [
            ("GNUSNODE_API__LISTN", "GNUSNODE_API__LISTEN"),
            ("GNUSNODE_api__listen", "GNUSNODE_API__LISTEN"),
            ("GNUSNODE_API_LISTEN", "GNUSNODE_API__LISTEN"),
            ("GNUSNODE_HOEM", "GNUSNODE_HOME"),
        ],
    )
    def test_an_unknown_variable_is_an_error_with_the_nearest_one(self, home: Home, variable: str, near: str) -> None:
        with pytest.raises(ConfigError) as caught:
            loaded(home, env={variable: "x"})
        assert f"unknown variable {variable} (did you mean {near}?)" in str(caught.value)

    def test_a_wrong_value_of_a_variable_or_flag_is_said_with_its_origin(self, home: Home) -> None:
        with pytest.raises(ConfigError, match=r"^env GNUSNODE_API__LISTEN: api\.listen = 'x'"):
            loaded(home, env={"GNUSNODE_API__LISTEN": "x"})
        with pytest.raises(ConfigError, match=r"^command line: node\.roles\.0 = 'x'"):
            loaded(home, node__roles="x")
        with pytest.raises(ConfigError) as caught:
            loaded(home, node__roles="x")
        assert "more key" not in str(caught.value), "the list is at fault by its item only"
        with pytest.raises(ConfigError, match=r"^env GNUSNODE_NODE__ROLES: .*JSON list"):
            loaded(home, env={"GNUSNODE_NODE__ROLES": "[core"})
        with pytest.raises(ConfigError, match=r"^command line: .*list"):
            loaded(home, node__roles="[core")

    def test_a_long_value_is_cut_in_the_message(self, home: Home) -> None:
        with pytest.raises(ConfigError) as caught:
            loaded(home, f"[api]\nlisten = {'x' * 50_000!r}")
        assert len(str(caught.value)) < 1000

    @pytest.mark.parametrize("data", [b"[api]\nlisten = '\xff'", b"\x00", b"\xff\xfe[\x00a\x00"])
    def test_a_file_that_is_no_text_is_refused(self, home: Home, data: bytes) -> None:
        home.config.write_bytes(data)
        with pytest.raises(ConfigError, match=r"gnusnode\.toml:\d+: "):
            loaded(home)

    def test_a_file_that_cannot_be_read_is_refused(self, home: Home) -> None:
        home.config.mkdir()
        with pytest.raises(ConfigError, match="cannot read the file: Is a directory"):
            loaded(home)

    def test_a_huge_or_endlessly_nested_file_is_refused(self, home: Home) -> None:
        with pytest.raises(ConfigError, match="more than"):
            loaded(home, "# " + "x" * 300_000)
        with pytest.raises(ConfigError, match="not valid TOML"):
            loaded(home, "a = " + "[" * 100_000)

    def test_a_mark_at_the_beginning_as_some_editors_leave_it_is_fine(self, home: Home) -> None:
        home.config.write_bytes(b"\xef\xbb\xbf[node]\r\nname = 'x'\r\n")
        assert loaded(home).settings.node.name == "x"


class TestProfiles:
    def test_the_four_profiles_of_the_manual_are_shipped(self) -> None:
        assert profiles() == ["gpu-contributor", "high-trust", "lan", "solo"]
        assert re.findall(r"^\| `([a-z-]+)` \| ", MANUAL.partition("## Profiles")[2], re.M)[:4] == [
            "solo",
            "lan",
            "gpu-contributor",
            "high-trust",
        ]

    @pytest.mark.parametrize("name", ["solo", "lan", "gpu-contributor", "high-trust"])
    def test_a_profile_holds_says_for_whom_and_never_opens_the_api(self, home: Home, name: str) -> None:
        settings = loaded(home, profile=name).settings
        assert settings.profile == name
        assert settings.api.listen.startswith("127.0.0.1:")
        assert (CONFIGS / "profiles" / f"{name}.toml").read_text(encoding="utf-8").startswith(f"# {name}: ")

    def test_no_profile_finds_peers_beyond_what_it_says(self, home: Home) -> None:
        seen = {name: loaded(home, profile=name).settings.net for name in profiles()}
        assert {name: (net.mdns, net.dht) for name, net in seen.items()} == {
            "solo": (False, False),
            "lan": (True, False),
            "gpu-contributor": (True, True),
            "high-trust": (False, False),
        }
        assert {(net.enabled, net.peers) for net in seen.values()} == {("auto", ())}, "no network without a swarm"


class TestSetValue:
    TEXT = '# mine\n[api]   # the door\nlisten = "127.0.0.1:1" # odd port\n\n[node]\nname = "x"\n'

    def test_comments_and_order_stay(self, home: Home) -> None:
        home.config.write_text(self.TEXT)
        set_value(home.config, "api.listen", "127.0.0.1:9")
        set_value(home.config, "api.max_connections", "7")
        set_value(home.config, "net.peers", "/ip4/192.0.2.1/tcp/1,/ip4/192.0.2.2/tcp/1")
        set_value(home.config, "net.mdns", "no")
        text = home.config.read_text()
        assert text.startswith('# mine\n[api]   # the door\nlisten = "127.0.0.1:9" # odd port\n')
        assert tomllib.loads(text) == {
            "api": {"listen": "127.0.0.1:9", "max_connections": 7},
            "node": {"name": "x"},
            "net": {"peers": ["/ip4/192.0.2.1/tcp/1", "/ip4/192.0.2.2/tcp/1"], "mdns": False},
        }
        assert [path.name for path in home.root.iterdir()] == ["gnusnode.toml"]

    def test_options_that_need_each_other_are_set_one_after_the_other(self, home: Home) -> None:
        for key, value in (("tls_cert", "/c.pem"), ("tls_key", "/k.pem"), ("listen", "0.0.0.0:443")):
            set_value(home.config, f"api.{key}", value)
        assert loaded(home).settings.api.listen == "0.0.0.0:443"

    def test_every_way_to_write_a_table_can_be_changed(self, home: Home) -> None:
        server = '[{"name": "a", "url": "http://x/v1", "model": "m"}]'
        for text in ("", "api.max_connections = 1\n", "api = { max_connections = 1 } # in one line\n"):
            home.config.write_text(text)
            set_value(home.config, "api.max_connections", "2")
            set_value(home.config, "inference.remote", server)
            set_value(home.config, "inference.remote", server.replace("/x/", "/y/"))
            set_value(home.config, "inference.slots", "3")
            settings = loaded(home).settings
            assert (settings.api.max_connections, settings.inference.slots) == (2, 3)
            assert settings.inference.remote[0].url == "http://y/v1"

    def test_a_file_is_made_where_there_is_none(self, home: Home) -> None:
        set_value(home.config, "profile", "lan")
        set_value(home.config, "inference.gpu", "auto")
        assert loaded(home).settings.profile == "lan"

    @pytest.mark.parametrize(
        ("key", "value", "said"),
        [
            ("api.listn", "x", 'unknown key api.listn (did you mean "api.listen"?)'),
            ("api", "x", "unknown key api"),
            ("api.listen", "x", "is not HOST:PORT"),
            ("api.max_connections", "-1", "greater than or equal to 1"),
            ("api.tls_key", "/k.pem", "give tls_cert too"),
            ("api.listen", "0.0.0.0:80", "give tls_cert"),
            ("inference.gpu", "x", "inference.gpu: "),
            ("inference.remote", '[{"name": "a"}]', "inference.remote: 0.url: Field required"),
            ("node.roles", "[core", "node.roles"),
        ],
    )
    def test_what_is_wrong_is_not_written(self, home: Home, key: str, value: str, said: str) -> None:
        home.config.write_text(self.TEXT)
        with pytest.raises(ConfigError) as caught:
            set_value(home.config, key, value)
        assert said in str(caught.value)
        assert home.config.read_text() == self.TEXT

    def test_a_file_that_is_already_wrong_is_left_alone_and_named(self, home: Home) -> None:
        home.config.write_text("[node]\nnam = 1\n")
        with pytest.raises(ConfigError, match=r"gnusnode\.toml:2: unknown key node\.nam"):
            set_value(home.config, "node.name", "x")
        assert home.config.read_text() == "[node]\nnam = 1\n"

    def test_a_linked_file_is_changed_where_it_lies(self, home: Home, tmp_path: Path) -> None:
        real = tmp_path / "dotfiles.toml"
        real.write_text("[node]\n")
        real.chmod(0o644)
        home.config.symlink_to(real)
        set_value(home.config, "node.name", "x")
        assert home.config.is_symlink()
        assert tomllib.loads(real.read_text()) == {"node": {"name": "x"}}
        assert real.stat().st_mode & 0o777 == 0o644

    def test_a_directory_that_cannot_be_written_is_a_typed_error(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="cannot write the configuration"):
            set_value(tmp_path / "missing" / "gnusnode.toml", "node.name", "x")


class TestReference:
    def test_the_manual_documents_exactly_the_options_that_exist(self) -> None:
        assert set(re.findall(r"^\| `([a-z_.]+)` \| [^|]+ \| [^|]* \| [^|]+ \|$", MANUAL, re.M)) == set(options())
        block = reference.BEGIN + MANUAL.partition(reference.BEGIN)[2].partition(reference.END)[0] + reference.END
        assert block == reference.markdown(), "run scripts/reference.py --write"

    def test_the_manual_names_the_variables_that_are_no_options(self) -> None:
        for variable in NOT_SETTINGS:
            assert f"`{variable}`" in MANUAL

    def test_every_option_says_what_it_is(self) -> None:
        for key, option in options().items():
            assert option.description.endswith("."), key

    def test_no_option_holds_a_secret(self) -> None:
        for key, option in options().items():
            secret = re.search(r"key|secret|token\b|password", key.rpartition(".")[2])
            assert not secret or option.kind in {"path", "true or false"}, key

    def test_the_example_file_is_current_and_every_line_of_it_is_the_default(self, home: Home) -> None:
        text = (CONFIGS / "gnusnode.toml.example").read_text(encoding="utf-8")
        assert text == reference.example(), "run scripts/reference.py --write"
        given = re.sub(r"^# (\w+ = (?!\(none\)))", r"\1", text.partition("# [[")[0], flags=re.M)
        values = tomllib.loads(given)
        assert sum(len(v) if isinstance(v, dict) else 1 for v in values.values()) >= len(options()) - 4
        assert Settings.model_validate(values) == Settings()
        loaded(home, text)

    def test_the_example_of_a_remote_server_holds(self) -> None:
        text = (CONFIGS / "gnusnode.toml.example").read_text(encoding="utf-8")
        remote = re.sub(r"^# ", "", text[text.index("# [[") :], flags=re.M)
        assert Settings.model_validate(tomllib.loads(remote)).inference.remote[0].name == "big"

    def test_the_schema_is_current_and_agrees_with_the_loader(self) -> None:
        text = (CONFIGS / "gnusnode.schema.json").read_text(encoding="utf-8")
        assert json.loads(text) == schema(), "run scripts/reference.py --write"
        jsonschema.Draft202012Validator.check_schema(schema())
        validator = jsonschema.Draft202012Validator(schema())
        for name in profiles():
            path = CONFIGS / "profiles" / f"{name}.toml"
            validator.validate(tomllib.loads(path.read_text(encoding="utf-8")))
        for wrong in ({"api": {"listn": "x"}}, {"api": {"max_connections": 0}}, {"nope": 1}):
            assert not validator.is_valid(wrong)


class TestShippedFiles:
    def test_a_wheel_carries_them_inside_the_package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert resources.configs_dir() == CONFIGS
        package = tmp_path / "gnusnode"
        (package / "_configs").mkdir(parents=True)
        monkeypatch.setattr(resources.gnusnode, "__file__", str(package / "__init__.py"))
        assert resources.configs_dir() == package / "_configs"


def test_an_option_that_is_unset_has_its_default_again_and_nothing_else_changes(tmp_path: Path) -> None:
    file = tmp_path / "gnusnode.toml"
    file.write_text(
        'profile = "lan"  # mine\n[api]\n# why\nlisten = "127.0.0.1:1"\nmax_in_flight = 3\n', encoding="utf-8"
    )
    unset(file, "api.listen")
    unset(file, "node.name")
    assert file.read_text("utf-8") == 'profile = "lan"  # mine\n[api]\n# why\nmax_in_flight = 3\n'
    with pytest.raises(ConfigError, match="unknown key"):
        unset(file, "api.listne")
