"""Secrets do not leave the machine: each form of one is found, and what support needs to read is left as it is."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.diagnosis.log_text import number_lines
from appliance.diagnosis.printed_command import changed_command
from appliance.diagnosis.searchable import Searchable
from appliance.hardware.engine_machine import telling
from appliance.redaction import (
    ROWS,
    Redactor,
    holds_secret,
    secrets_of_environment,
    variable_without_secrets,
    without_secrets,
)
from appliance.vllm.command_line import Command

S = "S3CR3Tvalue"

PLANTED = (
    f"Authorization: Bearer {S}",
    f"authorization: Basic {S}==",
    f"{{'authorization': 'Bearer {S}', 'x': 1}}",
    f"curl -H 'Authorization: Token {S}' http://x",
    f"Proxy-Authorization: Basic {S}",
    f"got bearer {S} from the client",
    f"Cookie: ingot-session={S}; other={S}",
    f"Set-Cookie: ingot-session={S}; HttpOnly",
    f"seen ingot-session={S};",
    f"sk-{S}abcdefgh",
    f"the key is sk-proj-{S}-abcdefgh.",
    f"/keys/team-sk-proj-{S}abcdefgh",
    f"/keys/team_ghp_{S}abcdefghijklmnop",
    f"hf_{S}abcdefgh",
    f"ghp_{S}abcdefghijklmnop",
    f"github_pat_{S}abcdefghijklmnop",
    f"nvapi-{S}-abcdefgh",
    f"ingot-{S}{'x' * 40}",
    "AKIAS3CR3TVALUEABCDE",
    f"eyJhbGciOi.{S}.{S}",
    f"http://user:{S}@proxy:3128/",
    f"https://{S}@github.com/x.git",
    f"postgres://u:{S}@db/x",
    f"http://127.0.0.1:8080/setup?code={S}",
    f"https://s3/x?X-Amz-Credential={S}&X-Amz-Signature={S}",
    f"https://blob/x?sv=1&sig={S}",
    f"The set-up code: {S}",
    f"HF_TOKEN={S}",
    f"HF_TOKEN: {S}",
    f"'HUGGING_FACE_HUB_TOKEN': '{S}'",
    f'{{"HF_TOKEN": "{S} with blanks {S}"}}',
    f'{{\\"HF_TOKEN\\": \\"{S}\\"}}',
    f"environ({{'WANDB_API_KEY': '{S}', 'A': 'b'}})",
    f"export AWS_SECRET_ACCESS_KEY={S}",
    f"PGPASSWORD={S} psql",
    f'DB_PASSWORD="{S} {S}"',
    f"MY_CREDENTIALS: {S}",
    f"api_key='{S}', host='x'",
    f"non-default args: {{'api_key': ['{S}', '{S}'], 'port': 8000}}",
    f"--api-key {S} --port 1",
    f"--api-key={S}",
    f"['serve', '--api-key', '{S}', 'x']",
    f"--hf-token {S}",
    f"X-API-Key: {S}",
    f"password: {S}",
    f"client_secret={S}",
    f'"hf_token": "{S}"',
    f"ssh_private_key={S}",
    f"passphrase = '{S} {S}'",
    f"DB_PASS={S}",
    f"PASS={S}",
    f"MYSQL_PWD={S}",
    f"REDIS_AUTH={S}",
    f"pwd={S}",
    f"db_pwd: {S}",
    f"pass='{S}'",
    f'"pass": "{S}"',
    f"smtp_pass={S}",
    f"--pass {S}",
    f"auth=('user', '{S}')",
    f"basic_auth={S}",
    f"postgres://u:p/{S}@host/db",
    f"redis://:pa@{S}@h:6379",
    f"postgres://u:p@a/{S}@host/db",
    f"redis://:{S}@ss@h:6379",
    f"http://u:{S}?x#y/@h",
    f"api_key  {S}",
    f"password\t\t{S}",
)

LEFT_ALONE = (
    "max-num-batched-tokens: 2048",
    "num_tokens=512 key=5 KeyError: 'foo'",
    "eos_token: '</s>' bos_token_id=1 pad_token='<pad>'",
    "tokenizer=Qwen, served_model_name=x, kv_cache_dtype=auto, tokens: 5, 12.5 tokens/s",
    "MAX_TOKENS=512 VLLM_API_KEY=None HF_TOKEN=$HF_TOKEN",
    'KeyError: "model.layers.0.key_proj.weight"',
    "RuntimeError: key not found: self_attn.key: mismatch",
    "unexpected token: ',' at line 3",
    "stop_token_ids=[1, 2] added_tokens.json token 5 of 10",
    "see http://127.0.0.1:8000/v1 and mail to a@b",
    "/home/ann/models/Qwen3-8B/tokenizer.json",
    "asking sk_buff for memory; desk-top",
    "/models/risk-sk-learn-abcdefgh and /models/disk_sk-learn-abcdefgh, --no-sk-learn-abcdefgh",
    "rope_theta=None, hf_overrides=None, hf_transfer=False",
    "PWD=/home/ann OLDPWD=/ pwd: /home/ann SSH_AUTH_SOCK=/tmp/a XAUTHORITY=/run/x",
    "author: Ann, auth: needed; authenticated=yes",
    "first pass: fused, post_grad_custom_post_pass=noop, pass_config={'fuse': 1}, pass 2 of 3",
    "git+https://github.com/vllm-project/vllm.git@0123abc and https://registry.npmjs.org/@scope/x",
    "http://127.0.0.1:8000/v1/models/a@b http://[::1]:8000/x@y",
    "API_KEYS=3 num_keys: 12 token: 1234567",
)


@pytest.mark.parametrize("line", PLANTED)
def test_a_secret_goes(line):
    redactor = Redactor()
    kept = redactor.line(line)
    assert "S3CR3T" not in kept
    assert "<removed: " in kept
    assert redactor.counts.total() >= 1


@pytest.mark.parametrize("line", LEFT_ALONE)
def test_what_is_no_secret_stays(line):
    assert Redactor().line(line) == line


def test_every_row_of_the_table_finds_one_of_the_planted_secrets():
    found: set[str] = set()
    for line in PLANTED:
        redactor = Redactor()
        redactor.line(line)
        found |= redactor.counts.keys()
    assert found >= {row.what for row in ROWS}


def test_a_private_key_goes_with_all_its_lines():
    text = f"before\n-----BEGIN RSA PRIVATE KEY-----\n{S}\n{S}\n-----END RSA PRIVATE KEY-----\nafter\n"
    assert Redactor().text(text) == "before\n<removed: private key>\nafter\n"
    one_line = f"key -----BEGIN PRIVATE KEY-----{S}-----END PRIVATE KEY----- after"
    assert Redactor().line(one_line) == "key <removed: private key> after"


LONG = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7VJTUt9Us8cKj"


@pytest.mark.parametrize("begins", ["-----BEGIN PRIVATE KEY-----", "INFO -----BEGIN EC PRIVATE KEY-----"])
def test_a_private_key_that_was_cut_off_takes_nothing_else_along(begins):
    """What is no part of a key is read on, and the rest of the log too where its end never comes."""
    error = "ERROR CUDA error: an illegal memory access was encountered"
    log = [begins, LONG, f"INFO {LONG}", "INFO ab==", error, LONG, *["word"] * 200, error]
    kept = Redactor().text("\n".join(log))
    assert LONG not in kept
    assert "ab==" not in kept or not begins.startswith("INFO")
    assert kept.count(error) == 2
    assert kept.count("word") > 90


def test_what_follows_a_private_key_is_read_on():
    text = f"-----BEGIN PRIVATE KEY-----\n{LONG}\n-----END PRIVATE KEY----- and token={S}\n"
    assert Redactor().text(text) == "<removed: private key>\n and token=<removed: setting>\n"


@pytest.mark.parametrize("name", ["PASSWORD", "db_password", "secret", "MYSQL_PWD"])
@pytest.mark.parametrize("digits", ["12", "123456", "1234567", "12345678901"])
def test_a_password_of_digits_goes(name, digits):
    """In text and in a document, as text and as a number; a count of tokens stays."""
    assert digits not in Redactor().line(f"{name}={digits}")
    assert Redactor().value({name: int(digits), "max-tokens": 512}) == {name: "<removed: setting>", "max-tokens": 512}
    assert Redactor().value({name: digits, "token": 5}) == {name: "<removed: setting>", "token": 5}


def test_a_long_number_under_the_name_of_a_token_goes():
    assert Redactor().value({"token": 12345678901, "x": [{"api-key": 1.5e30}]}) == {
        "token": "<removed: setting>",
        "x": [{"api-key": "<removed: setting>"}],
    }


def test_secrets_known_by_their_value_go_wherever_they_stand():
    known = secrets_of_environment({"MY_TOKEN": "a-known-value", "MAX_TOKENS": "512", "PATH": "/bin", "OTHER_KEY": "x"})
    assert known == ["a-known-value", "x"]
    redactor = Redactor(known)
    assert redactor.line("read a-known-value, x 512 /bin") == "read <removed: known secret>, x 512 /bin"


def test_a_document_keeps_its_form():
    """Names stay, values under a secret's name go, all others are gone through; numbers stay numbers."""
    document = {
        "vllm": {"environment": {"HF_TOKEN": S, "NCCL_DEBUG": "INFO"}, "extra-args": {"api-key": [S, S]}},
        "max-tokens": 5,
        "token": None,
        "note": f"call with Authorization: Bearer {S}",
        "list": [f"--api-key {S}", 1, True],
    }
    kept = Redactor().value(document)
    assert S not in json.dumps(kept)
    assert kept["vllm"]["environment"]["NCCL_DEBUG"] == "INFO"
    assert (kept["max-tokens"], kept["token"], kept["list"][1:]) == (5, None, [1, True])


