"""The supervisor and its parts: phases, node processes, client worker processes, faults."""
