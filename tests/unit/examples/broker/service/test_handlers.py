"""Which method answers which API."""

import attrs

from examples.broker.protocol.apis import ApiKey
from examples.broker.service.handlers import by_api


@attrs.define
class Family:
    """A family whose field bears the name of an API, too."""

    metadata: object

    def heartbeat(self):
        return "here"


def test_methods_answer_the_apis_that_they_are_named_after_and_fields_answer_none():
    """What a family keeps may have the name of an API. It is no handler."""
    family = Family("kept")
    assert {ApiKey.HEARTBEAT: family.heartbeat} == by_api(family)
