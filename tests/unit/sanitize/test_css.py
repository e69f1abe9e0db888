"""Visibility by CSS: what a reader sees is kept, what no reader sees is taken out, whatever the spelling."""

from __future__ import annotations

import pytest

from gnusnode.sanitize.html import extract_html

SECRET = "the quick brown secret"
SEEN = "seen by everybody"


def read(body: str, head: str = "") -> str:
    page = f"<!doctype html><html><head>{head}</head><body><p>{SEEN}</p>{body}</body></html>"
    return extract_html(page.encode()).text


def inline(style: str, tag: str = "div") -> str:
    return f'<{tag} style="{style}">{SECRET}</{tag}>'


def ruled(css: str, body: str = f'<div class="x" id="y">{SECRET}</div>') -> str:
    return read(body, f"<style>{css}</style>")


HIDDEN_INLINE = [
    "display:none",
    "DISPLAY : none !important",
    "display:none;display:bogus",
    "d\\69splay:none",
    "display:/**/none",
    "display:none;color:red",
    "visibility:hidden",
    "visibility:collapse",
    "content-visibility:hidden",
    "opacity:0",
    "opacity:.01",
    "opacity:0%",
    "opacity:calc(1 - 1)",
    "filter:opacity(0)",
    "filter:blur(20px)",
    "font-size:0",
    "font-size:1px",
    "font-size:.01em",
    "font:0/0 a",
    "font:1px serif",
    "font-size:calc(1px * 0.5)",
    "zoom:0.01",
    "letter-spacing:-1em",
    "color:white",
    "color:#fff",
    "color:#fefefe",
    "color:#ffffff01",
    "color:transparent",
    "color:rgba(10,10,10,0)",
    "color:hsl(0 0% 100%)",
    "color:hwb(0 100% 0)",
    "color:oklch(1 0 0)",
    "color:lab(100% 0 0)",
    "color:rgb(100% 100% 100%)",
    "-webkit-text-fill-color:transparent",
    "background:#000;color:#000",
    "background-color:#123456;color:#123457",
    "background:black;color:rgb(5 5 5)",
    "background:linear-gradient(#fff,#fff);color:#fff",
    "color:#fafafa",
    "color:black;opacity:.03",
    "position:absolute;left:-9999px",
    "position:absolute;left:-999em",
    "position:fixed;top:-500px",
    "position:absolute;right:-9999px",
    "position:absolute;inset:-9999px auto auto -9999px",
    "position:fixed;left:100vw",
    "position:relative;left:-5000px",
    "position:absolute;left:calc(0px - 9999px)",
    "position:fixed;top:200vh",
    "margin-left:-9999px",
    "margin:0 0 0 -9999px",
    "text-indent:-9999px;display:block",
    "text-indent:-999em",
    "transform:translateX(-9999px)",
    "transform:translate(-9999px,0)",
    "translate:-9999px 0",
    "transform:scale(0)",
    "transform:scaleX(0)",
    "scale:0",
    "transform:matrix(0,0,0,0,0,0)",
    "transform:rotateY(90deg)",
    "transform:scale(.01)",
    "transform:translate3d(-200vw,0,0)",
    "transform:rotateX(.25turn)",
    "transform:scale3d(0,0,1)",
    "position:absolute;clip:rect(0,0,0,0)",
    "position:absolute;clip:rect(1px 1px 1px 1px)",
    "clip-path:inset(100%)",
    "clip-path:inset(50%)",
    "clip-path:circle(0)",
    "clip-path:circle(0px at 50% 50%)",
    "clip-path:ellipse(0 0)",
    "clip-path:polygon(0 0,0 0,0 0)",
    "clip-path:polygon(0 0, 100% 0, 0 0)",
    "clip-path:inset(0 0 100% 0)",
    "-webkit-clip-path:inset(0 100% 0 0)",
    "height:0;overflow:hidden",
    "width:0;overflow:hidden",
    "max-height:0;overflow:clip",
    "width:1px;height:1px;overflow:hidden",
    "max-width:0;overflow-x:hidden",
    "height:0;overflow:auto",
    "block-size:0;overflow:hidden",
    "height:0;contain:paint",
    "height:calc(1px - 1px);overflow:hidden",
    "text-indent:100%;white-space:nowrap;overflow:hidden",
    "mask-image:linear-gradient(transparent,transparent)",
    "--d:none;display:var(--d)",
    "display:var(--nothing, none)",
    "--c:#fff;color:var(--c)",
    "color:rgb(from white r g b);color:white",
    "position:absolute;left:-9999px;left:bogus",
    "position:fixed;bottom:-500px",
    "position:absolute;right:-1000px",
    "position:fixed;right:-400px",
    "position:absolute;bottom:5000px",
    "position:absolute;right:100%",
    "position:absolute;right:1500px",
    "line-height:0;overflow:hidden",
    "display:table-column",
    "opacity:var(--x, 0)",
    "font-size:max(0px, 1px)",
    "transform:translateX(calc(-100vw - 400px))",
    "position:absolute;left:min(-9999px, 0px)",
    "color:color(srgb 1 1 1)",
    "color:#fff;text-shadow:0 0 0 transparent",
    "color:#fff;text-shadow:9999px 0 0 #000",
]

