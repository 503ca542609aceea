"""Each planted bug of the name server: what it gets wrong, and that without it nothing is."""

from __future__ import annotations

from contextlib import suppress

from planted import HEALTHY, Mutant, with_and_without

from shaketable.system.nameserver.registry import Registration, RegistrationRefused, RouteRegistry
from shaketable.system.remoting.name_server_requests import DataVersion, TopicConfig

TOPICS = {"t": TopicConfig("t"), "u": TopicConfig("u")}


def says(address: str, *, broker_id: int = 0, state: int = 0) -> Registration:
    version = DataVersion(state_version=state)
    return Registration("c", "b", address, broker_id, version=version, topics=TOPICS)


def masters(registry: RouteRegistry) -> list[str]:
    """Where clients are sent to with messages for topic "t"."""
    route = registry.route("t")
    return [] if route is None else [data.broker_addrs[0] for data in route.broker_datas]


@with_and_without("dead-broker-kept")
def test_who_is_gone_is_in_no_route(mutant: Mutant) -> None:
    registry = mutant.registry()
    kept = [] if mutant is HEALTHY else ["h:1"]
    registry.register(says("h:1"), 1, 0.0)
    registry.connection_closed(1)
    assert masters(registry) == kept
    registry.register(says("h:1"), 2, 0.0)
    registry.expire(1e9)
    assert masters(registry) == kept


@with_and_without("late-close-forgets-newcomer")
def test_an_old_connection_that_closes_takes_nobody_along(mutant: Mutant) -> None:
    registry = mutant.registry()
    registry.register(says("h:1"), 1, 0.0)
    registry.register(says("h:1"), 2, 0.0)
    registry.connection_closed(1)
    assert masters(registry) == (["h:1"] if mutant is HEALTHY else [])


@with_and_without("older-state-accepted")
def test_a_leader_of_an_older_term_does_not_take_the_route(mutant: Mutant) -> None:
    registry = mutant.registry()
    registry.register(says("h:1", state=7), 1, 0.0)
    with suppress(RegistrationRefused):
        registry.register(says("h:2", state=6), 2, 0.0)
    assert masters(registry) == (["h:1"] if mutant is HEALTHY else ["h:2"])


@with_and_without("unregister-by-id")
def test_an_old_master_that_goes_leaves_the_new_one_there(mutant: Mutant) -> None:
    registry = mutant.registry()
    registry.register(says("h:1"), 1, 0.0)
    registry.register(says("h:2"), 2, 0.0)
    registry.unregister("b", "h:1")
    assert masters(registry) == (["h:2"] if mutant is HEALTHY else [])


@with_and_without("deleted-topic-stays")
def test_a_deleted_topic_has_no_route(mutant: Mutant) -> None:
    registry = mutant.registry()
    registry.register(says("h:1"), 1, 0.0)
    registry.delete_topic("t")
    assert masters(registry) == ([] if mutant is HEALTHY else ["h:1"])


@with_and_without("routes-kept")
def test_a_route_changes_with_its_brokers(mutant: Mutant) -> None:
    registry = mutant.registry()
    registry.register(says("h:1"), 1, 0.0)
    assert masters(registry) == ["h:1"]
    registry.register(says("h:2"), 2, 0.0)
    assert masters(registry) == (["h:2"] if mutant is HEALTHY else ["h:1"])
