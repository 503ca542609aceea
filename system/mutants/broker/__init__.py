"""Planted bugs of what a broker makes of requests and entries (`system.broker`)."""
