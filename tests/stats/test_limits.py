"""Limits are fixed sentences: every code has one, whose fields are a level and a value; and nothing else is ever said."""

import ast
from pathlib import Path
from string import Formatter

import pytest

import benchlib
from benchlib.stats.limits import SENTENCES, Concern

SOURCES = [*Path(benchlib.__file__).parent.rglob("*.py")]


@pytest.mark.parametrize("code", SENTENCES)
def test_a_sentence_holds_at_most_a_level_and_a_value(code):
    sentence = SENTENCES[code]
    fields = {name for _, name, _, _ in Formatter().parse(sentence.text) if name is not None}
    assert fields <= {"level", "value"}
    assert sentence.why.endswith(".")
    assert sentence.do.endswith(".")
    text = Concern(code, "7 of 9", level="a {level} of mine").text
    assert text.endswith(".")
    assert ("7 of 9" in text) == ("value" in fields)
    assert ("“a {level} of mine”" in text) == ("level" in fields)
    assert "None" not in Concern(code).text


def test_every_limit_that_is_made_anywhere_has_a_sentence():
    calls = [
        node
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    ]
    made = [call.args[0] for call in calls if ast.unparse(call.func) == "Concern" and call.args]
    literal = {node.value for node in made if isinstance(node, ast.Constant)}
    assert literal <= SENTENCES.keys()
    assert len(literal) > 30, "they are found"


def test_the_worst_come_first_and_a_record_is_plain_data():
    grave, light = Concern("outlier", "x", grave=True), Concern("no_control")
    assert sorted([light, grave, Concern("outlier", "x")], key=lambda each: each.order)[0] == grave
    assert Concern("ceiling", "97 %", level="x").record() == {
        "code": "ceiling", "level": "x", "value": "97 %", "text": "CPU was saturated by “x” (97 % busy).", "grave": False,
    }  # fmt: skip
