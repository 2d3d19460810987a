"""The page as a reader meets it, in Chromium: narrow and wide, light and dark, by keyboard, on paper."""

import os
import re
import shutil

import pytest
from report_files import HOSTILE, write_everything, write_pruned, write_restored, write_run

from cogd.report import write_report

playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install 'cogd[dev]'")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium")

LOW_CONTRAST = """() => {
  const parse = text => text.match(/[\\d.]+/g).map(Number);
  const channel = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return parse(getComputedStyle(document.body).backgroundColor);
  };
  const texts = [...document.querySelectorAll("body *:not(script)")].filter(
    e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()));
  return texts.map(e => {
    const style = getComputedStyle(e);
    const [a, b] = [parse(e instanceof SVGElement ? style.fill : style.color), behind(e)].map(luminance);
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.textContent.trim().slice(0, 40)];
  }).filter(([ratio]) => ratio < 4.5);
}"""


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        sandbox = [] if os.geteuid() else ["--no-sandbox"]
        running = started.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield running
        running.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Return the address of a report with every kind of results, some of them with hostile names."""
    folder = tmp_path_factory.mktemp("browser")
    write_everything(folder / "runs")
    write_pruned(folder / "runs" / "deep", layers=54)
    write_run(folder / "runs" / "<b>bold</b> $x$", 0, [0.5, 0.6], name=HOSTILE)
    write_restored(folder / "runs" / "hostile.png", name=HOSTILE * 5)
    write_report([folder / "runs"], folder / "report.html", title=HOSTILE)
    return (folder / "report.html").as_uri()


@pytest.fixture
def visit(browser, report):
    """Open the report; whatever it says on the console, asks of the network or pops up is in `page.heard`."""
    contexts = []

    def opened(width=1440, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.heard = []
        page.on("console", lambda message: page.heard.append(message.text))
        page.on("pageerror", lambda error: page.heard.append(str(error)))
        page.on("dialog", lambda dialog: (page.heard.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: page.heard.append(request.url))
        page.goto(report)
        page.heard = [heard for heard in page.heard if heard != report and not heard.startswith("data:")]
        return page

    yield opened
    for context in contexts:
        context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 1440])
def test_it_fits_reads_well_and_keeps_to_itself(visit, width, scheme):
    page = visit(width, color_scheme=scheme)
    page.evaluate("for (const details of document.querySelectorAll('details')) details.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(LOW_CONTRAST) == []
    assert page.heard == []


def test_dark_is_dark(visit):
    def paper(scheme):
        colour = visit(color_scheme=scheme).evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(int, re.findall(r"\d+", colour)))

    assert paper("dark") < 150 < 700 < paper("light")


def test_the_slider_moves_by_keyboard_and_mouse(visit):
    page = visit()
    slider, after = page.locator(".slider input").first, page.locator(".slider .after").first
    hidden = "element => parseFloat(getComputedStyle(element).clipPath.match(/([\\d.]+)%\\)/)[1])"
    assert after.evaluate(hidden) == 50
    slider.focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    assert after.evaluate(hidden) == 55
    page.keyboard.press("Home")
    assert after.evaluate(hidden) == 0
    box = slider.bounding_box()
    page.mouse.click(box["x"] + 0.8 * box["width"], box["y"] + 10)
    assert after.evaluate(hidden) == pytest.approx(80, abs=3)


def test_before_and_after_lie_on_each_other(visit):
    page = visit(375)
    boxes = [page.locator(".slider img").nth(i).bounding_box() for i in (0, 1)]
    assert boxes[0] == boxes[1]
    assert boxes[0]["width"] / boxes[0]["height"] == pytest.approx(60 / 40, rel=0.01)


def test_hostile_names_are_only_text(visit):
    page = visit()
    assert page.locator("h1").text_content() == HOSTILE
    assert page.title() == " ".join(HOSTILE.split())
    assert page.locator("script").count() == 1
    assert page.locator("b, img[src='x']").count() == 0
    assert page.get_by_text("<b>bold</b> $x$").count() > 0


def test_a_keyboard_reaches_everything_and_skips_to_the_results(visit):
    page = visit()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "results"
    seen = set()
    for _ in range(80):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.tagName + (document.activeElement.getAttribute('role') ?? '')"))
    assert {"INPUT", "SUMMARY", "DIVregion"} <= seen


def test_pictures_have_names_for_a_screen_reader(visit):
    tree = visit().locator("main").aria_snapshot()
    assert "slider" in tree
    assert re.search(r'img ".*goes from \(0\.50, 1\.50\)', tree)
    assert re.search(r'img "6 atoms of 5 by 5 pixels', tree)


def test_on_paper_both_pictures_lie_side_by_side_and_nothing_stays_folded(visit):
    page = visit(794)
    page.emulate_media(media="print", color_scheme="dark")
    before, after = (page.locator(".slider img").nth(i).bounding_box() for i in (0, 1))
    assert after["x"] >= before["x"] + before["width"]
    assert after["y"] == pytest.approx(before["y"], abs=1)
    assert page.locator(".slider .after").first.evaluate("e => getComputedStyle(e).clipPath") == "none"
    assert page.locator("nav").is_hidden()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.pdf().startswith(b"%PDF")
    assert page.locator(".origins:not([open]), .long:not([open])").count() == 0
    assert page.locator(".long td").first.is_visible()


def test_it_reads_without_javascript(visit):
    page = visit(java_script_enabled=False)
    assert page.locator("h2").count() > 5
    assert page.locator(".slider .after").first.is_visible()
