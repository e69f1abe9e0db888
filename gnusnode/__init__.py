"""gnusnode: the node daemon of a decentralised cognitive swarm."""

__version__ = "0.1.0"
