"""The target nats: a cluster of NATS servers, whose streams JetStream replicates."""
