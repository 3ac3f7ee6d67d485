#!/bin/sh
# What a few minutes of one thread give on every task: the runs of docs/tasks.md (Floors), one after the other.
# The rows are docs/results/tasks-floor.jsonl. Files that are named here without a path are described there;
# benchmarks/floor_data.py writes roles-*.conll and where-*.jsonl.
set -e
ostinato train passivization/transformer training.n_threads=1 training.n_updates=500 data.tokens_per_batch=1024 evaluation.max_examples=1000 data.train=mine.jsonl
ostinato train geoquery/transformer training.n_threads=1 training.n_updates=500
ostinato train listops/transformer training.n_threads=1 training.n_updates=400 data.tokens_per_batch=2048 task.n_train=20000 evaluation.splits=[test]
ostinato train babi/transformer training.n_threads=1 training.n_updates=500 data.tokens_per_batch=2048
ostinato train babi/universal-facts training.n_threads=1 training.n_updates=600 training.evaluate_every=300 training.save_every=300 training.schedule.warmup=100
ostinato train learning-to-execute/tiny training.n_threads=1 training.save_every=50
ostinato train learning-to-execute/transformer training.n_threads=1 training.n_updates=450 data.tokens_per_batch=2048 evaluation.max_examples=300 training.selection.max_examples=300
ostinato train learning-to-execute/copy-transformer training.n_threads=1 training.n_updates=400 data.tokens_per_batch=2048 evaluation.max_examples=300 training.selection.max_examples=300
ostinato train masked/small data.train=train.jsonl data.dev=dev.jsonl "data.tokenizer={kind: characters}" data.tokens_per_batch=1024 data.block_length=64 data.unknown=replace model.d_model=64 model.encoder.n_steps=2 model.encoder.ffn.d_ff=128 training.n_threads=1 training.n_updates=250 training.schedule.warmup=25 training.optimizer.lr=3e-3 training.evaluate_every=125 training.save_every=125 training.selection.max_examples=200 evaluation.max_examples=500
ostinato train pcfg-set/tiny training.n_threads=1
ostinato train mcwq/transformer training.n_threads=1 data.train=recovered.jsonl model.encoder.n_steps=2 model.decoder.n_steps=2 data.tokens_per_batch=2048 training.n_updates=600 training.schedule.warmup=60 training.evaluate_every=200 training.save_every=200 training.selection.max_examples=200 evaluation.max_examples=1000 decoding.max_length=100
ostinato train cfq/transformer training.n_threads=1 "task={kind: files}" data.train=train.jsonl data.dev=dev.jsonl data.test=test.jsonl model.encoder.n_steps=2 model.decoder.n_steps=2 data.tokens_per_batch=2048 training.n_updates=600 training.schedule.warmup=60 training.evaluate_every=200 training.save_every=200 training.selection.max_examples=200 evaluation.max_examples=1000 decoding.max_length=100
ostinato train tagging/small training.n_threads=1 data.train=roles-train.conll data.dev=roles-dev.conll data.test=roles-test.conll "data.tokenizer={kind: words}" data.unknown=replace training.n_updates=200 training.schedule.warmup=20 training.selection.max_examples=500
ostinato train span-extraction/small training.n_threads=1 task.format=lines data.train=where-train.jsonl data.dev=where-dev.jsonl data.test=where-test.jsonl "data.tokenizer={kind: words}" training.n_updates=1000 training.schedule.warmup=50 training.optimizer.lr=1e-3 training.evaluate_every=250 training.save_every=250
ostinato train lambada/transformer training.n_threads=1 data.train=brown-train.jsonl data.dev=brown-dev.jsonl data.test=lambada-test.jsonl "data.tokenizer={kind: bpe, vocab_size: 4000}" model.d_model=128 model.decoder.n_steps=2 model.decoder.self_attention.n_heads=4 model.decoder.ffn.d_ff=512 model.dropout=0.0 data.tokens_per_batch=2048 training.n_updates=700 training.schedule.warmup=70 training.optimizer.lr=3e-3 training.evaluate_every=350 training.save_every=350 "evaluation.splits=[test]"
ostinato train lambada/reading training.n_threads=1 data.train=names-train.jsonl data.dev=names-dev.jsonl data.test=lambada-test.jsonl data.tokens_per_batch=2048 model.d_model=64 model.encoder.ffn.d_ff=256 training.n_updates=2000 training.schedule.warmup=100 training.optimizer.lr=2e-3 training.evaluate_every=400 training.save_every=400 "evaluation.splits=[test]"
ostinato data baselines lambada/reading data.train=names-train.jsonl data.test=lambada-test.jsonl "evaluation.splits=[test]"
ostinato data baselines lambada/transformer data.train=brown-train.jsonl data.test=lambada-test.jsonl "data.tokenizer={kind: bpe, vocab_size: 4000}" "evaluation.splits=[test]"
