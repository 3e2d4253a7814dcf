import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from services.tool_executor.offering import tools_file
from services.tool_executor.offering.tools_file import ToolsFileError, parse_tools_file, read_tools_file

ENVIRON = {"TOKEN": "secret", "HOST": "example.com"}


def parsed(text: str):
    return parse_tools_file(text, "tools.yaml", ENVIRON)


def test_an_empty_file_offers_the_built_in_tools():
    file = parsed("")
    assert file.pool == "default"
    assert file.builtin == (
        "shell",
        "read_file",
        "write_file",
        "apply_patch",
        "read_artifact",
        "restore_files",
        "load_skill",
    )
    assert not file.mcp
    assert file.client_tools is None


def test_the_example_in_its_docstring_is_valid():
    example = tools_file.__doc__.split("\n\n")[1].replace("TRACKER_TOKEN", "TOKEN")
    file = parsed("\n".join(line[4:] for line in example.splitlines()))
    assert file.mcp["git"].bound_arguments == {"repo_path": "{cwd}"}
    assert file.mcp["tracker"].headers == {"Authorization": "Bearer secret"}
    assert file.tools["create_issue"].effect == "idempotent"
    assert str(file.tools["create_charge"].reconcile) == "tool:lookup_charge"
    assert str(file.tools["send_parcel"].reconcile) == "command:check-parcel"
    assert file.tools["lookup_charge"].enabled is False
    assert (file.client_tools["ask_customer"].effect, file.client_tools["ask_customer"].timeout_seconds) == (
        "unsafe",
        3_600,
    )
    assert file.sandbox.profile_widest == "workspace-write"


