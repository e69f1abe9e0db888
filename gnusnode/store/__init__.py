"""Durable state: LMDB tables, content-addressed blobs, the audit log. ``docs/store.md`` shows what is on the disk."""

from gnusnode.store.db import Store, StoreInfo, open_store
from gnusnode.store.txn import ReadTxn, WriteTxn

__all__ = ["ReadTxn", "Store", "StoreInfo", "WriteTxn", "open_store"]
