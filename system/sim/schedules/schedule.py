"""What one seed decides: the group, its settings, its faults and its clients' operations, as data.

`draw_schedule` draws them; a Schedule can be written as JSON, cut down by hand or by a shrinker,
and run again: the worlds look at nothing else but it and its seed.

Swarm: each seed draws its own mix of fault kinds, rates, latencies, file sizes and limits, since
a world where everything may happen rarely lets anything happen often (Groce et al. 2012).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from shaketable.system.sim.before.apache_log import SHAPES as APACHE_SHAPES
from shaketable.system.sim.broken_starts.file_damage import MUST_BE_NOTICED, REBUILT, WAYS
from shaketable.system.sim.native_messages import SHAPES
from shaketable.system.sim.schedules.draws import Draws, Stream
from shaketable.system.sim.schedules.fault_draws import GRID_MS, LOSES_A_DISK, draw_faults
from shaketable.system.sim.schedules.faults import AnyFault, DamageFile, RefusedChange, Stop
from shaketable.system.sim.schedules.scenarios import CHAINS, OFTEN, Group, draw_scenarios

if TYPE_CHECKING:
    from shaketable.system.sim.schedules.draws import Stream


QUEUES_MAX = 4
WAVE_MS = 1000
"""Where the load comes in waves, half of each such period is quiet."""
SCENARIOS = 0.5
"""Which part of the seeds has scenarios (`schedules.scenarios`), and fewer other faults."""
CHAINED = 0.9
"""Which part of the seeds has more of them, whatever else happens there."""
RARE_SIZES = 0.15
"""Which part of the seeds has a group of a size that is seldom run, even ones above all."""
CHOPPED = (0.0, 0.0, 0.05, 0.2)
"""Parts of connections that are chopped: a seed has one of them."""
STORMS = 0.2
"""Which part of the seeds is a storm: leaders fall again and again, faster than they settle."""


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
    """How often each node looks for data files to expire; 0: never by itself."""
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
    """Which part of the messages has keys and tags."""
    big_every: int = 0
    """Each so-manieth message nearly fills a data file, or is just too large; 0: none."""
    native_log: str = ""
    """What stood there before the group (`system.sim.native_messages.SHAPES`); "": nothing."""
    apache_log: str = ""
    """Which logs of a group of Apache's were imported (`system.sim.before.apache_log.SHAPES`)."""
    older_config: bool = False
    """Whether topics and group offsets from before the group stand in config/."""
    preferred_leaders: tuple[str, ...] = ()
    chopped: float = 0.0
    """Which part of the connections of whole nodes takes and hands over bytes piece by piece."""


class Call(msgspec.Struct, frozen=True, gc=False):
    """What a client does at one instant: `count` appends, or one read, of one queue.

    `kind` is "append" (one by one, pipelined), "batch" (all in one read of the connection),
    "pull" (from `back` messages before the end that the client knows) or "max_offset".
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
    """What a caller decides instead of the draws; None leaves it to them."""

    members: int | None = None
    run_ms: int = 30_000
    operations_per_s: int = 215
    faults: tuple[str, ...] | None = None
    """Kinds of faults to draw from, by name; an empty tuple: none."""
    chains: bool = True
    """Whether seeds draw from `schedules.scenarios.CHAINS`, and from rare sizes of groups; without
    them a seed's schedule is what it was before there were any."""
    faults_min: int = 8
    faults_max: int = 14


