"""The target etcd: a group of etcd servers, whose clients speak JSON with its gateway."""
