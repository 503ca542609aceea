"""Faults that take a resource: processor time, memory, descriptors."""
