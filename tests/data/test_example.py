from __future__ import annotations

from ostinato.data.example import Example, fingerprint


def test_the_fingerprint_is_that_of_one_json_line_per_example() -> None:
    # printf '["a b","c",{"k":1,"z":"\\u00e9"}]\n[null,"text",{}]\n' | sha256sum
    examples = [Example("a b", "c", {"z": "é", "k": 1}), Example(None, "text")]
    digest, n_examples = fingerprint(iter(examples))
    assert n_examples == 2
    assert digest == "1e9c0169c5cac80e5df7c4c8202c4a5f18cb549f5e1ee542577122d09b841b51"


def test_the_fingerprint_sees_every_part_and_the_order() -> None:
    base = [Example("a", "b", {"c": 1}), Example("d", "e")]
    others = [
        base[::-1],
        base[:1],
        [Example("a b", "", {"c": 1}), base[1]],
        [Example(None, "b", {"c": 1}), base[1]],
        [Example("a", "b", {"c": "1"}), base[1]],
    ]
    digests = {fingerprint(examples)[0] for examples in [base, *others]}
    assert len(digests) == 6
