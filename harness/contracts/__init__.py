"""What all parts agree on: protocols of plug-ins, promises, verdicts, errors. Imports no part."""
