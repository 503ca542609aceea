"""broker.conf: RocketMQ's keys, and one clear line for what is wrong."""

from __future__ import annotations

import pytest

from system.node.config import ConfigError, parse

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
        (("n1-127.0.0.1:40912", "n1-127.0.0.1:99999"), "is not of the form"),
        (("n1-127.0.0.1:40912", "n0-127.0.0.1:40912"), "n0 stands there twice"),
        (("n1-127.0.0.1:40912", "n 1-127.0.0.1:40912"), "'n 1' is no id"),
        (("brokerName=RaftNode00", "brokerIP1=localhost"), "must be an IPv4 address"),
        (("brokerName=RaftNode00", "mappedFileSizeIndex=5000"), "must be a multiple of 32"),
        (("brokerName=RaftNode00", "shaketableDisk=tape"), "must be one of real, volatile"),
    ],
)
def test_what_is_wrong_is_named(change: tuple[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(GOOD.replace(*change))