SEEN_INLINE = [
    "display:block",
    "position:fixed;bottom:0",
    "position:fixed;bottom:10px;right:10px",
    "position:absolute;right:0;top:0",
    "line-height:0",
    "line-height:1.2;overflow:hidden",
    "display:none;display:block",
    "visibility:visible",
    "opacity:.5",
    "opacity:1",
    "opacity:bogus",
    "font-size:10px",
    "font-size:.8em",
    "color:#777",
    "color:#333;background:#fff",
    "background:#000;color:#fff",
    "background:black;color:white",
    "background:linear-gradient(90deg,#000,#333);color:white",
    "background:url(hero.jpg);color:#fff",
    "position:relative;left:10px",
    "position:absolute;left:100px;top:50px",
    "margin-left:-15px",
    "text-indent:-20px;padding-left:20px",
    "text-indent:2em",
    "transform:translateX(10px)",
    "transform:rotate(45deg)",
    "transform:scale(1.5)",
    "transform:scale(-1,1)",
    "left:-9999px",
    "clip:rect(0,0,0,0)",
    "clip-path:none",
    "clip-path:inset(10%)",
    "clip-path:circle(50%)",
    "height:0",
    "width:0;height:0",
    "overflow:hidden",
    "height:100px;overflow:hidden",
    "height:0;overflow:hidden;padding-bottom:56%",
    "max-height:0",
    "position:absolute;left:50%;margin-left:-480px",
    "position:fixed;left:50%;top:50%;transform:translate(-50%,-50%)",
    "letter-spacing:.1em",
    "letter-spacing:-1px",
    "filter:blur(0)",
    "filter:grayscale(1)",
    "color:red;color:bogus",
    "--d:none;display:block",
    "display:var(--missing)",
    "color:#595959",
    "font-size:-5px",
    "color:transparent;text-shadow:0 0 3px #000",
    "background:linear-gradient(red,blue);-webkit-background-clip:text;-webkit-text-fill-color:transparent",
    "height:0;min-height:100px;overflow:hidden",
    "background:#fff url(x.png);color:#000",
    "color:#0000ee",
    "background:#0a0;color:#a00",
    "z-index:-1;position:relative",
    "max-height:500px;overflow:auto",
    "font-size:xx-small",
]


@pytest.mark.requirement("G-TI-9")
@pytest.mark.parametrize("style", HIDDEN_INLINE)
def test_text_hidden_by_an_inline_style_is_taken_out(style: str) -> None:
    text = read(inline(style))
    assert SECRET not in text
    assert SEEN in text


@pytest.mark.parametrize("style", SEEN_INLINE)
def test_text_that_an_inline_style_leaves_visible_is_kept(style: str) -> None:
    assert SECRET in read(inline(style))


