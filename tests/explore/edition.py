"""A private copy of the core: its modules loaded once more from source, changed on the way if need be.

The copy may be mutated and have its ``threading`` and ``time`` replaced without touching the modules that everything
else uses.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("timer", "purgatory")
Changes = Iterable[tuple[str, Callable[[str], str]]] | dict[str, Callable[[str], str]]


class _Silent:
    """A logger without output."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args, **kw: None


class _Loader(importlib.abc.InspectLoader):
    def __init__(self, path: Path, source: str) -> None:
        self.path = path
        self.source = source

    def get_source(self, fullname: str) -> str:
        return self.source

    def is_package(self, fullname: str) -> bool:
        return self.path.name == "__init__.py"

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = compile(self.source, str(self.path), "exec", dont_inherit=True)
        return code


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, changes: Changes) -> None:
        self.changes = dict(changes)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.split(".", maxsplit=1)[0] not in PARTS:
            return None
        base = ROOT.joinpath(*fullname.split("."))
        file = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
        if not file.exists():
            return None
        source = file.read_text()
        change = self.changes.pop(fullname, None)
        if change is not None:
            source = change(source)
        places = [str(base)] if base.is_dir() else None
        return importlib.util.spec_from_file_location(
            fullname, file, loader=_Loader(file, source), submodule_search_locations=places
        )


def _ours() -> list[str]:
    return [name for name in sys.modules if name.split(".")[0] in PARTS]


class Edition:
    """The core, loaded for oneself.

    Args:
        changes: by module name, a function from its source to the source to load instead.
    """

    def __init__(self, changes: Changes = ()) -> None:
        finder = _Finder(changes)
        declined = os.environ.get("PURGATORY_PURE")
        os.environ["PURGATORY_PURE"] = "1"  # the steps of Python are explored
        kept = {name: sys.modules.pop(name) for name in _ours()}
        sys.meta_path.insert(0, finder)
        try:
            self.purgatory: Any = importlib.import_module("purgatory")
            self.timer: Any = importlib.import_module("timer")
            self.gates: Any = importlib.import_module("purgatory.gates")
            self.modules: list[Any] = [sys.modules[name] for name in _ours()]
        finally:
            sys.meta_path.remove(finder)
            for name in _ours():
                del sys.modules[name]
            sys.modules.update(kept)
            if declined is None:
                del os.environ["PURGATORY_PURE"]
            else:
                os.environ["PURGATORY_PURE"] = declined
        assert not finder.changes, f"nothing imports {sorted(finder.changes)}"
        for module in self.modules:
            if hasattr(module, "log"):
                module.log = _Silent()
            for name in ("watch", "unwatch"):  # the watchdog has a thread that looks at real stacks: not here
                if callable(getattr(module, name, None)):
                    setattr(module, name, lambda purgatory: None)
        self.files = frozenset(module.__file__ for module in self.modules)
        seeing = [module for module in self.modules if not module.__name__.endswith(".watchdog")]
        self._with_threads = [module for module in seeing if hasattr(module, "threading")]
        self._with_time = [module for module in seeing if hasattr(module, "time")]

    def attach(self, scheduler: Any) -> SimpleNamespace:
        """Let the modules see the scheduler's threads and time."""
        threads, time = scheduler.threading_module(), scheduler.time_module()
        for module in self._with_threads:
            module.threading = threads
        for module in self._with_time:
            module.time = time
        nowhere = self.purgatory._core.operation.NOWHERE
        nowhere.lock, nowhere.key_lock = threads.Lock(), threads.Lock()
        nowhere.ending.clear()
        nowhere.retrier.after_fork()
        return SimpleNamespace(purgatory=self.purgatory, timer=self.timer, gates=self.gates)
