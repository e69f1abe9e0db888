"""Our own surface, ``/gnus/v1``: status, plans, keys, events, stopping, the bug report."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

import trio
from fastapi import APIRouter
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gnusnode.api.bodies import body_document, read_body
from gnusnode.api.envelope import json_response
from gnusnode.api.facade import NodeFacade
from gnusnode.api.keys import ApiKey, KeyStore, NewKey
from gnusnode.api.options import ApiOptions
from gnusnode.api.sse import COMMENT, body_message, start_message
