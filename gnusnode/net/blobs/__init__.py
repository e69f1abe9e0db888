"""Model files from peers by content address: ``/gnus/blob/1``.

``serve_blobs`` gives the files of this node to members; ``Puller`` fetches from several holders at once.
"""

from gnusnode.net.blobs.bandwidth import TokenBucket
from gnusnode.net.blobs.download import Fetching, FetchLimits, FetchStatistics
from gnusnode.net.blobs.puller import ElmTrust, Pulled, Puller, parse_address
from gnusnode.net.blobs.server import BlobServer, ServeLimits, serve_blobs

__all__ = [
    "BlobServer",
    "ElmTrust",
    "FetchLimits",
    "FetchStatistics",
    "Fetching",
    "Pulled",
    "Puller",
    "ServeLimits",
    "TokenBucket",
    "parse_address",
    "serve_blobs",
]
