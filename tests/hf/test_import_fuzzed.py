"""Every key of a tiny config.json is replaced by values that do not belong there: either the model is read and has
the logits of transformers, or one line says what is wrong, before anything of the size that it asks for is made."""

from __future__ import annotations

import copy
import inspect
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra hf")

import tiny
import transformers

from ostinato.errors import CheckpointError, OstinatoError
from ostinato.interop.architectures import ARCHITECTURES
from ostinato.interop.pretrained import read_pretrained

IDS = torch.randint(5, 49, (2, 9), generator=torch.Generator().manual_seed(3))
ABSENT = object()
VALUES = [ABSENT, None, -1, 0, 10**9, 10**12, "x", [], {}]
Key = tuple[str, ...]


def keys(config: dict[str, Any], before: Key = ()) -> Iterator[Key]:
    """Yield the path of every key, those of groups too."""
    for name, value in config.items():
        yield (*before, name)
        if isinstance(value, dict):
            yield from keys(value, (*before, name))


def changed(config: dict[str, Any], key: Key, value: object) -> dict[str, Any]:
    config = copy.deepcopy(config)
    group = config
    for name in key[:-1]:
        group = group[name]
    if value is ABSENT:
        del group[key[-1]]
    else:
        group[key[-1]] = value
    return config


class Folder:
    """A tiny model whose config.json is changed, and transformers' reading of it."""

    def __init__(self, name: str, path: Path) -> None:
        self.path, self.kind = path, getattr(transformers, tiny.MODELS[name][0])
        self.inputs = inspect.signature(self.kind.forward).parameters
        tiny.save(name, path)
        self.config = json.loads((path / "config.json").read_text())
        self.expected = self.theirs(self.config)

    def write(self, config: dict[str, Any]) -> None:
        (self.path / "config.json").write_text(json.dumps(config))

    def theirs(self, config: dict[str, Any]) -> torch.Tensor:
        self.write(config)
        model, report = self.kind.from_pretrained(self.path, output_loading_info=True)
        if report["missing_keys"] or report["unexpected_keys"]:
            raise ValueError("read in part")
        more = {"decoder_input_ids": IDS.flip(1)} if "decoder_input_ids" in self.inputs else {}
        model.eval()
        with torch.no_grad():
            return model(input_ids=IDS, **more).logits  # type: ignore[no-any-return]

    def ours(self) -> torch.Tensor | str:
        """Return logits, or what is said of a folder that is not read."""
        try:
            model = read_pretrained(self.path).model
        except OstinatoError as error:
            return str(error)
        return tiny.our_logits(model, IDS)

    def check(self, key: Key, value: object) -> None:
        self.write(changed(self.config, key, value))
        found = self.ours()
        if isinstance(found, str):
            assert len(found.splitlines()) == 1
            return
        # Where transformers refuses a value, it is one that the logits do not depend on, or 1 in place of 1.0.
        expected = self.expected
        for one in (value, float(value) if isinstance(value, int) else value):
            try:
                expected = self.theirs(changed(self.config, key, one))
                break
            except Exception:  # the library raises nothing narrower
                continue
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", tiny.MODELS)
def test_a_config_with_any_value_is_read_as_by_transformers_or_refused(name: str, tmp_path: Path) -> None:
    if not hasattr(transformers, tiny.MODELS[name][0]):
        pytest.skip(f"transformers {transformers.__version__} has no {tiny.MODELS[name][0]}")
    folder, failed = Folder(name, tmp_path), []
    for key in keys(folder.config):
        for value in VALUES:
            try:
                folder.check(key, value)
            except Exception as error:
                failed.append(f"{'.'.join(key)} = {'absent' if value is ABSENT else value!r}: {error!r}"[:300])
    assert not failed, "\n".join(failed)


@pytest.mark.sampled
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["mixtral", "modernbert", "albert", "bart"])
def test_some_values_of_a_config_are_read_as_by_transformers_or_refused(name: str, tmp_path: Path) -> None:
    folder = Folder(name, tmp_path)
    cases = [(key, value) for key in keys(folder.config) for value in VALUES]
    sizes = [(key, 10**9) for key in keys(folder.config) if "size" in key[-1] or "layers" in key[-1]]
    for key, value in random.Random(name).sample(cases, 12) + sizes:
        folder.check(key, value)


@pytest.mark.parametrize("name", tiny.MODELS)
def test_a_key_that_lacks_has_the_default_of_transformers(name: str) -> None:
    """Sizes that the shapes of weights show are left out: files without them are read by what they hold."""
    architecture, sizes = tiny.MODELS[name]
    if not hasattr(transformers, architecture):
        pytest.skip(f"transformers {transformers.__version__} has no {architecture}")
    kind, settings = getattr(transformers, architecture).config_class, ARCHITECTURES[architecture].settings
    shown = {f"model.decoder.self_attention.{part}" for part in ("n_kv_heads", "d_head")}
    whole, n_read = kind(**sizes).to_dict(), 0
    for key in whole:
        given = {other: value for other, value in whole.items() if other != key}
        try:
            found = settings(given)
        except (CheckpointError, KeyError):  # it must be there
            continue
        expected = settings(kind.from_dict(given).to_dict())
        assert {x: found[x] for x in found.keys() - shown} == {x: expected[x] for x in found.keys() - shown}, key
        n_read += 1
    assert n_read > 10
