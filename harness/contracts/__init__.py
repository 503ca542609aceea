"""Contracts shared by all parts: plug-in protocols, promises, verdicts, errors. Imports no part."""
