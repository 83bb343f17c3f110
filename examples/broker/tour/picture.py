"""Take the picture of the README: ``python -m examples.broker.tour.picture docs/pictures/console.png``.

The console of a node under the load of the tour, whose leader is killed and started again, as a browser shows it after
half a minute. Needs chromium with its driver, and selenium.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from selenium import webdriver
from selenium.webdriver.common.by import By

from examples.broker.tour.clients import Load, Topic
from examples.broker.tour.cluster import Cluster
from examples.broker.tour.ledger import Ledger
from examples.broker.tour.outage import watch
from examples.broker.tour.settings import Settings

_SIZE: Final = (1400, 1077)
_LOAD_S: Final = 45.0
_LOADED_S: Final = 5.0
_TAKEN_AT_S: Final = 36.0


def take(url: str, path: Path, after_s: float) -> None:
    """Open the console, wait, and save what it shows."""
    options = webdriver.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    options.add_argument(f"--window-size={_SIZE[0]},{_SIZE[1]}")
    driver = webdriver.Chrome(options=options)
    try:
        driver.get(url)
        time.sleep(_LOADED_S)
        driver.find_element(By.XPATH, "//*[@id='cards']/*[contains(., 'produce')]").click()
        time.sleep(after_s - _LOADED_S)
        driver.save_screenshot(str(path))
    finally:
        driver.quit()


def main() -> int:
    """Run the tour's cluster under its load, and take the picture meanwhile."""
    path = Path(sys.argv[1])
    settings = Settings(seconds=_LOAD_S)
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder), settings) as cluster:
        topic = Topic(cluster.bootstrap, settings.partitions, 3)
        camera = threading.Thread(target=take, args=(cluster.urls["console"], path, _TAKEN_AT_S))
        ledger = Ledger()
        with Load(cluster.bootstrap, settings, ledger):
            camera.start()
            watch(cluster, topic, settings, ledger, print)
            camera.join()
    print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
