"""Tiny models to start from: a tokenizer, a capable teacher and a weak student, made from expert dialogues."""
