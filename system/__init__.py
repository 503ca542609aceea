"""The broker group that shaketable shakes by default: RocketMQ's wire and files on a Raft log."""
