"""The real network, over py-libp2p. Importing ``host`` costs more than half a second: import it where it is opened."""

from gnusnode.net.p2p.lean import leave_out

leave_out()
