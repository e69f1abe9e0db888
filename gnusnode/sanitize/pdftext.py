"""Which text of a PDF a reader sees: each page is painted with and without its text.

A text whose removal changes no pixel is not seen, by whatever trick: white or covered, clipped, outside of the page, on
a layer that is off, in render mode 3, transparent. Texts that overlap are removed in turn, so that one cannot vouch
for another. Text in render mode 3 over a picture is what scanners leave (an OCR layer): kept apart, trusted less.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from gnusnode.sanitize.extract import Hidden, Refusal, Refused, finding, hidden_ink
from gnusnode.sanitize.findings import Finding, Kind, Severity

MAX_PAGES: Final = 100
MAX_CHARACTERS: Final = 500_000
MAX_OBJECTS: Final = 20_000
"""Text objects of a page."""
MAX_ROUNDS: Final = 16
"""Times that a page is painted without some of its text."""
_SCALE: Final = 2.0
_MAX_SIDE: Final = 2400.0
_CHANGED: Final = 24
"""Difference of a colour channel, 0 … 255, that a reader notices."""
_TINY: Final = 3.0
"""Height of a letter's box, in points, below which nobody reads."""
_PICTURE_SHARE: Final = 0.25
"""Share of the page that a picture must cover to be a scan."""
_MAX_FORMS: Final = 16
_LEAST_INK: Final = 0.08
"""Share of a letter's box that must be ink: a sliver that a clip leaves over cannot be read."""
_BLANK: Final = -1
_UNKNOWN: Final = -2


@dataclass
class Pages:
    """What the pages of a document show."""

    text: str = ""
    layer: str = ""
    """Text under scanned pages."""
    hidden: list[Hidden] = field(default_factory=list[Hidden])
    findings: list[Finding] = field(default_factory=list[Finding])


@dataclass(slots=True)
class _Letter:
    character: str
    unit: int
    """Number of its text object; ``_BLANK``: put in by the reader of the page; ``_UNKNOWN``: none that was found."""
    box: tuple[int, int, int, int]
    """Left, top, right, bottom, in pixels of the painted page."""
    tiny: bool


def read_pages(data: bytes) -> Pages:
    """The text that is seen, page by page.

    Raises:
        Refused: the parser is missing, or the document is malformed or too large.
    """
    try:
        import pypdfium2  # pyright: ignore[reportMissingTypeStubs] - it has none
    except ImportError as error:
        raise Refused(Refusal.PARSER_MISSING, "pypdfium2 is not installed, so PDF is not read") from error
    pages = Pages()
    try:
        document = pypdfium2.PdfDocument(data)
        texts: list[str] = []
        layers: list[str] = []
        for number in range(min(len(document), MAX_PAGES)):
            page = _Page(document[number], pages.hidden)
            texts.append(page.seen)
            layers.append(page.layer)
        if len(document) > MAX_PAGES:
            pages.findings.append(finding(Kind.METADATA, "pdf.pages_left_out", Severity.FLAG))
        document.close()
    except pypdfium2.PdfiumError as error:
        raise Refused(Refusal.MALFORMED, "the PDF cannot be painted") from error
    pages.text = "\n\n".join(text for text in texts if text)
    pages.layer = "\n\n".join(text for text in layers if text)
    return pages


