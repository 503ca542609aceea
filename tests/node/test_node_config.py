"""broker.conf: RocketMQ's keys, and one clear line for what is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shaketable.system.master_slave.core import BrokerRole
from shaketable.system.node.broker_start import limits_of
from shaketable.system.node.config import ConfigError, load, parse

GOOD = """
# from distribution/conf/dledger
brokerClusterName = RaftCluster
brokerName=RaftNode00
listenPort=30911
namesrvAddr=127.0.0.1:9876
storePathRootDir=/tmp/rmqstore/node00
storePathCommitLog=/tmp/rmqstore/node00/commitlog
enableDLegerCommitLog=true
dLegerGroup=RaftNode00
dLegerPeers=n0-127.0.0.1:40911;n1-127.0.0.1:40912;n2-127.0.0.1:40913
dLegerSelfId=n0
sendMessageThreadPoolNums=16
"""


def test_rocketmqs_own_sample_is_understood() -> None:
    config = parse(GOOD)
    assert config.self_id == "n0"
    assert config.peers["n2"] == ("127.0.0.1", 40913)
    assert config.listen_port == 30911
    assert config.unused["sendMessageThreadPoolNums"] == "16"
    assert (config.cluster, config.broker_name, config.broker_id) == (
        "RaftCluster",
        "RaftNode00",
        1,
    )
    assert config.name_servers == (("127.0.0.1", 9876),)
    assert config.register_interval_ms == 30_000


def test_settings_of_the_command_line_come_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(GOOD)
    config = load(file, ["dLegerSelfId=n1", "listenPort = 30921"])
    assert (config.self_id, config.listen_port, config.group) == ("n1", 30921, "RaftNode00")
    assert config.properties["listenPort"] == "30921"
    lines = [line for line in GOOD.splitlines() if "=" in line]
    assert load(None, lines) == parse(GOOD)
    for settings, said in (
        (["listenPort"], "the command line: 'listenPort' is not KEY=VALUE"),
        (["=5"], "the command line: '=5' is not KEY=VALUE"),
        (["brokerName=a\nb"], "the command line: 'brokerName=a\\nb' is not KEY=VALUE"),
        (["brokerName=\udcff"], "the command line: 'brokerName=\\udcff' is not KEY=VALUE"),
        (["listenprt=1"], f"{file} and the command line: unknown key listenprt"),
    ):
        with pytest.raises(ConfigError, match=re.escape(said)):
            load(file, settings)
    with pytest.raises(ConfigError, match=r"^the command line: listenPort is missing"):
        load(None, ["storePathRootDir=/tmp/x"])


def test_a_node_may_stand_alone() -> None:
    lines = [
        line
        for line in GOOD.replace("n0", "here").splitlines()
        if not line.startswith(("broker", "namesrvAddr"))
    ]
    config = parse("\n".join(lines))
    assert config.name_servers == ()
    assert (config.cluster, config.broker_name) == ("DefaultCluster", "RaftNode00")


def test_name_servers_are_listed_once() -> None:
    config = parse(
        GOOD.replace("=127.0.0.1:9876", "=a:1; b:2 ;a:1;").replace("SelfId=n0", "SelfId=n2")
        + "registerNameServerPeriod=5\n"
    )
    assert config.name_servers == (("a", 1), ("b", 2))
    assert config.broker_id == 3
    assert config.register_interval_ms == 10_000


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("dLegerSelfId=n0", "dLegerSelfId=n7"), "dLegerSelfId n7 is not among dLegerPeers"),
        (("listenPort=30911", "listenPort=often"), "listenPort must be a number"),
        (("listenPort=30911", "listenPort=99999"), "listenPort must be a number in 0..65535"),
        (("listenPort=30911", ""), "listenPort is missing"),
        (("dLegerGroup", "dLegerGruop"), "unknown key dLegerGruop"),
        (("n1-127.0.0.1:40912", "n1:40912"), "is not of the form"),
        (("brokerName=RaftNode00", "brokerName"), "no '='"),
        (("brokerName=RaftNode00", "brokerName=" + "b" * 256), "brokerName has 256 characters"),
        (("namesrvAddr=127.0.0.1:9876", "namesrvAddr=nowhere"), "form 127.0.0.1:9876"),
        (("namesrvAddr=127.0.0.1:9876", "namesrvAddr=a:1;:2"), "':2' is not of the form"),
        (("namesrvAddr=127.0.0.1:9876", "namesrvAddr=a:0"), "form 127.0.0.1:9876"),
        (
            (
                "namesrvAddr=127.0.0.1:9876",
                "namesrvAddr=" + ";".join(f"a:{n}" for n in range(1, 18)),
            ),
            "17 name servers, at most 16",
        ),
        (("sendMessageThreadPoolNums=16", "registerNameServerPeriod=x"), "must be a number"),
        (("n1-127.0.0.1:40912", "n1-127.0.0.1:99999"), "is not of the form"),
        (("n1-127.0.0.1:40912", "n0-127.0.0.1:40912"), "n0 is there twice"),
        (("n1-127.0.0.1:40912", "n 1-127.0.0.1:40912"), "'n 1' is no id"),
        (("brokerName=RaftNode00", "brokerIP1=localhost"), "must be an IPv4 address"),
        (("brokerName=RaftNode00", "mappedFileSizeIndex=5000"), "must be a multiple of 32"),
        (("brokerName=RaftNode00", "shaketableDisk=tape"), "must be one of real, volatile"),
        (("brokerName=RaftNode00", "flushDiskType=MAYBE"), "one of SYNC_FLUSH, ASYNC_FLUSH"),
        (("brokerName=RaftNode00", "shaketableJoin=yes"), "one of true, false, not yes"),
        (("brokerName=RaftNode00", "deleteWhen=04;24"), "hours of the day in UTC, 00..23"),
        (("brokerName=RaftNode00", "fileReservedTime=0"), "fileReservedTime must be a number"),
        (("brokerName=RaftNode00", "diskMaxUsedSpaceRatio=99"), "must be a number in 10..95"),
        (("brokerName=RaftNode00", "preferredLeaderIds=n0;n 1"), "'n 1' is no id"),
        (("brokerName=RaftNode00", "mappedFileSizeConsumeQueue=6001"), "a multiple of 20"),
        (("brokerName=RaftNode00", "shaketableLeaseMs=300"), "must be below election_timeout"),
        (("listenPort=30911", "listenPort=²"), "listenPort must be a number"),
        (("listenPort=30911", "listenPort=" + "9" * 5000), "listenPort must be a number"),
        (("n1-127.0.0.1:40912", "n1-127.0.0.1:²"), "is not of the form"),
        (("brokerName=RaftNode00", "deleteWhen=²"), "hours of the day in UTC, 00..23"),
    ],
)
def test_what_is_wrong_is_named(change: tuple[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(GOOD.replace(*change))


@pytest.mark.parametrize("key", ["dLegerPeers", "shaketableReach"])
@pytest.mark.parametrize(
    ("peers", "said"),
    [
        ("n0-a:0", "'n0-a:0' is not of the form n0-127.0.0.1:40911"),
        ("n0-:1", "'n0-:1' is not of the form n0-127.0.0.1:40911"),
        ("n 0-a:1", "'n 0' is no id"),
        ("n0-a:1;n0-a:2", "n0 is there twice"),
    ],
)
def test_a_wrong_address_of_a_peer_is_reported_under_its_key(
    key: str, peers: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=f"^{key}: {re.escape(said)}"):
        parse(f"{GOOD}\n{key}={peers}\n")


def test_a_node_that_registers_has_a_number() -> None:
    with pytest.raises(ConfigError, match="dLegerSelfId here gives no broker id"):
        parse(GOOD.replace("n0", "here"))


def test_keys_of_rocketmq_that_have_a_meaning_are_read() -> None:
    config = parse(
        GOOD
        + "flushDiskType=ASYNC_FLUSH\nfileReservedTime=48\ndeleteWhen=04;16\n"
        + "diskMaxUsedSpaceRatio=80\npreferredLeaderIds=n2;n0\nmessageIndexEnable=false\n"
        + "maxHashSlotNum=1000\nmaxIndexNum=4000\nmappedFileSizeConsumeQueue=4000\n"
    )
    assert config.ack_policy == "page-cache"
    assert config.expiry.reserved_ms == 48 * 3_600_000
    assert config.expiry.delete_when_hours == (4, 16)
    assert config.expiry.used_ratio_max == 0.8
    assert config.raft.preferred_leaders == ("n2", "n0")
    assert str(config.plain_log) == "/tmp/rmqstore/node00/commitlog"
    assert not config.is_key_indexed
    assert (config.hash_slots, config.index_items_max, config.queue_file_bytes) == (
        1000,
        4000,
        4000,
    )


def test_keys_about_consuming_are_read() -> None:
    config = parse(
        GOOD
        + "slaveReadEnable=true\nlongPollingEnable=false\nshortPollingTimeMills=300\n"
        + "messageDelayLevel=1s 2m 3h 1d\n"
    )
    assert config.slave_read_enable
    assert not config.long_polling
    assert config.short_polling_ms == 300
    assert config.delay_levels_ms == (1000, 120_000, 10_800_000, 86_400_000)
    plain = parse(GOOD)
    assert not plain.slave_read_enable
    assert plain.long_polling
    assert len(plain.delay_levels_ms) == 18


def test_keys_about_topics_are_read_and_all_are_kept_as_given() -> None:
    config = parse(GOOD)
    assert (config.auto_create_topics, config.default_topic_queues) == (True, 16)
    config = parse(GOOD + "autoCreateTopicEnable=false\ndefaultTopicQueueNums=8\n")
    assert (config.auto_create_topics, config.default_topic_queues) == (False, 8)
    assert config.properties["brokerName"] == "RaftNode00"
    assert config.properties["defaultTopicQueueNums"] == "8"


@pytest.mark.parametrize("levels", ["", "1", "5x", "-1s", "1s,2s", " ".join(["1s"] * 65)])
def test_levels_that_are_none_are_named(levels: str) -> None:
    with pytest.raises(ConfigError, match="messageDelayLevel: "):
        parse(GOOD + f"messageDelayLevel={levels}\n")


def test_without_more_an_acknowledgement_means_fsync_and_nobody_joins() -> None:
    config = parse(GOOD)
    assert config.ack_policy == "fsync"
    assert config.expiry.reserved_ms == 72 * 3_600_000
    assert config.expiry.delete_when_hours == ()
    assert not config.is_joining
    assert config.raft.lease_ms == 0


def test_keys_of_our_own_are_read() -> None:
    config = parse(GOOD + "shaketableJoin=true\nshaketableLeaseMs=200\nshaketableReservedMs=1500\n")
    assert config.is_joining
    assert config.raft.lease_ms == 200
    assert config.expiry.reserved_ms == 1500


MASTER = """
brokerName=broker-a
listenPort=10911
storePathRootDir=/tmp/store
brokerRole=SYNC_MASTER
brokerId=3
"""


def test_without_a_group_rocketmqs_own_defaults_hold() -> None:
    config = parse(MASTER)
    assert config.master_slave is not None
    assert (config.self_id, config.master_slave.broker_id) == ("broker-a-0", 0)
    assert config.master_slave.config.role is BrokerRole.SYNC_MASTER
    assert not config.master_slave.config.is_sync_flush
    assert config.master_slave.config.sync_flush_timeout_ms == 5000
    assert config.master_slave.config.slave_timeout_ms == 3000
    assert config.master_slave.config.slave_behind_bytes_max == 256 << 20
    assert config.master_slave.config.transfer_bytes_max == 32 << 10
    assert (config.master_slave.ha_port, config.master_slave.master) == (10912, None)
    assert str(config.master_slave.log_folder) == "/tmp/store/commitlog"
    slave = parse(MASTER.replace("SYNC_MASTER", "SLAVE") + "haMasterAddress=10.0.0.1:10912\n")
    assert slave.master_slave is not None
    assert (slave.self_id, slave.master_slave.master) == ("broker-a-3", ("10.0.0.1", 10912))
    unused = parse(f"{MASTER}dLegerGroup=g\nsendMessageThreadPoolNums=4\n").unused
    assert set(unused) == {"dLegerGroup", "sendMessageThreadPoolNums"}


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("brokerRole=MASTER", "brokerRole must be one of ASYNC_MASTER, SYNC_MASTER, SLAVE"),
        ("brokerRole=SLAVE\nbrokerId=0", "brokerId must be above 0 with brokerRole=SLAVE"),
        ("haMasterAddress=here", "haMasterAddress: 'here' is not of the form"),
        ("enableDLegerCommitLog=true", "dLegerSelfId is missing"),
        ("syncFlushTimeout=0", "syncFlushTimeout must be a number in 1..3600000"),
        ("listenPort=65535", "haListenPort is missing: listenPort + 1 is above 65535"),
    ],
)
def test_what_is_wrong_without_a_group_is_named(line: str, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        parse(MASTER + line)


@pytest.mark.parametrize(
    ("lines", "ports"),
    [
        ("listenPort=65534", (65534, 65535)),
        ("listenPort=65535\nhaListenPort=10912", (65535, 10912)),
        ("listenPort=0", (0, 0)),
        ("listenPort=65535\nbrokerRole=SLAVE", (65535, 0)),
    ],
)
def test_the_port_for_slaves_is_one_that_there_is(lines: str, ports: tuple[int, int]) -> None:
    config = parse(f"{MASTER}{lines}\n")
    assert config.master_slave is not None
    assert (config.listen_port, config.master_slave.ha_port) == ports


def test_limits_of_topics_and_groups_may_be_set_low() -> None:
    usual = parse(GOOD)
    low = parse(GOOD + "shaketableTopicsMax=48\nshaketableGroupMembersMax=20\n")
    assert (usual.topics_max, usual.group_members_max) == (10_000, 10_000)
    limits = limits_of(low)
    assert (limits.topics_max, limits.group_members_max) == (48, 20)
    with pytest.raises(ConfigError, match="shaketableTopicsMax"):
        parse(GOOD + "shaketableTopicsMax=0\n")
