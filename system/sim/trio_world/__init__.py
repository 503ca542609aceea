"""The whole-node world: unchanged nodes and clients on trio, under virtual time and one seed."""
