"""Which tasks, how hard, and with which loss weights.  Never touches tokens."""