HIDDEN_RULES = [
    ".x{display:none}",
    "#y{display:none}",
    "div{display:none}",
    "*.x{display:none}",
    "div.x#y{display:none}",
    "@media screen{#y{display:none}}",
    "@media (min-width:600px){.x{display:none}}",
    "@media not print{.x{display:none}}",
    "@media screen and (max-width:9999px) and (orientation:landscape){.x{display:none}}",
    "@media (400px <= width <= 2000px){.x{display:none}}",
    "@media print,screen{.x{opacity:0}}",
    "@supports (display:grid){.x{display:none}}",
    "@layer a{.x{display:none}}",
    "body > .x{display:none}",
    "p + div{display:none}",
    "p ~ .x{display:none}",
    "body div:last-child{display:none}",
    "div:nth-child(2){display:none}",
    "div:nth-of-type(1){display:none}",
    "[class=x]{display:none}",
    "[id^=y]{display:none}",
    "[class~='x'][id]{display:none}",
    ":is(.a,.x){display:none}",
    ":where(#y){display:none}",
    "div:not(.z){display:none}",
    "body:has(.x) div{display:none}",
    ".x{display:block}#y{display:none}",
    ".x{display:none!important}#y{display:block}",
    ".x{display:block}.x{display:none}",
    "body{.x{display:none}}",
    "body{& > .x{display:none}}",
    ".x{&#y{display:none}}",
    ".x{@media screen{display:none}}",
    ".\\78{display:none}",
    ".x{dis/**/play:block;display:none}",
    "/*}*/.x{display:none}",
    "a{content:'}'}.x{display:none}",
    ":root{--h:none}.x{display:var(--h)}",
    "@keyframes k{to{opacity:0}}.x{animation:k 1s forwards}",
    "@layer a,b;@layer b{.x{display:none}}@layer a{.x{display:block}}",
    ".x{display:none}@media print{.x{display:block}}",
    "@layer a{.x{display:none!important}}.x{display:block!important}",
    "html .x:first-of-type{visibility:hidden}",
    "body{color:#fff}",
    "body{background:#000;color:#000}p{color:#fff}",
    "div{font-size:0}",
    "body{visibility:hidden}p{visibility:visible}",
]

SEEN_RULES = [
    ".X{display:none}",
    ".xx{display:none}",
    "p.x{display:none}",
    "@media print{.x{display:none}}",
    "@media (max-width:600px){.x{display:none}}",
    "@media (width < 500px){.x{display:none}}",
    "@media not screen{.x{display:none}}",
    "@supports not (display:grid){.x{display:none}}",
    ".x{display:none}#y{display:block}",
    ".x::before{display:none}",
    ".x:hover{display:none}",
    "p > .x{display:none}",
    "div:first-child{display:none}",
    "div:not(.x){display:none}",
    ".x{display:none}.x{display:block}",
    ".x,!{display:none}",
    "#y.z{display:none}",
    "@layer a{.x{display:none}}.x{display:block}",
    "@media (prefers-color-scheme:dark){.x{display:none}}",
    "@keyframes k{to{opacity:1}}.x{opacity:0;animation:k 1s forwards}",
    "@keyframes k{from{opacity:0}}.x{animation:k 1s}",
    ".x{color:#fff;background:#222}",
    "body{background:#222;color:#eee}",
    ".x{display:none}.x#y{display:revert}",
    "/*.x{display:none}*/",
    "body{font-size:0}div,p{font-size:16px}",
    ".x{position:absolute;left:-9999px}#y{position:static}",
]


@pytest.mark.parametrize("css", HIDDEN_RULES)
def test_text_hidden_by_a_style_rule_is_taken_out(css: str) -> None:
    assert SECRET not in ruled(css)


@pytest.mark.parametrize("css", SEEN_RULES)
def test_text_that_style_rules_leave_visible_is_kept(css: str) -> None:
    assert SECRET in ruled(css)


