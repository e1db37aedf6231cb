"""The user's word wins in any spelling, the image's demands are met or refused, and nothing unknown is rendered."""

from __future__ import annotations

import json
from typing import Any

import pytest

from graftwork.errors import UsageError
from graftwork.launch.arguments import Arguments
from graftwork.launch.environment import Environment
from graftwork.launch.flags import table
from graftwork.launch.placeholders import fill

SGLANG, VLLM = table("sglang", "0.5.16"), table("vllm", "0.24.0")


def words(arguments: Arguments) -> list[str]:
    """The command line with the braces of JSON single again."""
    return [fill(word, lambda kind, name: f"<{kind} {name}>") for word in arguments.finish()[0]]


@pytest.mark.parametrize(
    "said",
    [
        ["--mem-fraction-static", "0.9"],
        ["--mem-fraction-static=0.9"],
        ["--mem_fraction_static", "0.9"],
        ["--mem_fraction_static=0.9"],
        ["--mem-frac", "0.9"],
        ["--mem-fraction-static", "0.1", "--mem-fraction-static", "0.9"],
    ],
)
def test_the_users_word_wins_in_any_spelling_and_is_shown(said: list[str]) -> None:
    arguments = Arguments(SGLANG, said)
    arguments.add("--tp-size", 8, why="gpus")
    arguments.add("--mem-fraction-static", 0.8, why="a share")
    assert words(arguments) == ["--tp-size", "8", "--mem-fraction-static", "0.9"]
    line = arguments.finish()[1][-1]
    assert (line.text, line.origin) == ("--mem-fraction-static 0.9", "user")
    assert "--mem-fraction-static 0." in line.replaced
    assert arguments.value("--mem-fraction-static") == "0.9"


def test_an_alias_and_a_short_name_mean_the_flag() -> None:
    for tab, said, name in ((SGLANG, "--tensor-parallel-size", "--tp-size"), (VLLM, "-tp", "--tensor-parallel-size")):
        arguments = Arguments(tab, [said, "4"])
        arguments.add(name, 8, why="gpus")
        assert words(arguments) == [name, "4"]


def test_a_deprecated_name_takes_the_place_of_the_one_that_followed_it() -> None:
    arguments = Arguments(SGLANG, ["--cuda-graph-max-bs", "64"])
    arguments.add("--cuda-graph-max-bs-decode", 128, why="graphs")
    assert arguments.value("--cuda-graph-max-bs-decode") == "64"
    assert words(arguments) == ["--cuda-graph-max-bs", "64"]
    assert "deprecated" in arguments.warnings[0] and "--cuda-graph-max-bs-decode" in arguments.warnings[0]


def test_a_switch_is_turned_off_by_its_no_form() -> None:
    arguments = Arguments(VLLM, ["--no-enable-expert-parallel"])
    arguments.add("--enable-expert-parallel", why="experts")
    assert not arguments.has("--enable-expert-parallel")
    assert words(arguments) == ["--no-enable-expert-parallel"]


def test_a_flag_without_a_no_form_is_dropped() -> None:
    arguments = Arguments(SGLANG, [], ["--enable_metrics"])
    arguments.add("--enable-metrics", why="metrics")
    assert words(arguments) == [] and not arguments.has("--enable-metrics")
    assert "dropped" in arguments.finish()[1][0].reason


def test_one_key_of_a_json_value() -> None:
    arguments = Arguments(VLLM, ["--kv-transfer-config.kv_role", "kv_consumer", "--kv_transfer_config.a.b", "3"])
    arguments.add("--kv-transfer-config", {"kv_connector": "N", "kv_role": "kv_both", "at": "{port:x}"}, why="moves KV")
    (flag, text) = words(arguments)
    assert flag == "--kv-transfer-config"
    assert json.loads(text) == {"kv_connector": "N", "kv_role": "kv_consumer", "at": "<port x>", "a": {"b": 3}}


def test_a_value_that_begins_with_a_hyphen_is_joined() -> None:
    arguments = Arguments(SGLANG, ["--random-seed", "-1"])
    assert words(arguments) == ["--random-seed=-1"]


def test_many_values_end_where_the_next_flag_begins() -> None:
    arguments = Arguments(SGLANG, ["--cuda-graph-bs-decode", "1", "2", "4", "--enable-metrics"])
    assert words(arguments) == ["--cuda-graph-bs-decode", "1", "2", "4", "--enable-metrics"]


def test_flags_that_repeat() -> None:
    router = table("sglang-router", "0.3.2")
    arguments = Arguments(router, ["--prefill", "http://a", "9", "--prefill", "http://b", "none"])
    arguments.add("--prefill", "http://c", "8", why="an engine")
    arguments.add("--decode", "http://d", why="an engine")
    assert words(arguments) == ["--decode", "http://d", "--prefill", "http://a", "9", "--prefill", "http://b", "none"]


