#!/bin/sh
# All measurements of speed of docs/speed.md and the result pages, one after the other: sh benchmarks/speed.sh OUT
#
# It takes two to three hours of an idle machine with the extras peers and dev, on two threads. What is done is not done
# again: a measurement that was cut off is started anew by the same command. Further runs of decoding at any depth, and those of
# earlier code beside them, are commands of docs/results/speed-of-halting.md. Two inputs are left out where they are not
# named: HALTING_TRACE, the results.json of a run of passivization/universal-sparse-halting, and OLD, a checkout of commit
# e2a2a408. In the end rows are put together in docs/results, and the tables of docs/speed.md and the result pages are
# written.
set -e
out=${1:?usage: sh benchmarks/speed.sh OUT}
mkdir -p "$out"

# once NAME SCRIPT ARGUMENT...: run a benchmark, its rows to OUT/NAME.jsonl, unless that is done.
once() {
    name=$1 script=$2
    shift 2
    test -e "$out/$name.done" && return
    echo "$name"
    python "benchmarks/$script.py" "$@" --out "$out/$name" > "$out/$name.log" 2>&1
    touch "$out/$name.done"
}

once train-step-1 train_step --threads 2
once decode-1 decode --threads 2 --rounds 5
once startup-1 startup --threads 2 --minutes 0.8
once train-step-parts train_step --threads 2 --without "HF Bart" "HF T5" x-transformers torch.nn "HF Marian" --rounds 1 --no-memory --profile
once moe-ffn-1 moe_ffn --threads 2 --profile --minutes 9
once startup-2 startup --threads 2 --minutes 0.8
once train-step-2 train_step --threads 2
once decode-2 decode --threads 2 --rounds 5
once moe-ffn-2 moe_ffn --threads 2 --without "HF Mixtral eager" "HF Mixtral batched_mm" "ours geglu" "dense geglu" "ours new memory" --minutes 5.5 --no-resident
once startup-3 startup --threads 2 --minutes 0.8
once moe-ffn-3 moe_ffn --threads 2 --without "HF Mixtral eager" "HF Mixtral batched_mm" "ours geglu" "dense geglu" "ours new memory" --minutes 5.5 --no-resident
once train-step-compiled train_step --threads 2 --no-memory --families dense --dropouts 0 --compiled --without "HF Bart" "HF T5" x-transformers torch.nn "HF Marian" --rounds 7
once momha momha --threads 2 --minutes 4
once decoding-speed decoding_speed --threads 2 --minutes 9
once halting-nobody halting --threads 2 --patterns none --widths 512 --phases "decoding, batch 1" "decoding, batch 32" --rounds 15
once halting-segments halting --threads 1 --patterns half --widths 256 512 --phases encoding update --minutes 5
once halting-decoding halting --threads 2 --patterns uniform --widths 512 --decoded 1 8 64 --minutes 6
once halting-3 halting --threads 2 --patterns half --widths 512 --phases encoding update --rounds 7
if test -n "$HALTING_TRACE"; then
    once halting-1 halting --threads 2 --trace "$HALTING_TRACE" --widths 512 --rounds 5
    once halting-2 halting --threads 2 --trace "$HALTING_TRACE" --widths 256 --rounds 5
fi
once update-time-small update_time_vs_depth --threads 2 --minutes 2.5 --recipe depth/small --vocab 4096 --depths 1 2 3 4 5 6 7 8 9 10 --batch-size 16 --figure
once update-time-41m update_time_vs_depth --threads 2 --minutes 5
once loops train_step --families loops --threads 2
once loops-fresh train_step --families loops --threads 2 --fresh-memory
if test -n "$OLD"; then
    once against-segments against_checkout "$OLD" --rounds 21
fi

# together NAME SCRIPT RUN...: put the rows of several runs together as docs/results/NAME.jsonl.
together() {
    name=$1 script=$2
    shift 2
    python "benchmarks/$script.py" --read "$@" --out "$out/$name" > "$out/$name.log" 2>&1
    cp "$out/$name.jsonl" docs/results/
}

cat "$out/train-step-1.jsonl" "$out/train-step-parts.jsonl" > "$out/train-step-1-with-parts.jsonl"
together train-step train_step "$out/train-step-1-with-parts.jsonl" "$out/train-step-2.jsonl"
together decode decode "$out/decode-1.jsonl" "$out/decode-2.jsonl"
together startup startup "$out/startup-1.jsonl" "$out/startup-2.jsonl" "$out/startup-3.jsonl"
together moe-ffn moe_ffn "$out/moe-ffn-1.jsonl" "$out/moe-ffn-2.jsonl" "$out/moe-ffn-3.jsonl"
# Its page has a run a file, some layers ran in the first one only; the verdicts are of all three.
verdict='"kind": "verdict"'
{ grep -v "$verdict" "$out/moe-ffn-1.jsonl"; grep "$verdict" "$out/moe-ffn.jsonl"; } > docs/results/moe-ffn.jsonl
grep -v "$verdict" "$out/moe-ffn-2.jsonl" > docs/results/moe-ffn-run-2.jsonl
grep -v "$verdict" "$out/moe-ffn-3.jsonl" > docs/results/moe-ffn-run-3.jsonl
if test -n "$HALTING_TRACE"; then
    together halting halting "$out/halting-1.jsonl" "$out/halting-2.jsonl" "$out/halting-3.jsonl"
fi
for name in train-step-compiled momha decoding-speed halting-nobody halting-segments halting-decoding; do
    cp "$out/$name.jsonl" docs/results/
done
cp "$out/update-time-small.jsonl" docs/results/update-time-vs-depth-small.jsonl
cp "$out/update-time-small.png" docs/results/update-time-vs-depth-small.png
cp "$out/update-time-41m.jsonl" docs/results/update-time-vs-depth-41m.jsonl
cp "$out/loops.jsonl" docs/results/train-step-loops.jsonl
cp "$out/loops-fresh.jsonl" docs/results/train-step-loops-fresh.jsonl
if test -n "$OLD"; then
    cp "$out/against-segments.jsonl" docs/results/
fi
python benchmarks/speed_document.py
python docs/results/make.py
