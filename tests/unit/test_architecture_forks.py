"""For each lock, event and thread in ``timer`` and ``purgatory`` it is known what a forked child does with it.

A fork copies locks as they are, and no thread. Locks and events are made by ``timer._fork``, which frees them in the
child. A class that keeps a thread or a lock of another kind forgets it in a method ``after_fork``. The sources are
walked. A lock or thread that is made in another way must be named in ``LEFT``, with the reason.
"""

import ast

from tests.unit._tree import module_of, sources

MAKERS = frozenset(
    {
        *("Lock", "RLock", "Condition", "Event", "Semaphore", "BoundedSemaphore", "Barrier"),
        *("Thread", "Timer", "ThreadPoolExecutor", "Queue", "SimpleQueue", "LifoQueue", "PriorityQueue"),
    }
)
MODULES = frozenset({"threading", "concurrent.futures", "queue"})
RENEWING = "after_fork"

#: The objects that a child does not make again, with the reason.
LEFT = {
    "timer._fork.new_condition": "the module that frees them",
    "timer._fork.new_event": "likewise",
    "timer._fork.new_lock": "likewise",
    "timer._fork.new_rlock": "likewise",
    "timer._reaper.Driver.thread": "nothing expires in a child, and a thread that isn't there is joined at once",
    "timer._reaper.Driver._sleep": "only the thread waits for it, which a child does not have",
    "purgatory._core.watchdog.Watchdog._start.thread": "kept as _thread, which after_fork forgets",
    "purgatory._core.blocking.PLAIN_LOCK": "only its type is used",
    "purgatory._core.blocking.taken_lock.lock": "only the thread waits for it, which a child does not have",
    "purgatory._core.operation.DelayedOperation._op_mutex": "made anew in ``_op_after_fork``",
    "purgatory.feeds._following.threads.ThreadFollowing._thread": "nothing is followed in a child; calls there say so",
    "purgatory.testing.feeds._tools.elsewhere.thread": "of one test",
    "purgatory.testing.feeds._blocks.Blocks.test_threads_follow_without_a_loop_of_their_own.Seen.done": "of one test",
    "purgatory.console._serve.serve.thread": "the parent's server; its hub looks again if somebody asks",
    "purgatory._wsgi.WsgiServer._asked": "the parent's server",
    "purgatory._wsgi.WsgiServer._thread": "likewise",
    "purgatory._wsgi.WsgiServer._workers": "likewise",
    "purgatory.console.cli._get.thread": "a request of one command, which does not fork",
    "purgatory.journal._segments.sealer.Sealer._thread": "the copy of a journal is closed, and submits nothing",
    "purgatory.journal._writer.FolderWriter._thread": "likewise: no thread of the child joins it",
}


def made(tree):
    """The names of what makes a lock or a thread in a module: as imported, and as ``module.Name``."""
    names = {f"{module}.{maker}" for module in MODULES for maker in MAKERS}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in MODULES:
            names |= {alias.asname or alias.name for alias in node.names if alias.name in MAKERS}
    return names


def targets(statement):
    """The targets of a statement: names, and attributes of ``self``."""
    if isinstance(statement, ast.Assign):
        found = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        found = [statement.target]
    else:
        return []
    flat = [part for target in found for part in (target.elts if isinstance(target, ast.Tuple) else [target])]
    return [ast.unparse(part) for part in flat]


def unmended(module, source):
    """The locks and threads that a module makes and no child makes again."""
    tree = ast.parse(source)
    makers = made(tree)
    sites, renewed = [], set()

    def walk(node, within, statement):
        for child in ast.iter_child_nodes(node):
            inner = child if isinstance(child, ast.stmt) else statement
            if isinstance(child, ast.Call) and ast.unparse(child.func) in makers:
                sites.append((within, inner))
            if isinstance(child, ast.stmt) and within and within[-1] == RENEWING:
                renewed.update((within[:-1], target) for target in targets(child))
            named = isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            walk(child, (*within, child.name) if named else within, inner)

    walk(tree, (), None)
    found = []
    for within, statement in sites:
        kept = targets(statement)
        own = [target for target in kept if target.startswith("self.")]
        if within and within[-1] == RENEWING:
            continue
        if own and (within[:-1], own[0]) in renewed:
            continue
        place = (*within[:-1], own[0].removeprefix("self.")) if own else (*within, *kept[:1])
        found.append(".".join((module, *place)))
    return found


def test_of_each_lock_and_thread_it_is_known_how_a_forked_child_has_it():
    """Made again in the child, or named with the reason why not, and nothing is named that isn't there."""
    made = {name for path in sources("timer", "purgatory") for name in unmended(module_of(path)[0], path.read_text())}
    assert set(LEFT) == made


def test_a_lock_that_is_forgotten_is_seen():
    """Of a class and of a module, under whatever name it was imported. One that a class makes again is not."""
    source = """
import threading
from threading import Lock as Gate

_one = threading.Lock()

class Thing:
    def __init__(self):
        self._kept = Gate()
        self._lost = Gate()

    def after_fork(self):
        self._kept = Gate()
"""
    assert ["m._one", "m.Thing._lost"] == unmended("m", source)
