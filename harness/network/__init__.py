"""The links between nodes: TCP proxies (no root needed), or a switch between network namespaces."""
