"""The shell of master-slave brokers: a master, or a slave that copies from one."""
