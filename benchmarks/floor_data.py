"""Write what floors.sh reads of COGS and bAbI: roles-*.conll, words with the roles that logical forms give them, and
where-*.jsonl, questions with the passage and the place of the answer in it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from ostinato.tasks.catalog import open_task

ROLE = re.compile(r"\. (agent|theme|recipient) \( x _ \d+ , (?:x _ (\d+)|(\w+)) \)")
for split in ("train", "dev", "test"):
    with Path(f"roles-{split}.conll").open("w") as file:
        for example in open_task("cogs").examples(split):
            words = example.source.split()
            tags = dict.fromkeys(range(len(words)), "O")
            for role, place, name in ROLE.findall(example.target):
                tags[int(place) if place else words.index(name)] = f"B-{role}"
            if len(words) > 1:  # without the 143 primitives
                file.write("".join(f"{word} {tags[i]}\n" for i, word in enumerate(words)) + "\n")
    with Path(f"where-{split}.jsonl").open("w") as file:
        for example in open_task("babi", ["number=1", "size=10k", "form=facts"]).examples(split):
            *facts, question = example.source.split("\t")
            place = example.columns["supporting"][-1]
            start = len("".join(f"{fact} " for fact in facts[:place])) + facts[place].rindex(example.target)
            row = {"source": f"{question}\t{' '.join(facts)}", "target": example.target, "answer_start": start}
            file.write(json.dumps(row) + "\n")