@pytest.mark.parametrize(
    ("head", "hidden"),
    [
        ("<style media=screen>.x{display:none}</style>", True),
        ("<style media='(min-width: 100px)'>.x{display:none}</style>", True),
        ("<style media=print>.x{display:none}</style>", False),
        ("<style type='text/css'>.x{display:none}</style>", True),
        ("<style type='text/plain'>.x{display:none}</style>", False),
        ("<noscript><style>.x{display:none}</style></noscript>", False),
        ("<link rel=stylesheet href='data:text/css,.x{display:none}'>", True),
        ("<link rel=stylesheet href='data:text/css;charset=utf-8,.x%7Bdisplay%3Anone%7D'>", True),
        ("<link rel=stylesheet href='data:text/css;base64,Lnh7ZGlzcGxheTpub25lfQ=='>", True),
        ("<link rel=stylesheet media=print href='data:text/css,.x{display:none}'>", False),
        ("<link rel=preload href='data:text/css,.x{display:none}'>", False),
        ("<style>@import 'data:text/css,.x{display:none}';</style>", True),
        ("<style>@import url(data:text/css,.x%7Bdisplay:none%7D) screen;</style>", True),
        ("<style>@import 'data:text/css,.x{display:none}' print;</style>", False),
        ("<svg><style>.x{display:none}</style></svg>", True),
    ],
)
def test_rules_count_where_a_browser_would_take_them_from(head: str, hidden: bool) -> None:
    assert (SECRET not in read(f'<div class="x">{SECRET}</div>', head)) is hidden


def test_inline_style_weighs_more_than_rules_and_less_than_important_ones() -> None:
    shown = f'<div class="x" style="display:block">{SECRET}</div>'
    assert SECRET in ruled(".x{display:none}", shown)
    assert SECRET not in ruled(".x{display:none!important}", shown)


def test_a_child_of_an_invisible_parent_may_show_itself() -> None:
    text = read(f'<div style="visibility:hidden">{SECRET}<b style="visibility:visible">again here</b></div>')
    assert SECRET not in text
    assert "again here" in text


def test_a_child_of_a_removed_parent_stays_removed() -> None:
    assert SECRET not in read(f'<div style="display:none"><b style="display:block">{SECRET}</b></div>')


def test_offsets_add_up_over_ancestors() -> None:
    steps = '<div style="position:relative;left:-700px">' * 3
    assert SECRET not in read(f"{steps}{SECRET}")
    back = (
        f'<div style="position:absolute;left:-9999px"><div style="position:relative;left:10000px">{SECRET}</div></div>'
    )
    assert SECRET in read(back)


def test_opacity_multiplies_over_ancestors() -> None:
    faint = '<div style="opacity:.3">' * 3
    assert SECRET not in read(f"{faint}{SECRET}")
    assert SECRET in read(f'<div style="opacity:.6"><div style="opacity:.6">{SECRET}</div></div>')


def test_text_under_an_opaque_ancestor_is_hidden() -> None:
    under = f'<div style="position:relative;z-index:-1">{SECRET}</div>'
    assert SECRET not in read(f'<div style="background:#fff">{under}</div>')
    assert SECRET in read(f'<div style="background:#fff;position:relative;z-index:0">{under}</div>')


def test_a_sliver_does_not_cut_an_inline_element() -> None:
    assert SECRET in read(f'<span style="width:0;height:0;overflow:hidden">{SECRET}</span>')
    assert SECRET not in read(f'<span style="width:0;height:0;overflow:hidden;float:left">{SECRET}</span>')
    assert SECRET not in read(
        f'<div style="display:flex"><span style="width:0;height:0;overflow:hidden">{SECRET}</span></div>'
    )


def test_a_background_without_area_hides_nothing_and_shows_nothing() -> None:
    assert SECRET not in read(f'<div style="width:0;height:0;background:#000;color:#fff">{SECRET}</div>')


def test_without_a_doctype_classes_are_compared_without_case() -> None:
    page = f"<style>.HIDE{{display:none}}</style><p class=hide>{SECRET}</p><p>{SEEN}</p>"
    assert extract_html(page.encode()).text == SEEN
    assert SECRET in extract_html(b"<!doctype html>" + page.encode()).text
