"""PURE name server: which brokers live, and where each topic has its queues."""
