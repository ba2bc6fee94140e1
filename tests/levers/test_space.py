"""Space for the server's files is checked before anything runs, also where two of them share a file system."""

import pytest
from clusters import bench_plan

from benchlib.errors import PreflightError
from benchlib.levers import control_groups, volumes
from benchlib.levers.lever import Wish
from benchlib.levers.storage import Storage


@pytest.mark.parametrize(("data", "wal", "fits"), [("", None, 500), ("", 300, 800), (400, 300, 700)])
def test_files_on_one_file_system_need_their_space_together(data, wal, fits, tmp_path, monkeypatch):
    def image(mib):
        return {"path": str(tmp_path), "file_system": "ext4", "size": mib << 20}

    free = {"mib": fits}
    monkeypatch.setattr("benchlib.host.facts.free_mib", lambda path: free["mib"])
    monkeypatch.setattr(volumes, "check", lambda place, scratch: None)
    monkeypatch.setattr(control_groups, "check", lambda caps, devices: None)
    monkeypatch.setattr(Wish, "data_mib", 500 if data == "" else 100)
    wish = Wish(bench_plan({"one": {}, "other": {}}), "one", tmp_path)
    places = {"data": str(tmp_path) if data == "" else image(int(data)), "wal": wal and image(wal)}
    storage = Storage.model_validate(places)
    storage.check(wish)
    free["mib"] -= 1
    with pytest.raises(PreflightError, match=rf"needs {fits} MiB of .*, {fits - 1} MiB are free"):
        storage.check(wish)
