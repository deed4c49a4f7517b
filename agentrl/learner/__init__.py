"""The learner: losses, advantages, batches, one rank, the gang, checkpoints and weight export.

`train.py` calls `gang.LearnerGang` and nothing else here.  The pure parts (`losses`, `advantages`, `batch`,
`schedule`) can be read and tested without Ray or DeepSpeed; DeepSpeed is imported in `rank` and `engine` alone.
"""
