"""PURE RocketMQ remoting codec: frames, JSON and ROCKETMQ headers, request and response structs."""
