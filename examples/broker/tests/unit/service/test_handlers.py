"""Which method answers which API."""

from examples.broker.protocol.apis import ApiKey
from examples.broker.service.handlers import by_api
from examples.broker.service.handlers.groups import GroupHandlers


def test_methods_answer_the_apis_that_they_are_named_after_and_fields_answer_none():
    """What a family keeps may have the name of an API. It is no handler."""
    family = GroupHandlers(None, metadata="kept")
    found = by_api(family)
    assert (family.heartbeat, False) == (found[ApiKey.HEARTBEAT], ApiKey.METADATA in found)
