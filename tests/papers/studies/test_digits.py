"""The digits that are shipped are scikit-learn's, and so are their principal components."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from icgd.errors import SettingError
from icgd_papers.studies.digits import Components, read_digits


def test_every_pixel_is_that_of_the_published_set():
    data, published = read_digits(), load_digits()
    assert np.array_equal(data.pixels, published.data)
    assert np.array_equal(data.digits, published.target)


def test_components_are_those_of_scikit_learn_up_to_signs():
    pixels = read_digits().pixels
    ours, theirs = Components.of(pixels, 5), PCA(5, whiten=True, svd_solver="full").fit(pixels)
    assert np.abs(ours.directions) == pytest.approx(np.abs(theirs.components_), abs=1e-9)
    signs = np.sign((ours.directions * theirs.components_).sum(axis=1))
    whitened = theirs.transform(pixels) * signs * np.sqrt(1797 / 1796)
    assert ours.coordinates(pixels) == pytest.approx(whitened, abs=1e-9)
    assert ours.coordinates(pixels).std(axis=0) == pytest.approx(np.ones(5))


def test_the_largest_entry_of_a_direction_is_positive_whatever_the_sign_of_the_data():
    pixels = read_digits().pixels
    ours, mirrored = Components.of(pixels, 4), Components.of(-pixels, 4)
    assert ours.directions == pytest.approx(mirrored.directions, abs=1e-9)
    assert all(row[np.abs(row).argmax()] > 0 for row in ours.directions)


def test_all_components_bring_images_back():
    pixels = read_digits().pixels
    used = pixels[:, pixels.std(axis=0) > 0]
    components = Components.of(used[:, :8], 8)
    back = components.mean + (components.coordinates(used[:3, :8]) * components.deviations) @ (
        components.directions
    )
    assert back == pytest.approx(used[:3, :8], abs=1e-9)
    few = Components.of(pixels, 8)
    images = few.images(few.coordinates(pixels))
    assert images.shape == (1797, 8, 8)
    left = (
        np.square(images.reshape(1797, 64) - pixels).sum()
        / np.square(pixels - pixels.mean(axis=0)).sum()
    )
    assert left == pytest.approx(1 - PCA(8).fit(pixels).explained_variance_ratio_.sum(), abs=1e-4)


def test_more_components_than_pixels_are_refused():
    with pytest.raises(SettingError, match=r"^dimension must be at most 64, got 65\.$"):
        Components.of(read_digits().pixels, 65)
