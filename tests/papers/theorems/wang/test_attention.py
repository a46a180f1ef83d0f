from icgd_papers.theorems.wang.attention import N_EXAMPLES, ONE, WRITE, _stream, forward_layers


def test_a_stream_has_a_token_for_each_example_and_the_query():
    stream = _stream(0)
    assert stream.shape == (N_EXAMPLES + 1, ONE + 1)
    assert float(stream[:, WRITE].abs().max()) == 0.0
    assert stream[:, ONE].tolist() == [1.0] * (N_EXAMPLES + 1)


def test_with_the_unit_in_the_key_tokens_get_the_mean_and_not_their_own():
    finding = forward_layers(1)
    assert finding.right[0].measured < 1e-14
    assert finding.printed[0].measured > 0.1
