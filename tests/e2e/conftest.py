"""Fixtures of the end-to-end tests: one shared instance with scripted workers; logs on a failure."""
import os
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
import instance  # noqa: E402

_live = []


@pytest.fixture(scope="session")
def shared():
    with instance.Instance(workers=2, openai=1) as g:
        _live.append(g)
        yield g
        _live.remove(g)


@pytest.fixture
def gate(shared):
    """The shared instance, at rest before and after, every scripted worker well-behaved."""
    yield shared
    for p in shared.worker_ports + shared.openai_ports:
        shared.worker_ctl(p, "set", {})
    assert shared.procs["gateway"].alive(), "the gateway died\n" + shared.tail(200)
    shared.idle()
    shared.check_logs()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        for g in _live:
            report.sections.append(("instance", g.tail(30)))
    return report
