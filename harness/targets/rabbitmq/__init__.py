"""The target rabbitmq: a cluster of RabbitMQ nodes, whose quorum queues are replicated by Raft."""
