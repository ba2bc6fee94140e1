"""A level is a patch over a base; what it changes of the load is checked."""

from benchlib.plan.level import Level, is_off

GIB = 1 << 30
FULL = {
    "postgres": "18",
    "settings": {"jit": "off"},
    "initdb": ("--wal-segsize=64",),
    "load": {"clients": 2, "threads": 1, "rate": 10.5},
    "workload": "insert",
    "replication": {"replicas": 2, "quorum": "ANY 1"},
    "storage": {"data": {"file_system": "xfs", "size": 4 << 30}, "read_iops": 500},
    "host": {"vm.swappiness": 0},
}


def test_a_level_is_a_patch_over_the_base_setting_by_setting():
    host, load = {"vm.swappiness": 60, "read_ahead_kb": 4096}, {"clients": 8, "protocol": "prepared"}
    base = {"postgres": "16", "settings": {"fsync": True, "work_mem": "4MB"}, "load": load, "host": host}
    patch = {"settings": {"work_mem": "8MB"}, "load": {"clients": 32}, "host": {"read_ahead_kb": 256}}
    over = Level.model_validate(patch).over(Level.model_validate(base))
    merged = {key: value | patch[key] for key, value in base.items() if key in patch}
    assert over == Level.model_validate({**base, **merged})


def test_an_empty_level_is_its_base_and_a_full_one_wins_everywhere():
    full = Level.model_validate(FULL)
    assert Level().over(full) == full
    assert full.over(Level(postgres="16", initdb=("--no-sync",), storage={"memory": GIB})) == full


def test_values_that_mean_off():
    off = [False, 0, "off", "OFF", " Off ", "of", "false", "f", "FALSE", "no", "n", "0"]
    on = [True, 1, "on", "yes", "t", "o", "", "offf", "local", "remote_apply", 2, None]
    assert [value for value in [*on, *off] if is_off(value)] == off
