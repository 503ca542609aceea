"""RocketMQ's own commit log, as used by master-slave brokers."""
