"""What is left of a folder when the power fails: only what was flushed.

POSIX promises no more than this: a file holds what it held when it was flushed last, and a folder has the names that it
had when it was flushed last. Real file systems keep more, each of them something else.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from file_operations import Operation

Tree = dict[str, bytes | None]
"""What a folder holds, by paths relative to it: contents of files, None for folders, which come before their own."""
Node = int
"""A file or folder, whatever its name; numbers of the file system are used again, these are not."""


def tree_of(root: Path) -> Tree:
    """Return what a folder holds."""
    return {_name(path, root): None if path.is_dir() else path.read_bytes() for path in sorted(root.rglob("*"))}


def write_tree(tree: Tree, root: Path) -> None:
    """Make a folder that holds this."""
    root.mkdir()
    for name, content in tree.items():
        if content is None:
            (root / name).mkdir()
        else:
            (root / name).write_bytes(content)


class LossyDisk:
    """Follows the operations below a folder; what is there at the beginning is on the disk."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._nodes: dict[int, Node] = {}
        self._n_nodes = 0
        self._names: dict[Node, dict[str, Node]] = {}
        self._contents: dict[Node, bytes] = {}
        for path in (root, *root.rglob("*")):
            self._flush(path)

    def before(self, operation: Operation) -> None:
        """Note what an operation makes last, and what loses its number."""
        if operation.kind == "fsync":
            self._flush(operation.path)
        elif operation.kind in ("unlink", "rmdir", "rename") and operation.path.exists():
            status = operation.path.stat()
            if operation.path.is_dir() or status.st_nlink == 1:
                self._nodes.pop(status.st_ino, None)

    def without_contents(self) -> Tree:
        """Return what is left where all names are kept, but of files what was flushed."""
        paths = sorted(self.root.rglob("*"))
        return {_name(p, self.root): None if p.is_dir() else self._contents.get(self._node(p), b"") for p in paths}

    def without_names(self) -> Tree:
        """Return what is left where names, too, are those that were flushed."""
        return dict(self._below(self._node(self.root), ""))

    def _below(self, folder: Node, prefix: str) -> Iterator[tuple[str, bytes | None]]:
        for name, node in sorted(self._names.get(folder, {}).items()):
            if node in self._names:
                yield prefix + name, None
                yield from self._below(node, f"{prefix}{name}/")
            else:
                yield prefix + name, self._contents.get(node, b"")

    def _node(self, path: Path) -> Node:
        number = path.stat().st_ino
        if number not in self._nodes:
            self._n_nodes += 1
            self._nodes[number] = self._n_nodes
        return self._nodes[number]

    def _flush(self, path: Path) -> None:
        if not path.is_dir():
            self._contents[self._node(path)] = path.read_bytes()
            return
        self._names[self._node(path)] = {inner.name: self._node(inner) for inner in path.iterdir()}
        for inner in path.iterdir():
            if inner.is_dir():  # none of its own names has been flushed
                self._names.setdefault(self._node(inner), {})


def _name(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()
