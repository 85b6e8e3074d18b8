"""Deferred work: done once, by whoever comes first, and its errors reach whoever settles."""

from __future__ import annotations

import os
import threading

import pytest

from kohort import background
from kohort.background import begin_deferred, defer

PATIENCE = 30.0


def test_settling_does_work_that_nobody_began() -> None:
    done: list[int] = []
    deferred = defer(lambda: done.append(threading.get_ident()))
    assert not done
    deferred.settle()
    deferred.settle()
    assert done == [threading.get_ident()]


def test_begun_work_is_done_once_by_another_thread_and_settling_waits_for_it() -> None:
    began, may_end = threading.Event(), threading.Event()
    done: list[int] = []

    def work() -> None:
        began.set()
        assert may_end.wait(PATIENCE)
        done.append(threading.get_ident())

    deferred = defer(work)
    begin_deferred()
    assert began.wait(PATIENCE)
    settled = threading.Thread(target=deferred.settle)
    settled.start()
    assert settled.is_alive()  # the work cannot end before it is let
    may_end.set()
    settled.join(PATIENCE)
    deferred.settle()
    assert len(done) == 1
    assert done[0] not in {threading.get_ident(), settled.ident}


@pytest.mark.parametrize("begun", [False, True])
def test_what_the_work_raises_is_raised_by_every_settle(begun: bool) -> None:
    def work() -> None:
        raise OSError("the disk is full")

    deferred = defer(work)
    if begun:
        begin_deferred()
    for _ in range(2):
        with pytest.raises(OSError, match="full"):
            deferred.settle()


def test_work_that_fails_does_not_keep_later_work_from_being_done() -> None:
    def work() -> None:
        raise ValueError("wrong")

    done = threading.Event()
    failing, next_one = defer(work), defer(done.set)
    begin_deferred()
    assert done.wait(PATIENCE)
    next_one.settle()
    with pytest.raises(ValueError, match="wrong"):
        failing.settle()


def test_settled_work_is_forgotten() -> None:
    deferred = defer(lambda: None)
    assert deferred in background._waiting
    deferred.settle()
    assert deferred not in background._waiting


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_starts_its_own_worker_and_does_not_do_its_parents_work() -> None:
    defer(lambda: None)
    begin_deferred()  # this process has a worker, the child will not
    done_here = threading.Event()
    here = defer(done_here.set)
    child = os.fork()
    if child == 0:
        done = threading.Event()
        defer(done.set)
        begin_deferred()
        os._exit(0 if done.wait(PATIENCE) and not done_here.is_set() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    here.settle()
    assert done_here.is_set()
