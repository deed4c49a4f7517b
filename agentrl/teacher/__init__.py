"""The teacher: an HTTP service that answers with turn-level log-probabilities and values.

`client` and `schemas` may be imported from outside of this room, everything else is its own.  Read `scorer.py` for what
a teacher is, `api.py` for what it answers, `client.py` for how training asks it.
"""
