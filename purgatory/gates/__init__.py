"""Gates: admit callers to a scarce thing, with a deadline, a fair order, and early rejection.

Start at :class:`Gate`.
"""

from purgatory._gate_records import GateStatistics
from purgatory.gates._errors import BlockingEnter, GateRejected, GateTimeout
from purgatory.gates._gate import Entry, Gate

__all__ = ["BlockingEnter", "Entry", "Gate", "GateRejected", "GateStatistics", "GateTimeout"]
