"""Small PDF files, made for tests."""

from __future__ import annotations

import io
from typing import Any

import pikepdf
from pikepdf import Array, Dictionary, Name, String

SEEN = "Opening hours are 9 to 17"
SECRET = "quick brown secret"


def page(
    content: str,
    *,
    resources: dict[str, Any] | None = None,
    box: tuple[float, float, float, float] = (0, 0, 612, 792),
    **more: Any,
) -> pikepdf.Pdf:
    """A document of one page that says ``SEEN`` and then has ``content``, with Helvetica as ``/F1``."""
    document = pikepdf.new()
    font = document.make_indirect(
        Dictionary(Type=Name.Font, Subtype=Name.Type1, BaseFont=Name.Helvetica, Encoding=Name.WinAnsiEncoding)
    )
    own = Dictionary(Font=Dictionary(F1=font))
    for name, value in (resources or {}).items():
        own[f"/{name}"] = document.make_indirect(value) if isinstance(value, pikepdf.Dictionary) else value
    x, y = box[0], box[1]
    stream = f"BT /F1 18 Tf {x + 72} {y + 700} Td ({SEEN}) Tj ET\n{content}"
    document.add_blank_page()
    only = document.pages[0]
    only.obj.MediaBox = Array(list(box))
    only.obj.Resources = own
    only.obj.Contents = document.make_stream(stream.encode("latin-1"))
    for name, value in more.items():
        only.obj[f"/{name}"] = value
    return document


def text(content: str = SECRET, *, at: tuple[float, float] = (72, 500), size: float = 18, before: str = "") -> str:
    """The operators that show a line of text."""
    return f" {before} BT /F1 {size} Tf {at[0]} {at[1]} Td ({content}) Tj ET"


def data(document: pikepdf.Pdf, **options: Any) -> bytes:
    out = io.BytesIO()
    document.save(out, **options)
    return out.getvalue()


def picture(document: pikepdf.Pdf, level: int = 200) -> Any:
    """A grey picture of one pixel as an image object."""
    image = document.make_stream(bytes([level]))
    image.update(
        {"/Type": Name.XObject, "/Subtype": Name.Image, "/Width": 1, "/Height": 1, "/ColorSpace": Name.DeviceGray,
         "/BitsPerComponent": 8}
    )  # fmt: skip
    return image


def string(value: str) -> Any:
    return String(value)
