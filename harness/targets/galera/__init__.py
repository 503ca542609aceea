"""The target galera: MariaDB servers that Galera replicates, each of which takes writes."""
