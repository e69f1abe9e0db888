"""The real network, over py-libp2p. Importing ``host`` costs more than half a second: import it where it is opened."""
