"""The report's page in a real browser: figures by key and by touch, two colour schemes, nothing that overflows."""

import os
import shutil

import pytest
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from purgatory.journal.records import JOURNAL
from purgatory.pipeline._tables.local import Local
from purgatory.pipeline.report import ReportOptions, report
from tests.support import workloads

PROGRAMS = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
if not all(PROGRAMS.values()):
    if os.environ.get("CI") == "true":
        pytest.fail("chromium and its driver are not installed: run `make programs`", pytrace=False)
    pytest.skip("chromium and its driver are not installed: run `make programs`", allow_module_level=True)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """A browser that shows the page of a small journal."""
    folder = tmp_path_factory.mktemp("page")
    workloads.write(folder / "journal", workloads.journal(4_000, seconds=300), JOURNAL, files=1)
    path = report(Local([str(folder / "journal")]), folder / "out", ReportOptions(quiet=True))
    options = webdriver.ChromeOptions()
    options.binary_location = PROGRAMS["chromium"]
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1280,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    made = webdriver.Chrome(options=options, service=webdriver.ChromeService(PROGRAMS["chromedriver"]))
    made.get(path.as_uri())
    yield made
    made.quit()


def plot(driver, section):
    """The first plot of a section, and the line that shows its figures."""
    figure = driver.find_element(By.XPATH, f"//section[h2='{section}']//figure")
    return figure.find_element(By.TAG_NAME, "svg"), figure.find_element(By.TAG_NAME, "output")


def test_a_plot_tells_its_figures_to_who_uses_keys(driver):
    """Focused, the arrow keys go from window to window, Home and End to the ends, and Escape ends it."""
    svg, output = plot(driver, "Outcomes over time")
    titles = [each.get_attribute("textContent") for each in svg.find_elements(By.TAG_NAME, "title")]
    driver.execute_script("arguments[0].focus()", svg)
    told = []
    for key in (Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT, Keys.END, Keys.ARROW_RIGHT, Keys.HOME):
        svg.send_keys(key)
        told.append(output.text.split())
    first, second, last = (titles[n].split() for n in (0, 1, -1))
    assert [first, second, first, last, last, first] == told
    svg.send_keys(Keys.ESCAPE)
    assert "" == output.text


@pytest.mark.parametrize("section", ["Waiting, band by band", "Hot keys", "Occupancy"])
def test_a_plot_tells_its_figures_to_who_touches_it(driver, section):
    """A touch of a mark shows its figures under the plot."""
    svg, output = plot(driver, section)
    mark = svg.find_elements(By.XPATH, ".//*[*[local-name()='title']]")[0]
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", mark)
    ActionChains(driver).move_to_element(mark).click().perform()
    expected = mark.find_element(By.XPATH, "./*[local-name()='title']").get_attribute("textContent")
    assert expected.split() == output.text.split()


def test_the_first_screen_has_a_plot(driver):
    """The first plot begins above the fold of a laptop's screen."""
    top = driver.execute_script("return document.querySelector('figure svg').getBoundingClientRect().top + scrollY")
    assert 0 < top < 900


def test_both_colour_schemes_differ_and_the_button_changes_them(driver):
    """The button goes from light to dark and back."""

    def colour():
        return driver.execute_script("return getComputedStyle(document.body).backgroundColor")

    before = colour()
    button = driver.find_element(By.TAG_NAME, "button")
    driver.execute_script("arguments[0].click()", button)
    assert before != colour()
    driver.execute_script("arguments[0].click()", button)
    assert before == colour()


@pytest.mark.parametrize("width", [1280, 390])
def test_findings_are_not_cut_off(driver, width):
    """On a laptop and on a telephone each finding is as wide as its section or narrower."""
    script = """
        const list = document.querySelector(".findings");
        return Math.max(...[...list.children].map((each) => each.getBoundingClientRect().right)) -
            list.closest("section").getBoundingClientRect().right;"""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    beyond = driver.execute_script(script)
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert 0 > beyond


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_screen(driver, width):
    """On a laptop and on a telephone the page itself doesn't scroll sideways. Wide plots do so within their section."""
    driver.set_window_size(width, 900)
    wide = driver.execute_script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
    driver.set_window_size(1280, 900)
    assert 0 == wide


def test_no_error_is_logged(driver):
    """The browser has nothing to complain about."""
    assert [] == [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
