"""Weights under another library's names: a table of rules, applied in both directions.

A rule makes one parameter of ours of one or more tensors of theirs:

    ours = concatenation over the rule's parts of  change(theirs[name][rows])        along one dimension

Every change is a bijection (a transposed matrix, rows in another order, another shape), so that the same rule read
backwards makes theirs of ours: nothing is rounded, and the way there and back gives the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from ostinato.errors import CheckpointError


class Change(Protocol):
    """A bijection between a tensor as they hold it and as we do."""

    def to_ours(self, theirs: Tensor) -> Tensor:
        """Return what we hold."""
        ...

    def to_theirs(self, ours: Tensor) -> Tensor:
        """Return what they hold."""
        ...


@dataclass(frozen=True, slots=True)
class Transposed:
    """The last two dimensions exchanged: maps stored as [in, out], such as GPT-2's, and experts' as [E, out, in]."""

    def to_ours(self, theirs: Tensor) -> Tensor:
        """Exchange them."""
        return theirs.transpose(-1, -2)

    def to_theirs(self, ours: Tensor) -> Tensor:
        """Exchange them."""
        return ours.transpose(-1, -2)


@dataclass(frozen=True, slots=True)
class HalfSplit:
    """Rows of every head from interleaved rotary pairs to halves: 0, 2, 4, ..., 1, 3, 5, ...

    Rotary positions that turn the pairs (2j, 2j + 1) give the same scores as those that turn (j, j + K/2) of rows in
    this order. Queries and keys need it; values and outputs do not.

    Args:
        d_head: K, rows of a head. n_rotated: the first rows of every head, those that are turned; None: all.
    """

    d_head: int
    n_rotated: int | None = None

    def to_ours(self, theirs: Tensor) -> Tensor:
        """Put even rows before odd ones."""
        return self._in_order(theirs, self._order())

    def to_theirs(self, ours: Tensor) -> Tensor:
        """Put them back."""
        return self._in_order(ours, self._order().argsort())

    def _order(self) -> Tensor:
        n = self.d_head if self.n_rotated is None else self.n_rotated
        turned = torch.arange(n)
        return torch.cat([turned[0::2], turned[1::2], torch.arange(n, self.d_head)])

    def _in_order(self, x: Tensor, order_K: Tensor) -> Tensor:
        heads = x.reshape(-1, self.d_head, *x.shape[1:])
        return heads[:, order_K.to(x.device)].reshape(x.shape)


@dataclass(frozen=True, slots=True)
class Reshaped:
    """The same numbers in another shape."""

    theirs: tuple[int, ...]
    ours: tuple[int, ...]

    def to_ours(self, theirs: Tensor) -> Tensor:
        """Return our shape."""
        return theirs.reshape(self.ours)

    def to_theirs(self, ours: Tensor) -> Tensor:
        """Return their shape."""
        return ours.reshape(self.theirs)


@dataclass(frozen=True, slots=True)
class Scaled:
    """The same numbers times a power of two, which rounds nothing."""

    factor: float

    def __post_init__(self) -> None:
        if math.frexp(self.factor)[0] != 0.5:
            raise ValueError(f"{self.factor} is no power of two: the way there and back would not be exact")

    def to_ours(self, theirs: Tensor) -> Tensor:
        """Multiply by it."""
        return theirs * self.factor

    def to_theirs(self, ours: Tensor) -> Tensor:
        """Divide by it."""
        return ours / self.factor


@dataclass(frozen=True, slots=True)
class Part:
    """What a rule takes of one tensor of theirs.

    Args:
        name: theirs. changes: one after the other, from theirs to ours.
        rows: from the first to before the second, of its dimension `dim`; None: all. The rows that other parts do not
            take must make up the whole tensor together with these.
        size: of our dimension that this part fills; needed where a rule has several parts.
    """

    name: str
    changes: tuple[Change, ...] = ()
    rows: tuple[int, int] | None = None
    size: int | None = None
    dim: int = 0

    def to_ours(self, theirs: Tensor) -> Tensor:
        """Return this part as it stands in ours."""
        x = theirs
        if self.rows is not None:
            if theirs.shape[self.dim] < self.rows[1]:
                raise RuntimeError(f"{self.name} has {theirs.shape[self.dim]} rows, {self.rows[1]} are needed")
            x = theirs.narrow(self.dim, self.rows[0], self.rows[1] - self.rows[0])
        for change in self.changes:
            x = change.to_ours(x)
        return x

    def to_theirs(self, ours: Tensor) -> Tensor:
        """Return this part as it stands in theirs."""
        for change in reversed(self.changes):
            ours = change.to_theirs(ours)
        return ours


class Rule:
    """One parameter of ours and the tensors of theirs that it is made of.

    Args:
        ours: its name. parts: in the order they stand in ours; a name stands for a part without changes.
        dim: along which ours is put together.
    """

    def __init__(self, ours: str, *parts: Part | str, dim: int = 0) -> None:
        self.ours, self.dim = ours, dim
        self.parts = tuple(Part(part) if isinstance(part, str) else part for part in parts)
        if len(self.parts) > 1 and any(part.size is None for part in self.parts):
            raise ValueError(f"the rule of {ours} has several parts: every one needs its size")

    def renamed(self, ours: Callable[[str], str], theirs: Callable[[str], str]) -> Rule:
        """Return the rule with other names."""
        return Rule(ours(self.ours), *(replace(part, name=theirs(part.name)) for part in self.parts), dim=self.dim)


@dataclass(frozen=True)
class Table:
    """All names of a model.

    Args:
        rules: one for every parameter of ours.
        tied: names of theirs that are another name's tensor; a file may have them or not, and if so as equal tensors.
        ignored: patterns of names in their files that are no parameters (`*` stands for anything).
        zeros: shapes of tensors of theirs that are zeros where a file does not have them.
    """

    rules: Sequence[Rule]
    tied: Mapping[str, str] = field(default_factory=dict)
    ignored: Sequence[str] = ()
    zeros: Mapping[str, Sequence[int]] = field(default_factory=dict)

    def names(self) -> set[str]:
        """Return the names of theirs that ours is made of."""
        return {part.name for rule in self.rules for part in rule.parts}

    def whole(self, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of a file with those that it may leave out: a tied tensor has any one of its names."""
        found = {name: torch.zeros(*shape) for name, shape in self.zeros.items()} | dict(theirs)
        for name, other in self.tied.items():
            if other not in found and name in found:
                found[other] = found[name]
        return found

    def untied(self, theirs: Mapping[str, Tensor]) -> list[str]:
        """Return the names that should be another name's tensor, and are not."""
        pairs = [(name, other) for name, other in self.tied.items() if name in theirs and other in theirs]
        return [name for name, other in pairs if _differ(theirs[name], theirs[other])]