class _Page:
    """One page, painted several times."""

    def __init__(self, page: Any, hidden: list[Hidden]) -> None:
        import pypdfium2.raw as raw  # pyright: ignore[reportMissingTypeStubs] - it has none

        self._raw = raw
        self._page = page
        self._width, self._height = page.get_size()
        longest = max(self._width, self._height, 1.0)
        self._scale = min(_SCALE, _MAX_SIDE / longest)
        self._size = math.ceil(self._width * self._scale), math.ceil(self._height * self._scale)
        self._objects: list[Any] = []
        self._pictures: list[tuple[int, int, int, int]] = []
        self._gather()
        self.seen = self.layer = ""
        self._hidden = hidden
        self._sort(self._letters())

    def _gather(self) -> None:
        page_area = max(self._width * self._height, 1.0)
        for item in self._page.get_objects(max_depth=_MAX_FORMS):
            if item.type == self._raw.FPDF_PAGEOBJ_TEXT:
                self._objects.append(item)
            elif item.type == self._raw.FPDF_PAGEOBJ_IMAGE:
                left, bottom, right, top = item.get_bounds()
                if (right - left) * (top - bottom) >= _PICTURE_SHARE * page_area:
                    self._pictures.append(self._box(left, bottom, right, top))
        if len(self._objects) > MAX_OBJECTS:
            raise Refused(Refusal.TOO_COMPLEX, f"a page has more than {MAX_OBJECTS} pieces of text")

    def _letters(self) -> list[_Letter]:
        raw = self._raw
        text = self._page.get_textpage()
        count = raw.FPDFText_CountChars(text)
        if count > MAX_CHARACTERS:
            raise Refused(Refusal.TOO_LARGE, f"a page has more than {MAX_CHARACTERS} characters")
        numbers = {_address(item.raw): number for number, item in enumerate(self._objects)}
        letters: list[_Letter] = []
        sides = [ctypes.c_double() for _ in range(4)]
        loose = raw.FS_RECTF()
        for at in range(count):
            character = chr(raw.FPDFText_GetUnicode(text, at) & 0x1FFFFF) if _is_letter(raw, text, at) else " "
            made = raw.FPDFText_IsGenerated(text, at) == 1
            unit = _BLANK if made else numbers.get(_address(raw.FPDFText_GetTextObject(text, at)), _UNKNOWN)
            raw.FPDFText_GetCharBox(text, at, *sides)
            left, right, bottom, top = (side.value for side in sides)
            raw.FPDFText_GetLooseCharBox(text, at, loose)
            tall = max(abs(loose.top - loose.bottom), abs(loose.right - loose.left))
            letters.append(_Letter(character, unit, self._box(left, bottom, right, top), tall < _TINY))
        text.close()
        return letters

    def _box(self, left: float, bottom: float, right: float, top: float) -> tuple[int, int, int, int]:
        """A box of the page in pixels, whatever the page's origin and rotation are."""
        width, height = self._size
        corners: list[tuple[int, int]] = []
        for x, y in ((left, top), (right, bottom)):
            across, down = ctypes.c_int(), ctypes.c_int()
            self._raw.FPDF_PageToDevice(self._page.raw, 0, 0, width, height, 0, x, y, across, down)
            corners.append((across.value, down.value))
        return _inside(corners[0], corners[1], width, height)

    def _sort(self, letters: list[_Letter]) -> None:
        """Tells seen from hidden, letter by letter."""
        visible = self._visible(letters)
        seen: list[str] = []
        layer: list[str] = []
        unseen: dict[str, list[str]] = {}
        target: list[str] = seen
        for at, letter in enumerate(letters):
            if letter.unit != _BLANK and not letter.character.isspace():
                if visible[at] and not letter.tiny:
                    target = seen
                elif self._is_layer(letter):
                    target = layer
                else:
                    target = unseen.setdefault("pdf_tiny" if visible[at] else self._way(letter), [])
            target.append(letter.character)
        self.seen = _tidy(seen)
        self.layer = _tidy(layer)
        for way, characters in unseen.items():
            if text := _tidy(characters):
                self._hidden.append(hidden_ink(way, text))

    def _way(self, letter: _Letter) -> str:
        left, top, right, bottom = letter.box
        if right <= left or bottom <= top:
            return "pdf_outside"
        if letter.unit < 0:
            return "pdf_unknown"
        return "pdf_ink" if self._is_ghost(letter) else "pdf_unseen"

    def _is_ghost(self, letter: _Letter) -> bool:
        """Render mode 3 or 7: the text paints nothing by itself."""
        return self._raw.FPDFTextObj_GetTextRenderMode(self._objects[letter.unit].raw) in (3, 7)

    def _is_layer(self, letter: _Letter) -> bool:
        if letter.unit < 0 or not self._pictures or not self._is_ghost(letter):
            return False
        x, y = (letter.box[0] + letter.box[2]) / 2, (letter.box[1] + letter.box[3]) / 2
        return any(left <= x <= right and top <= y <= bottom for left, top, right, bottom in self._pictures)

    def _visible(self, letters: list[_Letter]) -> list[bool]:
        """For each letter, whether the page changes where it stands when its text is taken away."""
        visible = [False] * len(letters)
        if not self._objects:
            return visible
        rounds = list(_rounds(_units(letters), (self._size[1], self._size[0])))
        whole, bare = self._paint(self._objects), self._paint([])
        for units in rounds:
            chosen = {number for unit in units for number in unit.objects}
            if len(rounds) == 1:
                without, alone = bare, whole
            else:
                without = self._paint(item for number, item in enumerate(self._objects) if number not in chosen)
                alone = self._paint(item for number, item in enumerate(self._objects) if number in chosen)
            # What changes nothing when it goes is covered; what leaves no mark on the bare page is no ink.
            marked = _sums(_differ(whole, without) & _differ(alone, bare))
            for unit in units:
                for at in unit.letters:
                    visible[at] = _is_marked(marked, letters[at].box)
        return visible

    def _paint(self, shown: Iterable[Any]) -> Any:
        """The page with only some of its text objects, height × width × 3 bytes."""
        for item in self._objects:
            self._raw.FPDFPageObj_SetIsActive(item.raw, False)
        for item in shown:
            self._raw.FPDFPageObj_SetIsActive(item.raw, True)
        # A copy, since the bitmap's memory ends with it.
        return self._page.render(scale=self._scale).to_numpy()[:, :, :3].copy()


