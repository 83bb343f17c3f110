#: The library's own fixtures for tests, those of its tests, and those of tests that are coroutines.
pytest_plugins = ["purgatory.testing", "tests.support.fixtures", "tests.support.loops"]