def rules_of_layers(layers: Iterable[tuple[int | str, int | str]], rules: Sequence[Rule]) -> list[Rule]:
    """Return rules for every layer, with `{i}` in names of theirs and of ours replaced by the layer's number.

    Args:
        layers: of every layer its number, or what stands for it, in their names and in ours.
    """
    return [
        rule.renamed(
            lambda name, own=ours: name.replace("{i}", str(own)),  # type: ignore[misc]
            lambda name, other=theirs: name.replace("{i}", str(other)),  # type: ignore[misc]
        )
        for theirs, ours in layers
        for rule in rules
    ]


def to_ours(
    table: Table, theirs: Mapping[str, Tensor], shapes: Mapping[str, Sequence[int]] | None = None
) -> dict[str, Tensor]:
    """Return parameters of ours by name.

    Args:
        theirs: tensors under their names, in any type, or shapes alone (on torch's meta device).
        shapes: of all parameters of ours, to be compared with.

    Raises:
        CheckpointError: every tensor that lacks, that nothing is made of, or that has a shape which does not fit; every
            parameter of ours that no rule makes.
    """
    theirs, wanted = table.whole(theirs), table.names()
    untied = table.untied(theirs)
    problems = [f"{name} is missing" for name in sorted(wanted - theirs.keys())]
    for name in sorted(theirs.keys() - wanted):
        if name in untied:
            problems.append(f"{name} should be the same tensor as {table.tied[name]}, but differs")
        elif name not in table.tied and not any(fnmatchcase(name, pattern) for pattern in table.ignored):
            problems.append(f"{name} is not known: nothing of the model is made of it")
    made: dict[str, Tensor] = {}
    for rule in table.rules:
        if all(part.name in theirs for part in rule.parts):
            try:
                made[rule.ours] = _put_together(rule, theirs)
            except (RuntimeError, IndexError) as error:
                problems.append(f"{_shapes(rule, theirs)} cannot become {rule.ours}: {error}")
    if shapes is not None:
        made_of = {rule.ours: rule for rule in table.rules}
        for name, x in made.items():
            if name not in shapes:
                problems.append(f"{name} is made by a rule, but the model has no such parameter")
            elif list(x.shape) != list(shapes[name]):
                given = f"{_shapes(made_of[name], theirs)} would make {list(x.shape)}"
                problems.append(f"{given}, but {name} is {list(shapes[name])}")
        problems += [f"no rule makes {name} of the model" for name in sorted(shapes.keys() - made_of.keys())]
    if problems:
        raise CheckpointError("\n".join(problems))
    return made


