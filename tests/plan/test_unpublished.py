"""What is published of a plan: no address, no folder, no secret, and no SQL of a private workload."""

import pytest

from benchlib.plan.level import Level
from benchlib.plan.words import (
    given_folders,
    private_texts,
    rate_words,
    time_words,
    unpublished,
    without,
    without_values,
)
from benchlib.plan.workload import HIDDEN, Beside, Data, Invariant, Script, Workload, explainable

SECRET = "SELECT salary FROM people"


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ({"file": "/home/ann/shop.dump"}, {"file": "shop.dump"}),
        ({"service": "shop"}, {"service": "shop"}),
        ({"service": "host=db.example.com user=ann"}, {"service": "a server"}),
        ({"service": "postgresql://ann@db.example.com/shop"}, {"service": "a server"}),
        ({"template": "shop_copy"}, {"template": "shop_copy"}),
    ],
)
def test_the_source_of_data_has_no_folder_and_no_address(data, shown):
    work = Workload(name="w", title="w", scripts=(Script(sql="SELECT 1"),), data=Data(**data))
    assert work.published().data == Data(**shown)


def test_a_private_workload_shows_titles_and_no_sql():
    work = Workload(
        name="w",
        title="w",
        private=True,
        scripts=(Script(sql=SECRET, title="salaries"), Script(sql=SECRET), Script(builtin="select-only")),
        beside=(Beside(sql=SECRET),),
        load_sql=SECRET,
        explain=(SECRET,),
        invariant=Invariant(count=SECRET),
    )
    shown = work.published()
    assert SECRET not in shown.model_dump_json()
    assert [one.sql for one in shown.scripts] == ["salaries", HIDDEN, None]
    assert (shown.load_sql, shown.unanalyzed_sql) == (HIDDEN, "")


@pytest.mark.parametrize(
    ("sql", "has"),
    [("/* a * b */ SELECT 1", True), ("-- a\n(SELECT 1)", True), ("/* SELECT */ VACUUM", False)],
)
def test_a_comment_before_a_statement_does_not_hide_its_plan(sql, has):
    assert explainable(sql) is has


def test_scripts_of_one_title_are_told_apart():
    scripts = (Script(sql="SELECT 1", title="a"), Script(sql="SELECT 2", title="a"), Script(sql="SELECT 3"))
    assert Workload(name="w", title="w", scripts=scripts).queries == (
        "a (script 1)",
        "a (script 2)",
        "script 3",
    )


def test_folders_secrets_and_installations_of_levels_are_replaced_whole(plan_of):
    plan = plan_of(
        levels={
            "fast": Level.model_validate({"storage": {"path": "/mnt/fast"}}),
            "built": Level.model_validate({"postgres": "/opt/pg/bin"}),
            "logged": Level.model_validate({"settings": {"log_directory": "/home/ann/logs"}}),
        }
    )
    replaced = unpublished(plan, {"password": "geheim"})
    assert given_folders(plan) == {"/mnt/fast": "a given folder"}
    told = {
        "lines": ["/mnt/fast/base", "/mnt/faster", "it was geheim", 7, "/home/ann/logs"],
        "of": "/opt/pg/bin/postgres",
    }
    assert without(told, replaced) == {
        "lines": ["a given folder/base", "/mnt/faster", "it was a hidden value", 7, "a path in a setting"],
        "of": "a given installation/postgres",
    }


def test_a_private_text_is_replaced_in_html_and_in_a_cell_of_papermill_too(study_of):
    command = Level(settings={"archive_command": 'cp "%p" /srv/müller && true'})
    shown = ['cp "%p" /srv/müller &amp;&amp; true', 'cp \\"%p\\" /srv/m\\xfcller && true']
    assert without(shown, private_texts(study_of(levels={"kept": command}))) == ["a hidden value"] * 2


def test_what_is_no_secret_by_its_place_or_value_stays(plan_of):
    shown = {
        "answers": {"no_key": "without"},
        "against": {"no_key": "defaults"},
        "settings": {"password_encryption": "md5", "ssl_passphrase_command_supports_reload": "on"},
    }
    assert unpublished(plan_of(), shown) == {}
    for common in ("true", "", ":", "off", "scram-sha-256"):
        assert unpublished(plan_of(), {"archive_command": common}) == {}
    files = {"workloads": "/home/me/a.toml, tpcb-like", "levels": {"left": {"workload": "~/b.toml"}}}
    assert unpublished(plan_of(), files) == {"/home/me/a.toml": "a.toml", "~/b.toml": "b.toml"}


@pytest.mark.parametrize(
    ("seconds", "text"), [(40.4, "40 s"), (60, "1 min"), (1080, "18 min"), (12_000, "3 h 20 min")]
)
def test_a_duration_is_told_in_the_unit_that_one_plans_with(seconds, text):
    assert time_words(seconds) == text


SHARE = "60 % of capacity"


@pytest.mark.parametrize(
    ("rate", "capacity", "text"),
    [
        (None, None, "no limit"),
        (1234.5, None, "1,234.5 tps"),
        (SHARE, None, SHARE),
        (SHARE, 1000.0, f"600 tps ({SHARE})"),
    ],
)
def test_a_rate_that_is_a_share_stays_one_until_the_whole_is_known(plan_of, rate, capacity, text):
    plan = plan_of(levels={"paced": Level.model_validate({"load": {"rate": rate}})}, capacity_tps=capacity)
    assert rate_words(plan, "paced") == text


@pytest.mark.parametrize(
    "message",
    [
        "Key (mail)=(ann@x) already exists.", "La clé « (mail)=(ann@x) » existe déjà.",
        "Schlüssel (mail)=(ann@x) existiert bereits.", "Schlüssel »ann@x«", "Failing row contains (1, ann@x).",
        "Key (mail)=(a(b) ann@x) already exists.", "can't read 'ann@x'", "at E'ann@x'", "ZEILE 1: SELECT ann@x",
        "LIGNE 1 : SELECT ann@x",
    ],
)  # fmt: skip
def test_a_message_loses_its_values(message):
    assert "ann@x" not in without_values(message)


def test_levels_that_differ_in_one_setting_alone_are_a_group(plan_of):
    levels = {
        str(n): Level.model_validate({"settings": {"work_mem": f"{n}MB", "jit": "off"}}) for n in (4, 8)
    }
    plan = plan_of(levels={**levels, "other": Level.model_validate({"settings": {"work_mem": "4MB"}})})
    assert ["4", "8"] in plan.alike("work_mem")
