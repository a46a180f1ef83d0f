import pytest

from icgd.layers import AbstractAttention
from tests.layers.test_activation_attention import heads


def test_a_kind_of_attention_must_say_what_its_pattern_is():
    with pytest.raises(TypeError, match="pattern"):
        AbstractAttention(*heads())