def test_a_line_cannot_hold_it_up():
    """Lines made to be slow are done within a second, and one of ten megabytes is gone through in pieces."""
    hostile = ("a-" * 16_000 + "token:", "_" * 32_000 + " KEY=", "KEY_" * 8000, "eyJ" * 10_000 + " .", "key:" * 8000,
               "a" * 32_000 + "://", "password='" + "x" * 30_000, "--a-" * 8000 + "token", "-sk" * 10_000,
               "?token&" * 4000 + "token=", "(" * 30_000 + "key=", "\\" * 30_000 + "key:",
               "authorization: " * 2000)  # fmt: skip
    for line in hostile:
        began = time.process_time()
        Redactor().line(line)
        assert time.process_time() - began < 1, line[:20]
    long = "word " * 2_000_000 + f"HF_TOKEN={S} end"
    kept = "".join(Redactor().lines([long]))
    assert S not in kept
    assert kept.startswith("word word")
    assert kept.endswith(" end")


@given(st.text(max_size=300))
@settings(max_examples=300, deadline=None)
def test_any_text_is_gone_through(text):
    """Nothing is raised, and what was gone through holds nothing more to take out."""
    once = Redactor().text(text)
    again = Redactor()
    assert again.text(once) == once


# ----------------------------------------------------------------------------- commands and environments made elsewhere

