"""What one seed decides, as data: the group, its settings, its faults and the clients' calls.

`draw_schedule` generates it. A Schedule can be written as JSON, reduced by hand or by the shrinker,
and run again: a run depends on nothing but the schedule and its seed.

Swarm testing: each seed has its own mix of fault kinds, rates, latencies, file sizes and limits,
since a run in which everything may happen rarely lets anything happen often (Groce et al. 2012).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from shaketable.system.broker.limits import BrokerConfig, ExpiryConfig
from shaketable.system.raft.protocol import RaftConfig
from shaketable.system.sim.initial_disks.apache_log import SHAPES as APACHE_SHAPES
from shaketable.system.sim.initial_disks.plain_messages import SHAPES
from shaketable.system.sim.schedules.faults import (
    MUST_BE_DETECTED,
    REBUILT,
    WAYS,
    AnyFault,
    DamageFile,
    RefusedChange,
    Stop,
)
from shaketable.system.sim.schedules.random_faults import DISK_LOSS_KINDS, GRID_MS, draw_faults
from shaketable.system.sim.schedules.random_streams import RandomStream, RandomStreams
from shaketable.system.sim.schedules.scenarios import (
    CHAIN_WEIGHTS,
    CHAINS,
    LATER,
    Group,
    Scenario,
    draw_scenarios,
)

QUEUES_MAX = 4
DELAYED = 0.5
"""Share of seeds with delayed messages."""
QUIET = 0.5
"""Share of the seeds with a queue where clients wait together for single messages."""
QUIET_ROUND_MS = 1_500
COMMITS_PER_S = 6
FETCHES_PER_S = 4
"""Of consumer groups' offsets, by all clients together."""
WAVE_MS = 1000
"""Where the load comes in waves, half of each such period is quiet."""
SCENARIOS = 0.5
"""Share of the seeds that have scenarios (`schedules.scenarios`), and fewer other faults."""
CHAINED = 0.9
"""Share of the seeds that have chains, whatever else they have."""
CROWDED = 0.08
"""Share of the seeds in which a group comes to its limit of members."""
LATER_CHAINED = 0.5
"""Share of the seeds that have one or more of the later scenarios, too."""
LATER_ALONE = 0.7
SETTLES_MS = 1_000
RARE_SIZES = 0.15
"""Share of the seeds with a rarely tested group size, mostly even ones."""
CHOPPED = (0.0, 0.0, 0.05, 0.2)
"""A seed has one of these shares of connections that transfer bytes piece by piece."""
STORMS = 0.2
"""Share of the seeds that are storms: leaders are lost faster than the group settles."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """A group's settings for one run. Times in virtual milliseconds, sizes in bytes."""

    members: int = 3
    run_ms: int = 30_000
    idle_ms: int = 1_500
    """How long before the end the clients stop: an idle group must catch up, too."""
    ack: str = "fsync"
    election_timeout_min_ms: float = 250.0
    election_timeout_max_ms: float = 500.0
    heartbeat_interval_ms: float = 50.0
    quorum_silence_max_ms: float = 500.0
    retransmit_after_ms: float = 400.0
    lease_ms: float = 0.0
    tail_bytes_max: int = 1 << 20
    push_bytes_max: int = 1 << 20
    in_flight_pushes_max: int = 256
    data_file_bytes: int = 65_536
    index_file_bytes: int = 32_000
    link_delay_ms: float = 0.5
    link_jitter_ms: float = 1.0
    client_delay_ms: float = 0.5
    sync_ms: float = 1.0
    sync_jitter_ms: float = 2.0
    mark_lag_ms: float = 50.0
    checkpoint_interval_ms: float = 3000.0
    clients: int = 4
    queues: int = 2
    client_timeout_ms: float = 1500.0
    expiry_check_ms: float = 0.0
    """How often each node looks for data files to expire; 0: never."""
    reserved_ms: int = 3_600_000
    """How old a data file gets before it expires."""
    ack_timeout_ms: float = 2500.0
    pending_sends_max: int = 10_000
    reads_waiting_max: int = 10_000
    key_items_max: int = 0
    """Messages with keys that may wait for a checkpoint; 0: no key index."""
    key_slots: int = 1_000
    key_file_items: int = 1_000
    keyed: float = 0.0
    """Share of the messages that have keys and tags."""
    big_every: int = 0
    """Every so-many-th message nearly fills a data file, or is slightly too large; 0: none."""
    plain_log: str = ""
    """Log before the upgrade (`system.sim.initial_disks.plain_messages.SHAPES`); "": none."""
    apache_log: str = ""
    """Shape of imported Apache logs (`system.sim.initial_disks.apache_log.SHAPES`); "": none."""
    older_config: bool = False
    """Whether config/ has topics and group offsets from before the group."""
    preferred_leaders: tuple[str, ...] = ()
    crowded: bool = False
    """Whether the operator of a core world adds members up to the limit, once all is calm."""
    chopped: float = 0.0
    """Share of the whole-node connections that transfer bytes piece by piece."""
    pull_messages_max: int = 32
    pull_bytes_max: int = 256 * 1024
    queue_tail_max: int = 1024
    """Units of a queue that stay in memory once its files have them."""
    expired_files_max: int = 10
    """Data files that expire in one step."""
    filtered_units_max: int = 800
    """Messages that one pull by tags looks at."""


