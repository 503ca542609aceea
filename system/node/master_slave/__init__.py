"""The shell of brokers without a group: a master, or a slave that copies from one."""
