"""Pages in Debian's Chromium: opened, clicked, read and walked through by keyboard, narrow and wide, light and dark."""

import shutil

import pytest

from util.load_model_and_data import load_ICL_model
from util.look import look
from util.study.model import Model

sync_api = pytest.importorskip("playwright.sync_api", reason="needs Playwright: make test-pages")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
TEXT = "When Mike and Emma went to the cafe, Mike gave a coffee to"
HOSTILE = (
    "</script><script>document.title = 'x'</script><img src=x onerror=\"document.title = 'x'\"> {{ data }}\n\tMike 😀"
)
VIEWS = [(width, scheme) for width in (390, 1280) for scheme in ("light", "dark")]


@pytest.fixture(scope="module")
def browser():
    assert CHROMIUM is not None, "install Chromium: apt install chromium"
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The files of pages: all heads on a text, two on a long text, two on hostile text."""
    folder, pair = tmp_path_factory.mktemp("pages"), load_ICL_model("embedded")
    model, two = Model("embedded", loader=lambda: pair), [(2, 4), (0, 2)]
    texts = {"all": (None, TEXT), "long": (two, f"{TEXT} Emma. " * 40), "hostile": (two, HOSTILE)}
    return {
        name: look(model, *asked).write(folder / f"{name}.html", "make test-pages") for name, asked in texts.items()
    }


@pytest.fixture(params=VIEWS, ids=lambda view: f"{view[0]} {view[1]}")
def view(request, browser):
    """A tab without a network, whose errors fail the test."""
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True)
    page, errors = context.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    yield page
    assert not errors
    context.close()


def opened(view, file, address=""):
    view.goto(f"file://{file}{address}")
    assert view.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page is wider than the screen"
    return view


def shown(view, part):
    return view.locator(f"#{part}").inner_text()


def lines(view, table):
    return [row.split("\t") for row in view.locator(f"#{table} tr").all_inner_texts()]


def test_a_head_and_a_token_are_chosen_by_mouse_and_keyboard(view, pages):
    opened(view, pages["all"])
    assert shown(view, "head") == "L0H0" and "“ to”" in shown(view, "token")
    view.locator("#map button[data-name=L2H4]").click()
    assert shown(view, "head") == "L2H4" and "induction" in shown(view, "known")
    view.locator("#text button").nth(3).click()
    assert "position 3" in shown(view, "token")
    reads = [float(number) for number, *_ in lines(view, "reads")]
    assert reads == sorted(reads, reverse=True) and 0.9 < sum(reads) <= 1.001
    assert len(lines(view, "raised")) == len(lines(view, "lowered")) == 5
    view.keyboard.press("ArrowRight")
    assert "position 4" in shown(view, "token") and view.url.endswith("#L2H4,4")
    view.keyboard.press("Home")
    assert "position 0" in shown(view, "token")
    view.locator("#map button[data-name=L2H4]").focus()
    view.keyboard.press("ArrowUp")
    assert shown(view, "head") == "L2H5" and "not confirmed" in shown(view, "known")
    assert view.locator("#map [aria-pressed=true]").get_attribute("aria-label").startswith("L2H5")
    assert view.locator("[tabindex='0']").count() == 2  # Tab goes to the text and to the map, arrows go on in them


def test_an_address_opens_a_head_at_a_token(view, pages):
    opened(view, pages["all"], "#L0H2,5")
    assert shown(view, "head") == "L0H2" and "position 5" in shown(view, "token")


def test_a_long_text_shows_the_token_that_it_is_seen_from(view, pages):
    opened(view, pages["long"])
    chosen = view.locator("#text [aria-pressed=true]")
    assert chosen.count() == 1 and view.locator("#text button:disabled").count() > 100
    view.locator("#map button[data-name=L1H1]").click(force=True)  # it is not on the page
    assert shown(view, "head") == "L2H4" and "--heads" in shown(view, "absent")


def test_hostile_text_is_only_shown(view, pages):
    opened(view, pages["hostile"])
    assert view.title().startswith("Heads of ") and "onerror" in shown(view, "text")
    assert view.locator("#text img").count() == 0


def test_letters_have_contrast(view, pages):
    """WCAG AA asks 4.5 of text; of the darkest shade of attention, too."""
    opened(view, pages["all"], "#L2H6,14")
    worst = view.evaluate(
        """() => {
        const light = colour => {
          const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number);
          return [r, g, b, a];
        };
        const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3]));
        const luminance = rgb => rgb.map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
          .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
        const ground = light(getComputedStyle(document.body).backgroundColor);
        const written = [...document.querySelectorAll("h1, h2, p, td, caption, #text button")];
        const ratios = written.filter(e => e.innerText.trim()).map(e => {
          const style = getComputedStyle(e), back = over(light(style.backgroundColor), ground);
          const ink = over(light(style.color), back);
          const [a, b] = [luminance(back), luminance(ink)].sort((x, y) => y - x);
          return (a + 0.05) / (b + 0.05);
        });
        return Math.min(...ratios);
      }"""
    )
    assert worst >= 4.5
