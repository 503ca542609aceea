"""Nodes on other machines, reached by OpenSSH."""
