"""Requests that an administrator writes while the controller carries out an earlier one."""

from examples.broker.controller.tree import layout
from examples.broker.coordination.store import Create, Set


def test_a_reassignment_during_a_step_is_not_overwritten(cluster):
    """The last request counts, also if it comes between the controller's look and its own write."""
    cluster.add(1, 2, 3, 4).create_topic("t", {0: (1, 2, 3)})
    duties = cluster.active.duties
    write_assignment, newer = duties.write_assignment, [layout.write_reassignments({("t", 0): (1, 2, 3)})]

    def write_then_ask(key, nodes):
        write_assignment(key, nodes)
        if newer:
            cluster.store.multi([Set(layout.REASSIGNMENTS, newer.pop())])

    duties.write_assignment = write_then_ask
    cluster.write(Create(layout.REASSIGNMENTS, layout.write_reassignments({("t", 0): (4, 2, 3)})))

    assert {0: (1, 2, 3)} == layout.assignment_of(cluster.store.get(layout.topic_path("t")).data)
    assert layout.REASSIGNMENTS.rpartition("/")[2] not in cluster.store.children("/admin")