def draw_schedule(seed: int, options: Options | None = None) -> Schedule:
    """Draw the whole schedule of a seed."""
    options = options or Options()
    draws = Draws(seed)
    how_many = draws.stream("fault_count")
    is_storm = how_many.chance(STORMS)
    has_scenarios = how_many.chance(SCENARIOS) and not is_storm and options.faults is None
    settings = draw_settings(draws.stream("settings"), options, is_storm=is_storm)
    if options.chains and options.members is None:
        settings = _of_rare_size(draws.stream("rare_size"), settings)
    settings = draw_store_settings(draws.stream("store_settings"), settings)
    if options.chains:
        chopped = draws.stream("chopped").choice(CHOPPED)
        settings = msgspec.structs.replace(settings, chopped=chopped)
    count = how_many.randint(options.faults_min, options.faults_max)
    if is_storm:
        count *= 3
    elif has_scenarios:
        count = max(options.faults_min, count // 2)
    if settings.members == 1:
        count *= 2  # what parts a group, or hands it over, finds nothing to do
    faults = draw_faults(
        draws,
        members=settings.members,
        from_ms=500,
        until_ms=max(1000, options.run_ms - 7000),
        kinds=options.faults,
        count=count,
        ack=settings.ack,
        is_storm=is_storm,
    )
    faults = draw_store_faults(
        draws.stream("store_faults"), settings, faults, options.faults, options.run_ms - 7000
    )
    if has_scenarios:
        faults = _with_scenarios(draws.stream("scenarios"), settings, faults, options)
    chains = draws.stream("chains")
    if options.chains and options.faults is None and chains.chance(CHAINED):
        faults = _with_chains(chains, settings, faults, options)
    calls = draw_calls(draws.stream("calls"), settings, options.operations_per_s)
    return Schedule(seed=seed, settings=settings, faults=faults, calls=calls)


def _with_scenarios(
    draw: Stream, settings: Settings, faults: tuple[AnyFault, ...], options: Options
) -> tuple[AnyFault, ...]:
    more = draw_scenarios(
        draw, _group(settings), from_ms=1500, until_ms=options.run_ms - 7000, ack=settings.ack
    )
    return tuple(sorted((*faults, *more), key=lambda fault: fault.start_ms))


def _with_chains(
    draw: Stream, settings: Settings, faults: tuple[AnyFault, ...], options: Options
) -> tuple[AnyFault, ...]:
    """Add chains; at most one disk of a run is lost."""
    more = draw_scenarios(
        draw,
        _group(settings),
        from_ms=1500,
        until_ms=options.run_ms - 7000,
        ack=settings.ack,
        among=CHAINS,
        often=OFTEN,
        may_lose_disk=not any(fault.kind in LOSES_A_DISK for fault in faults),
    )
    return tuple(sorted((*faults, *more), key=lambda fault: fault.start_ms))


def _group(settings: Settings) -> Group:
    members = tuple(f"n{number}" for number in range(settings.members))
    return Group(members, int(settings.election_timeout_min_ms), settings.lease_ms > 0)


def _of_rare_size(draw: Stream, settings: Settings) -> Settings:
    """Draw, for some seeds, a group of another size."""
    if not draw.chance(RARE_SIZES):
        return settings
    return msgspec.structs.replace(settings, members=draw.choice((2, 4, 4, 6, 6, 7)))


def draw_settings(draw: Stream, options: Options, *, is_storm: bool = False) -> Settings:
    """Draw a group's settings."""
    members = draw.choices((1, 2, 3, 4, 5), (2, 6, 56, 6, 30))[0]
    heartbeat = draw.choice((50.0, 50.0, 80.0, 100.0))
    # Together they bound what a follower takes in a second; the clients must stay below it.
    push_bytes, in_flight = draw.choice(
        ((600, 256), (4_000, 32), (4_000, 256), (1 << 20, 1), (1 << 20, 4), (1 << 20, 256))
    )
    expiry_check_ms, reserved_ms = draw.choice(
        ((0.0, 3_600_000), (0.0, 3_600_000), (1000.0, 3_600_000), (1000.0, 4_000))
    )
    timeout_ms = draw.choice((250.0, 250.0, 250.0, 500.0, 800.0))
    slow_network = draw.chance(0.5 if is_storm else 0.2)
    slow_disk = draw.chance(0.4 if is_storm else 0.2)
    return Settings(
        members=options.members or members,
        run_ms=options.run_ms,
        ack="page-cache" if draw.chance(0.1) else "fsync",
        election_timeout_min_ms=timeout_ms,
        election_timeout_max_ms=draw.choice((1.3, 2.0)) * timeout_ms,
        heartbeat_interval_ms=heartbeat,
        quorum_silence_max_ms=max(2 * timeout_ms, draw.choice((500.0, 500.0, 1000.0))),
        lease_ms=draw.choice((0.0, timeout_ms - 50)),
        tail_bytes_max=draw.choice((1, 2_000, 20_000, 1 << 20)),
        push_bytes_max=push_bytes,
        in_flight_pushes_max=in_flight,
        data_file_bytes=draw.choice((8_192, 16_384, 65_536, 262_144)),
        index_file_bytes=32 * draw.choice((64, 1_000, 5_000)),
        link_delay_ms=draw.uniform(2, 8) if slow_network else draw.uniform(0.1, 1.0),
        link_jitter_ms=draw.uniform(1, 15) if slow_network else draw.uniform(0.1, 1.5),
        client_delay_ms=draw.uniform(0.1, 1.0),
        sync_ms=draw.uniform(2, 15) if slow_disk else draw.uniform(0.1, 1.5),
        sync_jitter_ms=draw.uniform(1, 20) if slow_disk else draw.uniform(0.1, 2.0),
        mark_lag_ms=draw.choice((50.0, 100.0, 400.0)),
        checkpoint_interval_ms=draw.choice((1000.0, 3000.0)),
        clients=draw.randint(3, 5),
        queues=draw.randint(1, QUEUES_MAX),
        client_timeout_ms=draw.choice((800.0, 1500.0, 3000.0)),
        expiry_check_ms=expiry_check_ms,
        reserved_ms=reserved_ms,
        ack_timeout_ms=draw.choice((300.0, 2500.0, 2500.0)),
        pending_sends_max=draw.choice((40, 10_000, 10_000, 10_000)),
        reads_waiting_max=draw.choice((2, 10_000, 10_000, 10_000)),
    )


def draw_calls(draw: Stream, settings: Settings, operations_per_s: int) -> tuple[Call, ...]:
    """Draw what the clients do, `operations_per_s` on average, in order of time."""
    calls: list[Call] = []
    last_ms = settings.run_ms - settings.idle_ms
    burst = draw.choice((6, 12, 18, 24))
    wave_ms = WAVE_MS if draw.chance(0.8 if settings.lease_ms else 0.2) else 0
    reads = draw.uniform(0.1, 0.4)
    wanted = operations_per_s * settings.run_ms // 1000
    done = 0
    while done < wanted:
        at_ms = draw.randrange(100, last_ms)
        if wave_ms:
            at_ms -= at_ms % wave_ms // 2
        client = draw.randrange(settings.clients)
        queue = draw.randrange(settings.queues)
        if draw.random() < reads:
            kind = "pull" if draw.random() < 0.7 else "max_offset"
            back = draw.choice((0, 3, 20, 1 << 30))
            calls.append(Call(at_ms, client, kind, queue, 1, back))
            done += 1
        else:
            count = 1 if draw.random() < 0.1 else draw.randint(2, 2 * burst)
            kind = "batch" if draw.random() < 0.8 else "append"
            body = draw.choice((16, 32, 32, 100, 400))
            calls.append(Call(at_ms, client, kind, queue, count, 0, body))
            done += count
    calls.sort(key=lambda call: call.at_ms)
    return tuple(calls)


# Draws what concerns the store: key index, native log, big messages, stops, damaged files.
#
# Each seed has some of it. All draws are of streams of their own, so that the rest of a schedule
# is the same with and without them.

STORE_KINDS = ("stop", "damage_file", "refused_change")
_LEAST_MS = 2_000
"""In a shorter time nothing is drawn."""
_KEYED = 0.4
_BIG = 0.2
_NATIVE = 0.25
_PREFERRED = 0.25
_APACHE = 0.2
_CONFIG = 0.3


def draw_store_settings(draw: Stream, settings: Settings) -> Settings:
    """Return the settings with what this seed has of the store's."""
    if draw.chance(_KEYED):
        settings = msgspec.structs.replace(
            settings,
            # Not fewer: a new member takes a checkpoint for each so many entries of a whole log.
            key_items_max=draw.choice((250, 400, 2_000)),
            key_slots=draw.choice((31, 200, 3_000)),
            key_file_items=draw.choice((50, 300, 2_000)),
            keyed=draw.choice((0.05, 0.3, 1.0)),
        )
    if draw.chance(_BIG):
        settings = msgspec.structs.replace(settings, big_every=draw.choice((100, 400)))
    if draw.chance(_NATIVE):
        settings = msgspec.structs.replace(settings, native_log=draw.choice(SHAPES))
    if draw.chance(_PREFERRED):
        names = [f"n{number}" for number in range(settings.members)]
        draw.shuffle(names)
        preferred = tuple(names[: draw.randint(1, 2)])
        settings = msgspec.structs.replace(settings, preferred_leaders=preferred)
    return _of_older(draw, settings)


def _of_older(draw: Stream, settings: Settings) -> Settings:
    """Return the settings with what stood on the disks before the group."""
    if draw.chance(_APACHE) and not settings.native_log:
        settings = msgspec.structs.replace(settings, apache_log=draw.choice(APACHE_SHAPES))
    return msgspec.structs.replace(settings, older_config=draw.chance(_CONFIG))


def draw_store_faults(
    draw: Stream,
    settings: Settings,
    faults: tuple[AnyFault, ...],
    kinds: tuple[str, ...] | None,
    until_ms: int,
) -> tuple[AnyFault, ...]:
    """Return `faults` and up to four more, in order of time.

    What costs a node its log is drawn once at most, and not beside another fault that does.
    """
    is_alone = settings.members == 1
    own = [
        kind
        for kind in STORE_KINDS
        if (kinds is None or kind in kinds)
        and (draw.chance(0.5) or (is_alone and kind == "refused_change"))
    ]
    if not own or until_ms < _LEAST_MS:
        return faults
    may_lose = settings.members > 2 and all(fault.kind not in LOSES_A_DISK for fault in faults)
    more: list[AnyFault] = []
    for _ in range(draw.randint(1, 4)):
        start_ms = draw.randrange(500, max(1000, until_ms - 500), GRID_MS)
        duration_ms = draw.randrange(GRID_MS, min(1500, until_ms - start_ms), GRID_MS)
        fault = _fault(draw, draw.choice(own), settings, start_ms, duration_ms, may_lose=may_lose)
        may_lose = may_lose and not (isinstance(fault, DamageFile) and fault.file not in REBUILT)
        more.append(fault)
    return tuple(sorted((*faults, *more), key=lambda fault: fault.start_ms))


def _fault(
    draw: Stream, kind: str, settings: Settings, start_ms: int, duration_ms: int, *, may_lose: bool
) -> AnyFault:
    if kind == "refused_change":
        # "unknown" asks a group of one to remove its only voter.
        why = draw.choice(("unknown", "present", "nameless", "no_voter"))
        why = "unknown" if settings.members == 1 else why
        return RefusedChange(start_ms=start_ms, duration_ms=duration_ms, why=why)
    node = draw.choice(("leader", "follower", f"n{draw.randrange(settings.members)}"))
    if kind == "stop":
        loses_power = draw.chance(0.5)
        return Stop(start_ms=start_ms, duration_ms=duration_ms, node=node, loses_power=loses_power)
    loses_log = draw.chance(0.4) and may_lose
    # What the page cache alone has lies behind the mark: that it is lost is noticed by nobody.
    lost = [file for file in MUST_BE_NOTICED if file != "data" or settings.ack == "fsync"]
    file = draw.choice(lost if loses_log else REBUILT)
    return DamageFile(
        start_ms=start_ms,
        duration_ms=duration_ms,
        node=node,
        file=file,
        way=draw.choice(WAYS[file]),
        place=draw.random(),
    )