WORDS = st.text("abcdefghijklmnopqrstuvwxyz0123456789/._", min_size=1, max_size=12).filter(
    lambda word: not holds_secret(word)
)


def keys(prefix: str, count: int, letters: str = "ABCDEFGHJKLMNPQRSTUVWXYZabcdefgh0123456789"):
    return st.text(letters, min_size=count, max_size=count + 8).map(lambda rest: f"{prefix}A1{rest}")


KEYS = st.one_of(
    keys("sk-", 20), keys("sk-proj-", 20), keys("hf_", 20), keys("ghp_", 30), keys("github_pat_", 30),
    keys("glpat-", 20), keys("xoxb-", 20), keys("nvapi-", 30), keys("AIza", 32), keys("ingot-", 42),
    st.text("ABCDEFGHJKLMNPQRSTUVWXYZ", min_size=16, max_size=16).map(lambda rest: f"AKIA{rest}"),
    st.tuples(keys("eyJ", 20), keys("x", 10), keys("y", 20)).map(".".join),
)  # fmt: skip


@given(KEYS, WORDS, WORDS)
@settings(max_examples=300, deadline=None)
def test_a_key_goes_by_its_form_whatever_it_is_called(key, before, name):
    """From a command that is shown, an environment, and a command that a diagnosis offers; the rest stays."""
    command = Command(
        arguments=("vllm", "serve", before, f"--served-model-name={key}", "--seed", "3"),
        environment={"NCCL_IB_HCA": key, "NCCL_DEBUG": "INFO"},
    )
    shown = command.shown({})
    assert key not in shown
    assert "NCCL_DEBUG=INFO" in shown
    assert shown.endswith("--seed 3")
    assert key not in str(telling({"NCCL_IB_HCA": key, "VLLM_CACHE_ROOT": f"/x/{key}"}))
    assert key not in variable_without_secrets("NCCL_IB_HCA", key)
    arguments = {"model": "tiny", "port": 8000, "hf_overrides": {"x": [key]}}
    log = Searchable(number_lines(f"(APIServer pid=1) INFO non-default args: {arguments}"))
    assert changed_command(log, "port", "8001") is None
    assert without_secrets(f"{name} {key} {name}").startswith(f"{name} ")


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40))
@settings(max_examples=100, deadline=None)
def test_a_variable_goes_by_its_name_whatever_it_holds(rest):
    """But for what is never a secret, all of which begins in another way."""
    value = f"s3-{rest}"
    assert variable_without_secrets("SOME_API_KEY", value) == "<removed: environment variable>"
    assert telling({"VLLM_API_KEY": value, "HF_TOKEN": value}) == {}


@pytest.mark.parametrize("value", ["", "none", "$OTHER", "${OTHER}", "***", "1234567", "<removed: setting>"])
def test_a_value_that_is_never_a_secret_stays(value):
    assert variable_without_secrets("SOME_API_KEY", value) == value


def test_what_holds_no_secret_is_shown_as_it_is():
    command = Command(arguments=("vllm", "serve", "/models/qwen", "--max-logprobs=20"), environment={"LANG": "C.UTF-8"})
    assert command.shown({}) == "LANG=C.UTF-8 vllm serve /models/qwen --max-logprobs=20"
    assert not holds_secret("max_num_batched_tokens=2048 tokenizer=/models/qwen")
