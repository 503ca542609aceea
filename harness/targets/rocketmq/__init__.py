"""The target rocketmq: Apache RocketMQ in DLedger mode, a broker group that elects by Raft."""
