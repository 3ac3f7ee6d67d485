"""Continue token ids by an exported language model: onnxruntime and numpy, no torch, none of our code.

ostinato export onnx runs/mine mine.onnx
python examples/onnx_in_ten_lines.py mine.onnx 1 17 23
"""

import json
import sys

import numpy as np
import onnxruntime

session = onnxruntime.InferenceSession(sys.argv[1])
about = json.loads(session.get_modelmeta().custom_metadata_map["ostinato"])
sizes = {"batch": 1, "cached": 0, "rounds": about["rounds"]}
types = {"tensor(float)": np.float32, "tensor(bool)": np.bool_, "tensor(int64)": np.int64}
given = {one.name: np.zeros([sizes.get(n, n) for n in one.shape if n != "columns"], types[one.type])
         for one in session.get_inputs()}  # fmt: skip
if "rounds" in given:
    given["rounds"] = np.array(about["rounds"])
ids = new = [int(word) for word in sys.argv[2:]]
if "prefix_lengths" in given:  # tokens of a prompt that see each other in both directions
    given["prefix_lengths"] = np.array([len(ids)])
for _ in range(20):
    given |= {"ids": np.array([new]), "keep": np.ones((1, len(new)), np.bool_)}
    made = dict(zip([one.name for one in session.get_outputs()], session.run(None, given), strict=True))
    given |= {name.replace("present_", "past_"): one for name, one in made.items() if name != "logits"}
    new = [int(made["logits"][0, -1].argmax())]
    ids = ids + new
    if new == [about["special_ids"]["eos"]]:
        break
print(*ids)
