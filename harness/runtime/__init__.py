"""The supervisor and its parts: phases, nemesis, worlds, node processes, client workers."""
