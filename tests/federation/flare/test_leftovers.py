"""What jobs leave: the last ones stay, failed ones longer, and nothing that is no job's."""

from __future__ import annotations

import json
import os
import uuid

from fedmend.federation.engines.flare.kits import (
    KEEP_FAILED,
    clear_folders,
    clear_store,
    mark_finished,
    note_finished,
    to_forget,
)


def job_folder(kit, age: int, *, finished: bool):
    folder = kit / str(uuid.uuid4())
    (folder / "app").mkdir(parents=True)
    (folder / "log.txt").write_text("a line")
    if finished:
        mark_finished(folder)
    os.utime(folder, (1e9 - age, 1e9 - age))
    return folder


def test_a_party_keeps_the_last_jobs_and_more_of_those_that_failed(tmp_path):
    good = [job_folder(tmp_path, age, finished=True) for age in range(0, 80, 10)]
    bad = [job_folder(tmp_path, age, finished=False) for age in range(5, 5 + 10 * 25, 10)]
    (tmp_path / "runs").mkdir()
    clear_folders(tmp_path, 3)
    assert [each.exists() for each in good] == [True] * 3 + [False] * 5
    assert [each.exists() for each in bad] == [True] * KEEP_FAILED + [False] * (25 - KEEP_FAILED)
    assert (tmp_path / "runs").is_dir()
    clear_folders(tmp_path, 0)
    assert not any(each.exists() for each in good)


def test_a_job_without_a_folder_is_not_marked(tmp_path):
    mark_finished(tmp_path / "gone")
    assert not (tmp_path / "gone").exists()


def test_the_store_keeps_what_failed_and_the_last_that_finished(tmp_path):
    note_finished(tmp_path, ["a", "b"])
    note_finished(tmp_path, ["d", "e"])
    assert to_forget(tmp_path, ["a", "c"], 2) == []  # the others are still ending
    assert to_forget(tmp_path, ["a", "b", "c", "d", "e"], 2) == ["a", "b"]
    assert to_forget(tmp_path, ["c", "d", "e"], 2) == []
    assert to_forget(tmp_path, ["c", "d", "e"], 0) == ["d", "e"]
    many = [str(number) for number in range(KEEP_FAILED + 3)]
    assert to_forget(tmp_path, many, 2) == ["0", "1", "2"]


def test_a_damaged_list_of_finished_jobs_loses_nothing(tmp_path):
    (tmp_path / "finished_jobs.json").write_text("[1, 2")
    assert to_forget(tmp_path, ["a", "b"], 0) == []


def test_a_new_server_does_not_find_unfinished_jobs(tmp_path):
    for name, status in (("a", "FINISHED:ABORTED"), ("b", "RUNNING"), ("c", None)):
        (tmp_path / "jobs" / name).mkdir(parents=True)
        if status:
            (tmp_path / "jobs" / name / "meta").write_text(json.dumps({"status": status}))
    clear_store(tmp_path)
    assert [each.name for each in (tmp_path / "jobs").iterdir()] == ["a"]
