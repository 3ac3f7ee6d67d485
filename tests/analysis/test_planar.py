"""Rows in the plane, and the purity of classes."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from ostinato.analysis import class_purity, pca_plane, poincare_disk, umap_plane
from ostinato.analysis.studies import Subject, token_map
from ostinato.errors import ConfigError, DataError


@pytest.fixture
def rows_ND() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(60, 8)) * np.arange(8, 0, -1)


def test_components_are_the_directions_of_the_greatest_variance(rows_ND: np.ndarray) -> None:
    plane = pca_plane(rows_ND)
    values = np.linalg.eigvalsh(np.cov(rows_ND.T))[::-1]
    np.testing.assert_allclose(np.cov(plane.T), np.diag(values[:2]), atol=1e-9)


def test_turning_and_moving_change_the_plane_by_signs_only(rows_ND: np.ndarray) -> None:
    turn, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(8, 8)))
    np.testing.assert_allclose(np.abs(pca_plane(rows_ND @ turn + 3)), np.abs(pca_plane(rows_ND)), atol=1e-9)


def test_one_column_lies_on_a_line() -> None:
    np.testing.assert_allclose(pca_plane([[1.0], [4.0], [1.0]]), [[-1, 0], [2, 0], [-1, 0]])


def test_points_of_the_hyperboloid_lie_in_the_disk_at_half_their_distance() -> None:
    distances = np.array([0.0, 0.5, 3.0])
    disk = poincare_disk(np.stack([np.sinh(distances), 0 * distances], 1))
    np.testing.assert_allclose(disk, np.stack([np.tanh(distances / 2), 0 * distances], 1))


def test_purity_is_that_of_a_search_through_all_rows(rows_ND: np.ndarray) -> None:
    classes = np.random.default_rng(2).integers(0, 3, 60)
    shares = []
    for i in range(60):
        others = sorted((float(((rows_ND[i] - rows_ND[j]) ** 2).sum()), j) for j in range(60) if j != i)
        shares.append(np.mean([classes[j] == classes[i] for _, j in others[:5]]))
    purity, chance = class_purity(rows_ND, classes, k=5)
    assert purity == pytest.approx(np.mean(shares))
    pairs = [classes[i] == classes[j] for i in range(60) for j in range(60) if i != j]
    assert chance == pytest.approx(np.mean(pairs))


def test_planted_clusters_are_pure_and_mixed_classes_are_at_chance() -> None:
    rng = np.random.default_rng(3)
    classes = np.repeat(np.arange(4), 50)
    rows = rng.normal(size=(200, 5)) + 100 * classes[:, None]
    assert class_purity(rows, classes)[0] == 1.0
    purity, chance = class_purity(rows, rng.permutation(classes))
    assert purity == pytest.approx(chance, abs=0.05)
    assert class_purity(5 * rows - 2, classes)[0] == 1.0


def test_a_k_that_cannot_be_is_refused(rows_ND: np.ndarray) -> None:
    with pytest.raises(DataError, match="k=60 neighbours of 60 rows"):
        class_purity(rows_ND, np.zeros(60), k=60)


def test_without_umap_learn_the_extra_is_named(rows_ND: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(ConfigError, match=r"pip install 'ostinato\[umap\]'"):
        umap_plane(rows_ND)


@pytest.mark.slow
def test_umap_keeps_planted_clusters_apart_and_repeats_itself() -> None:
    pytest.importorskip("umap")
    classes = np.repeat(np.arange(3), 40)
    rows = np.random.default_rng(4).normal(size=(120, 6)) + 40 * np.eye(6)[classes]
    plane = umap_plane(rows, seed=1)
    assert (np.linalg.norm(plane, axis=1) < 1).all()
    assert class_purity(plane, classes)[0] > 0.9
    np.testing.assert_array_equal(plane, umap_plane(rows, seed=1))


def test_the_map_shows_both_spaces_of_a_router_that_projects(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, ...]] = []

    def project(rows_ND: np.ndarray) -> np.ndarray:
        given.append(rows_ND.shape)
        return pca_plane(rows_ND)

    monkeypatch.setattr(token_map, "can_umap", lambda: False)
    monkeypatch.setattr(token_map, "pca_plane", project)
    subject.collect(set(token_map.TOKEN_MAP.needs), None)
    (finding,) = token_map.TOKEN_MAP.find([subject], None)
    assert [row[:3] for row in finding.rows] == [
        ["self_attention.encoder_0", "encoder", "hidden"],
        ["self_attention.encoder_0", "encoder", "projected"],
        ["ffn.encoder_0", "encoder", "hidden"],
    ]
    d_model = subject.model.config.d_model
    assert [shape[1] for shape in given] == [d_model] * 3
    assert finding.data["projection"] == "PCA"
    assert all(0 <= float(str(row[5])) <= 1 for row in finding.rows)
    assert len(finding.draw(False).axes) >= 3
