"""The commit log: DLedger's entries and index in segment files, on top of a Disk protocol."""