def examples(language: str) -> list[str]:
    """Fenced blocks of docs/tools.md."""
    text = (Path(__file__).parents[4] / "docs" / "tools.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_examples_in_its_documentation_are_valid():
    environ = {"PAYMENTS_TOKEN": "a", "PARCELS_TOKEN": "b"}
    files = [
        # A policy may name the tool of an MCP server that is another example's.
        parse_tools_file(text if "mcp:" in text else f"{text}mcp: {{other: {{command: x}}}}", "tools.yaml", environ)
        for text in examples("yaml")
    ]
    assert len(files) == 3
    assert str(files[0].tools["create_charge"].reconcile) == "tool:lookup_charge"
    assert files[1].tools["send_parcel"].reconcile.env == {"PARCELS_TOKEN": "b"}
    assert files[2].client_tools["ask_customer"].timeout_seconds == 600
    (program,) = examples("python")
    compile(program, "docs/tools.md", "exec")


@pytest.mark.parametrize(
    ("charges", "answer"),
    [("[]", {"status": "not_done"}), ('[{"id": 1}]', {"status": "done", "result": [{"id": 1}]}), (None, None)],
)
def test_the_command_in_its_documentation_answers(tmp_path: Path, charges, answer):
    (script,) = examples("sh")
    hook, cli = tmp_path / "check-charge", tmp_path / "payments"
    hook.write_text(script)
    cli.write_text("#!/bin/sh\nexit 7\n" if charges is None else f"#!/bin/sh\n[ $4 = key-1 ] && echo '{charges}'\n")
    hook.chmod(0o755)
    cli.chmod(0o755)
    environment = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    ran = subprocess.run([hook, "key-1"], env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode == 0) == (answer is not None)
    assert answer is None or json.loads(ran.stdout) == answer


def test_variables_are_filled_in():
    file = parsed("mcp: {a: {url: 'https://${HOST}/mcp'}, b: {command: x, env: {T: '-${TOKEN}-'}}}")
    assert file.mcp["a"].url == "https://example.com/mcp"
    assert file.mcp["b"].env == {"T": "-secret-"}
    file = parsed("tools: {x: {effect: reconcilable, reconcile: {command: [look], env: {T: '${TOKEN}'}}}}")
    assert file.tools["x"].reconcile.env == {"T": "secret"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pool: [", "not valid YAML"),
        ("[]", "the file: Input should be"),
        ("pool: 'a b'", "pool: String should match"),
        ("colour: red", "colour: Extra inputs"),
        ("mcp: {a: {}}", "mcp.a: give either `command` or `url`"),
        ("mcp: {a: {command: x, url: y}}", "mcp.a: give either"),
        ("mcp: {a: {url: y, args: [z]}}", "mcp.a: `args`, `env` and `cwd` work only with `command`"),
        ("mcp: {a: {command: x, headers: {h: v}}}", "mcp.a: `headers` work only with `url`"),
        ("mcp: {'a b': {command: x}}", "mcp.a b"),
        (
            "mcp: {a: {url: 'https://${NOWHERE}/'}}",
            "mcp.a.url: the environment of the executor has no variable NOWHERE",
        ),
        ("tools: {x: {effect: harmless}}", "tools.x.effect"),
        ("tools: {x: {timeout_seconds: 0}}", "tools.x.timeout_seconds"),
        ("builtin: [rm]", "builtin.0"),
        ("tools: {x: {effect: reconcilable}}", "tools.x: `effect: reconcilable` also needs `reconcile`"),
        ("tools: {x: {reconcile: {command: [y]}}}", "tools.x: `reconcile` works only with `effect: reconcilable`"),
        ("tools: {x: {effect: unsafe, reconcile: {command: [y]}}}", "tools.x: `reconcile` works only with"),
        ("tools: {x: {effect: reconcilable, reconcile: {}}}", "tools.x.reconcile: give either `tool` or `command`"),
        ("tools: {x: {effect: reconcilable, reconcile: {tool: y, command: [z]}}}", "tools.x.reconcile: give either"),
        (
            "tools: {x: {effect: reconcilable, reconcile: {tool: y, env: {A: b}}}}",
            "tools.x.reconcile: `env` works only",
        ),
        ("tools: {x: {effect: reconcilable, reconcile: {command: []}}}", "tools.x.reconcile.command"),
        ("tools: {x: {effect: reconcilable, reconcile: {command: ['']}}}", "tools.x.reconcile.command.0"),
        (
            "tools: {x: {effect: reconcilable, reconcile: {command: [y], env: {A: '${NOWHERE}'}}}}",
            "tools.x.reconcile.env.A: the environment of the executor has no variable NOWHERE",
        ),
        ("tools: {x: {effect: reconcilable, reconcile: {tool: x}}}", "asking would run it again"),
        ("tools: {x: {effect: reconcilable, reconcile: {tool: y}}}", "this executor has no tool y"),
        ("client_tools: {'a b': {}}", "client_tools.a b"),
        ("client_tools: {a: {effect: reconcilable}}", "client_tools.a.effect"),
        (
            "client_tools: {a: {input_schema: {type: nonsense}}}",
            "client_tools.a.input_schema: this is not a valid JSON Schema",
        ),
        ("client_tools: {shell: {}}", "client_tools.shell: a built-in tool has this name"),
        ("{client_tools: {a: {}}, tools: {a: {}}}", "client_tools.a: it is also in"),
        ("sandbox: {enforcement: maybe}", "sandbox.enforcement"),
    ],
)
def test_what_is_wrong_is_named_with_file_and_field(text, message):
    with pytest.raises(ToolsFileError) as raised:
        parsed(text)
    assert str(raised.value).startswith("tools.yaml: ")
    assert message in str(raised.value)


def test_reading(tmp_path: Path, monkeypatch):
    path = tmp_path / "tools.yaml"
    with pytest.raises(ToolsFileError, match="cannot be read"):
        read_tools_file(path, {})
    path.write_text("pool: other")
    assert read_tools_file(path, {}).pool == "other"
    monkeypatch.setattr(tools_file, "FILE_BYTES_MAX", 5)
    with pytest.raises(ToolsFileError, match="larger than 5"):
        read_tools_file(path, {})
