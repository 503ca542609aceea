"""Pure codec of RocketMQ remoting: frames, JSON and ROCKETMQ headers, requests and responses."""