def from_ours(table: Table, ours: Mapping[str, Tensor], shared: Literal["equal", "sum"] = "equal") -> dict[str, Tensor]:
    """Return tensors under their names; tied names are left out.

    Args:
        ours: by name, such as a model's parameters.
        shared: of a tensor of theirs that several parameters of ours are made of: "equal": they must agree, as weights
            do; "sum": they are added up, as gradients are.

    Raises:
        CheckpointError: every parameter that lacks or that no rule takes, parts that do not make up a tensor of theirs,
            and parameters that disagree.
    """
    known = {rule.ours for rule in table.rules}
    problems = [f"{name} is missing" for name in sorted(known - ours.keys())]
    problems += [f"{name} is not known: no rule takes it" for name in sorted(ours.keys() - known)]
    pieces: dict[str, list[tuple[Part, Tensor]]] = {}
    for rule in table.rules:
        if rule.ours in ours:
            try:
                for part, x in _taken_apart(rule, ours[rule.ours]):
                    pieces.setdefault(part.name, []).append((part, x))
            except (RuntimeError, IndexError) as error:
                problems.append(f"{rule.ours} {list(ours[rule.ours].shape)} cannot be taken apart: {error}")
    made: dict[str, Tensor] = {}
    for name, found in pieces.items():
        try:
            made[name] = _whole(found, shared)
        except ValueError as error:
            problems.append(f"{name}: {error}")
    if problems:
        raise CheckpointError("\n".join(problems))
    return made


def load_weights(model: nn.Module, table: Table, theirs: Mapping[str, Tensor]) -> None:
    """Put weights under their names into a model of ours, in the model's type.

    Raises:
        CheckpointError: as `to_ours`.
    """
    shapes = {name: p.shape for name, p in model.named_parameters()}
    made = to_ours(table, theirs, shapes)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(made[name])


def _differ(x: Tensor, y: Tensor) -> bool:
    return x.shape != y.shape or not (x.is_meta or torch.equal(x, y))


def _put_together(rule: Rule, theirs: Mapping[str, Tensor]) -> Tensor:
    parts = [part.to_ours(theirs[part.name]) for part in rule.parts]
    for part, x in zip(rule.parts, parts, strict=True):
        if part.size is not None and x.shape[rule.dim] != part.size:
            raise RuntimeError(
                f"{part.name} should give {part.size} along dimension {rule.dim}, not {x.shape[rule.dim]}"
            )
    return (parts[0] if len(parts) == 1 else torch.cat(parts, rule.dim)).contiguous()


def _taken_apart(rule: Rule, ours: Tensor) -> list[tuple[Part, Tensor]]:
    sizes = [part.size for part in rule.parts]
    parts = [ours] if len(sizes) == 1 else torch.split(ours, [size or 0 for size in sizes], rule.dim)
    return [(part, part.to_theirs(x)) for part, x in zip(rule.parts, parts, strict=True)]


def _whole(found: Sequence[tuple[Part, Tensor]], shared: Literal["equal", "sum"]) -> Tensor:
    """Return a tensor of theirs, made of its rows."""
    rows: dict[tuple[int, int] | None, Tensor] = {}
    for part, x in found:
        known = rows.get(part.rows)
        if known is None:
            rows[part.rows] = x
        elif shared == "sum":
            rows[part.rows] = known + x
        elif not torch.equal(known, x):
            raise ValueError("parameters of ours that should be this one tensor differ")
    if None in rows:
        if len(rows) > 1:
            raise ValueError("one rule takes all rows, another some")
        return rows[None].contiguous()
    ranges = sorted(one for one in rows if one is not None)
    if ranges[0][0] != 0 or any(before[1] != after[0] for before, after in pairwise(ranges)):
        raise ValueError(f"rows {ranges} do not make up a whole tensor")
    return torch.cat([rows[one] for one in ranges], found[0][0].dim).contiguous()


def _shapes(rule: Rule, theirs: Mapping[str, Tensor]) -> str:
    return " and ".join(f"{name} {list(theirs[name].shape)}" for name in dict.fromkeys(p.name for p in rule.parts))
