"""A name server's routes, watched: the right registry passes, each planted bug breaks one rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from shaketable.system import mutants
from shaketable.system.invariants.routes import watched
from shaketable.system.invariants.violated import Violated
from shaketable.system.nameserver.registry import Registration, RegistrationRefused, RouteRegistry
from shaketable.system.remoting.name_server_requests import DataVersion, TopicConfig

TOPICS = {"a": TopicConfig("a"), "b": TopicConfig("b")}


def said(address: str, broker_id: int = 0, state: int = 0) -> Registration:
    version = DataVersion(state_version=state)
    return Registration("c", "broker", address, broker_id, version=version, topics=TOPICS)


def a_leader_dies(registry: RouteRegistry) -> None:
    registry.register(said("n0:1"), 1, 0.0)
    registry.register(said("n1:1", 1), 2, 0.0)
    registry.connection_closed(1)
    registry.register(said("n1:1", 0, state=2), 2, 10.0)


def one_is_silent(registry: RouteRegistry) -> None:
    registry.register(said("n0:1"), 1, 0.0)
    registry.register(said("n1:1", 1), 2, 0.0)
    registry.heartbeat("n1:1", 100_000.0)
    registry.expire(150_000.0)


def an_old_leader_is_late(registry: RouteRegistry) -> None:
    registry.register(said("n0:1", state=1), 1, 0.0)
    registry.register(said("n1:1", 0, state=2), 2, 10.0)
    with pytest.raises(RegistrationRefused):
        registry.register(said("n0:1", 0, state=1), 1, 20.0)
    registry.register(said("n0:1", 1, state=2), 1, 30.0)


def one_comes_by_a_new_connection(registry: RouteRegistry) -> None:
    registry.register(said("n0:1"), 1, 0.0)
    registry.register(said("n0:1"), 2, 10.0)
    registry.connection_closed(1)


def an_old_master_goes_late(registry: RouteRegistry) -> None:
    registry.register(said("n0:1", state=1), 1, 0.0)
    registry.register(said("n1:1", 0, state=2), 2, 10.0)
    registry.unregister("broker", "n0:1")


def a_topic_is_deleted(registry: RouteRegistry) -> None:
    registry.register(said("n0:1"), 1, 0.0)
    registry.delete_topic("a")


COURSES = {
    "dead-broker-kept": (a_leader_dies, "routes-name-who-is-there"),
    "late-close-forgets-newcomer": (one_comes_by_a_new_connection, "routes-name-who-is-there"),
    "routes-kept": (a_leader_dies, "routes-name-who-is-there"),
    "older-state-accepted": (an_old_leader_is_late, "older-state-is-refused"),
    "unregister-by-id": (an_old_master_goes_late, "routes-name-who-is-there"),
    "deleted-topic-stays": (a_topic_is_deleted, "deleted-is-not-routed"),
}


@pytest.mark.parametrize("course", [one_is_silent, *(course for course, _ in COURSES.values())])
def test_the_right_registry_breaks_nothing(course: Callable[[RouteRegistry], None]) -> None:
    found: list[Violated] = []
    course(watched(RouteRegistry, found.append)())
    assert not found


@pytest.mark.parametrize("bug", COURSES)
def test_each_planted_bug_is_told_once(bug: str) -> None:
    course, invariant = COURSES[bug]
    found: list[Violated] = []
    registry = watched(mutants.load(bug).registry, found.append)()
    if bug == "older-state-accepted":
        with pytest.raises(BaseException, match="DID NOT RAISE"):
            course(registry)
    else:
        course(registry)
    assert [one.invariant for one in found] == [invariant]


def test_one_that_forgets_the_silent_only_late_is_told() -> None:
    found: list[Violated] = []
    one_is_silent(watched(mutants.load("dead-broker-kept").registry, found.append)())
    assert [one.invariant for one in found] == ["routes-name-who-is-there"]
