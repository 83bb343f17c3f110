pytest_plugins = ["purgatory.testing", "tests.support.fixtures", "tests.support.loops", "tests.support.traces"]