@pytest.mark.parametrize(
    ("said", "says", "hint"),
    [
        (["--mem-fraction-statc", "0.9"], "no argument --mem-fraction-statc", "--mem-fraction-static"),
        (["--disaggregation-decode-tp", "8"], "no argument --disaggregation-decode-tp", "did you mean"),
        (["--speculative", "8"], "may be", "write it out"),
        (["0.9"], "value of no argument", ""),
        (["--enable-metrics=yes"], "takes no value", ""),
        (["--tp-size"], "needs a value", ""),
        (["--tp-size", "eight"], "cannot be 'eight'", ""),
        (["--tp-size", "8", "9"], "'9' is the value of no argument", ""),
        (["--disaggregation-mode", "both"], "cannot be 'both'", "decode, null, prefill"),
        (["--mem-fraction-static.key", "1"], "no argument", ""),
    ],
)
def test_what_the_parser_would_refuse_is_refused(said: list[str], says: str, hint: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        Arguments(SGLANG, said)
    assert hint in caught.value.hint


def test_an_unknown_flag_cannot_be_rendered() -> None:
    with pytest.raises(UsageError, match="has no argument --hisparse-pool"):
        Arguments(SGLANG).add("--hisparse-pool", 1, why="none")
    with pytest.raises(UsageError, match="cannot be 'rocket'"):
        Arguments(SGLANG).add("--disaggregation-transfer-backend", "rocket", why="none")


MTP = ["--json-model-override-args", '{"index_share_for_mtp_iteration":false}']


def test_a_demand_is_added_and_merged_into_what_we_derive() -> None:
    arguments = Arguments(SGLANG)
    arguments.demand(MTP, "the drafts differ")
    assert words(arguments) == MTP
    arguments = Arguments(SGLANG)
    arguments.add("--json-model-override-args", {"a": "{{b}}"}, why="ours")
    arguments.demand(MTP, "the drafts differ")
    assert json.loads(words(arguments)[1]) == {"a": "{b}", "index_share_for_mtp_iteration": False}
    line = arguments.finish()[1][0]
    assert line.origin == "demanded" and line.reason == "the drafts differ" and '"a"' in line.replaced


@pytest.mark.parametrize(
    ("said", "fine"),
    [
        (MTP, True),
        (["--json-model-override-args", '{"index_share_for_mtp_iteration": false, "x": 1}'], True),
        (["--json-model-override-args", '{"x": 1}'], False),
        (["--json_model_override_args={}"], False),
        (["--json-model-override-args", '{"index_share_for_mtp_iteration":true}'], False),
    ],
)
def test_the_users_word_must_hold_what_is_demanded(said: list[str], fine: bool) -> None:
    arguments = Arguments(SGLANG, said)
    if fine:
        arguments.demand(MTP, "the drafts differ")
        assert "holds what is demanded" in arguments.finish()[1][0].reason
    else:
        with pytest.raises(UsageError, match=r"against what the image demands.*the drafts differ"):
            arguments.demand(MTP, "the drafts differ")


@pytest.mark.parametrize(
    ("said", "fine"), [("a.b=2", True), ("a.b=3", False), ("a.c=3", True), ("x=1", True), ("a=2", False)]
)
def test_one_key_must_not_be_against_what_is_demanded(said: str, fine: bool) -> None:
    arguments = Arguments(VLLM, [f"--attention-config.{said}"])
    if fine:
        arguments.demand(["--attention-config", '{"a":{"b":2}}'], "why")
        assert json.loads(words(arguments)[1])["a"]["b"] == 2
    else:
        with pytest.raises(UsageError, match="against what the image demands"):
            arguments.demand(["--attention-config", '{"a":{"b":2}}'], "why")


def test_a_deprecated_name_must_not_be_against_what_is_demanded() -> None:
    with pytest.raises(UsageError, match="against what the image demands"):
        Arguments(SGLANG, ["--cuda-graph-max-bs", "64"]).demand(["--cuda-graph-max-bs-decode", "8"], "why")


def test_a_demand_cannot_be_dropped() -> None:
    with pytest.raises(UsageError, match="demanded and dropped"):
        Arguments(SGLANG, drop=["--json-model-override-args"]).demand(MTP, "why")


def test_user_text_is_literal_and_ours_may_hold_placeholders() -> None:
    arguments = Arguments(VLLM, ["--chat-template", "{port:http} {% if x %}{{ y }}{% endif %}"])
    arguments.add("--port", "{port:http}", why="ours")
    assert words(arguments) == ["--port", "<port http>", "--chat-template", "{port:http} {% if x %}{{ y }}{% endif %}"]


@pytest.mark.parametrize(
    ("user", "demands", "found"),
    [
        ({}, {}, {"A": "1"}),
        ({"A": "{x}"}, {}, {"A": "{{x}}"}),
        ({}, {"A": "2"}, {"A": "2"}),
        ({"A": "2"}, {"A": "2"}, {"A": "2"}),
    ],
)
def test_environment(user: dict[str, str], demands: dict[str, str], found: dict[str, Any]) -> None:
    environment = Environment(user)
    environment.add("A", 1, "ours")
    for name, text in demands.items():
        environment.demand(name, text, "theirs")
    variables, lines = environment.finish()
    assert variables == found
    assert lines[0].replaced == ("" if found == {"A": "1"} or (user and demands) else "A=1")


def test_an_environment_against_a_demand_is_refused() -> None:
    with pytest.raises(UsageError, match="A=1 is against what the image demands: A=2"):
        Environment({"A": "1"}).demand("A", "2", "theirs")