def _differ(one: Any, other: Any) -> Any:
    """Which pixels a reader would see to differ."""
    import numpy as np

    difference = np.maximum(one, other) - np.minimum(one, other)
    return difference.max(axis=2) > _CHANGED


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _is_letter(raw: Any, text: Any, at: int) -> bool:
    code = raw.FPDFText_GetUnicode(text, at)
    return 0 < code < 0x110000 and not 0xD800 <= code < 0xE000


def _inside(start: tuple[int, int], end: tuple[int, int], width: int, height: int) -> tuple[int, int, int, int]:
    """The box in whole pixels, a pixel wider on each side, cut at the page."""
    left, top = (max(0, min(a, b) - 1) for a, b in zip(start, end, strict=True))
    right = min(width, max(start[0], end[0]) + 2)
    bottom = min(height, max(start[1], end[1]) + 2)
    return left, top, max(left, right), max(top, bottom)


def _sums(changed: Any) -> Any:
    """A table from which the number of changed pixels in any box is four look-ups."""
    import numpy as np

    return np.pad(changed, ((1, 0), (1, 0))).astype(np.int32).cumsum(0).cumsum(1)


@dataclass(slots=True)
class _Unit:
    """Text that is taken away together: one object, or several that print the same on the same place."""

    objects: list[int]
    letters: list[int]
    box: tuple[int, int, int, int]


def _units(letters: list[_Letter]) -> list[_Unit]:
    by_object: dict[int, list[int]] = {}
    for at, letter in enumerate(letters):
        if letter.unit >= 0 and not letter.character.isspace():
            by_object.setdefault(letter.unit, []).append(at)
    units: dict[tuple[str, int, int], _Unit] = {}
    for number, members in by_object.items():
        boxes = [letters[at].box for at in members]
        box = (min(b[0] for b in boxes), min(b[1] for b in boxes), max(b[2] for b in boxes), max(b[3] for b in boxes))
        text = "".join(letters[at].character for at in members)
        key = (text, box[0] // 6, box[1] // 6)
        if (twin := units.get(key)) is not None:  # printed twice to look bold
            twin.objects.append(number)
            twin.letters += members
        else:
            units[key] = _Unit([number], members, box)
    return list(units.values())


def _rounds(units: list[_Unit], shape: tuple[int, int]) -> Iterator[list[_Unit]]:
    """Sets of units that do not overlap. Text piled up beyond ``MAX_ROUNDS`` layers is never shown to be visible."""
    import numpy as np

    taken: list[Any] = []
    rounds: list[list[_Unit]] = []
    for unit in units:
        left, top, right, bottom = (side // 2 for side in unit.box)
        place = (slice(top + 1, max(bottom, top + 2)), slice(left + 1, max(right, left + 2)))
        for number in range(MAX_ROUNDS):
            if number == len(rounds):
                taken.append(np.zeros((shape[0] // 2 + 2, shape[1] // 2 + 2), dtype=bool))
                rounds.append([])
            if not taken[number][place].any():
                taken[number][place] = True
                rounds[number].append(unit)
                break
    yield from rounds


def _is_marked(sums: Any, box: tuple[int, int, int, int]) -> bool:
    """Whether enough pixels in the box changed to be a mark, be it a full stop."""
    left, top, right, bottom = box
    if right <= left or bottom <= top:
        return False
    count = int(sums[bottom, right] - sums[top, right] - sums[bottom, left] + sums[top, left])
    return count >= max(2.0, _LEAST_INK * max(1, right - left - 3) * max(1, bottom - top - 3))


def _tidy(characters: list[str]) -> str:
    lines = "".join(characters).replace("\r\n", "\n").replace("\r", "\n").replace("\ufffe", "-").split("\n")
    return "\n".join(line for line in (" ".join(line.split()) for line in lines) if line)