class Call(msgspec.Struct, frozen=True, gc=False):
    """What a client does at one instant: `count` appends, or one other operation, of one queue.

    `kind` is "append" (one by one, pipelined), "batch" (all in one read of the connection), "pull"
    (from `back` messages before the end that the client knows), "max_offset", "commit" (the offset
    of the client's consumer group), "delay" (a delayed message) or "fetch" (the committed offset of
    the group of client `back`).
    """

    at_ms: int
    client: int
    kind: str
    queue: int
    count: int = 1
    back: int = 0
    body_bytes: int = 32


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """All that a run depends on."""

    seed: int
    settings: Settings
    faults: tuple[AnyFault, ...]
    calls: tuple[Call, ...]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller fixes; None leaves it to the seed."""

    members: int | None = None
    run_ms: int = 30_000
    operations_per_s: int = 215
    faults: tuple[str, ...] | None = None
    """Kinds of faults to choose from, by name; an empty tuple: no faults."""
    chains: bool = True
    """Whether seeds have chains (`schedules.scenarios.CHAINS`) and rare group sizes. Without
    them a seed's schedule is what it was before chains existed."""
    faults_min: int = 8
    faults_max: int = 14


def draw_schedule(seed: int, options: Options | None = None) -> Schedule:
    """Generate the whole schedule of a seed."""
    options = options or Options()
    rngs = RandomStreams(seed)
    how_many = rngs.stream("fault_count")
    is_storm = how_many.chance(STORMS)
    has_scenarios = how_many.chance(SCENARIOS) and not is_storm and options.faults is None
    settings = draw_settings(rngs.stream("settings"), options, is_storm=is_storm)
    if options.chains and options.members is None:
        settings = _of_rare_size(rngs.stream("rare_size"), settings)
    settings = draw_store_settings(rngs.stream("store_settings"), settings)
    if options.chains:
        chopped = rngs.stream("chopped").choice(CHOPPED)
        settings = msgspec.structs.replace(settings, chopped=chopped)
        settings = draw_limits(rngs.stream("limits"), settings)
    count = how_many.randint(options.faults_min, options.faults_max)
    if is_storm:
        count *= 3
    elif has_scenarios:
        count = max(options.faults_min, count // 2)
    if settings.members == 1:
        count *= 2  # partitions and transfers have no effect in a group of one
    faults = draw_faults(
        rngs,
        members=settings.members,
        from_ms=500,
        until_ms=max(1000, options.run_ms - 7000),
        kinds=options.faults,
        count=count,
        ack=settings.ack,
        is_storm=is_storm,
    )
    faults = draw_store_faults(
        rngs.stream("store_faults"), settings, faults, options.faults, options.run_ms - 7000
    )
    if has_scenarios:
        faults = _with_scenarios(rngs.stream("scenarios"), settings, faults, options)
    chains = rngs.stream("chains")
    if options.chains and options.faults is None and chains.chance(CHAINED):
        faults = _with_chains(chains, settings, faults, options)
    later = rngs.stream("later_scenarios")
    if options.chains and options.faults is None and later.chance(LATER_CHAINED):
        faults = _with_later(later, settings, faults, options)
    if options.chains and rngs.stream("crowded").chance(CROWDED):
        settings = msgspec.structs.replace(settings, crowded=True)
    calls = draw_calls(rngs.stream("calls"), settings, options.operations_per_s)
    if options.chains:
        more = [*draw_offset_calls(rngs.stream("offset_calls"), settings)]
        more += draw_quiet_calls(rngs.stream("quiet_calls"), settings)
        more += draw_delayed_calls(rngs.stream("delayed_calls"), settings)
        if all(call.at_ms % WAVE_MS <= WAVE_MS // 2 for call in calls):  # no other call is quiet
            more = [msgspec.structs.replace(call, at_ms=in_wave_ms(call.at_ms)) for call in more]
        calls = tuple(sorted((*calls, *more), key=lambda call: call.at_ms))
    return Schedule(seed=seed, settings=settings, faults=faults, calls=calls)


def _with_scenarios(
    rng: RandomStream, settings: Settings, faults: tuple[AnyFault, ...], options: Options
) -> tuple[AnyFault, ...]:
    more = draw_scenarios(
        rng, _group(settings), from_ms=1500, until_ms=options.run_ms - 7000, ack=settings.ack
    )
    return tuple(sorted((*faults, *more), key=lambda fault: fault.start_ms))


def _with_chains(
    rng: RandomStream,
    settings: Settings,
    faults: tuple[AnyFault, ...],
    options: Options,
    among: Mapping[str, Scenario] = CHAINS,
) -> tuple[AnyFault, ...]:
    """Add chains; at most one disk is lost in a run."""
    more = draw_scenarios(
        rng,
        _group(settings),
        from_ms=1500,
        until_ms=options.run_ms - 7000,
        ack=settings.ack,
        among=among,
        weights=CHAIN_WEIGHTS,
        may_lose_disk=not any(fault.kind in DISK_LOSS_KINDS for fault in faults),
    )
    return tuple(sorted((*faults, *more), key=lambda fault: fault.start_ms))


def _with_later(
    rng: RandomStream, settings: Settings, faults: tuple[AnyFault, ...], options: Options
) -> tuple[AnyFault, ...]:
    """Add later scenarios; for most seeds in place of what would get in their way."""
    is_alone = rng.chance(LATER_ALONE)
    more = _with_chains(rng, settings, (), options, LATER)
    if is_alone and more:
        from_ms = more[0].start_ms - SETTLES_MS
        until_ms = max(fault.end_ms for fault in more)
        faults = tuple(
            fault for fault in faults if fault.end_ms < from_ms or fault.start_ms > until_ms
        )
    return tuple(sorted((*faults, *more), key=lambda fault: fault.start_ms))


def _group(settings: Settings) -> Group:
    members = tuple(f"n{number}" for number in range(settings.members))
    return Group(members, int(settings.election_timeout_min_ms), settings.lease_ms > 0)


def _of_rare_size(rng: RandomStream, settings: Settings) -> Settings:
    """Give some seeds a group of another size."""
    if not rng.chance(RARE_SIZES):
        return settings
    return msgspec.structs.replace(settings, members=rng.choice((2, 4, 4, 6, 6, 7)))


def draw_settings(rng: RandomStream, options: Options, *, is_storm: bool = False) -> Settings:
    """Generate a group's settings."""
    members = rng.choices((1, 2, 3, 4, 5), (2, 6, 56, 6, 30))[0]
    heartbeat = rng.choice((50.0, 50.0, 80.0, 100.0))
    # Together they bound a follower's throughput; the clients' load must stay below it.
    push_bytes, in_flight = rng.choice(
        ((600, 256), (4_000, 32), (4_000, 256), (1 << 20, 1), (1 << 20, 4), (1 << 20, 256))
    )
    expiry_check_ms, reserved_ms = rng.choice(
        ((0.0, 3_600_000), (0.0, 3_600_000), (1000.0, 3_600_000), (1000.0, 4_000))
    )
    timeout_ms = rng.choice((250.0, 250.0, 250.0, 500.0, 800.0))
    slow_network = rng.chance(0.5 if is_storm else 0.2)
    slow_disk = rng.chance(0.4 if is_storm else 0.2)
    return Settings(
        members=options.members or members,
        run_ms=options.run_ms,
        ack="page-cache" if rng.chance(0.1) else "fsync",
        election_timeout_min_ms=timeout_ms,
        election_timeout_max_ms=rng.choice((1.3, 2.0)) * timeout_ms,
        heartbeat_interval_ms=heartbeat,
        quorum_silence_max_ms=max(2 * timeout_ms, rng.choice((500.0, 500.0, 1000.0))),
        lease_ms=rng.choice((0.0, timeout_ms - 50)),
        tail_bytes_max=rng.choice((1, 2_000, 20_000, 1 << 20)),
        push_bytes_max=push_bytes,
        in_flight_pushes_max=in_flight,
        data_file_bytes=rng.choice((8_192, 16_384, 65_536, 262_144)),
        index_file_bytes=32 * rng.choice((64, 1_000, 5_000)),
        link_delay_ms=rng.uniform(2, 8) if slow_network else rng.uniform(0.1, 1.0),
        link_jitter_ms=rng.uniform(1, 15) if slow_network else rng.uniform(0.1, 1.5),
        client_delay_ms=rng.uniform(0.1, 1.0),
        sync_ms=rng.uniform(2, 15) if slow_disk else rng.uniform(0.1, 1.5),
        sync_jitter_ms=rng.uniform(1, 20) if slow_disk else rng.uniform(0.1, 2.0),
        mark_lag_ms=rng.choice((50.0, 100.0, 400.0)),
        checkpoint_interval_ms=rng.choice((1000.0, 3000.0)),
        clients=rng.randint(3, 5),
        queues=rng.randint(1, QUEUES_MAX),
        client_timeout_ms=rng.choice((800.0, 1500.0, 3000.0)),
        expiry_check_ms=expiry_check_ms,
        reserved_ms=reserved_ms,
        ack_timeout_ms=rng.choice((300.0, 2500.0, 2500.0)),
        pending_sends_max=rng.choice((40, 10_000, 10_000, 10_000)),
        reads_waiting_max=rng.choice((2, 10_000, 10_000, 10_000)),
    )


def draw_calls(rng: RandomStream, settings: Settings, operations_per_s: int) -> tuple[Call, ...]:
    """Generate the clients' calls, `operations_per_s` on average, in order of time."""
    calls: list[Call] = []
    last_ms = settings.run_ms - settings.idle_ms
    burst = rng.choice((6, 12, 18, 24))
    comes_in_waves = rng.chance(0.8 if settings.lease_ms else 0.2)
    reads = rng.uniform(0.1, 0.4)
    wanted = operations_per_s * settings.run_ms // 1000
    done = 0
    while done < wanted:
        at_ms = rng.randrange(100, last_ms)
        if comes_in_waves:
            at_ms = in_wave_ms(at_ms)
        client = rng.randrange(settings.clients)
        queue = rng.randrange(settings.queues)
        if rng.random() < reads:
            kind = "pull" if rng.random() < 0.7 else "max_offset"
            back = rng.choice((0, 3, 20, 1 << 30))
            calls.append(Call(at_ms, client, kind, queue, 1, back))
            done += 1
        else:
            count = 1 if rng.random() < 0.1 else rng.randint(2, 2 * burst)
            kind = "batch" if rng.random() < 0.8 else "append"
            body = rng.choice((16, 32, 32, 100, 400))
            calls.append(Call(at_ms, client, kind, queue, count, 0, body))
            done += count
    calls.sort(key=lambda call: call.at_ms)
    return tuple(calls)


def in_wave_ms(at_ms: int) -> int:
    """Return when a call comes where the load comes in waves: in the first half of each period."""
    return at_ms - at_ms % WAVE_MS // 2


def draw_offset_calls(rng: RandomStream, settings: Settings) -> tuple[Call, ...]:
    """Generate commits of consumer groups' offsets, and fetches of what is committed."""
    calls: list[Call] = []
    last_ms = settings.run_ms - settings.idle_ms
    for kind, per_s in (("commit", COMMITS_PER_S), ("fetch", FETCHES_PER_S)):
        for _ in range(per_s * settings.run_ms // 1000):
            at_ms, client = rng.randrange(100, last_ms), rng.randrange(settings.clients)
            queue, whose = rng.randrange(settings.queues), rng.randrange(settings.clients)
            calls.append(Call(at_ms, client, kind, queue, 1, whose))
    return tuple(calls)


def draw_quiet_calls(rng: RandomStream, settings: Settings) -> tuple[Call, ...]:
    """Generate rounds of pulls at the end of a queue of their own, and then single messages.

    Some of the pulls go on waiting while others have got what they want.
    """
    if not rng.chance(QUIET):
        return ()
    calls: list[Call] = []
    queue, last_ms = settings.queues, settings.run_ms - settings.idle_ms
    for round_ms in range(100, last_ms - QUIET_ROUND_MS, QUIET_ROUND_MS):
        for _ in range(6):
            client = rng.randrange(settings.clients)
            calls.append(Call(round_ms + rng.randrange(100), client, "max_offset", queue))
            calls.append(Call(round_ms + 150 + rng.randrange(100), client, "pull", queue))
        for _ in range(4):
            client = rng.randrange(settings.clients)
            calls.append(Call(round_ms + rng.randrange(260, 900), client, "append", queue))
    return tuple(calls)


def draw_delayed_calls(rng: RandomStream, settings: Settings) -> tuple[Call, ...]:
    """Generate delayed messages, few enough for some seconds without any."""
    if not rng.chance(DELAYED):
        return ()
    last_ms = settings.run_ms - settings.idle_ms
    count = int(rng.choice((0.3, 1.0, 4.0)) * settings.run_ms / 1000)
    return tuple(
        Call(
            rng.randrange(100, last_ms),
            rng.randrange(settings.clients),
            "delay",
            rng.randrange(settings.queues),
        )
        for _ in range(count)
    )


# Settings and faults of the store: key index, plain log, big messages, stops, damaged files.
#
# Each seed has some of them. All come from streams of their own, so that the rest of a schedule is
# the same with and without them.

STORE_KINDS = ("stop", "damage_file", "refused_change")
_LEAST_MS = 2_000
"""Shorter runs get no store faults."""
_KEYED = 0.4
_BIG = 0.2
_PLAIN = 0.25
_PREFERRED = 0.25
_APACHE = 0.2
_CONFIG = 0.3


def draw_store_settings(rng: RandomStream, settings: Settings) -> Settings:
    """Return the settings with this seed's store settings."""
    if rng.chance(_KEYED):
        settings = msgspec.structs.replace(
            settings,
            # Not fewer: a new member takes a checkpoint for each so many entries of a whole log.
            key_items_max=rng.choice((250, 400, 2_000)),
            key_slots=rng.choice((31, 200, 3_000)),
            key_file_items=rng.choice((50, 300, 2_000)),
            keyed=rng.choice((0.05, 0.3, 1.0)),
        )
    if rng.chance(_BIG):
        settings = msgspec.structs.replace(settings, big_every=rng.choice((100, 400)))
    if rng.chance(_PLAIN):
        settings = msgspec.structs.replace(settings, plain_log=rng.choice(SHAPES))
    if rng.chance(_PREFERRED):
        names = [f"n{number}" for number in range(settings.members)]
        rng.shuffle(names)
        preferred = tuple(names[: rng.randint(1, 2)])
        settings = msgspec.structs.replace(settings, preferred_leaders=preferred)
    return _of_older(rng, settings)


def draw_limits(rng: RandomStream, settings: Settings) -> Settings:
    """Return the settings with limits of the broker, some so low that they are reached."""
    return msgspec.structs.replace(
        settings,
        pull_messages_max=rng.choice((1, 7, 32, 32)),
        pull_bytes_max=rng.choice((400, 3_000, 256 * 1024, 256 * 1024)),
        queue_tail_max=rng.choice((0, 5, 50, 1024)),
        expired_files_max=rng.choice((1, 2, 10)),
        filtered_units_max=rng.choice((3, 40, 800)),
    )


def _of_older(rng: RandomStream, settings: Settings) -> Settings:
    """Return the settings with what the disks hold before the group's first start."""
    if rng.chance(_APACHE) and not settings.plain_log:
        settings = msgspec.structs.replace(settings, apache_log=rng.choice(APACHE_SHAPES))
    return msgspec.structs.replace(settings, older_config=rng.chance(_CONFIG))


def draw_store_faults(
    rng: RandomStream,
    settings: Settings,
    faults: tuple[AnyFault, ...],
    kinds: tuple[str, ...] | None,
    until_ms: int,
) -> tuple[AnyFault, ...]:
    """Return `faults` and up to four store faults, in order of time.

    At most one fault of a run destroys a node's log.
    """
    is_alone = settings.members == 1
    own = [
        kind
        for kind in STORE_KINDS
        if (kinds is None or kind in kinds)
        and (rng.chance(0.5) or (is_alone and kind == "refused_change"))
    ]
    if not own or until_ms < _LEAST_MS:
        return faults
    may_lose = settings.members > 2 and all(fault.kind not in DISK_LOSS_KINDS for fault in faults)
    more: list[AnyFault] = []
    for _ in range(rng.randint(1, 4)):
        start_ms = rng.randrange(500, max(1000, until_ms - 500), GRID_MS)
        duration_ms = rng.randrange(GRID_MS, min(1500, until_ms - start_ms), GRID_MS)
        fault = _fault(rng, rng.choice(own), settings, start_ms, duration_ms, may_lose=may_lose)
        may_lose = may_lose and not (isinstance(fault, DamageFile) and fault.file not in REBUILT)
        more.append(fault)
    return tuple(sorted((*faults, *more), key=lambda fault: fault.start_ms))


def _fault(
    rng: RandomStream,
    kind: str,
    settings: Settings,
    start_ms: int,
    duration_ms: int,
    *,
    may_lose: bool,
) -> AnyFault:
    if kind == "refused_change":
        # "unknown" asks a group of one to remove its only voter.
        why = rng.choice(("unknown", "present", "nameless", "no_voter"))
        why = "unknown" if settings.members == 1 else why
        return RefusedChange(start_ms=start_ms, duration_ms=duration_ms, why=why)
    node = rng.choice(("leader", "follower", f"n{rng.randrange(settings.members)}"))
    if kind == "stop":
        loses_power = rng.chance(0.5)
        return Stop(start_ms=start_ms, duration_ms=duration_ms, node=node, loses_power=loses_power)
    loses_log = rng.chance(0.4) and may_lose
    # Data that is only in the page cache is after the durable watermark: its loss goes undetected.
    lost = [file for file in MUST_BE_DETECTED if file != "data" or settings.ack == "fsync"]
    file = rng.choice(lost if loses_log else REBUILT)
    return DamageFile(
        start_ms=start_ms,
        duration_ms=duration_ms,
        node=node,
        file=file,
        way=rng.choice(WAYS[file]),
        place=rng.random(),
    )


# Broker and Raft configuration of a simulated run, from its settings.


def broker_config(settings: Settings) -> BrokerConfig:
    """Return the brokers' configuration of a run."""
    return BrokerConfig(
        data_file_bytes=settings.data_file_bytes,
        pending_sends_max=settings.pending_sends_max,
        key_items_max=settings.key_items_max,
        ack_timeout_ms=settings.ack_timeout_ms,
        expiry=ExpiryConfig(
            reserved_ms=settings.reserved_ms, files_a_step_max=settings.expired_files_max
        ),
        pull_messages_max=settings.pull_messages_max,
        pull_bytes_max=settings.pull_bytes_max,
        queue_tail_max=settings.queue_tail_max,
        filtered_units_max=settings.filtered_units_max,
    )


def raft_config(settings: Settings) -> RaftConfig:
    """Return the Raft configuration of a run."""
    return RaftConfig(
        election_timeout_min_ms=settings.election_timeout_min_ms,
        election_timeout_max_ms=settings.election_timeout_max_ms,
        heartbeat_interval_ms=settings.heartbeat_interval_ms,
        quorum_silence_max_ms=settings.quorum_silence_max_ms,
        retransmit_after_ms=settings.retransmit_after_ms,
        lease_ms=settings.lease_ms,
        reads_waiting_max=settings.reads_waiting_max,
        push_bytes_max=settings.push_bytes_max,
        in_flight_pushes_max=settings.in_flight_pushes_max,
        tail_bytes_max=settings.tail_bytes_max,
        preferred_leaders=settings.preferred_leaders,
    )
