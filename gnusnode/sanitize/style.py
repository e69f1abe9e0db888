"""The computed style of an element: what its text and its children start from, and whether that text can be seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from gnusnode.sanitize.boxes import SLIVER
from gnusnode.sanitize.cssvalues import HEIGHT, ROOT_FONT, WIDTH, Rgb, Rgba, Token, indistinguishable, over

TINY: Final = 4.0
"""Font size, in pixels, below which nobody reads."""
FAINT: Final = 0.1
"""Share of opacity below which text over an unknown picture is not seen."""
_FAR: Final = 400.0
_NEAR: Final = 100.0
_DEEP: Final = 1000.0
_PAGE: Final = 20_000.0
USUAL_WIDTH: Final = 300.0

ROUTINE: Final = frozenset({"display", "visibility", "offscreen", "clip", "box", "content_visibility"})
"""Ways of hiding that menus and texts for screen readers use every day."""


@dataclass(frozen=True)
class Style:
    """What an element's text and children start from."""

    display: str = "inline"
    gone: str = ""
    """Why the element and all in it cannot be seen."""
    invisible: bool = False
    color: Rgba = (0, 0, 0, 1)
    fill: Rgba | None = None
    shadow: Rgba | None = None
    pictured: bool = False
    """The letters show a background picture instead of a colour."""
    font: float = ROOT_FONT
    scale: float = 1.0
    alpha: float = 1.0
    grounds: tuple[Rgb, ...] = ((255.0, 255.0, 255.0),)
    """What may lie behind the text; all stops of a gradient."""
    ground_known: bool = True
    indent: float = 0.0
    spacing: float = 0.0
    """Letter spacing as a share of the font size."""
    x: float = 0.0
    y: float = 0.0
    base: tuple[float, float] = (0.0, 0.0)
    """Where the nearest positioned ancestor is."""
    positioned: bool = False
    """An ancestor below the root is positioned."""
    fixed: bool = False
    afloat: bool = False
    """Positioned absolutely, itself or an ancestor."""
    width: float = WIDTH
    covered: bool = False
    """An opaque background lies between here and the bottom of the stacking context."""
    drawn: bool = False
    """Part of an SVG drawing: text has the colour of ``fill``."""
    flexible: bool = False
    """Children are boxes, whatever their display."""
    holds: bool = False
    """What is positioned inside is positioned against this element."""
    covers: bool = False
    """It lies, opaque, over all of the element that holds it."""
    custom: Mapping[str, tuple[Token, ...]] = field(default_factory=dict[str, tuple[Token, ...]], hash=False)

    @cached_property
    def hidden(self) -> str:
        """Why text directly in this element cannot be seen; empty: it can."""
        if self.gone or self.invisible:
            return self.gone or "visibility"
        if self.font * self.scale < TINY:
            return "tiny"
        if self.spacing <= -0.5:
            return "letters_collapsed"
        if self._away():
            return "offscreen"
        return "" if self._legible() else "colour"

    def _away(self) -> bool:
        width = min(self.width, USUAL_WIDTH) if self.width > SLIVER else USUAL_WIDTH  # text runs out of a sliver
        if self.x + width <= 0 or self.indent <= -_FAR or self.x >= 1.5 * WIDTH:
            return True
        if self.fixed and (self.x >= WIDTH or self.y >= HEIGHT):
            return True
        high = _NEAR if self.afloat and not self.positioned else _DEEP
        return self.y <= -high or self.y >= _PAGE

    def _legible(self) -> bool:
        if self.pictured:
            return self.alpha >= FAINT
        return any(self._stands_out(paint) for paint in (self.fill or self.color, self.shadow) if paint)

    def _stands_out(self, paint: Rgba) -> bool:
        if not self.ground_known:
            return paint[3] * self.alpha >= FAINT
        return any(not indistinguishable(over(paint, ground, self.alpha), ground) for ground in self.grounds)


ROOT: Final = Style(display="block")
