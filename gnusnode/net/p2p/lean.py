"""Parts of libp2p that the node never uses and that the library imports all the same: they stay out of the process.

QUIC, WebSocket, TLS with its ACME client, SECIO, Bitswap, UPnP, the library's mDNS, its databases of peers and a DNS
library bring 600 modules with them: half of the time and of the memory that importing libp2p takes, and code that a
stranger might one day reach. An empty module stands for each; what is taken from it is a class that says so when used.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

LEFT_OUT: Final = (
    "libp2p.bitswap",
    "libp2p.discovery",
    "libp2p.peer.persistent",
    "libp2p.security.secio",
    "libp2p.security.tls",
    "libp2p.transport.quic",
    "libp2p.transport.websocket",
    "multiaddr.resolvers",
)
"""Packages, with all that is in them."""
_STAND_INS: Final = {("multiaddr.resolvers", "DNSResolver"): "gnusnode.net.p2p.resolver:SystemResolver"}
"""What is used after all, and where it is: of (module, name)."""


def leave_out() -> None:
    """Call it before the first import of libp2p; what was imported before stays. A second call does nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        if not any(fullname == name or fullname.startswith(f"{name}.") for name in LEFT_OUT):
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _LeftOut(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        return


class _LeftOut(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made: Any
        if stand_in := _STAND_INS.get((self.__name__, name)):
            module, _, attribute = stand_in.partition(":")
            made = getattr(importlib.import_module(module), attribute)
        else:
            made = type(name, (_Unusable,), {"__module__": self.__name__})
        setattr(self, name, made)
        return made


class _Unusable(Exception):
    def __init__(self, *_: object, **__: object) -> None:
        raise NotImplementedError(f"{type(self).__module__}.{type(self).__name__} is left out of this process")
