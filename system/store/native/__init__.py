"""RocketMQ's own commit log, as brokers without a group keep it."""
