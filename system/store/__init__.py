"""The commit log: DLedger's entries and index in segment files, all through a Disk protocol."""
