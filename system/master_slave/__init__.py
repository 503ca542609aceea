"""Master-slave brokers, which have no DLedger group: commit log and HA replication. Pure."""
